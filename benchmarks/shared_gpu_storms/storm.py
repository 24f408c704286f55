"""Two replicas of torchft's DiLoCo that share a GPU, through a schedule of kills, stops and cuts.

A fluid model with torchft's rules of a quorum: a member counts as dead 5 s after its last heartbeat; a quorum
is complete when all members of the last one ask for it, or all that are alive do. Who computes alone has the
GPU for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

PERIOD: Final = 50
STEP_S: Final = (0.377, 0.811)
"""Seconds of a step: alone, with the other on the GPU."""
EVALUATION_S: Final = (3.7, 7.3)
AVERAGE_S: Final = 0.85
HEARTBEAT_S: Final = 5.0
CHECKPOINT_S: Final = 1.2
RELAUNCH_S: Final = 17.5
"""From a kill to the new process: 15 s of the supervisor, its poll and the start."""
SETUP_S: Final = 1.5
BROKEN_S: Final = 30.0
"""Until an average fails whose member died while it waited for it."""
DONOR_S: Final = 240.0
EVERY: Final = 5
"""Rounds from an evaluation to the next, and from a checkpoint to the next."""


class Event(NamedTuple):
    """A line of a schedule."""

    at_s: float
    fault: str
    target: int


@dataclass
class Replica:
    """What a replica is doing, and since when the others hear nothing of it.

    Attributes:
        phase: ``down``, ``setup``, ``evaluate``, ``compute``, ``wait`` or ``average``.
        left: of the phase: steps, evaluations, or seconds.
        silent_s: moment of its last heartbeat; infinite while there are any.
        asked_s: moment of its death, if it was waiting for a quorum.
    """

    phase: str = "evaluate"
    left: float = 1.0
    rounds: int = 0
    stopped: bool = False
    cut: bool = False
    silent_s: float = math.inf
    asked_s: float = -math.inf
    started_s: float = 0.0
    committed_s: float = -math.inf

    @property
    def on_gpu(self) -> bool:
        """Whether it keeps the GPU busy."""
        return self.phase in ("compute", "evaluate") and not self.stopped

    def counts_as_alive(self, now_s: float) -> bool:
        """Whether the lighthouse counts it among the living."""
        return now_s < self.silent_s + HEARTBEAT_S

    def asks(self, now_s: float) -> bool:
        """Whether the lighthouse holds a request of it: of a dead one too, until it counts as dead."""
        waits = self.phase == "wait" and not self.stopped and not self.cut
        return self.counts_as_alive(now_s) and (waits or now_s < self.asked_s + HEARTBEAT_S)

    def heartbeat(self, now_s: float) -> None:
        """Begin or end its heartbeats, as its state has it."""
        silent = self.stopped or self.cut or self.phase in ("down", "setup")
        self.silent_s = min(self.silent_s, now_s) if silent else math.inf


class Storm:
    """A run: moments of committed rounds, and of kills, each with its replica."""

    def __init__(self, events: Sequence[Event], warmup_s: float, *, checkpoints: bool) -> None:
        self.now_s = -warmup_s
        self.commits: list[tuple[float, int]] = []
        self.kills: list[tuple[float, int]] = []
        self._events = sorted(events, reverse=True)
        self._replicas = [Replica(started_s=self.now_s), Replica(started_s=self.now_s)]
        self._members = {0, 1}
        self._fails = False
        self._checkpoint_s = CHECKPOINT_S if checkpoints else 0.0
        self._spares_donors = checkpoints
        self._averages = 0

    def run(self, until_s: float) -> None:
        """Go on until ``until_s``."""
        while self.now_s < until_s:
            self._meet()
            moment_s = min(self._next_change(), until_s)
            for replica in self._replicas:
                replica.left -= (moment_s - self.now_s) * self._rate(replica)
            self.now_s = moment_s
            for number, replica in enumerate(self._replicas):
                if replica.left <= 1e-9 and self._rate(replica):
                    self._end_phase(number)
            while self._events and self._events[-1].at_s <= self.now_s:
                self._apply(self._events.pop())

    def _next_change(self) -> float:
        moments = [self._events[-1].at_s] if self._events else []
        for replica in self._replicas:
            rate = self._rate(replica)
            moments += [self.now_s + max(replica.left, 0.0) / rate] if rate else []
            if self.now_s < replica.silent_s + HEARTBEAT_S < math.inf:
                moments.append(replica.silent_s + HEARTBEAT_S)
        return min(moments, default=math.inf)

    def _rate(self, replica: Replica) -> float:
        if replica.stopped or replica.phase == "wait" or (replica.phase == "setup" and replica.cut):
            return 0.0
        together = all(each.on_gpu for each in self._replicas)
        return {"compute": 1 / STEP_S[together], "evaluate": 1 / EVALUATION_S[together]}.get(
            replica.phase, 1.0
        )

    def _end_phase(self, number: int) -> None:
        replica = self._replicas[number]
        if replica.phase == "down":
            replica.phase, replica.left, replica.started_s = "setup", SETUP_S + self._checkpoint_s, self.now_s
            replica.rounds = 0
        elif replica.phase == "setup":
            replica.phase, replica.left = "evaluate", 1.0
            replica.heartbeat(self.now_s)
        elif replica.phase == "evaluate":
            replica.phase, replica.left = "compute", PERIOD
        elif replica.phase == "compute":
            replica.phase = "wait"
        elif replica.phase == "average":
            self._commit(number)

    def _commit(self, number: int) -> None:
        replica = self._replicas[number]
        if not self._fails:
            self.commits.append((self.now_s, number))
            replica.committed_s = self.now_s
        replica.rounds += 1
        replica.phase, replica.left = "compute", PERIOD
        if replica.rounds % EVERY == 0:
            replica.phase, replica.left = "evaluate", 1.0

    def _meet(self) -> None:
        """Form a quorum if one is complete."""
        asking = {number for number, each in enumerate(self._replicas) if each.asks(self.now_s)}
        alive = {number for number, each in enumerate(self._replicas) if each.counts_as_alive(self.now_s)}
        present = [number for number in asking if self._replicas[number].phase == "wait"]
        if not present or not (self._members <= asking or alive <= asking):
            return
        self._members, self._fails = asking, len(present) < len(asking)
        self._averages += not self._fails
        saves_s = self._checkpoint_s if self._averages % EVERY == 0 else 0.0
        for number in present:
            self._replicas[number].phase = "average"
            self._replicas[number].left = BROKEN_S if self._fails else AVERAGE_S + saves_s

    def _apply(self, event: Event) -> None:
        replica = self._replicas[event.target]
        if event.fault == "kill_safe":
            self._kill(event.target)
        elif event.fault in ("partition", "heal"):
            replica.cut = event.fault == "partition"
        elif replica.phase != "down":
            replica.stopped = event.fault == "stop"
        replica.heartbeat(self.now_s)

    def _kill(self, number: int) -> None:
        """Kill a replica if the other lives, and, with checkpoints, has committed since its start."""
        replica, donor = self._replicas[number], self._replicas[1 - number]
        healthy = donor.committed_s > donor.started_s and self.now_s - donor.committed_s < DONOR_S
        if "down" in (replica.phase, donor.phase) or (self._spares_donors and not healthy):
            return
        self.kills.append((self.now_s, number))
        if replica.phase == "wait":
            replica.asked_s = self.now_s
        replica.phase, replica.left, replica.stopped = "down", RELAUNCH_S, False
