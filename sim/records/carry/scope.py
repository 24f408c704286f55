"""How far a verdict's steps reach: what the study of proxies covered, and how often a run has averaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from typing_extensions import TypedDict

STUDIED_WORKERS: Final = 8
LONGEST_PERIOD: Final = 16
"""Most steps between averages that the study had."""
LEAST_ALPHA: Final = 0.3
"""Of its Dirichlet shards."""
STUDIED_TASKS: Final = frozenset({"logistic", "digits-mlp", "digits-cnn", "text-transformer", "mnist-5k-mlp"})
STUDIED_SCORES: Final = frozenset({"mean", "averaged", "published"})
"""The mean of the workers' models, and what equals it whenever all are averaged."""
_PLAIN: Final = dict.fromkeys(("compression", "quorum", "deadline", "inside", "global_period"))
STUDIED_SCHEMES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "all_reduce": _PLAIN,
        "local_sgd": _PLAIN | {"warmup": 0},
        "gossip": _PLAIN | {"topology": "one_peer_exponential", "order": "adapt_then_combine"},
        "ad_psgd": _PLAIN,
        "diloco": _PLAIN
        | {"outer": {"lr": 0.7, "momentum": 0.9, "nesterov": True}, "fragments": 1, "delay": 0},
    }
)
"""Studied schemes -> options that change their steps, as they were; None: absent."""
FEWEST_ROUNDS: Final = 16
"""Rounds of averaging below which a run says little of longer ones."""


class Scope(TypedDict):
    """What bounds a scenario's verdict, by label of a scheme.

    ``unstudied``: what the study of proxies (docs/proxies.md) did not have, as phrases. ``periods``: steps
    before the first period, and of a period; only of schemes that average seldom.
    """

    unstudied: dict[str, list[str]]
    periods: dict[str, list[int]]


def scope_of(document: Any) -> Scope:
    """Read the scope from a resolved scenario with a target."""
    workload, cluster, target = document["workload"], document["cluster"], document["stop"]["target"]
    on = target.get("on") or document["evaluate"].get("on", "mean")
    kind, alpha = workload["partition"]["kind"], workload["partition"].get("alpha", 1.0)
    studied = kind in ("iid", "by_source") or (kind == "dirichlet" and alpha >= LEAST_ALPHA)
    common = {
        f"{cluster['workers']} workers": int(cluster["workers"]) == STUDIED_WORKERS,
        f"the task {workload['task']}": workload["task"] in STUDIED_TASKS,
        "these shards": studied,
        f"a target of {target['metric'].replace('_', ' ')}": target["metric"] == "train_loss",
        f"scores on '{on}'": on in STUDIED_SCORES,
        "stragglers": not cluster.get("stragglers"),
    }
    missing = [phrase for phrase, there in common.items() if not there]
    scope = Scope(unstudied={}, periods={})
    for name, x in ((name, x) for entry in document["schemes"] for name, x in entry.items()):
        scope["unstudied"][x["label"]] = [
            *missing,
            *_missing(name, {"optimizer": workload["optimizer"], **x}),
        ]
        period = x.get("period") or x.get("initial_period") or 1
        if period > 1:
            scope["periods"][x["label"]] = [x.get("warmup", 0) + x.get("switch_at", 0), period]
    return scope


def _missing(name: str, x: Mapping[str, Any]) -> Iterator[str]:
    if any(value for key, value in x["optimizer"].items() if key not in ("lr", "nesterov")):
        yield "any optimiser but plain SGD at a constant rate"
    if name not in STUDIED_SCHEMES:
        yield name
    if x.get("period", 1) > LONGEST_PERIOD:
        yield f"a period of {x['period']:,} steps"
    yield from (
        f"this {key} of {name}" for key, was in STUDIED_SCHEMES.get(name, {}).items() if x.get(key) != was
    )


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
