"""Where the answer of docs/four-sites.md changes: other utilisations, bandwidths, batches, laws of loss.

    python -m benchmarks.four_sites

Prints tables in Markdown. Nothing is trained and nothing is measured: they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from paceline.sim.experiments.costs.tokens import HOFFMANN, ScalingLaw, Utilisation
from paceline.sim.experiments.prepare import resolve
from paceline.sim.scenario.schema import load

SCENARIO: Final = "llm/four-sites"
PARAMETERS: Final = 6_738_415_616
TOKENS: Final = 140e9
SYNCHRONOUS: Final = "all-reduce bf16"
SELDOM: Final = "DiLoCo int8"

BESIROGLU: Final = ScalingLaw("Besiroglu et al., arXiv 2404.10102", 1.8172, 482.01, 0.3478, 2085.43, 0.3658)
"""Hoffmann's runs, fitted again [M, high]."""
LAWS: Final = (HOFFMANN, BESIROGLU)

BANDWIDTH: Final = "cluster.network.between.bandwidth"
OTHERS: Final[Mapping[str, Sequence[str]]] = {
    "as it is": (),
    "utilisation 30 %": ("cluster.island.utilisation=0.3",),
    "utilisation 35 %": ("cluster.island.utilisation=0.35",),
    "utilisation 50 %": ("cluster.island.utilisation=0.5",),
    "0.2 Gbit/s": (f"{BANDWIDTH}=200 Mbit/s",),
    "1 Gbit/s": (f"{BANDWIDTH}=1 Gbit/s",),
    "100 Gbit/s": (f"{BANDWIDTH}=100 Gbit/s",),
    "400 Gbit/s": (f"{BANDWIDTH}=400 Gbit/s",),
    "64 sequences a site and step": ("workload.batch_size=64",),
    "1,024 sequences": ("workload.batch_size=1024",),
    "1,024 sequences, 100 Gbit/s": ("workload.batch_size=1024", f"{BANDWIDTH}=100 Gbit/s"),
    "all-reduce in 4 bits": ("schemes.0.all_reduce.compression={qsgd: {bits: 4}}",),
    "DiLoCo every 30 steps": tuple(
        f"schemes.{number}.diloco.period={period}" for number, period in ((2, 30), (3, 30), (4, 60), (5, 60))
    ),
}
"""What is changed in the scenario, as after ``--set``. Of streaming DiLoCo a period is 10 fragments of 6."""
OVERLAPPED: Final = (
    f"workload.payload={2 * PARAMETERS} B",
    f"schemes=[{{all_reduce: {{overlap: true, label: {SYNCHRONOUS}}}}}]",
)
"""Layers in 16 bits during the backward pass: the payload is halved, as overlap takes no compression."""
PENALTIES: Final = (0.01, 0.02, 0.04, 0.1)
"""Nats by which averaging seldom may cost loss; others report 0.01 to 0.04 (docs/four-sites.md)."""


def shares(changes: Sequence[str] = ()) -> dict[str, float]:
    """The share of a step that is computing, by scheme."""
    scenario = resolve(load(SCENARIO, changes), torch.device("cpu"))
    computing = {}
    for entry in scenario.schemes:
        computing[entry.label] = Utilisation(scenario, entry).share
    return computing


def margin(law: ScalingLaw, ratio: float) -> float:
    """By how many nats a scheme may be worse at equal tokens, and be no worse after equal hours.

    Args:
        law: what tokens are worth.
        ratio: tokens per second of the other scheme, as a share of this one's.
    """
    return law.loss(PARAMETERS, ratio * TOKENS) - law.loss(PARAMETERS, TOKENS)


def ratio_at(law: ScalingLaw, penalty: float) -> float:
    """The ratio of tokens per second at which such a penalty is just made up for."""
    return law.tokens_to(PARAMETERS, law.loss(PARAMETERS, TOKENS) + penalty) / TOKENS


def _others() -> Iterator[str]:
    labels = list(shares())
    yield f"| changed | {' | '.join(labels)} | {SELDOM} may cost |"
    yield "| --- |" + " ---: |" * (len(labels) + 1)
    for what, changes in OTHERS.items():
        computing = shares(changes)
        ratio = computing[SYNCHRONOUS] / computing[SELDOM]
        worth = " or ".join(f"{margin(law, ratio):.3f}" for law in LAWS)
        yield f"| {what} | {' | '.join(f'{100 * computing[label]:.1f} %' for label in labels)} | {worth} |"


def _flips() -> Iterator[str]:
    batches = ("workload.batch_size=256",), ("workload.batch_size=1024",)
    kinds = [(*batch, *overlap) for batch in batches for overlap in ((), OVERLAPPED)]
    yield "| averaging seldom costs | all-reduce wins at | 256 sequences | overlapped | 1,024 | overlapped |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for penalty in PENALTIES:
        share = max(ratio_at(law, penalty) for law in LAWS)
        needed = [_needed(share, changes) for changes in kinds]
        yield f"| {penalty:g} nats | {100 * share:.0f} % | {' | '.join(needed)} |"


def _needed(share: float, changes: Sequence[str]) -> str:
    """The bandwidth with which synchronous SGD computes for such a share of the time."""
    scenario = resolve(load(SCENARIO, changes), torch.device("cpu"))
    (entry,) = (each for each in scenario.schemes if each.label == SYNCHRONOUS)
    bytes_per_s = Utilisation(scenario, entry).needed(share)
    return "never" if bytes_per_s is None else f"{8 * bytes_per_s / 1e9:.3g} Gbit/s"


def main() -> None:
    """Print both tables."""
    print("\n".join((*_others(), "", *_flips())))


if __name__ == "__main__":
    main()
