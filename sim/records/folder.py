"""Result folders: all runs of one command, written whole or not at all.

Contents: see ``paceline.sim.records.run``. The same runs give the same bytes. The folder of a command under
way holds its complete runs: ``paceline.sim.records.unfinished``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pydantic import TypeAdapter, ValidationError

from ..config.files import MAX_JSON_BYTES, is_file, parse_json, read_json, trying_to, write_folder_atomically
from ..config.problems import join_keys, one_line, refuse_foreign
from ..config.tracking import track
from ..config.yaml_file import read_text
from ..errors import InputError, quote, shorten
from .comparison import Comparison
from .formats.result_files import (
    CHECKSUMS_FILE,
    EVENTS_FILE,
    METRICS_FILE,
    RUN_KEY,
    STEP_VECTOR,
    TRACE_FILE,
    check_kind,
    verify_checksums,
    write_checksums,
)
from .rows import RunRow, run_of
from .run import Evaluation, Run
from .scenario_facts import OF_SEEDS, PlannedRuns, read_facts
from .summarise import summarise_resolved
from .summary import SUMMARY_VERSION, SchemeFacts, Summary, Tuned

if TYPE_CHECKING:
    import pandas as pd

SCENARIO_FILE: Final = "scenario.yaml"
SUMMARY_FILE: Final = "summary.json"
VALIDATION_FILE: Final = "validation.json"
"""Added by ``paceline validate``: a ``Comparison``."""
PROFILE_FILE: Final = "profile.yaml"
"""Factors of a validation's prediction."""
PROBES_FILE: Final = "probes.json"
"""Measurements that these were fitted to, unless the command was given the factors."""
RECOMMENDATION_FILE: Final = "recommend.json"
"""Added by ``paceline recommend``: the answer that ``--json`` prints."""
REPORT_FILE: Final = "report.html"
"""The page of a validation, in its folder."""
PARTS_FOLDER: Final = "parts"
"""Holds a result folder for each run of a running or interrupted command."""
INDEX_FILE: Final = "index.json"
"""In the folder of parts: their identity."""
RUN_PART: Final = "run"
"""Prefix of parts that are results; others are trials of ``tune``."""

_NEEDED: Final = (SUMMARY_FILE, SCENARIO_FILE, METRICS_FILE, EVENTS_FILE)
_ADDED: Final = (VALIDATION_FILE, PROFILE_FILE, PROBES_FILE, RECOMMENDATION_FILE)
"""Optional files of the same runs."""
_OURS: Final = frozenset({*_NEEDED, *_ADDED, TRACE_FILE, CHECKSUMS_FILE, REPORT_FILE})
"""Names in a result folder; ``force`` deletes no folder that holds anything else."""

_NAMED: Final = 3
"""Most missing runs named in a message."""
MAX_SCENARIO_BYTES: Final = 64 * 2**20
_adapter: Final = cache(TypeAdapter)

REPORT_FILES: Final = frozenset({"table.csv", "table.tex", "runs.parquet", "figures"})
"""Names in the folder ``report-files`` beside a report."""


@dataclass(frozen=True)
class Results:
    """The contents of a result folder.

    Attributes:
        summary: ``summary.json``.
        metrics: one row per evaluation: label, scheme, seed, source, step, time_s, bytes_sent, the metrics
            (NaN where there is none) and the step vector.
        events: one row per operation: label, seed, source and the fields of ``Event``.
        scenario: the resolved scenario's text.
        validation: the comparison of ``paceline validate``; None in any other folder.
        missing: a sentence about the scenario's missing runs; "" if none.
        joined: a sentence about the folders that these were read from, where they are several.
    """

    summary: Summary
    metrics: pd.DataFrame
    events: pd.DataFrame
    scenario: str
    validation: Comparison | None = None
    missing: str = ""
    joined: str = ""


Studies = Sequence[tuple[Path, Results]]


def write_results(
    folder: Path,
    scenario_yaml: str,
    scenario_name: str,
    runs: Sequence[Run],
    force: bool = False,
    tuning: Sequence[Tuned] = (),
    trace: bool = False,
    facts: Mapping[str, SchemeFacts] | None = None,
    added: Mapping[str, str] | None = None,
) -> Summary:
    """Write a result folder and return its summary.

    Args:
        folder: to write, with its parents; it may exist if empty.
        scenario_yaml: the resolved scenario.
        force: replace an existing result folder.
        tuning: the schemes' choices before the runs, if any.
        trace: add ``trace.json``, see ``paceline.sim.records.formats.trace``.
        facts: label -> facts about a scheme apart from its runs.
        added: name -> text of other files of the same runs.

    Raises:
        InputError: something is there already, or cannot be written.
    """
    from .formats import parquet

    summary = summarise_resolved(scenario_yaml, scenario_name, runs, tuning, facts)
    check_free(folder, force)
    with write_folder_atomically(folder) as new:
        (new / SCENARIO_FILE).write_text(scenario_yaml, encoding="utf-8")
        text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
        (new / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")
        parquet.write_parquet(new / METRICS_FILE, parquet.metrics_of(runs))
        parquet.write_parquet(new / EVENTS_FILE, parquet.operations_of(runs))
        if trace:
            from .formats.trace import write_trace

            write_trace(new / TRACE_FILE, runs)
        for name, other in (added or {}).items():
            (new / name).write_text(other, encoding="utf-8")
        write_checksums(new)
    return summary


def check_free(folder: Path, force: bool = False) -> None:
    """Raise ``InputError`` unless results may be written to ``folder``; call it before a long run too."""

    def is_ours(name: str) -> bool:
        if name == PARTS_FOLDER:
            return is_unfinished(folder)
        if not ((folder / SUMMARY_FILE).is_file() or is_unfinished(folder)):
            return False  # a scenario.yaml without results is the user's own
        path = folder / name
        files = name == "report-files" and path.is_dir()
        return name in _OURS or (files and {entry.name for entry in path.iterdir()} <= REPORT_FILES)

    check_replaceable(folder, force, is_ours, "no part of these results")


def check_replaceable(folder: Path, force: bool, is_ours: Callable[[str], bool], foreign: str) -> None:
    """Raise ``InputError`` for a taken folder: not empty, unless ``force`` and all its names are ours.

    ``foreign``: how to call anything else.
    """
    with trying_to(f"look into {folder}"):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise InputError(f"{folder} is a file: results go into a folder")
        names = sorted(entry.name for entry in folder.iterdir())
        others = [name for name in names if not is_ours(name)]
    if names and not force:
        or_force = "" if others else ", or replace it with --force"
        raise InputError(f"{folder} is there already: choose another folder{or_force}")
    if others:
        raise InputError(f"{folder} holds {others[0]}, which is {foreign}: --force would delete it")


def is_unfinished(folder: Path) -> bool:
    """Whether ``folder`` keeps complete runs of a running or interrupted command."""
    return (folder / PARTS_FOLDER / INDEX_FILE).is_file()


def lacks_page(folder: Path) -> bool:
    """Whether a folder is one of ``paceline validate`` that was interrupted before it wrote its page."""
    return is_file(folder / VALIDATION_FILE) and not os.path.lexists(folder / REPORT_FILE)


def read_results(folder: Path, operations: bool = True) -> Results:
    """Read a result folder, or the complete runs of an unfinished one; ``operations``: also ``events``.

    Raises ``InputError`` if it is missing, no result folder, damaged, or of another version.
    """
    results = _read_results(folder, operations)
    try:
        planned = read_facts(results.scenario).planned
    except InputError as error:
        raise InputError(f"{folder / SCENARIO_FILE} is damaged: {error}; make these results again") from error
    return replace(results, missing=_find_missing_runs(planned, results.summary["runs"]))


def read_studies(folders: Sequence[Path], most: int) -> Studies:
    """Read result folders; those whose scenarios differ in seeds alone are the repeats of one study.

    It has path, operations and facts of its lowest seed. ``InputError``: unreadable ones, or over ``most``.
    """
    studies: dict[str, tuple[set[object], list[tuple[Path, Results]]]] = {}
    problems: list[str] = []
    for folder in track("folder", folders):
        try:
            results = read_results(folder, operations=False)
        except InputError as error:
            problems.append(str(error))
            continue
        runs = {(run["source"], run["label"], run["seed"]) for run in results.summary["runs"]}
        chosen = [each["chosen"] for each in results.summary.get("tuning", ())]
        kind = folder if results.validation is not None or not runs else sorted({run[0] for run in runs})
        alike = kind, chosen, OF_SEEDS.sub("", results.scenario)
        copies = (studies.setdefault(f"{copy} {alike}", (set(), [])) for copy in count())
        known, members = next(each for each in copies if each[0].isdisjoint(runs))
        known |= runs
        members.append((folder, results))
        if len(studies) > most:
            raise InputError(
                f"more than {most} scenarios, not counting other seeds, are too many for one page; "
                "'paceline sweep' puts many into one study"
            )
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return [_join_repeats(members) for _, members in studies.values()]


def _join_repeats(members: list[tuple[Path, Results]]) -> tuple[Path, Results]:
    from .formats import parquet

    members.sort(key=lambda each: min((run["seed"] for run in each[1].summary["runs"]), default=0))
    folder, first = members[0]
    if (path := folder / EVENTS_FILE).is_file():
        first = replace(first, events=parquet.read_events(path))
    if len(members) == 1:
        return folder, first
    runs = sorted((run for _, each in members for run in runs_of(each)), key=lambda run: run.seed)
    seeds = sorted({run.seed for run in runs})
    numbers = {"seed": seeds[0], "repeats": len(seeds)}
    text = OF_SEEDS.sub(lambda line: f"{line[1]}: {numbers[line[1]]}", first.scenario)
    lacking = [f"in {folder} {each.missing}" for folder, each in members if each.missing]
    return folder, replace(
        _join(replace(first, scenario=text), runs, first.summary.get("tuning", ()), _facts_in(members[::-1])),
        events=first.events,
        scenario=text if seeds[-1] - seeds[0] + 1 == len(seeds) else first.scenario,
        missing=f"{len(lacking)} of {len(members)} folders lack runs; {lacking[0]}" if lacking else "",
        joined=f"Repeats from {len(members):,} folders whose scenarios differ in seeds alone, {len(seeds):,} "
        f"seeds from {seeds[0]} to {seeds[-1]}; timelines and bounds are those of seed {seeds[0]}.",
    )


def _join(
    a: Results, runs: Sequence[Run], tuning: Sequence[Tuned], facts: Mapping[str, SchemeFacts]
) -> Results:
    from .formats import parquet

    summary = summarise_resolved(a.scenario, a.summary["scenario"], runs, tuning, facts)
    metrics, events = map(parquet.frame_of, (parquet.metrics_of(runs), parquet.operations_of(runs)))
    return Results(summary, metrics, events, a.scenario)


def _find_missing_runs(planned: PlannedRuns | None, runs: Sequence[RunRow]) -> str:
    """A sentence about planned runs that are missing; "" if none, or if no plan is known.

    With ``repeats: auto`` every scheme needs all seeds that any scheme has.
    """
    if planned is None:
        return ""
    labels, first, repeats = planned
    there: dict[str, dict[str, set[int]]] = {run["source"]: {} for run in runs} or {"simulated": {}}
    for run in runs:
        there[run["source"]].setdefault(run["label"], set()).add(run["seed"])
    end = max((run["seed"] + 1 for run in runs), default=first) if repeats is None else first + repeats
    lacking = []
    for source, by_label in sorted(there.items()):
        for label in labels:
            seeds = {seed for seed in by_label.get(label, ()) if first <= seed < end}
            if gaps := end - first - len(seeds):
                gap = next(seed for seed in range(first, end) if seed not in seeds)
                these = f"seed {gap}" if gaps == 1 else f"{gaps} of {end - first} seeds"
                of_seeds = f" with {these}" if seeds else ""
                lacking.append(quote(label) + of_seeds + (f" ({source})" if len(there) > 1 else ""))
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return f"there is no run of {', '.join(lacking[:_NAMED])}{more}" if lacking else ""


def _read_results(folder: Path, operations: bool = True) -> Results:
    with trying_to(f"look into {folder}"):
        there = folder.is_dir()
        missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if not there:
        refuse_foreign(folder)
        is_other = os.path.lexists(folder)
        raise InputError(f"{folder} is no result folder" if is_other else f"there is no folder {folder}")
    if missing == [*_NEEDED] and is_unfinished(folder):
        return _join_parts(folder)
    for name in missing:
        if os.path.lexists(folder / name):
            check_kind(folder / name)
        of_sweep = next((f"; name one of a sweep, such as {each}" for each in folder.glob("0001")), "")
        raise InputError(f"{folder} is no result folder: it has no {name}{of_sweep}")
    verify_checksums(folder, _NEEDED, _ADDED)
    from .formats import parquet

    events = folder / EVENTS_FILE
    try:
        return Results(
            summary=_read_summary(folder / SUMMARY_FILE),
            metrics=parquet.read_metrics(folder / METRICS_FILE),
            events=parquet.read_events(events) if operations else parquet.frame_of(parquet.operations_of(())),
            scenario=read_text(folder / SCENARIO_FILE, MAX_SCENARIO_BYTES),
            validation=read_validation(folder),
        )
    except (InputError, MemoryError):
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {folder}: {error}") from error
    except Exception as error:  # parsers raise many kinds
        why = one_line(str(error), 200) or type(error).__name__
        raise InputError(f"{folder} is damaged: {why}; make these results again") from error


def read_validation(folder: Path) -> Comparison | None:
    """The comparison of ``paceline validate`` in a folder, or None; ``InputError``: unreadable or damaged."""
    path = folder / VALIDATION_FILE
    if not os.path.lexists(path):
        return None
    try:
        document = parse_json(read_text(path, MAX_JSON_BYTES, (".json",)))
        return TypeAdapter(Comparison).validate_python(document)
    except (ValueError, ValidationError) as error:
        raise InputError(f"{path} is damaged: {one_line(str(error), 200)}; validate again") from error


def read_part(folder: Path) -> tuple[Run, Results]:
    """Read the result folder of one complete run; ``InputError`` if damaged, or something else."""
    results = _read_results(folder)
    runs = runs_of(results)
    if len(runs) != 1:
        raise InputError(f"{folder} is damaged: it is not one run")
    return runs[0], results


def _join_parts(folder: Path) -> Results:
    parts = [read_part(path) for path in sorted((folder / PARTS_FOLDER).glob(f"{RUN_PART}-*"))]
    if not parts:
        raise InputError(f"{folder} is not finished: none of its runs is complete yet")
    tuned = {each["label"]: each for _, results in parts for each in results.summary.get("tuning", ())}
    return _join(parts[0][1], [run for run, _ in parts], list(tuned.values()), _facts_in(parts))


def describe_caveat(folder: Path) -> str:
    """A sentence about why to be careful with a readable folder; "" if nothing is wrong."""
    if not (folder / SUMMARY_FILE).is_file():
        return f"{folder} is not finished: these are the runs that are complete"
    return ""


def _facts_in(parts: Iterable[tuple[object, Results]]) -> dict[str, SchemeFacts]:
    facts = {}
    for row in (row for _, results in parts for row in results.summary["summary"]):
        if "does" in row:
            known = {name: fact for name, fact in row.items() if name in SchemeFacts.__annotations__}
            facts[row["label"]] = cast(SchemeFacts, known)
    return facts


def runs_of(results: Results) -> list[Run]:
    """Read back the runs that a folder was written from."""
    from .formats import parquet

    known = parquet.metric_names(results.metrics)
    events = dict(list(results.events.groupby(RUN_KEY, observed=True, sort=False)))
    metrics = dict(list(results.metrics.groupby(RUN_KEY, observed=True, sort=False)))
    runs = []
    for row in results.summary["runs"]:
        key = (row["label"], row["seed"], row["source"])
        mine = metrics.get(key, results.metrics[:0])
        columns = [mine[name].tolist() for name in mine]  # pandas' to_dict takes ten times as long
        lines = (dict(zip(mine, line, strict=True)) for line in zip(*columns, strict=True))
        scored = [
            Evaluation(
                line["step"], line["time_s"], line["bytes_sent"],
                {name: None if math.isnan(line[name]) else line[name] for name in known},
                tuple(int(step) for step in line.get(STEP_VECTOR, ())),
            )
            for line in lines
        ]  # fmt: skip
        runs.append(run_of(row, scored, parquet.events_of(events[key]) if key in events else ()))
    return runs


def _read_summary(path: Path) -> Summary:
    document = read_json(path, "a result folder")
    if document["version"] != SUMMARY_VERSION:
        raise InputError(
            f"{path} has version {shorten(document['version'])}, this program reads version {SUMMARY_VERSION}"
        )
    try:
        summary: Summary = _adapter(Summary).validate_python(document, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = join_keys(first["loc"])
        raise InputError(f"{path} is damaged: {where}: {one_line(first['msg'], 200)}") from error
    of_runs, of_rows = ({(each["source"], each["label"]) for each in summary[k]} for k in ("runs", "summary"))
    if of_runs != of_rows:
        raise InputError(f"{path} is damaged: its runs and its summary are not of the same schemes")
    return summary
