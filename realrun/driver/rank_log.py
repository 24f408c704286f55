"""What one rank writes down during a run, and how it is handed in afterwards.

A rank does not know when its peers started; rows carry the *key* of the exchange that they took part in,
from which ``paceline.realrun.driver.collect`` finds them out later.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.sim.records.run import Event


class Exchange(NamedTuple):
    """An operation that needs others.

    Attributes:
        key: the same on all workers that take part in this one; "" for an operation of one worker.
        peers: the workers that have to be there.
    """

    key: str = ""
    peers: tuple[int, ...] = ()


class LoggedOperation(NamedTuple):
    """What a rank knows of an ``Event`` of its own when that happens: all but ``peer_s``."""

    task: int
    handle: int
    step: int
    operation: str
    start_s: float
    end_s: float
    bytes: int
    peer: int
    exchange: Exchange

    def event(self, worker: int, peer_s: float) -> Event:
        """The event, once it is known when the last peer had started."""
        return Event(
            worker, self.task, self.handle, self.step, self.operation, self.start_s, self.end_s, peer_s,
            self.bytes, self.peer,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exposure:
    """A stretch in which the main coroutine was blocked and no gradient hid it.

    Attributes:
        start_s, exposed_s: when it began, and for how long nothing was computed.
        exchange: what was waited for.
        peer_s: when the last peer had started, where no exchange tells.
    """

    start_s: float
    exposed_s: float
    exchange: Exchange
    peer_s: float


@dataclass
class Timing:
    """How well this machine kept to the compute model.

    Attributes:
        gradients: how many were computed.
        overruns: how many of them took longer than their time in the model by more than 1 %.
        late_s, latest_s: sum and maximum of how much later than due a gradient's end was noticed.
        compute_s: real computation, in total.
        notes: what else a reader of the results should know.
    """

    gradients: int = 0
    overruns: int = 0
    late_s: float = 0.0
    latest_s: float = 0.0
    compute_s: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """What was published with a step.

    Attributes:
        time_s, step: when, and which step.
        bytes_sent: by this rank since the run began.
        notes: numbers about the step, by name.
        value, leader: models [d]; None where no evaluation needs them, or where there is no leader.
    """

    time_s: float
    step: int
    bytes_sent: int
    notes: dict[str, float] = field(default_factory=dict)
    value: Tensor | None = None
    leader: Tensor | None = None


@dataclass
class RankLog:
    """One rank's run.

    Attributes:
        rows: its events, in the order in which its coroutines resumed.
        exposures: what its main coroutine's time was lost on.
        published: in order.
        final: its last published value.
        leader: the last model that it published as standing for all.
        steps, ended_s, bytes_sent, operations: as in ``paceline.sim.records.accounting.TimeBreakdown``.
        timing: see ``Timing``.
    """

    rank: int
    final: Tensor
    rows: list[LoggedOperation] = field(default_factory=list)
    exposures: list[Exposure] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    leader: Tensor | None = None
    steps: int = 0
    ended_s: float | None = None
    bytes_sent: int = 0
    operations: set[str] = field(default_factory=set)
    timing: Timing = field(default_factory=Timing)


def encode(log: RankLog) -> tuple[Tensor, Tensor]:
    """The log as bytes [m] (uint8) and values [k, d]: the final ones first, then the kept ones."""
    models = [log.leader, *(model for each in log.published for model in (each.value, each.leader))]
    kept = [model for model in models if model is not None]
    facts = {
        "rank": log.rank,
        "rows": log.rows,
        "exposures": [(e.start_s, e.exposed_s, e.exchange, e.peer_s) for e in log.exposures],
        "leader": log.leader is not None,
        "published": [
            (p.time_s, p.step, p.bytes_sent, p.notes, p.value is not None, p.leader is not None)
            for p in log.published
        ],
        "steps": log.steps,
        "ended_s": log.ended_s,
        "bytes_sent": log.bytes_sent,
        "operations": sorted(log.operations),
        "timing": asdict(log.timing),
    }
    packed = zlib.compress(json.dumps(facts).encode(), level=1)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8), torch.stack([log.final, *kept]).cpu()


def decode(packed: Tensor, values: Tensor) -> RankLog:
    """The inverse of ``encode``."""
    facts: dict[str, Any] = json.loads(zlib.decompress(packed.numpy().tobytes()))
    final, *kept = values.unbind()
    following = iter(kept)

    def model(there: bool) -> Tensor | None:
        return next(following) if there else None

    return RankLog(
        rank=facts["rank"],
        final=final,
        leader=model(facts["leader"]),
        rows=[LoggedOperation._make((*row, _exchange(exchange))) for *row, exchange in facts["rows"]],
        exposures=[
            Exposure(start_s, exposed_s, _exchange(exchange), peer_s)
            for start_s, exposed_s, exchange, peer_s in facts["exposures"]
        ],
        published=[
            Published(time_s, step, bytes_sent, notes, model(has_value), model(has_leader))
            for time_s, step, bytes_sent, notes, has_value, has_leader in facts["published"]
        ],
        steps=facts["steps"],
        ended_s=facts["ended_s"],
        bytes_sent=facts["bytes_sent"],
        operations=set(facts["operations"]),
        timing=Timing(**facts["timing"]),
    )


def _exchange(fields: tuple[str, list[int]]) -> Exchange:
    key, peers = fields
    return Exchange(key, tuple(peers))
