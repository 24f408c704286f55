"""The log of one rank during a run, and its encoding for the collector.

A rank does not know when its peers started; rows carry the *key* of their exchange, from which
``paceline.realrun.driver.collect`` finds these times later.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

import torch
from pydantic import ConfigDict, TypeAdapter
from pydantic_core import from_json
from torch import Tensor

from paceline.sim.records.run import Counts, Event
from paceline.sim.training.scoring import iterate_digest
from paceline.sim.training.snapshots import Published


class Exchange(NamedTuple):
    """An operation that needs ``peers``; its ``key`` is alike on all of them, and "" if there are none."""

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
        models: kept for scoring, [d] each.
        iterates: digests of its kept models, without leaders and averages; see ``digest_iterates``.
        final: its last published value.
        leader: the last model that it published as standing for all.
        ended_s: see ``paceline.sim.records.accounting.TimeBreakdown``.
        away: from when to when it took no part.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True, ser_json_inf_nan="constants")

    rank: int
    final: Tensor
    rows: list[LoggedOperation] = field(default_factory=list)
    exposures: list[Exposure] = field(default_factory=list)
    published: list[Published[ModelRef]] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    iterates: tuple[str, ...] = ()
    leader: Tensor | None = None
    counts: Counts = field(default_factory=Counts)
    ended_s: float | None = None
    timing: Timing = field(default_factory=Timing)
    away: list[tuple[float, float]] = field(default_factory=list)

    def publish(self, published: Published[Tensor]) -> None:
        """Log a published step, and keep its models."""
        value, leader, averaged = (
            self._keep(model) for model in (published.value, published.leader, published.averaged)
        )
        self.published.append(
            Published(
                published.worker, published.step, published.time_s, value, published.bytes_sent, leader,
                averaged, dict(published.notes),
            )
        )  # fmt: skip

    def digest_iterates(self) -> None:
        """Compute ``iterates``, once the clock has stopped."""
        values = (each.value for each in self.published)
        self.iterates = tuple(iterate_digest(self.models[ref.number]) for ref in values if ref is not None)

    def _keep(self, model: Tensor | None) -> ModelRef | None:
        if model is None:
            return None
        if not (self.models and self.models[-1] is model):  # an average is often the model, too
            self.models.append(model)
        return ModelRef(self.rank, len(self.models) - 1)


_FACTS: Final = TypeAdapter(RankLog)
_MODELS: Final = {"final", "leader", "models"}


def encode(log: RankLog) -> tuple[Tensor, Tensor]:
    """The log as bytes [m] (uint8), and its last models [k, d]: the final one, then the leader if any.

    Kept models stay where they are: few of them are scored.
    """
    log.digest_iterates()
    packed = zlib.compress(_FACTS.dump_json(log, exclude=_MODELS), level=1)
    models = [log.final] if log.leader is None else [log.final, log.leader]
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8), torch.stack(models).cpu()


def decode(packed: Tensor, values: Tensor) -> RankLog:
    """The inverse of ``encode``, except for the kept models."""
    final, *leader = values.unbind()
    models = {"final": final, "leader": leader[0] if leader else None}
    facts = from_json(zlib.decompress(packed.numpy().tobytes()))
    return _FACTS.validate_python({**facts, **models})
