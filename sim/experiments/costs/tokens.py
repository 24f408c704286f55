"""Tokens per second of each scheme, and derived hours, bytes, needed bandwidths and losses by a law.

Nothing is trained: steps are followed on the clock alone, as in ``paceline check``. The scaling law was
fitted to others' runs, on their data, with synchronous training at well-chosen learning rates. It knows
nothing of averaging schemes: what a scheme costs in loss is not in it. Every display of its figures says so
(``CAVEAT``).

The bandwidth that a scheme needs for its workers to compute for a share of their time compares a step with
one on a network that costs nothing, over the same cycles and with the same random numbers. It is one knob:
that of every pipe between two sites (``network.between.bandwidth``), else that of every host's link.

Source: Hoffmann et al., arXiv 2203.15556, section 3.3 and appendix D.3 (approach 3: the parametric fit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from ...compute.model import steady_compute
from ...config.tracking import track
from ...devices import one_thread
from ...errors import InputError, RunError
from ...faults.goodput import best_checkpoints, goodput
from ...network.forms import DEFAULT
from ...network.network_settings import NetworkSettings
from ...records.money.cost import PriceRecord, billed_bytes, cost
from ...records.scenario_facts import read_facts
from ...scenario.batches import batch_sizes
from ...scenario.entries import SchemeEntry
from ...scenario.parts import CollectiveSettings
from ...scenario.schema import Scenario, dump
from ...schemes.common.local_steps import own_steps
from ...workloads.layers.layer_settings import LayerProfile
from ..choice import is_plain
from ..prepare import churn_of, prepare, resolve, with_chosen
from .encoding_units import encodes
from .step_cost import ENOUGH_PART_WORK, follow, follow_whole, left_out, on_free_network, whole_job
from .watch import Followed


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = irreducible + of_parameters / N^alpha + of_tokens / D^beta, in nats per token.

    >>> round(HOFFMANN.loss(7e9, 140e9), 3)
    2.184
    >>> round(HOFFMANN.tokens_to(7e9, 2.184) / 1e9)
    139

    Attributes:
        source: the paper of the fit.
        irreducible, of_parameters, alpha, of_tokens, beta: the constants.
    """

    source: str
    irreducible: float
    of_parameters: float
    alpha: float
    of_tokens: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss after ``tokens``."""
        of_size = self.of_parameters / parameters**self.alpha
        return float(self.irreducible + of_size + self.of_tokens / tokens**self.beta)

    def tokens_to(self, parameters: float, loss: float) -> float:
        """Tokens needed for a loss; infinite where the model has too few parameters for it."""
        rest = loss - self.irreducible - self.of_parameters / parameters**self.alpha
        return float((self.of_tokens / rest) ** (1 / self.beta)) if rest > 0 else math.inf


HOFFMANN: Final = ScalingLaw("Hoffmann et al., arXiv 2203.15556", 1.69, 406.4, 0.34, 410.7, 0.28)

CAVEAT: Final = (
    f"Losses are by a published scaling law ({HOFFMANN.source}), fitted to others' synchronous runs on "
    "others' data: no loss was trained or measured here, and what a scheme costs in loss is not in it."
)


_HOUR_S: Final = 3600.0
MAX_TOKENS: Final = 1e24
"""More than all existing text."""
MAX_LOSS: Final = 50.0
"""Nats per token: a blind guess among the tokens of a language has some 12."""


def tokens_per_example(profile: LayerProfile) -> int | None:
    """Tokens in a sequence, if the first layer is a lookup table; None if it multiplies (no tokens)."""
    first = profile.layers[0]
    return first.inputs if first.inputs and not first.forward_flops else None


def throughput(
    scenario: Scenario, tokens: float | None = None, loss: float | None = None, *, with_needs: bool = True
) -> dict[str, Any]:
    """Output of ``paceline throughput``, as plain values; None for unknown ones.

    ``tokens`` to train on; None: as many as the scaling law has for ``loss``, if given. ``with_needs``: look
    for needed bandwidths, which takes most of the time.

    Raises:
        InputError: no language model (``workload.layer_profile``), ``tokens`` beside ``loss``, or an
            unreachable loss.
    """
    profile = scenario.workload.layer_profile
    length = None if profile is None else tokens_per_example(profile)
    if profile is None or length is None:
        raise InputError(
            "workload.layer_profile: tokens are those of a language model; write for example 'llama-2-7b'"
        )
    if tokens is not None and loss is not None:
        raise InputError("--tokens and --loss: one follows from the other; give one of them")
    if tokens is not None and not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"--tokens {tokens:g}: must be at least 1 and at most {MAX_TOKENS:g}")
    if loss is not None and not 0 < loss <= MAX_LOSS:
        raise InputError(f"--loss {loss:g}: must be more than 0 and at most {MAX_LOSS:g} nats per token")
    if loss is not None:
        tokens = HOFFMANN.tokens_to(profile.num_parameters, loss)
        if math.isinf(tokens):
            least = HOFFMANN.loss(profile.num_parameters, 1e30)
            raise InputError(
                f"--loss {loss:g}: by the scaling law such a model never comes below {least:.3f}"
            )
    resolved = resolve(scenario, torch.device("cpu"))
    sizes = batch_sizes(resolved.workload, resolved.cluster, resolved.seed)
    tokens_each = [size * resolved.workload.accumulate * length for size in sizes]
    facts = read_facts(dump(resolved))
    with one_thread():
        entries = track("scheme", resolved.schemes)
        rows = [
            _row(resolved, entry, tokens_each, tokens, profile, facts.price, with_needs) for entry in entries
        ]
    return {
        "scenario": resolved.name,
        "workers": resolved.cluster.workers,
        "gpus_per_worker": 1 if resolved.cluster.island is None else resolved.cluster.island.gpus,
        "parameters": profile.num_parameters,
        "tokens_per_step": sum(tokens_each),
        "tokens": tokens,
        "tokens_by_scaling_law": loss is not None,
        "loss_by_scaling_law": None if tokens is None else HOFFMANN.loss(profile.num_parameters, tokens),
        "scaling_law": None if tokens is None else CAVEAT,
        "utilisations": list(UTILISATIONS),
        "sent_over": _sent_over(resolved.cluster.network),
        "knob": "between two sites" if resolved.cluster.network.between is not None else "of a host",
        "transport": facts.transport,
        "price": facts.price,
        "schemes": rows,
    }


def _share_of_step(step: Followed) -> float:
    """Share of all bytes followed that all workers send in a step."""
    whole = sum(sum(row.values()) for row in step.between.values())
    return step.bytes_per_worker * len(step.pace.steps) / max(whole, 1)


def _costs(
    step: Followed, price: PriceRecord, batch: float, steps: float | None, useful: float
) -> dict[str, float | None]:
    share = _share_of_step(step)
    of_step = cost(price, step.step_s / useful, step.between, share)
    return {
        "a step": of_step,
        "an hour": of_step * _HOUR_S * useful / step.step_s if step.step_s else None,
        "10^9 tokens": of_step * 1e9 / batch,
        "all tokens": None if steps is None else steps * of_step,
    }


def _sent_over(network: NetworkSettings) -> str:
    if network.host is not None and network.host.gpus > 1:
        return "inside hosts too"
    if network.sites is not None and len(network.sites) > 1:
        return "between sites" if max(network.sites.values()) == 1 else "inside sites too"
    return "between hosts"


def _row(
    scenario: Scenario,
    entry: SchemeEntry,
    tokens_each: list[int],
    tokens: float | None,
    profile: LayerProfile,
    price: PriceRecord | None,
    with_needs: bool,
) -> dict[str, Any]:
    try:
        utilisation = Utilisation(scenario, entry)
        step = utilisation.step
        churn = churn_of(scenario, entry, scenario.seed)
        job = prepare(scenario, entry, scenario.seed)
        own = own_steps(job.worker(0), job.options)
        batch = sum(each * taken for each, taken in zip(tokens_each, own, strict=True)) / max(own)
        steps = None if tokens is None else tokens / batch
        useful, best = 1.0, None
        if churn is not None and step.step_s:
            compute = steady_compute(job.computing, job.workers)
            gradients_s = [compute.duration_s(rank, 0) for rank in range(job.workers)]
            useful = goodput(churn, gradients_s, step.ends_s, step.since_s, step.round_s)
            best = best_checkpoints(churn, step.step_s)
        needed = [utilisation.needed(share) for share in UTILISATIONS if with_needs]
    except RunError as error:
        return {"label": entry.label, "problem": str(error)}
    return {
        "label": entry.label,
        "problem": None,
        "step_s": step.step_s,
        "step_error": step.error if math.isfinite(step.error) else None,
        "step_shares": step.pace.shares,
        "average_s": step.pace.average_s,
        "leaves_out": left_out(scenario, entry, step),
        "encodes": encodes(scenario, entry),
        "goodput": useful,
        "best_checkpoints": best,
        "tokens_per_s": batch * useful / step.step_s if step.step_s else None,
        "utilisation": utilisation.share,
        "needed_bytes_per_s": needed,
        "hours": None if steps is None else steps * step.step_s / useful / _HOUR_S,
        "bytes_per_step": step.bytes_per_worker,
        "exchanges": list(step.exchanges),
        "billed_bytes_per_step": price and billed_bytes(price, step.between) * _share_of_step(step),
        "costs": None if price is None else _costs(step, price, batch, steps, useful),
        "bytes_sent": None if steps is None else steps * step.bytes_per_worker * scenario.cluster.workers,
    }


UTILISATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of a step spent computing, for which a bandwidth is found."""
PRECISION: Final = 0.01
"""Relative precision of the bandwidth."""
_HALVED: Final = 4
"""One in this number of tries halves the interval of the search; the others interpolate."""
_SEARCHED: Final = (1e3, 1e15)
"""Bounds of the search in bytes per second."""


class Utilisation:
    """Share of a scheme's step that all workers together spend computing, by bandwidth.

    The scenario is resolved, in the flat form or with sites. ``step`` has the scenario's own bandwidth, as in
    ``paceline check``; ``share`` is that of this step.

    Raises:
        InputError: the network has no such knob.
        RunError: the scheme cannot do without values.
    """

    def __init__(self, scenario: Scenario, entry: SchemeEntry) -> None:
        self._scenario, self._entry = scenario, entry
        self._known: dict[float, Followed] = {}
        self._chosen: dict[float, CollectiveSettings] = {}
        network = scenario.cluster.network
        if network.whole is not None:
            raise InputError(
                "cluster.network: a bandwidth can be looked for between sites, or of hosts behind one switch;"
                f" '{network.whole}' has no such knob"
            )
        self.step = follow_whole(scenario, entry)
        free = on_free_network(whole_job(scenario, entry))
        self._plain = is_plain(free)
        alone = follow(free, lambda complete, _: complete >= self.step.span.last)  # its start as well
        self.share = alone.computing * (alone.step_s / self.step.step_s if self.step.step_s else 1.0)
        self._free = follow(free, lambda complete, work: complete > 1 and work >= ENOUGH_PART_WORK)

    def share_of(self, step: Followed) -> float:
        """Share of its pace on a free network that the most delayed worker keeps."""
        free, mine = self._free.pace, step.pace
        longer = mine.time_s / free.time_s if free.time_s else 1.0
        return min(a / b / longer for a, b in zip(mine.steps, free.steps, strict=True) if b)

    def at(self, bytes_per_s: float) -> Followed:
        """Step with this bandwidth, with the algorithms chosen for it, or for both sides of it if the same.

        An algorithm's time is linear in the seconds of a byte: the fastest at two bandwidths is so between,
        but with the windows and queues of TCP.
        """
        if bytes_per_s not in self._known:
            scenario = _with_bandwidth(self._scenario, bytes_per_s)
            chosen = self._chosen.get(max(filter(bytes_per_s.__gt__, self._chosen), default=0.0))
            above = self._chosen.get(min(filter(bytes_per_s.__lt__, self._chosen), default=0.0))
            if chosen is None or chosen != above or not self._plain:
                chosen = with_chosen(scenario, [self._entry]).collectives
            self._chosen[bytes_per_s] = chosen
            changed = scenario.model_copy(update={"collectives": chosen})
            self._known[bytes_per_s] = follow(whole_job(changed, self._entry), self._free.span)
        return self._known[bytes_per_s]

    def needed(self, share: float) -> float | None:
        """Least bandwidth, to ``PRECISION``, with which all workers keep that share of a free network's pace.

        It is enough, and a bandwidth just below it is not, with algorithms chosen for it. None where no
        bandwidth is enough, 0 where any is: nothing crosses such links.
        """
        while True:
            enough = {
                each
                for each in (*_SEARCHED, *self._known)  # results for other shares narrow this search
                if self.share_of(self.at(each)) >= share
            }
            low, high = max(self._known.keys() - enough, default=0.0), min(enough, default=None)
            if high is None or not low or math.log(high / low) <= PRECISION:
                return low and high
            self.at(self._between(low, high, share))

    def _between(self, low: float, high: float, share: float) -> float:
        """A bandwidth beside that with this share if a step were linear in the seconds of a byte."""
        slow, fast = (self.share_of(self.at(each)) for each in (low, high))
        width = math.log(high / low)
        if not slow or len(self._known) % _HALVED == 0:  # it is far from linear, or may be
            return low * math.exp(width / 2)
        part = (1 / share - 1 / fast) / (1 / slow - 1 / fast)
        guess = math.log(1 / (part + (1 - part) * low / high))  # above the logarithm of low
        aside = min(0.4 * PRECISION, width / 4)  # so that the farther end comes near
        guess += aside if guess < width / 2 else -aside
        return low * math.exp(min(max(guess, aside), width - aside))


def _with_bandwidth(scenario: Scenario, bytes_per_s: float) -> Scenario:
    if varied_part(scenario)[0] == "between":
        return with_network(scenario, bandwidth={DEFAULT: bytes_per_s})
    return with_network(scenario, bandwidth=bytes_per_s, upload=None)


def varied_part(scenario: Scenario) -> tuple[str, Any]:
    """The part of the network that has the latencies and bandwidths to vary ("": all), and its settings."""
    network = scenario.cluster.network
    part = next((name for name in ("between", "within") if getattr(network, name) is not None), "")
    return part, getattr(network, part) if part else network


def with_network(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with other settings of ``varied_part``."""
    part, settings = varied_part(scenario)
    settings = settings.model_copy(update=changes)
    network = scenario.cluster.network.model_copy(update={part: settings}) if part else settings
    cluster = scenario.cluster.model_copy(update={"network": network})
    return scenario.model_copy(update={"cluster": cluster})
