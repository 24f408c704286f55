"""Real runs with faults: which there are, and how one resumes after workers were killed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.sim.errors import InputError, KeyedError, RunError, shorten
from paceline.sim.experiments.prepare import churn_of
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes import find_scheme

from ..driver.rank_faults import Life
from .cells import RunRequest


def check_faults(scenario: Scenario, lab: bool) -> None:
    """Raise ``InputError`` for faults without a real run on processes of this machine, or in a ``lab``."""
    faults = scenario.cluster.faults
    for number, fault in enumerate(faults):
        if fault.how == "cut" and not (lab and scenario.cluster.network.hosts == "stock"):
            raise KeyedError(
                ("cluster", "faults", number, "how"),
                "cut needs --lab and cluster.network.hosts: stock, whose TCP repeats packets in time",
            )
        if fault.warning:
            where = ("cluster", "faults", number, "warning")
            raise KeyedError(where, "real runs write no checkpoint at a warning; leave it out")
    for entry in scenario.schemes:
        churn = churn_of(scenario, entry, scenario.seed)
        policy = "wait" if churn is None else churn.policy
        kinds = {"wait": {"stop", "cut"}, "restart": {"kill"}, "shrink": {"kill"}}.get(policy, set())
        if wrong := sorted({fault.how for fault in faults} - kinds):
            raise InputError(
                f"{shorten(entry.label)}: on_fault: {policy} has no real run with how: {wrong[0]}; one "
                "waits for workers that are stopped or cut off, and restarts or shrinks after one is killed"
            )
        if policy == "shrink" and find_scheme(entry.name).inside(entry.options):
            raise InputError(f"{shorten(entry.label)}: a real run with 'inside' does not shrink")
        if churn is None or policy == "wait":
            continue
        if not find_scheme(entry.name).in_step(entry.options):
            raise InputError(f"{shorten(entry.label)}: a real run of an asynchronous scheme does not restart")
        if churn.checkpoint is not None and isinstance(churn.checkpoint.every, float):
            raise KeyedError(("checkpoint", "every"), "real runs count steps; write for example '100 steps'")


def _notes(life: Life) -> list[dict[str, Any]]:
    notes = []
    for path in Path(life.folder).glob("killed-*"):
        if text := path.read_text():  # else it was ended before it had written
            notes.append(json.loads(text))
        path.unlink()
    return notes


def next_view(life: Life, left: Mapping[int, int], back_s: dict[int, float]) -> Life:
    """The view after ``life``, which ranks have ``left`` after that number of exchanges (-1: not healed yet).
    ``back_s``: when who failed is back; brought up to date. ``RunError``: nobody has a model any more.
    """
    notes = _notes(life)
    back_s |= {note["rank"]: note["over_s"] for note in notes}
    zero_s = float(notes[0]["zero_s"] if notes else life.zero_s or 0.0)
    able = {rank: exchanges for rank, exchanges in left.items() if exchanges >= 0}
    if not able:
        raise RunError("all workers have failed, so that nobody can heal those that return")
    now_s = time.monotonic() - zero_s
    return replace(
        life, zero_s=zero_s, struck=(*life.struck, *(note["step"] for note in notes)), view=life.view + 1,
        members=tuple(rank for rank in sorted({*left, *back_s}) if back_s.get(rank, 0.0) <= now_s),
        exchanges=min(able.values()), able=tuple(able),
        hold_s=min((each for each in back_s.values() if each > now_s), default=math.inf),
    )  # fmt: skip


def next_life(life: Life, request: RunRequest) -> Life:
    """Wait until everybody who was killed is back; returns the life that begins then."""
    notes = _notes(life)
    zero_s, over_s = notes[0]["zero_s"], max(note["over_s"] for note in notes)
    for outage in () if request.churn is None else request.churn.outages():
        if outage.at_s > over_s:
            break
        over_s = max(over_s, outage.over_s)
    time.sleep(max(0.0, zero_s + over_s - time.monotonic()))
    struck = (*life.struck, *(note["step"] for note in notes))
    return Life(life.folder, life.last_checkpoint(request.workers), zero_s, over_s, struck)
