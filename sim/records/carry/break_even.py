"""Break-even in examples: how much of a verdict the seconds alone decide, without any theory of learning.

Time to target is examples times seconds per example, run by run. So on a seed the first scheme W stays ahead
of the second S exactly while its examples over those of S are fewer than S's seconds per example over W's.
All workers' examples count; as every scheme has the same workers and batch, ratios of steps are theirs.

A proxy's ratio is held against the factors by which such ratios moved in the nearest of ``STUDIES``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NotRequired

from typing_extensions import TypedDict

from ..intervals import finite, median_ratio, of_ratio
from ..verdict import TIED_WITHIN, BreakEven, Verdict, find_winner, format_bound, format_factor

_PLAIN: Final = dict.fromkeys(("compression", "quorum", "deadline", "inside", "global_period"))
_NESTEROV: Final = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
_SCHEMES: Final[Mapping[str, Mapping[str, Any]]] = {
    "all_reduce": _PLAIN | {"outer": None},
    "local_sgd": _PLAIN | {"warmup": 0},
    "gossip": _PLAIN | {"topology": "one_peer_exponential", "order": "adapt_then_combine"},
    "ad_psgd": _PLAIN,
    "diloco": _PLAIN | {"outer": _NESTEROV, "fragments": 1, "delay": 0},
}
"""Studied schemes -> options that change their steps, as they were; None: absent."""


@dataclass(frozen=True)
class ProxyStudy:
    """What a study had, all of it with 8 workers of equal speed.

    Attributes:
        compared: what it compared, as a phrase.
        largest: most parameters that were tested.
        optimizer: key of the inner optimiser; of plain SGD its rate.
        optimizer_keys: keys that may be set beside it.
        optimizer_words: all other optimisers, as a phrase.
        least_alpha: of Dirichlet shards; infinite: it had none.
        scored: models, as in ``evaluate.on``.
        periods: fewest and most steps between averages.
        moved: factor of a ratio of steps in the median.
        moved_rarely: factor that one case in ten exceeds.
    """

    compared: str
    largest: str
    tasks: frozenset[str]
    metrics: frozenset[str]
    optimizer: str
    optimizer_keys: frozenset[str]
    optimizer_words: str
    least_alpha: float
    scored: frozenset[str]
    periods: tuple[int, int]
    moved: float
    moved_rarely: float

    def missing(self, document: Any, on: str) -> list[str]:
        """What of a resolved scenario with a target it did not have, but for schemes, as phrases."""
        workload, cluster, target = document["workload"], document["cluster"], document["stop"]["target"]
        partition = workload["partition"]
        uneven = partition["kind"] == "dirichlet" and partition.get("alpha", 1.0) < self.least_alpha
        studied = {
            f"{cluster['workers']} workers": int(cluster["workers"]) == STUDIED_WORKERS,
            f"the task {workload['task']}": workload["task"] in self.tasks,
            "these shards": partition["kind"] in ("iid", "by_source", "dirichlet") and not uneven,
            f"a target of {target['metric'].replace('_', ' ')}": target["metric"] in self.metrics,
            f"scores on '{on}'": on in self.scored,
            "stragglers": not cluster.get("stragglers"),
        }
        return [phrase for phrase, there in studied.items() if not there]

    def missing_of_scheme(self, name: str, options: Mapping[str, Any]) -> Iterator[str]:
        """What it did not have of a scheme, whose options have the optimiser among them."""
        set_keys = {key for key, value in options["optimizer"].items() if value}
        if not {self.optimizer} <= set_keys <= self.optimizer_keys:
            yield self.optimizer_words
        if name not in _SCHEMES:
            yield name
        period = _steps(options.get("period", 1))
        if isinstance(options.get("period"), Mapping):
            yield "periods by time, in which slower workers draw fewer examples"
        if period > 1 and not self.periods[0] <= period <= self.periods[1]:
            yield f"a period of {period:,} steps"
        for key, was in _SCHEMES.get(name, {}).items():
            if options.get(key) != was:
                yield f"this {key} of {name}"


STUDIED_WORKERS: Final = 8
SGD: Final = ProxyStudy(
    compared="five tasks of 650 to 84,160 parameters",
    largest="814,090",
    tasks=frozenset({"logistic", "digits-mlp", "digits-cnn", "text-transformer", "mnist-5k-mlp"}),
    metrics=frozenset({"train_loss"}),
    optimizer="lr",
    optimizer_keys=frozenset({"lr", "nesterov"}),
    optimizer_words="any optimiser but plain SGD at a constant rate",
    least_alpha=0.3,
    scored=frozenset({"mean", "averaged", "published"}),  # equal whenever all are averaged
    periods=(2, 16),
    moved=1.22,
    moved_rarely=1.72,
)
ADAMW: Final = ProxyStudy(
    compared="two models, batches, schedules and kinds of shards of a small text",
    largest="29,696",
    tasks=frozenset({"text-mlp", "text-transformer"}),
    metrics=frozenset({"test_loss"}),
    optimizer="adamw",
    optimizer_keys=frozenset({"adamw", "schedule"}),
    optimizer_words="any optimiser but AdamW without clipping",
    least_alpha=float("inf"),
    scored=frozenset({"published"}),
    periods=(20, 500),
    moved=1.22,
    moved_rarely=2.08,
)
STUDIES: Final[Mapping[str, ProxyStudy]] = {"SGD": SGD, "AdamW": ADAMW}


FEWEST_ROUNDS: Final = 16
"""Rounds of averaging below which a run says little of longer ones."""


class Scope(TypedDict):
    """What bounds a scenario's verdict, by label of a scheme.

    ``study``: the nearest of ``STUDIES``, absent in older folders: SGD. ``unstudied``: what it did not have,
    as phrases. ``periods``: steps before the first period, and of a period; only of schemes that average
    seldom. ``outer``: schemes with an outer step where no all-reduce has one; absent in older folders.
    """

    unstudied: dict[str, list[str]]
    study: NotRequired[str]
    periods: dict[str, list[int]]
    outer: NotRequired[list[str]]


def _steps(period: int | Mapping[str, Any]) -> int:
    """Steps of a period as written, the fastest worker's where it is by time."""
    return period["steps"] if isinstance(period, Mapping) else period


def scope_of(document: Any) -> Scope:
    """Read the scope from a resolved scenario with a target."""
    target = document["stop"]["target"]
    on = target.get("on") or document["evaluate"].get("on", "mean")
    entries = [(name, x) for entry in document["schemes"] for name, x in entry.items()]
    stepped = {x["label"]: name for name, x in entries if x.get("outer")}
    optimizer = {"optimizer": document["workload"]["optimizer"]}
    unstudied = {
        key: {
            x["label"]: [*study.missing(document, on), *study.missing_of_scheme(name, optimizer | x)]
            for name, x in entries
        }
        for key, study in STUDIES.items()
    }
    nearest = min(unstudied, key=lambda key: sum(map(len, unstudied[key].values())))
    scope = Scope(
        unstudied=unstudied[nearest],
        study=nearest,
        periods={},
        outer=[] if "all_reduce" in stepped.values() else [*stepped],
    )
    for _, x in entries:
        period = _steps(x.get("period") or x.get("initial_period") or 1)
        if period > 1:
            scope["periods"][x["label"]] = [x.get("warmup", 0) + x.get("switch_at", 0), period]
    return scope


def too_few_rounds(steps: Mapping[str, float], scope: Scope) -> str:
    """A sentence about schemes that have averaged too seldom; empty where none has. ``steps``: by label."""
    rounds = {
        label: max(0, int(steps[label] - first)) // period
        for label, (first, period) in scope["periods"].items()
        if label in steps
    }
    few = [
        f"{label} {number} round{'' if number == 1 else 's'} of {scope['periods'][label][1]:,} steps"
        for label, number in rounds.items()
        if number < FEWEST_ROUNDS
    ]
    if not few:
        return ""
    return (
        f"Too short to say: {', '.join(few)}. Below {FEWEST_ROUNDS} rounds a scheme has hardly begun, and "
        "with a period scaled down to the run it is another scheme."
    )


Columns = Mapping[str, Mapping[int, float]]
"""Label -> seed -> number."""

PROXY_SAYS: Final = "this proxy says"
"""Beginning of the phrase where the trained model stands for another one."""


def find_break_even(
    verdict: Verdict,
    steps: Columns,
    step_s: Columns,
    whose: str = "these runs say",
    under: str = "",
    scope: Scope | None = None,
    between: tuple[float, float] = (0.0, 0.0),
) -> BreakEven | None:
    """The ratio of examples that turns a verdict round; None where it has no second, or no steps were taken.

    Args:
        steps: steps of a worker to the target, infinite where it was not met.
        step_s: seconds per step up to there, or of the whole run where it was not met.
        whose: beginning of the phrase about the ratio of these runs.
        under: choices that this ratio depends on, as a phrase.
        scope: what the nearest study of proxies did not have; None: unknown.
        between: the least and the largest ratio that the points of measured curves allow; alike: unknown.
    """
    first, second = verdict["first"], verdict["second"]
    if first is None or second is None or not {first, second} <= step_s.keys():
        return None
    limit, here = of_ratio(step_s[second], step_s[first]), of_ratio(steps[first], steps[second])
    equal = find_winner(step_s)
    if not limit["median"] or equal is None:
        return None
    behind = {x: median_ratio(step_s[x], step_s[equal]) or math.inf for x in step_s if x != equal}
    nearest = min(behind, key=behind.__getitem__)
    factor = behind[nearest]
    ahead = f"{equal} first, {format_factor(factor)} as fast as {nearest}"
    order = ahead if factor > 1 + TIED_WITHIN else f"{equal} and {nearest} tie"
    at = f"fewer than {format_bound(limit['median'])} times {second}'s examples"
    place = "first" if verdict["settled"] else "ahead"
    beside = _beside(second, limit["median"], here["median"], whose, *between) + (under and f" ({under})")
    text = f"{first} is {place} as long as it needs {at}; {beside}. If all needed equally many: {order}."
    if whose == PROXY_SAYS and here["median"] and here["median"] < limit["median"]:
        text += _carries(limit["median"] / here["median"], scope, (first, second))
    return BreakEven(
        text=text, examples=limit, here=here,
        equal_first=equal, equal_second=nearest, equal_factor=finite(factor),
    )  # fmt: skip


def _beside(second: str, limit: float, here: float | None, whose: str, low: float, high: float) -> str:
    if not here:  # infinite for the second, or for both
        return f"{second} never met the target"
    span = f", {format_bound(low)} to {format_bound(high)} by their points and noise" if low < high else ""
    # Each median may be of another seed, so that the two may contradict the order.
    return f"{whose} {format_bound(here)}{span}" + (", too close to tell" if max(here, high) >= limit else "")


def _carries(factor: float, scope: Scope | None, schemes: Sequence[str]) -> str:
    """Whether an order that a move by ``factor`` turns outlives those of a study, inside what it had."""
    missing = {x: None for y in schemes for x in scope["unstudied"][y]} if scope else {}
    if scope is None or missing:
        why = f": the study has nothing on {', '.join(missing)}" if missing else ""
        return f" How far the ratio carries to other tasks is not known{why}."
    study = STUDIES[scope.get("study", "SGD")]
    survives = "neither"
    if factor > study.moved:
        both = factor > study.moved_rarely
        survives = "both" if both else f"{study.moved} and not {study.moved_rarely}"
    moved = f"by {study.moved} in the median and by more than {study.moved_rarely} in one case of ten"
    tested = f"nothing above {study.largest} parameters was tested"
    order = f"this order would survive {survives}"
    return f" Between {study.compared} such a ratio moved {moved}: {order}; {tested}."
