"""What a page takes beside results as they lie: a sweep, and predictions over a measurement's transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from paceline.sim.config.files import is_file, read_json
from paceline.sim.config.user_code.code_files import reading_results
from paceline.sim.errors import InputError
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.folder import Results, Studies, read_results, write_results
from paceline.sim.records.sweeps.content import SWEEP_FILE, SWEEP_VERSION, describe_sweep, tabulate_runs
from paceline.sim.scenario.schema import Scenario, dump, over_transport, parse


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep's results."""
    return is_file(folder / SWEEP_FILE)


def read_sweep(folder: Path) -> tuple[dict[str, Any], pa.Table]:
    """Describe the sweep in a folder anew from its settings' results, older ones too, and tabulate its runs.

    Raises ``InputError`` where a file is missing, damaged or foreign.
    """
    path = folder / SWEEP_FILE
    content = read_json(path, "sweep")
    rows, ranges = content.get("settings"), content.get("ranges") or {}
    if content["version"] != SWEEP_VERSION or not isinstance(rows, list) or not _are_rows(rows, ranges):
        raise InputError(f"{path}: is damaged, or of another version; make these results again")
    summaries = [read_results(folder / row["folder"]).summary for row in rows]
    for row, summary in zip(rows, summaries, strict=True):
        kept = [each.get("wall_clock_s") for each in row["summary"]]
        if kept != [each["wall_clock_s"] for each in summary["summary"]]:
            raise InputError(f"{path}: is not of the results in {row['folder']}; make these results again")
    names, settings = ([row[key] for row in rows] for key in ("folder", "set"))
    return describe_sweep(names, settings, summaries, ranges), tabulate_runs(names, settings, summaries)


def _are_rows(rows: Sequence[Any], ranges: object) -> bool:
    """Whether each of these has a folder of its own, and all have values of the same keys."""
    keys = dict[str, frozenset[object]]()
    for row in rows:
        match row:
            case {"folder": str(name), "set": {**values}, "summary": [{}, *_]} if name.isdecimal():
                keys[name] = frozenset(values)
            case _:
                return False
    alike = len({*keys.values()}) == 1 and len(keys) == len(rows)
    return alike and isinstance(ranges, dict) and all(ranges.keys() <= each for each in keys.values())


def price_again(studies: Studies, scratch: Path, say: Callable[[str], None]) -> list[Path]:
    """Simulate anew, into ``scratch``, each prediction beside a measurement (same name) over another
    transport; return the new folders. ``say`` is called before each.
    """
    with reading_results(*(folder for folder, _ in studies)):
        measured = {
            each.summary["scenario"]: scenario.cluster.backend
            for _, each in studies
            if _sources(each) == {"measured"} and (scenario := _scenario(each)) is not None
        }
        priced = []
        for folder, each in studies:
            backend, scenario = measured.get(each.summary["scenario"]), _scenario(each)
            if backend is None or scenario is None or _sources(each) != {"simulated"}:
                continue
            if scenario.cluster.network.transport in (None, backend):
                continue
            again = over_transport(scenario, backend)
            say(f"{folder}: predicting again over {backend}, which carried the measurement")
            out = scratch / f"{folder.name}-over-{backend}"
            write_results(out, dump(again), again.name, list(simulate(again)))
            priced.append(out)
        return priced


def _sources(results: Results) -> set[str]:
    return {run["source"] for run in results.summary["runs"]}


def _scenario(results: Results) -> Scenario | None:
    try:
        return parse(results.scenario)
    except InputError:
        return None
