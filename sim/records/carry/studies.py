"""Studies of proxies: what each had, and by which factors the ratios of two schemes' steps moved in it.

Both are in docs/proxies.md: ``python -m benchmarks.carry_over`` for SGD, ``python -m benchmarks.outer_steps``
for AdamW, whose ratios hang on the period and the outer step far more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
        period = options.get("period", 1)
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
