"""What cannot be in a result folder, though all of it is of the right type: damage, or somebody's edits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...config.limits import MAX_STEPS, MAX_TIME_S, MAX_WORKERS
from ...errors import MAX_QUOTED, quote
from ..formats.tables import EVENTS_FILE, METRICS_FILE, RUN_KEY, STEP_VECTOR
from ..run import LOST, NO_METRICS, Source
from ..scenario_facts import ScenarioFacts
from ..summary import SUMMARY_VERSION, RunRow, Summary

if TYPE_CHECKING:
    import pandas as pd

    from ..comparison import Comparison

MAX_TEXT: Final = 100_000
"""Letters of one text in a summary, at most: a message that a run has ended with."""
TIME_TOLERANCE: Final = 1e-6
"""How far below 0 a difference of times may be, relative to the run's: rounding of a clock."""
SAME_SCORE: Final = 1e-6
"""Relative difference that digits which were left out may make to a score."""
MAX_CLOCK_ERROR_S: Final = 1.0
"""Seconds by which something measured may seem to come before the run's beginning: hosts' clocks differ."""
_TIMES_S: Final = (-MAX_CLOCK_ERROR_S, MAX_TIME_S)
_SOURCES: Final[tuple[Source, ...]] = ("simulated", "measured")
_NAMED: Final = 3
"""Missing runs that a message names."""
_METRICS_RANGES: Final = {"time_s": _TIMES_S, "step": (0, MAX_STEPS), "bytes_sent": (0, 2**61)}
_EVENTS_RANGES: Final = {
    "start_s": _TIMES_S, "end_s": _TIMES_S, "peer_s": _TIMES_S,
    "worker": (0, MAX_WORKERS - 1), "peer": (-1, MAX_WORKERS - 1), "task": (0, 2**15 - 1),
    "handle": (-1, 2**31 - 1), "step": (0, MAX_STEPS), "bytes": (0, 2**63 - 1),
}  # fmt: skip
"""Columns of numbers -> the least and the largest that may stand there."""


def find_contradiction(
    summary: Summary, metrics: pd.DataFrame, events: pd.DataFrame, scenario: ScenarioFacts
) -> str:
    """Say what in a folder cannot be, though it is of the right type; "" where there is nothing.

    Args:
        summary, metrics, events: as they were read.
        scenario: what the scenario beside them says.
    """
    if why := _find_stranger(summary, metrics, events, scenario):
        return why
    labels = {row["label"] for row in summary["summary"]}
    keys = set()
    for run in summary["runs"]:
        name, key = f"a run of {quote(run['label'])}", (run["label"], run["seed"], run["source"])
        if run["label"] not in labels:
            return f"there is no summary of {quote(run['label'])}"
        if not 0 <= run["wall_clock_s"] <= MAX_TIME_S or not 0 <= run["seed"] < 2**63:
            return f"{name} has an impossible time or seed"
        if not 0 <= run["iterations"] <= MAX_STEPS or not 0 <= run["bytes_sent"] < 2**63:
            return f"{name} has an impossible number of iterations or bytes"
        spent, least_s = run["time_s"], -TIME_TOLERANCE * (1.0 + run["wall_clock_s"])
        parts = spent["compute"], spent["communicate"], spent["wait"], spent.get("idle", 0.0)
        if run["status"] != "partial" and (
            min(parts) < least_s or sum(parts) > run["wall_clock_s"] - least_s + MAX_CLOCK_ERROR_S
        ):
            return f"{name} has spent an impossible time"
        met_s = run["time_to_target_s"]
        if met_s is not None and not 0 <= met_s <= MAX_TIME_S:
            return f"{name} has met its target at an impossible time"
        if len(run.get("bracket_s", [0.0, 0.0])) != 2:
            return f"{name} has a bracket without two ends"
        if key in keys:
            return f"{name} and seed {run['seed']} is there twice"
        keys.add(key)
    strangers = labels - {run["label"] for run in summary["runs"]}
    first = summary.get("verdict", {}).get("first")
    strangers |= {label for label in (summary["winner"], first) if label is not None} - labels
    if strangers:
        return f"there is no run of {quote(min(strangers))}"
    for name, table, ranges in (
        (METRICS_FILE, metrics, _METRICS_RANGES), (EVENTS_FILE, events, _EVENTS_RANGES),
    ):  # fmt: skip
        for column, (least, most) in ranges.items():
            if len(table) and not least <= table[column].min() <= table[column].max() <= most:
                return f"{name} holds an impossible {column}"
        of_runs = set(table[RUN_KEY].drop_duplicates().itertuples(index=False, name=None))
        if of_runs - keys:
            return f"{name} has rows of {quote(min(str(key[0]) for key in of_runs - keys))}, which is no run"
    for vector in metrics.get(STEP_VECTOR, ()):
        if isinstance(vector, np.ndarray) and (
            len(vector) not in (0, scenario.workers or len(vector))
            or len(vector) > MAX_WORKERS
            or not ((vector >= LOST) & (vector <= MAX_STEPS)).all()
        ):
            return f"{METRICS_FILE} holds impossible {STEP_VECTOR}"
    operations = events["operation"].drop_duplicates()
    if not all(0 < len(str(operation)) <= MAX_QUOTED for operation in operations):
        return f"{EVENTS_FILE} holds an impossible operation"
    return _find_lost_rows(summary, metrics, events) or _find_disorder(metrics, events)


def _find_lost_rows(summary: Summary, metrics: pd.DataFrame, events: pd.DataFrame) -> str:
    """Say which table has more or fewer rows of a run than were written; "" where nothing shows."""
    counts = {
        name: Counter(table[RUN_KEY].itertuples(index=False, name=None))
        for name, table in ((METRICS_FILE, metrics), (EVENTS_FILE, events))
    }
    last = metrics.drop_duplicates(RUN_KEY, keep="last").to_dict("records")
    scores = {tuple(row[name] for name in RUN_KEY): row for row in last}
    for run in summary["runs"]:
        key = (run["label"], run["seed"], run["source"])
        of_run = f"of {quote(run['label'])} with seed {run['seed']}"
        if (rows := run.get("rows")) is not None:
            for name, wanted in ((METRICS_FILE, rows["evaluations"]), (EVENTS_FILE, rows["operations"])):
                if counts[name][key] != wanted:
                    return f"{name} has {counts[name][key]} rows {of_run}, and not the {wanted} of its run"
        if summary["version"] == SUMMARY_VERSION and not _ends_with(run, scores.get(key, {})):
            return f"{METRICS_FILE} does not end with the last scores {of_run}"
    return ""


def _ends_with(run: RunRow, scores: Mapping[Hashable, Any]) -> bool:
    """Whether these are the last scores of a run; a bundle has them with fewer digits."""
    for name, value in run["final"].items():
        if name in NO_METRICS:
            return False
        score = scores.get(name)
        score = None if score is None or math.isnan(score) else score
        if (score is None) != (value is None):
            return False
        if score is not None and value is not None and not math.isclose(score, value, rel_tol=SAME_SCORE):
            return False
    return True


def _find_disorder(metrics: pd.DataFrame, events: pd.DataFrame) -> str:
    """Say which table is not in the order in which it was written; "" where nothing shows."""
    for column in ("step", "time_s", "bytes_sent"):
        if _falls(metrics, RUN_KEY, column):
            return f"{METRICS_FILE} is not in order: {column} falls within a run"
    rounding_s = TIME_TOLERANCE * float(events["end_s"].abs().max()) if len(events) else 0.0
    for earlier, later in (("start_s", "peer_s"), ("peer_s", "end_s")):
        if (events[earlier] > events[later] + rounding_s).any():
            return f"{EVENTS_FILE} has an operation whose {later} comes before its {earlier}"
    awaited = events[events["handle"] < 0]  # one after the other in each coroutine
    for column in ("step", "end_s"):
        if _falls(awaited, [*RUN_KEY, "worker", "task"], column):
            return f"{EVENTS_FILE} is not in order: {column} falls within a worker's operations"
    return ""


def _falls(table: pd.DataFrame, keys: list[str], column: str) -> bool:
    """Whether a column becomes less from one row to the next of the same keys, by more than rounding."""
    if not len(table):
        return False
    steps = table.groupby(keys, observed=True, sort=False)[column].diff()
    return bool(steps.min() < -TIME_TOLERANCE * float(table[column].abs().max()))


def _find_stranger(
    summary: Summary, metrics: pd.DataFrame, events: pd.DataFrame, scenario: ScenarioFacts
) -> str:
    """Say what does not belong to the scenario, which may be another one's; "" where nothing shows."""
    if scenario.name is not None and summary["scenario"] != scenario.name:
        return f"its runs are of {quote(summary['scenario'])}, and its scenario is {quote(scenario.name)}"
    for run in summary["runs"]:
        named = f"the scenario has no run of {quote(run['scheme'])} as {quote(run['label'])}"
        if scenario.schemes is not None and scenario.schemes.get(run["label"]) != run["scheme"]:
            return named
        if scenario.seeds is not None and run["seed"] not in scenario.seeds:
            return f"{named} with seed {run['seed']}"
        if scenario.most_steps is not None and run["iterations"] > scenario.most_steps:
            return f"a run of {quote(run['label'])} has more steps than the scenario's {scenario.most_steps}"
    schemes = {run["label"]: run["scheme"] for run in summary["runs"]}
    for row in summary["summary"]:
        if schemes.get(row["label"], row["scheme"]) != row["scheme"]:
            return f"there is no run of {quote(row['scheme'])} as {quote(row['label'])}"
    for name, table in ((METRICS_FILE, metrics), (EVENTS_FILE, events)):
        if scenario.most_steps is not None and len(table) and table["step"].max() > scenario.most_steps:
            return f"{name} goes beyond the scenario's {scenario.most_steps} steps"
    if scenario.workers is not None and len(events):
        for column in ("worker", "peer"):
            if events[column].max() >= scenario.workers:
                return f"{EVENTS_FILE} names a {column} that is none of the scenario's {scenario.workers}"
    for name, table in ((METRICS_FILE, metrics), (EVENTS_FILE, events)):
        if "scheme" in table:
            for label, scheme in table[["label", "scheme"]].drop_duplicates().itertuples(index=False):
                if schemes.get(label, scheme) != scheme:
                    return f"{name} has rows of {quote(scheme)} as {quote(label)}, which is no run"
    return ""


def longest_text(value: object) -> int:
    """Letters of the longest text in a JSON document."""
    match value:
        case str():
            return len(value)
        case dict():
            return max((max(len(key), longest_text(each)) for key, each in value.items()), default=0)
        case list():
            return max(map(longest_text, value), default=0)
    return 0


def find_missing_runs(summary: Summary, scenario: ScenarioFacts) -> str:
    """Say which runs of its scenario a folder lacks; "" where it has all, or where the scenario names none.

    With ``repeats: auto`` every scheme has to have the seeds that one of them has.
    """
    if scenario.schemes is None or scenario.seeds is None:
        return ""
    there = {(run["source"], run["label"], run["seed"]) for run in summary["runs"]}
    sources: list[Source] = sorted({source for source, _, _ in there}) or ["simulated"]
    seeds = scenario.seeds
    if scenario.repeats is None:
        seeds = range(seeds.start, max([seeds.start, *(seed for _, _, seed in there)]) + 1)
    lacking = []
    for source in sources:
        for label in scenario.schemes:
            gaps = [seed for seed in seeds if (source, label, seed) not in there]
            if gaps:
                these = f"seed {gaps[0]}" if len(gaps) == 1 else f"{len(gaps)} of {len(seeds)} seeds"
                of_seeds = "" if len(gaps) == len(seeds) else f" with {these}"
                lacking.append(quote(label) + of_seeds + (f" ({source})" if len(sources) > 1 else ""))
    if not lacking:
        return ""
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return f"there is no run of {', '.join(lacking[:_NAMED])}{more}"


def find_foreign_comparison(summary: Summary, comparison: Comparison) -> str:
    """Say what in a comparison is of other runs than the summary's; "" where nothing shows."""
    runs = {(run["source"], run["label"], run["seed"]): run for run in summary["runs"]}
    wanted: list[tuple[Source, str, int]] = [
        (source, each["label"], each["seed"])
        for each in (*comparison["cells"], *comparison["trajectories"])
        for source in _SOURCES
    ]
    wanted += [("measured", each["label"], each["seed"]) for each in comparison.get("noise", ())]
    for source, label, seed in wanted:
        if (source, label, seed) not in runs:
            return f"it compares a {source} run of {quote(label)} with seed {seed}, which is not there"
    for cell in comparison["cells"]:
        both = [runs[source, cell["label"], cell["seed"]] for source in _SOURCES]
        whole = both[0]["iterations"] == both[1]["iterations"]
        whole = whole and both[0]["status"] == both[1]["status"] == "completed"
        for run, compared_s in zip(both, (cell["predicted"], cell["measured"]), strict=True):
            recorded_s: float | None = None
            if cell["metric"] == "time_to_target_s":
                recorded_s = math.nan if run["time_to_target_s"] is None else run["time_to_target_s"]
            elif cell["metric"] == "wall_clock_s" and whole:
                recorded_s = run["wall_clock_s"]
            same = recorded_s is None or math.isclose(recorded_s, compared_s, rel_tol=TIME_TOLERANCE)
            if not same or run["scheme"] != cell["scheme"]:
                of = f"{run['source']} run of {quote(run['label'])} with seed {run['seed']}"
                return f"it compares another {of} than is there"
    labels = {label for _, label, _ in runs}
    decision = comparison["decision"]
    for winner in (decision["winner_predicted"], decision["winner_measured"]):
        if winner is not None and winner not in labels:
            return f"it names {quote(winner)} as first, of which there is no run"
    return ""
