"""Assumptions behind the numbers, in words: transport, all-reduce, learning rate, late contributions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from paceline.sim.config.units import format_seconds
from paceline.sim.records.run import LOST, UNTIMED_ENCODING
from paceline.sim.records.scenario_facts import TransportRecord, all_reduce_of, sums_inside_of
from paceline.sim.records.summary import SchemeSummary, Summary

from .words import percent

if TYPE_CHECKING:
    import pandas as pd

    from paceline.sim.records.folder import Results

_LAWS: Final = {
    "ideal": "The transport is ideal, no library's (collectives limited by data dependence, latency and "
    "bandwidth alone)",
    "gloo": "The transport is gloo",
    "nccl": "The transport is NCCL",
    None: "No transport is named: collectives are tables of messages, as in older versions",
}


def assumptions(results: Results, row: SchemeSummary, scenario: Mapping[str, Any]) -> list[str]:
    """Assumptions behind a scheme's numbers: its all-reduce, learning rate, age of scored models."""
    texts, summary = [], results.summary
    operations = {
        name for run in summary["runs"] if run["label"] == row["label"] for name in run.get("exchanges") or ()
    }
    collectives = _at(scenario, "collectives")
    if "all_reduce" in operations and _at(collectives, "all_reduce") is not None:
        algorithm = all_reduce_of(collectives, row["label"])
        if _at(scenario, "cluster", "profile") is not None:
            algorithm = "gloo_ring"
        texts.append(f"all-reduce by {algorithm}")
    if UNTIMED_ENCODING in operations:
        texts.append("values are encoded in no time")
    if unit := sums_inside_of(collectives or {}, row["label"]):
        texts.append(f"codes of the sum of each {unit}'s workers")
    chosen = [
        value
        for each in summary.get("tuning", [])
        for key, value in each["chosen"].items()
        if each["label"] == row["label"] and key.endswith("lr")
    ]
    rate = chosen[0] if chosen else _learning_rate(row["label"], scenario)
    if rate is not None:
        texts.append(f"learning rate {rate:g}, {'tuned' if chosen else 'not tuned'}")
    keep = _at(scenario, "evaluate", "keep")
    age = staleness(results.metrics[results.metrics["label"] == row["label"]])
    if keep not in (None, "all") and age is not None:
        texts.append(f"models kept {keep}, on average {age:.1f} steps old when scored")
    late = left_out(
        [run["left_out"] for run in summary["runs"] if run["label"] == row["label"] and "left_out" in run]
    )
    return [*texts, late] if late else texts


def left_out(runs: Sequence[Sequence[Sequence[int]]]) -> str:
    """Late contributions left out of averages, in a few words; "" where they are not counted.

    Args:
        runs: for each run and worker, the number of averages without its contribution, and of all.

    >>> left_out([[[0, 10], [0, 10], [9, 10]], [[1, 10], [0, 10], [9, 10]]])
    'late contributions left out: 90 % of worker 2, 5 % of worker 0, none of the others'
    """
    if not runs:
        return ""
    sums = [[sum(column) for column in zip(*of_worker, strict=True)] for of_worker in zip(*runs, strict=True)]
    shares = {rank: late / of for rank, (late, of) in enumerate(sums) if of and late}
    worst = sorted(shares, key=lambda rank: (-shares[rank], rank))
    named = [f"{percent(shares[rank])} of worker {rank}" for rank in worst[:_MOST_NAMED]]
    rest = (
        [f"at most {percent(shares[worst[_MOST_NAMED]])} of the others"] if len(worst) > _MOST_NAMED else []
    )
    if not rest and len(worst) < len(sums):
        rest = ["none of the others" if named else "none"]
    return f"late contributions left out: {', '.join([*named, *rest])}"


_MOST_NAMED: Final = 4
"""Most of a kind that are named one by one."""


def staleness(metrics: pd.DataFrame) -> float | None:
    """Mean lag of scored models behind their workers, in steps; None where it is not recorded."""
    ages = [
        step - sum(left) / len(left)
        for step, steps in zip(metrics["step"], metrics.get("steps", ()), strict=False)
        if step > 0 and (left := [each for each in steps if each != LOST])
    ]
    return sum(ages) / len(ages) if ages else None


def _learning_rate(label: str, scenario: Mapping[str, Any]) -> float | None:
    """The learning rate of a scheme in a resolved scenario; None where none is used, or it is tuned."""
    tuned = any(key.endswith("lr") for key in scenario.get("tune") or ())
    if tuned or _at(scenario, "workload", "timing_only"):
        return None
    entries = (entry for entry in scenario.get("schemes", ()) if isinstance(entry, dict))
    options = (each for entry in entries for each in entry.values())
    own = next((_at(each, "optimizer") for each in options if _at(each, "label") == label), None)
    rule = own or _at(scenario, "workload", "optimizer")
    if isinstance(rule, dict) and "lr" not in rule:  # {adam: {lr: ...}}
        rule = next(iter(rule.values()), None)
    rate = _at(rule, "lr")
    return float(rate) if isinstance(rate, int | float) else None


def _at(document: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def transport(summary: Summary) -> list[str]:
    """``assumed`` of a summary's runs."""
    exchanges: dict[str, set[str]] = {}
    for run in summary["runs"]:
        exchanges.setdefault(run["label"], set()).update(run.get("exchanges", ("all_reduce",)))
    steps_s = {
        row["label"]: row["step_s"]["median"]
        for row in summary["summary"]
        if row["source"] == "simulated" and "step_s" in row
    }
    return assumed(summary.get("transport"), exchanges, steps_s)


def assumed(
    known: TransportRecord | None,
    exchanges: Mapping[str, Collection[str]] = MappingProxyType({}),
    steps_s: Mapping[str, float | None] = MappingProxyType({}),
) -> list[str]:
    """What predicted times rest on, in sentences: transport, hosts, all-reduce, what is not validated, and
    errors on clusters of others.

    ``exchanges``: label -> operations of the scheme; empty: unknown, so that each may all-reduce.
    ``steps_s``: label -> predicted step of the scheme; the quickest one is said with its error.
    """
    if known is None:
        return []
    law = _LAWS.get(known["name"], "The transport is unknown")
    all_reduces = not exchanges or any("all_reduce" in each for each in exchanges.values())
    named = known["all_reduce"].replace("fastest_for_each", "the fastest for each size and group")
    all_reduce = known.get("assumed", named.replace("_", " "))
    by = f"; its all-reduce is {all_reduce}" if all_reduces else ""
    hosts = f", hosts are {known['hosts']}" if "hosts" in known else ""
    sentences = [f"{law}{hosts}{by}."]
    paying = [label for label, each in exchanges.items() if {"send", "receive"}.intersection(each)]
    if known["name"] == "nccl" and paying:
        sentences.append(
            f"Messages from one worker to another go over gloo, with copies from and to the devices: "
            f"{', '.join(paying)} {'pays' if len(paying) == 1 else 'pay'} for that."
        )
    if known["not_validated"]:
        library = "NCCL" if known["name"] == "nccl" else known["name"]
        sentences.append(f"Not validated over {library}: {' and '.join(known['not_validated'])}.")
    return [*sentences, *_outside(known, steps_s)]


def _outside(known: TransportRecord, steps_s: Mapping[str, float | None]) -> list[str]:
    times = {label: step_s for label, step_s in steps_s.items() if step_s}
    if "outside" not in known or not times:
        return []
    rows, label = known["outside"], min(times, key=lambda each: times[each])
    low, high = (format_seconds(rows[end] * times[label]) for end in ("low", "high"))
    better = f"; {rows['next']} narrows that" if rows["next"] else ""
    return [
        f"Inputs like these ({rows['inputs']}) were {percent(rows['mean_pct'] / 100)} off outside "
        f"({rows['rows']} rows, {percent(rows['fast'])} of them too fast): a step of {label} takes {low} to "
        f"{high}, four times in five{better}."
    ]


def assumed_in(answer: Mapping[str, Any]) -> list[str]:
    """``assumed`` of a sweep's settings, each sentence once, and the number of those left out."""
    known = (each["transport"] for each in answer["settings"])
    sentences = list(dict.fromkeys(sentence for each in known for sentence in assumed(each)))
    more = [f"{len(sentences) - _MOST_NAMED} more: --json has them by setting."]
    return sentences[:_MOST_NAMED] + more[: len(sentences) > _MOST_NAMED]
