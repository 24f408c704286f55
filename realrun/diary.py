"""What one rank writes down during a run, and how it is handed in afterwards.

A rank does not know when its peers started; rows carry the *key* of the exchange that they took part in,
so that ``realrun.peers`` can find it out later.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import torch

from sim.records import Event

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Exchange:
    """An operation that needs others.

    Attributes:
        key: the same on all workers that take part in this one; "" for an operation of one worker.
        peers: the workers that have to be there.
    """

    key: str = ""
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """An event, with ``peer_s`` still open."""

    event: Event
    exchange: Exchange


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
        notes: what else people should know.
    """

    gradients: int = 0
    overruns: int = 0
    late_s: float = 0.0
    latest_s: float = 0.0
    compute_s: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass
class Diary:
    """One rank's run.

    Attributes:
        rows: its events, in the order in which its coroutines resumed.
        exposures: what its main coroutine's time was lost on.
        published: (time, step, value) in order; the value is None where no evaluation needs it.
        final: its last published value.
        steps, ended_s, bytes_sent: as in ``sim.accounting.Account``.
        timing: see ``Timing``.
    """

    rank: int
    final: Tensor
    rows: list[Row] = field(default_factory=list)
    exposures: list[Exposure] = field(default_factory=list)
    published: list[tuple[float, int, Tensor | None]] = field(default_factory=list)
    steps: int = 0
    ended_s: float | None = None
    bytes_sent: int = 0
    timing: Timing = field(default_factory=Timing)


def encode(diary: Diary) -> tuple[Tensor, Tensor]:
    """The diary as bytes [m] (uint8) and values [k, d]: the final one first, then the kept ones."""
    kept = [value for _, _, value in diary.published if value is not None]
    facts = {
        "rank": diary.rank,
        "rows": [(astuple(r.event), r.exchange.key, r.exchange.peers) for r in diary.rows],
        "exposures": [
            (e.start_s, e.exposed_s, e.exchange.key, e.exchange.peers, e.peer_s) for e in diary.exposures
        ],
        "published": [(time_s, step, value is not None) for time_s, step, value in diary.published],
        "steps": diary.steps,
        "ended_s": diary.ended_s,
        "bytes_sent": diary.bytes_sent,
        "timing": asdict(diary.timing),
    }
    packed = zlib.compress(json.dumps(facts).encode(), level=1)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8), torch.stack([diary.final, *kept])


def decode(packed: Tensor, values: Tensor) -> Diary:
    """The inverse of ``encode``."""
    facts: dict[str, Any] = json.loads(zlib.decompress(packed.numpy().tobytes()))
    final, *kept = values.unbind()
    following = iter(kept)
    return Diary(
        rank=facts["rank"],
        final=final,
        rows=[Row(Event(*event), Exchange(key, tuple(peers))) for event, key, peers in facts["rows"]],
        exposures=[
            Exposure(start_s, exposed_s, Exchange(key, tuple(peers)), peer_s)
            for start_s, exposed_s, key, peers, peer_s in facts["exposures"]
        ],
        published=[
            (time_s, step, next(following) if has_value else None)
            for time_s, step, has_value in facts["published"]
        ],
        steps=facts["steps"],
        ended_s=facts["ended_s"],
        bytes_sent=facts["bytes_sent"],
        timing=Timing(**facts["timing"]),
    )
