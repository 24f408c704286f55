"""When the members of a collective of blocks are through that have their links for themselves: all at once.

Blocks are sorted into *waves*, as the messages of a table are (``pricing``), and a wave is a few operations
on arrays over its blocks. The times are those of the blocks one by one, each of which leaves when its data,
its links and room for it are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..seeds import Floats, Integers
from .blocks import BlockSchedule


@dataclass(frozen=True, eq=False)
class BlockNeeds:
    """What the blocks of one wave need of blocks before.

    Attributes:
        needed: positions of the blocks that are needed, those of one block side by side.
        first: where in ``needed`` those of each block begin; None: each needs one.
        blocks: which blocks of the wave they are, counted within it.
        back: positions of the blocks that need them.
    """

    needed: Integers
    first: Integers | None
    blocks: Integers | slice
    back: Integers


@dataclass(frozen=True, eq=False)
class BlockWave:
    """Blocks of which none needs another.

    Attributes:
        begin, end: their positions, from ``begin`` up to, but not including, ``end``.
        after, room, behind: what they need; None: nothing.
    """

    begin: int
    end: int
    after: BlockNeeds | None
    room: BlockNeeds | None
    behind: BlockNeeds | None


@dataclass(frozen=True, eq=False)
class BlockWaves:
    """The blocks of a schedule wave by wave; a block's *position* is its place in this order.

    Attributes:
        numbers: of the blocks in the schedule, by position.
        source, destination: ranks, by position.
        pieces: by position.
        waves: one after another.
        sent, received: for ranks that send or receive: who they are, positions of their blocks side by side,
            and where those of each of them begin.
    """

    numbers: Integers
    source: Integers
    destination: Integers
    pieces: Floats
    waves: tuple[BlockWave, ...]
    sent: tuple[Integers, Integers, Integers]
    received: tuple[Integers, Integers, Integers]


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """The ``BlockCost`` of each block, in arrays [blocks], or [blocks, clusters] for several clusters."""

    piece_s: Floats
    latency_s: Floats
    back_s: Floats


@lru_cache(maxsize=32)
def block_waves(schedule: BlockSchedule) -> BlockWaves:
    """Sort blocks into waves."""
    level = _waves_of_blocks(schedule)
    numbers = np.argsort(level, kind="stable")
    position = np.empty_like(numbers)
    position[numbers] = np.arange(len(numbers))
    sizes = np.bincount(level)
    ends = np.cumsum(sizes)
    waves = []
    for begin, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
        blocks = [schedule.blocks[number] for number in numbers[begin:end]] if schedule.any_needs else []
        after, room, behind = (
            _needs(lists, position, begin)
            for lists in (
                [block.after for block in blocks],
                [block.room for block in blocks],
                [block.behind for block in blocks],
            )
        )
        waves.append(BlockWave(begin, end, after, room, behind))
    source, destination = schedule.sources[numbers], schedule.destinations[numbers]
    return BlockWaves(
        numbers=numbers,
        source=source,
        destination=destination,
        pieces=schedule.pieces[numbers],
        waves=tuple(waves),
        sent=_by_rank(source),
        received=_by_rank(destination),
    )


def _waves_of_blocks(schedule: BlockSchedule) -> Integers:
    """In which wave each block is [blocks]."""
    waves: list[int] = []
    for _, _, _, _, after, room, behind in schedule.blocks:
        waves.append(1 + max([waves[number] for number in (*after, *room, *behind)], default=-1))
    return np.array(waves, dtype=np.int64)


def _needs(lists: list[tuple[int, ...]], position: Integers, begin: int) -> BlockNeeds | None:
    """What each block of a wave that begins at a position needs."""
    lengths = np.array([len(each) for each in lists], dtype=np.int64)
    blocks = np.flatnonzero(lengths)
    if not len(blocks):
        return None
    needed = position[np.array([number for each in lists for number in each], dtype=np.int64)]
    one_each = len(needed) == len(blocks)
    return BlockNeeds(
        needed=needed,
        first=None if one_each else (np.cumsum(lengths) - lengths)[blocks],
        blocks=slice(None) if len(blocks) == len(lists) else blocks,
        back=begin + np.repeat(np.arange(len(lists)), lengths),
    )


def _by_rank(ranks: Integers) -> tuple[Integers, Integers, Integers]:
    """Ranks that occur, the places of each of them side by side, and where those of each begin."""
    places = np.argsort(ranks, kind="stable")
    occurring, first = np.unique(ranks[places], return_index=True)
    return occurring, places, first


def block_completion_s(
    schedule: BlockSchedule, ready_s: Floats, costs: BlockCosts, overhead_s: float | Floats = 0.0
) -> Floats:
    """When each rank [ranks] has sent and received all its blocks, as ``completion_s`` of one by one.

    With another axis [clusters] in all arguments the schedule runs on several clusters at once.

    Args:
        schedule: any.
        ready_s: [ranks] when each joins; it may be negative.
        costs: by block.
        overhead_s: of software, before the first piece of a block leaves.
    """
    layout = block_waves(schedule)
    source, destination = layout.source, layout.destination
    piece_s, latency_s, back_s = (
        column[layout.numbers] for column in (costs.piece_s, costs.latency_s, costs.back_s)
    )
    all_pieces_s = layout.pieces.reshape(-1, *(1 for _ in ready_s.shape[1:])) * piece_s
    # Of the first piece of each block, and of the last one: [2, blocks, ...].
    needs_s = np.stack([np.maximum(ready_s[source], ready_s[destination])] * 2)
    left_s = np.empty_like(needs_s)
    for wave in layout.waves:
        here = slice(wave.begin, wave.end)
        need_s = needs_s[:, here]
        if wave.after is not None:
            _raise_to(need_s, wave.after, left_s[:, wave.after.needed] + latency_s[wave.after.needed])
        if wave.room is not None:
            _raise_to(need_s, wave.room, left_s[:, wave.room.needed] + back_s[wave.room.back])
        first_s, last_s = need_s + overhead_s
        if wave.behind is not None:
            _raise_to(first_s[None], wave.behind, left_s[1:, wave.behind.needed])
        np.add(first_s, piece_s[here], out=left_s[0, here])
        np.maximum(first_s + all_pieces_s[here], last_s + piece_s[here], out=left_s[1, here])
    done_s = ready_s.copy()
    for (ranks, places, first), ended_s in (
        (layout.sent, left_s[1]),
        (layout.received, left_s[1] + latency_s),
    ):
        if len(ranks):
            done_s[ranks] = np.maximum(done_s[ranks], np.maximum.reduceat(ended_s[places], first))
    done_s += schedule.tail * costs.latency_s.max(axis=0, initial=0.0)
    return done_s


def _raise_to(values: Floats, needs: BlockNeeds, others: Floats) -> None:
    """Raise ``values`` [1 or 2, blocks, ...] of a wave to at least the ``others`` of what they need."""
    if needs.first is not None:
        others = np.maximum.reduceat(others, needs.first, axis=1)
    if isinstance(needs.blocks, slice):
        np.maximum(values, others, out=values)
    else:
        values[:, needs.blocks] = np.maximum(values[:, needs.blocks], others)
