"""Folder of a sweep: a result folder for each setting, the changes of each, and a map.

Until all settings are complete each of them keeps its runs as a command of its own does
(``records.unfinished``), so that the same sweep resumes after any death.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from ...config.files import claim_folder, remove_unfinished_writes, write_folder_atomically
from ...config.tracking import track
from ...errors import InputError
from ...records import folder as result_folder
from ...records.formats.parquet import write_parquet
from ...records.run import Run
from ...records.summary import Tuned
from ...records.sweeps.content import RUNS_FILE, SWEEP_FILE, describe_sweep, tabulate_runs
from ...records.unfinished import NOTHING_KEPT, Parts, begin_parts, keep_or_forget
from ...scenario.schema import Scenario, dump
from ..costs.bounds import describe_schemes
from ..prepare import read_resolved, resolved_in
from .grid import resolve
from .summaries import summarise_each

WINNERS_FILE: Final = "winners.svg"
"""Map of the first schemes, where one can be drawn."""
_FOREIGN: Final = "no result of a sweep"
_DIGITS: Final = 4
"""Least digits of a setting's folder."""


def folder_names(number: int) -> list[str]:
    """Folders of ``number`` settings: 0001, 0002, ..."""
    return [f"{place:0{_DIGITS}d}" for place in range(1, number + 1)]


@contextmanager
def begin(
    scenarios: Sequence[Scenario],
    device: torch.device,
    out: Path | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[list[Scenario], list[Parts]]]:
    """Begin the settings of a sweep, or continue those in ``out``: scenarios as first resolved, and runs.

    ``scenarios``: one for each setting, in the order of its folders. Other arguments and errors are as for
    ``simulate.begin``.
    """
    if out is None:
        yield resolve(scenarios, device), [NOTHING_KEPT] * len(scenarios)
        return
    command = f"sweep of {len(scenarios)} settings on {device.type}"
    with claim_folder(out):
        was_there = out.exists()
        folders = [out / name for name in folder_names(len(scenarios))]
        for folder in filter(Path.is_dir, folders):  # left by a command that was killed while it made them
            remove_unfinished_writes(folder / result_folder.PARTS_FOLDER)
            with suppress(OSError):
                folder.rmdir()
        replace = force or any(map(result_folder.is_unfinished, folders))
        result_folder.check_replaceable(out, replace, partial(_is_ours, out), _FOREIGN)
        fresh = resolve(scenarios, device)
        parts: list[Parts] = []
        resolved: list[Scenario] = []
        with keep_or_forget(out, parts, was_there):
            settings = list(zip(folders, scenarios, fresh, strict=True))
            for folder, scenario, own in track("making folder", settings):
                fits, text = partial(resolved_in, requested=scenario), dump(own)
                parts.append(begin_parts(folder, command, scenario.name, force, fits, text.__str__, say))
                kept = parts[-1].scenario
                resolved.append(own if kept == text else read_resolved(kept, scenario))
            done = sum(each.num_kept("run") for each in parts)
            if done:
                say(f"going on with {out}: {done} runs are there")
            yield resolved, parts


def _is_ours(out: Path, name: str) -> bool:
    if not (name.isdecimal() and len(name) >= _DIGITS):
        return name in (SWEEP_FILE, RUNS_FILE, WINNERS_FILE)
    try:
        result_folder.check_free(out / name, force=True)
    except InputError:
        return False
    return True


def with_facts(
    parts: Sequence[Parts], scenarios: Sequence[Scenario], tuning: Sequence[Sequence[Tuned]]
) -> list[Parts]:
    """Add facts of the schemes and tuning to the parts of settings, to be kept with each run."""
    return [
        replace(each, tuning=tuned, facts=describe_schemes(scenario, with_bounds=False))
        for each, scenario, tuned in zip(parts, scenarios, tuning, strict=True)
    ]


def finish(
    out: Path | None,
    settings: Sequence[Mapping[str, Any]],
    scenarios: Sequence[Scenario],
    runs: Sequence[Sequence[Run]],
    tuning: Sequence[Sequence[Tuned]],
    draw: Callable[[Mapping[str, Any], Path], object],
    ranges: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Summarise all settings, and replace the unfinished folder by the whole one, with its map.

    Bounds of the schemes are left out. Returns the content of ``sweep.json``.

    Args:
        out: the sweep's folder; None: nothing is written.
        settings: changes of each.
        draw: draws a map of the content, if possible.
        ranges: key -> what its values were drawn from, if they were.

    Raises:
        InputError: the folder cannot be written.
    """
    names = folder_names(len(settings))
    if out is None:
        return describe_sweep(names, settings, summarise_each(scenarios, runs, tuning), ranges)
    results = (
        (dump(scenario), scenario.name, own, tuned, describe_schemes(scenario, with_bounds=False))
        for scenario, own, tuned in track(
            "summarising setting", list(zip(scenarios, runs, tuning, strict=True))
        )
    )
    result_folder.check_replaceable(out, True, partial(_is_ours, out), _FOREIGN)
    with write_folder_atomically(out) as new:
        summaries = [
            result_folder.write_results(new / folder, text, name, own, tuning=tuned, facts=facts)
            for folder, (text, name, own, tuned, facts) in zip(names, results, strict=True)
        ]
        answer = describe_sweep(names, settings, summaries, ranges)
        text = json.dumps(answer, indent=1, ensure_ascii=False, allow_nan=False)
        (new / SWEEP_FILE).write_text(text + "\n", encoding="utf-8")
        table = tabulate_runs(names, settings, summaries)
        write_parquet(new / RUNS_FILE, (table.schema, [table]))
        draw(answer, new / WINNERS_FILE)
    return answer
