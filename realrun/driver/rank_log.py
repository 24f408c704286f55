"""The log of one rank during a run, and its encoding for the collector.

A rank does not know when its peers started; rows carry the *key* of their exchange, from which
``paceline.realrun.driver.collect`` finds these times later.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from paceline.sim.records.run import Event
from paceline.sim.training.scoring import iterate_digest
from paceline.sim.training.snapshots import Published


class Exchange(NamedTuple):
    """An operation that needs other workers.

    Attributes:
        key: alike on all participants; "" for an operation of one worker.
        peers: the workers that have to be there.
    """

    key: str = ""
    peers: tuple[int, ...] = ()


class LoggedOperation(NamedTuple):
    """A rank's ``Event`` without ``peer_s``, which it does not know yet."""

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
        """The event, given the time at which the last peer started."""
        return Event(
            worker, self.task, self.handle, self.step, self.operation, self.start_s, self.end_s, peer_s,
            self.bytes, self.peer,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exposure:
    """A stretch in which the main coroutine was blocked and no gradient hid it.

    Attributes:
        start_s, exposed_s: its start, and its time without computation.
        exchange: what was waited for.
        peer_s: start of the last peer, where no exchange tells.
    """

    start_s: float
    exposed_s: float
    exchange: Exchange
    peer_s: float


@dataclass
class Timing:
    """Fidelity of this machine to the compute model.

    Attributes:
        gradients: number of gradients computed.
        overruns: number of them longer than their time in the model by more than 1 %.
        late_s, latest_s: sum and maximum of the delays with which a gradient's end was noticed.
        compute_s: real computation, in total.
        notes: other facts for a reader of the results.
    """

    gradients: int = 0
    overruns: int = 0
    late_s: float = 0.0
    latest_s: float = 0.0
    compute_s: float = 0.0
    notes: list[str] = field(default_factory=list)


class ModelRef(NamedTuple):
    """A model kept by a rank: ``number`` in its ``RankLog.models``, or ``FINAL`` or ``LEADER``."""

    worker: int
    number: int


FINAL: Final = -1
LEADER: Final = -2
"""Numbers of a rank's last models, which it hands in with its log."""


@dataclass
class RankLog:
    """One rank's run.

    Attributes:
        rows: its events, in the order in which its coroutines resumed.
        exposures: blocked time of its main coroutine.
        published: in order.
        models: kept for scoring, [d] each.
        iterates: digests of its kept models, without leaders and averages; see ``digest_iterates``.
        final: its last published value.
        leader: the last model that it published as standing for all.
        steps, ended_s, bytes_sent, operations: as in ``paceline.sim.records.accounting.TimeBreakdown``.
        timing: see ``Timing``.
    """

    rank: int
    final: Tensor
    rows: list[LoggedOperation] = field(default_factory=list)
    exposures: list[Exposure] = field(default_factory=list)
    published: list[Published[ModelRef]] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    iterates: tuple[str, ...] = ()
    leader: Tensor | None = None
    steps: int = 0
    ended_s: float | None = None
    bytes_sent: int = 0
    operations: set[str] = field(default_factory=set)
    timing: Timing = field(default_factory=Timing)

    def publish(self, published: Published[Tensor]) -> None:
        """Log a published step, and keep its models."""
        value, leader, averaged = (
            self._keep(model) for model in (published.value, published.leader, published.averaged)
        )
        self.published.append(
            Published(
                published.worker,
                published.step,
                published.time_s,
                value,
                published.bytes_sent,
                leader,
                averaged,
                dict(published.notes),
            )
        )

    def digest_iterates(self) -> tuple[str, ...]:
        """Compute ``iterates``, once the clock has stopped."""
        values = (each.value for each in self.published)
        self.iterates = tuple(iterate_digest(self.models[ref.number]) for ref in values if ref is not None)
        return self.iterates

    def _keep(self, model: Tensor | None) -> ModelRef | None:
        if model is None:
            return None
        if not (self.models and self.models[-1] is model):  # an average is often the model, too
            self.models.append(model)
        return ModelRef(self.rank, len(self.models) - 1)


def encode(log: RankLog) -> tuple[Tensor, Tensor]:
    """The log as bytes [m] (uint8), and its last models [k, d]: the final one, then the leader if any.

    Kept models stay where they are: few of them are scored.
    """
    facts = {
        "rank": log.rank,
        "rows": log.rows,
        "iterates": log.digest_iterates(),
        "exposures": [(e.start_s, e.exposed_s, e.exchange, e.peer_s) for e in log.exposures],
        "published": [
            (p.step, p.time_s, p.bytes_sent, *map(_number, (p.value, p.leader, p.averaged)), p.notes)
            for p in log.published
        ],
        "steps": log.steps,
        "ended_s": log.ended_s,
        "bytes_sent": log.bytes_sent,
        "operations": sorted(log.operations),
        "timing": asdict(log.timing),
    }
    packed = zlib.compress(json.dumps(facts).encode(), level=1)
    models = [log.final] if log.leader is None else [log.final, log.leader]
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8), torch.stack(models).cpu()


def decode(packed: Tensor, values: Tensor) -> RankLog:
    """The inverse of ``encode``, except for the kept models."""
    facts: dict[str, Any] = json.loads(zlib.decompress(packed.numpy().tobytes()))
    final, *leader = values.unbind()
    rank: int = facts["rank"]

    def reference(number: int | None) -> ModelRef | None:
        return None if number is None else ModelRef(rank, number)

    return RankLog(
        rank=rank,
        final=final,
        leader=leader[0] if leader else None,
        rows=[LoggedOperation._make((*row, _exchange(exchange))) for *row, exchange in facts["rows"]],
        exposures=[
            Exposure(start_s, exposed_s, _exchange(exchange), peer_s)
            for start_s, exposed_s, exchange, peer_s in facts["exposures"]
        ],
        published=[
            Published(rank, step, time_s, value, bytes_sent, leader, averaged, notes)
            for step, time_s, bytes_sent, *numbers, notes in facts["published"]
            for value, leader, averaged in [map(reference, numbers)]
        ],
        steps=facts["steps"],
        ended_s=facts["ended_s"],
        bytes_sent=facts["bytes_sent"],
        iterates=tuple(facts["iterates"]),
        operations=set(facts["operations"]),
        timing=Timing(**facts["timing"]),
    )


def _number(model: ModelRef | None) -> int | None:
    return None if model is None else model.number


def _exchange(fields: tuple[str, list[int]]) -> Exchange:
    key, peers = fields
    return Exchange(key, tuple(peers))
