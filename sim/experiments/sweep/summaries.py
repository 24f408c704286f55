"""Summaries of a sweep's settings: of their runs, or of very many settings, in batches side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from ...config import yaml_file
from ...config.tracking import track
from ...errors import InputError, PacelineError
from ...records.run import Run
from ...records.summarise import summarise_resolved
from ...records.summary import Summary, Tuned
from ...scenario.overrides import Assignment, Change
from ...scenario.schema import Scenario, parse_each
from ..costs.bounds import describe_schemes
from ..jobs import JobProcesses, at_work, can_be_sent, order_of
from .grid import choose_values, resolve, simulate

BATCH: Final = 1_000
"""Settings that a process trains together; more are done in batches, if nothing of their runs is kept."""


def summarise_each(
    scenarios: Sequence[Scenario],
    runs: Sequence[Sequence[Run]],
    tuning: Sequence[Sequence[Tuned]],
) -> list[Summary]:
    """Summarise the runs of each resolved setting as in ``summary.json``, without bounds."""
    summaries = []
    for scenario, own, tuned in track("summarising setting", list(zip(scenarios, runs, tuning, strict=True))):
        content, facts = scenario.model_dump(mode="json"), describe_schemes(scenario, with_bounds=False)
        summaries.append(summarise_resolved(content, scenario.name, own, tuned, facts))
    return summaries


def are_many(settings: int, first: Scenario, device: torch.device, processes: JobProcesses) -> bool:
    """Whether settings are worth ``summarise_in_batches``, and other processes can read the first."""
    return settings > BATCH and device.type == "cpu" and processes.window > 1 and can_be_sent(first)


def summarise_in_batches(
    file: Path,
    settings: Sequence[Sequence[Change]],
    device: torch.device,
    processes: JobProcesses,
    warn: Callable[[str], None],
) -> Iterator[Summary]:
    """Simulate a scenario's file with each list of changes, in batches; yield the summaries, in order.

    Raises:
        InputError: a setting cannot be read or resolved, or a process has not this one's code.
        RunError: a batch ended ``MAX_LOST`` processes.
    """
    warned = set[str]()
    text, pairs = yaml_file.read_text(file), [list(map(_as_pair, each)) for each in settings]
    orders = [
        order_of(device, text=text, file=str(file), settings=pairs[begin : begin + BATCH])
        for begin in range(0, len(pairs), BATCH)
    ]
    for answer in processes.answer_all(_summarise_text, orders, f"{BATCH} settings"):
        if answer["error"]:
            raise InputError(answer["error"])
        for sentence in set(answer["warnings"]) - warned:
            warn(sentence)
        warned.update(answer["warnings"])
        yield from answer["summaries"]


def _as_pair(change: Change) -> tuple[str, str]:
    return (change, "--set") if isinstance(change, str) else (change.text, change.option)


def _summarise_text(text: str) -> bytes:
    """Simulate the settings of an order in a process of an executor, and summarise each."""
    answer: dict[str, Any] = {"summaries": [], "warnings": [], "error": ""}
    try:
        with at_work(text) as order:
            device = torch.device(order["device"])
            changes = ([Assignment(*each) for each in pairs] for pairs in order["settings"])
            settings = list(parse_each(order["text"], order["file"], changes))
            chosen, tuning = choose_values(resolve(settings, device), device=device)
            runs = simulate(chosen, device=device, warn=answer["warnings"].append)
            answer["summaries"] = summarise_each(chosen, runs, tuning)
    except PacelineError as error:
        answer["error"] = str(error)
    return json.dumps(answer).encode()
