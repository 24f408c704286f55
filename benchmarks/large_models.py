"""Models too large to be trained here: their layers, and published tables beside what follows from ours.

    python -m benchmarks.large_models [--out docs/papers/large-models.md]

Nothing is measured: the page has the same figures on every machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from paceline.sim.config.files import write_atomically
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads.layers.layer import fully_connected
from paceline.sim.workloads.layers.parallelism import (
    best_groups,
    exchanged_bytes,
    fewest_examples,
    most_nodes,
    operations_per_byte,
)
from paceline.sim.workloads.layers.presets import PRESETS

PAGE: Final = Path(__file__).parent.parent / "docs" / "papers" / "large-models.md"

# Das et al., arXiv 1602.06709: nodes by their operations per byte [M, medium], and what they allow.
NODES: Final = {"10 Gbit/s Ethernet": 546.0, "FDR InfiniBand": 336.0}
BALANCE: Final = {
    ("overfeat-fast", "10 Gbit/s Ethernet"): (3, 86),
    ("vgg-a", "10 Gbit/s Ethernet"): (1, 256),
    ("overfeat-fast", "FDR InfiniBand"): (2, 128),
    ("vgg-a", "FDR InfiniBand"): (1, 256),
}
HYBRID: Final = ((64, 256, 0.0), (64, 256, 1.0), (128, 512, 0.0), (128, 512, 1.0))

# Assran et al., ICML 2019, ResNet-50 over 10 Gbit/s Ethernet: seconds per iteration [M, medium; D].
STEP_S: Final = {
    "all_reduce": {4: 0.703, 8: 0.896, 16: 1.090, 32: 1.308},
    "gossip": {4: 0.630, 8: 0.621, 16: 0.641, 32: 0.641},
    "sgp": {4: 0.377, 8: 0.378, 16: 0.410, 32: 0.423},
}
SCHEMES: Final = {
    "all_reduce": "all_reduce",
    "gossip": "{gossip: {topology: one_peer_exponential}}",
    "sgp": "{sgp: {topology: one_peer_exponential}}",
}
STEPS: Final = 40
SCENARIO: Final = """\
name: sgp-table
workload: {{timing_only: true, layer_profile: resnet-50}}
cluster:
  workers: {workers}
  compute: {{time: {compute_s!r} s}}
  network: {{latency: 50 us, bandwidth: {bandwidth!r} bit/s, transport: ideal}}
collectives: {{all_reduce: {algorithm}}}
schemes: [{scheme}]
stop: {{max_iterations: {steps}}}
"""

# Table 1 of INTELLECT-1, arXiv 2412.01152 [S]: median seconds of an all-reduce, utilisation in per cent.
INNER_S: Final = 38 * 60.0
INTELLECT: Final = {"USA": (103.0, 95.7), "USA, Europe": (382.0, 85.6), "USA, Europe, Asia": (469.0, 83.0)}


def step_s(scheme: str, workers: int, compute_s: float, bandwidth: float, algorithm: str) -> float:
    """Seconds of a simulated iteration; ``bandwidth`` of a host's link in bits per second."""
    text = SCENARIO.format(
        workers=workers, compute_s=compute_s, bandwidth=bandwidth, scheme=SCHEMES[scheme], steps=STEPS,
        algorithm=algorithm,
    )  # fmt: skip
    (run,) = simulate(parse(text))
    return run.wall_clock_s / STEPS


def fitted(scheme: str, algorithm: str, known: Sequence[int]) -> tuple[float, float]:
    """The (computing time, bandwidth) with which simulated iterations last as published on ``known`` nodes.

    On one number of nodes the time follows from the bandwidth that the paper states.
    """
    published = [STEP_S[scheme][n] for n in known]
    full = 10e9
    alone = [step_s(scheme, n, 0.0, full, algorithm) for n in known]
    if len(known) == 1:
        return published[0] - alone[0], full
    # Exchanges take as much longer as the link is slower, beside latencies that are lost in rounding.
    design = np.column_stack([np.ones(len(known)), alone])
    (compute_s, slower), *_ = np.linalg.lstsq(design, np.array(published), rcond=None)
    return float(compute_s), full / float(slower)


def _models() -> Iterator[str]:
    yield "| model | layers | parameters | forward, per example | inputs |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for name, build in PRESETS.items():
        layers = build()
        parameters = sum(layer.parameters for layer in layers)
        flops = sum(layer.forward_flops for layer in layers)
        own = f"{parameters:,} | {_operations(flops)} | {layers[0].inputs:,}"
        yield f"| `{name}` | {len(layers)} | {own} |"


def _operations(flops: float) -> str:
    return f"{flops / 1e12:,.1f} Tflop" if flops >= 1e12 else f"{flops / 1e9:.4g} Gflop"


def _balance() -> Iterator[str]:
    yield "| model | node | operations per byte | fewest examples, published | most nodes, published |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for (name, node), (examples, nodes) in BALANCE.items():
        layers = [layer for layer in PRESETS[name]() if layer.name.startswith("conv")]
        ours = fewest_examples(layers, NODES[node]), most_nodes(layers, 256, NODES[node])
        ratio = operations_per_byte(layers)
        yield f"| {name} | {node} | {ratio:.1f} | {ours[0]}, {examples} | {ours[1]}, {nodes} |"


def _hybrid() -> Iterator[str]:
    layer = fully_connected("fc", 4096, 4096, bias=False)
    yield "| nodes | examples | overlap | best number of groups | MB a node exchanges there | data parallel |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for nodes, batch, overlap in HYBRID:
        best = best_groups(layer, nodes, batch, overlap)
        there, parallel = (
            exchanged_bytes(layer, nodes, batch, groups, overlap) / 1e6 for groups in (best, float(nodes))
        )
        yield f"| {nodes} | {batch} | {overlap:g} | {best:.2f} | {there:.3f} | {parallel:.1f} |"


def _iterations() -> Iterator[str]:
    yield "| scheme | fitted on | computing | link | nodes | published | simulated | error |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for scheme, algorithm, known in (
        ("all_reduce", "recursive_doubling", (4, 8)),
        ("all_reduce", "ring", (4, 8)),
        ("gossip", "ring", (4,)),
        ("sgp", "ring", (4,)),
    ):
        compute_s, bandwidth = fitted(scheme, algorithm, known)
        what = f"{scheme}, {algorithm}" if scheme == "all_reduce" else scheme
        on = " and ".join(map(str, known))
        if compute_s < 0 or not math.isfinite(bandwidth) or bandwidth <= 0:
            yield f"| {what} | {on} | - | - | - | - | - | no fit: {compute_s:.3f} s of computing |"
            continue
        for nodes, published in STEP_S[scheme].items():
            simulated = step_s(scheme, nodes, compute_s, bandwidth, algorithm)
            error = 100 * (simulated / published - 1)
            mark = " (fitted)" if nodes in known else ""
            yield (
                f"| {what} | {on} | {compute_s:.3f} s | {bandwidth / 1e9:.2f} Gbit/s | {nodes} | "
                f"{published:.3f} s | {simulated:.3f} s | {error:+.1f} %{mark} |"
            )


def _utilisation() -> Iterator[str]:
    yield "| where | all-reduce, median | published | 38 min / (38 min + all-reduce) |"
    yield "| --- | ---: | ---: | ---: |"
    for where, (seconds, published) in INTELLECT.items():
        yield f"| {where} | {seconds:g} s | {published} % | {100 * INNER_S / (INNER_S + seconds):.1f} % |"


def page() -> str:
    """The page, in Markdown."""
    return f"""\
# Large models: layers, and published tables

Made by `python -m benchmarks.large_models`; nothing is measured, so the figures are the same on every
machine. **[S]** was read in a source, **[M]** is from memory, **[D]** was derived.

## Layers of known models

`workload: {{layer_profile: NAME}}`: from the shapes of their layers; parameters and operations are tested
against published counts (`tests/sim/workloads/layers`). An example is an image, a frame of speech, or a
sequence.

{_table(_models())}

## Balance (Das et al., arXiv 1602.06709) [M, medium]

A node with so many operations per byte of its link keeps computing for as long as it sends gradients if it
has enough examples: the fewest, and the most nodes for a batch of 256. Convolutions, data parallel, sending
and receiving at once; operations per byte of gradients are for one example.

{_table(_balance())}

## Hybrid parallelism (the same paper) [D]

A fully connected layer of 4,096 by 4,096, model parallel inside groups and data parallel across them. Time
only: no scheme here trains so. Cache and register blocking of the paper are not modelled.

{_table(_hybrid())}

## Seconds per iteration (Assran et al., ICML 2019) [M, medium; D]

ResNet-50, 8 GPUs a node, 10 Gbit/s Ethernet. Fitted: the computing time, and for all-reduce the link's
effective bandwidth too, on the nodes named; the others are predicted. The all-reduce of torch's TCP back end
of that time exchanged the whole vector in log2(n) rounds (`recursive_doubling`), which a ring does not.

{_table(_iterations())}

## Utilisation (INTELLECT-1, arXiv 2412.01152) [S]

100 inner steps take 38 minutes, then everybody waits for one all-reduce. Its time is the published one: the
links are not known.

{_table(_utilisation())}
"""


def _table(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_models", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="the page to write")
    write_atomically(parser.parse_args().out, page())


if __name__ == "__main__":
    main()
