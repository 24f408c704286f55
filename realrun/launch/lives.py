"""Real runs with faults: which there are, and how one goes on after workers were killed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.sim.drivers.membership import NOBODY, healers_of, members_of
from paceline.sim.errors import InputError, KeyedError, RunError, shorten
from paceline.sim.experiments.prepare import churn_of
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes import find_scheme

from ..driver.outages import Life
from .cells import RunRequest, requested_job


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
        if churn is None or policy == "wait":
            continue
        if not find_scheme(entry.name).in_step(entry.options):
            raise InputError(f"{shorten(entry.label)}: a real run of an asynchronous scheme does not restart")
        if churn.checkpoint is not None and isinstance(churn.checkpoint.every, float):
            raise KeyedError(("checkpoint", "every"), "real runs count steps; write for example '100 steps'")


def _notes(life: Life) -> list[dict[str, Any]]:
    """Take the notes of those who were killed."""
    notes = []
    for path in Path(life.folder).glob("killed-*"):
        if text := path.read_text():  # else it was ended before it had written
            notes.append(json.loads(text))
        path.unlink()
    return notes


class Views:
    """Who takes part in a run whose living go on: the rule of ``sim.drivers.views``, on the wall clock."""

    def __init__(self, request: RunRequest) -> None:
        self._job = requested_job(request, 0)
        self._back_s: dict[int, float] = {}

    def next(self, life: Life, left: Mapping[int, int]) -> Life:
        """The view after ``life``, which ranks have ``left`` after that number of exchanges (-1: unhealed).

        Raises:
            RunError: nobody has a model, or the scheme is not for that few and nobody returns.
        """
        notes = _notes(life)
        self._back_s |= {note["rank"]: note["over_s"] for note in notes}
        able = {rank: exchanges for rank, exchanges in left.items() if exchanges >= 0}
        if not able:
            raise RunError(NOBODY)
        members = members_of(self._job, self._back_s)
        if not members:
            raise RunError(f"{self._job.label} is not for {len(left)} workers, and nobody returns")
        struck = (*life.struck, *(note["step"] for note in notes))
        healers = tuple(healers_of(self._job, members, able).items())
        return Life(
            life.folder, zero_s=notes[0]["zero_s"], struck=struck, view=life.view + 1, members=members,
            exchanges=min(able.values()), healers=healers,
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
