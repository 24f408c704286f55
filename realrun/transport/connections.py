"""Tensor transfers between two ranks over gloo, in process groups of Paceline's own, and waits for them.

The groups are neither the user's nor torch's default one, so their messages never meet ours.

Helper threads wait, one per outstanding blocking call, reused when idle: gloo's ``is_completed()`` never
turns true for point-to-point transfers, and they have no futures, so a thread has to block in ``wait()``; its
outcome goes into a queue that the driver's loop reads. gloo's collectives can be polled: while only those are
in flight, the loop's own thread blocks in the oldest one, which spares two thread switches.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Set
from datetime import timedelta
from functools import lru_cache
from queue import Empty, Queue, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from paceline.sim.program.operations import ANY

_T = TypeVar("_T")

FOREVER: Final = timedelta(days=1)
"""Time-out of torch's groups. One that expired would close every connection; the driver watches instead."""

PROBE_TAG: Final = 1 << 20
"""Tag of receives without senders, which show whether a connection is open."""
REPORT_TAG: Final = 1 << 21
"""Tag of a rank's report after a run."""
CLOCK_TAG: Final = 1 << 22
"""Tag of clock comparisons."""
_SHORTEST_S: Final = 1e-3
"""Shortest time limit of a wait: gloo counts milliseconds, and 0 means no limit."""
_OPERATION_TAGS: Final = {"mix": 1 << 24, "shard": 1 << 25, "piece": 1 << 26, "gather": 1 << 27}
_MESSAGE_TAG: Final = 1 << 30

COLLECTIVES_AT_ONCE: Final = 16
"""Threads of each group: one per concurrent collective. With torch's default of two, the layers of a gradient
would be summed two at a time, each pair for all the latencies of a ring.
"""


@lru_cache(maxsize=1024)
def message_tag(tag: str) -> int:
    """Map a scheme's tag to one of gloo's: 30 bits of a hash, apart from all other tags."""
    return _MESSAGE_TAG | int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=4).digest()) >> 2


def operation_tag(kind: str, number: int) -> int:
    """Tag of a worker's ``number``-th mix, reduce-scatter or gather of shards, or all-reduce by pieces."""
    tag = _OPERATION_TAGS[kind]
    return tag | number % tag  # overlapping ones differ


class PeerGone(Exception):
    """The connection to peer ``rank`` is closed; -1: gloo does not name the peer."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


def connect(store: Store, name: str, rank: int, size: int) -> dist.ProcessGroupGloo:
    """Connect to all other ranks of a new group ``name``, alike on all ranks; a collective call."""
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs name the options differently
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    devices = [gloo.create_device(interface=interface) for interface in interfaces if interface]
    options = gloo._Options()
    options._devices = devices or [gloo.create_default_device()]
    options._threads = COLLECTIVES_AT_ONCE
    options._timeout = FOREVER
    connected: dist.ProcessGroupGloo = gloo(PrefixStore(name, store), rank, size, options)
    return connected


def begin(call: Callable[[], _T], peer: int = ANY) -> _T:
    """Call ``call``, which begins or carries out a transfer; raises ``PeerGone`` on a closed connection."""
    try:
        return call()
    except RuntimeError as error:
        raise PeerGone(peer) from error


def send(gloo: dist.ProcessGroupGloo, value: torch.Tensor, destination: int, tag: int) -> dist.Work:
    """Begin to send a tensor; raises ``PeerGone`` if the connection is closed already."""
    messages: Any = gloo  # torch's stubs lack a backend's send and receive
    work: dist.Work = begin(lambda: messages.send([value], destination, tag), destination)
    return work


def receive(gloo: dist.ProcessGroupGloo, buffer: torch.Tensor, source: int, tag: int) -> dist.Work:
    """Post a receive, from any source with ``ANY``; raises ``PeerGone`` on a closed connection."""
    messages: Any = gloo
    if source == ANY:
        work: dist.Work = begin(lambda: messages.recv_anysource([buffer], tag))
    else:
        work = begin(lambda: messages.recv([buffer], source, tag), source)
    return work


def finish(work: dist.Work, peer: int, patience_s: float = 0.0) -> None:
    """Wait for a transfer, at most ``patience_s`` (0: no limit); ``PeerGone``: closed, or too late."""
    try:
        work.wait(timedelta(seconds=patience_s))
    except RuntimeError as error:
        raise PeerGone(peer) from error


class CollectiveWait:
    """A wait for one of gloo's collectives, with an optional time limit."""

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def __call__(self) -> None:
        """Block until the operation is complete; raises ``PeerGone``."""
        finish(self._work, ANY)

    def within(self, limit_s: float) -> bool:
        """Block for at most ``limit_s``; True once the operation is complete or has failed."""
        if limit_s < _SHORTEST_S:
            return self._work.is_completed()
        try:
            return self._work.wait(timedelta(seconds=limit_s))
        except RuntimeError:  # timed out, or failed
            return self._work.is_completed()


class CallResult(NamedTuple):
    """The outcome of a call: its return value, or the exception raised; ``token`` identifies the call."""

    token: Any
    result: Any
    error: BaseException | None


_Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """An unbounded thread pool: no call waits for another."""

    def __init__(self) -> None:
        # No SimpleQueue: up to Python 3.12 it waits for ever if its time-out expires before the wait.
        self.finished: Queue[CallResult] = Queue()
        self._polled: dict[Any, CollectiveWait] = {}
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._started = 0

    def run(self, token: Any, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in a helper thread; the outcome goes to ``finished``."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            self._started += 1
            threading.Thread(
                target=self._serve, args=(inbox,), name=f"helper {self._started}", daemon=True
            ).start()
        inbox.put((token, call, arguments))

    def call(self, token: Any, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in this thread; the outcome goes to ``finished`` as well."""
        self.finished.put(_outcome(token, call, arguments))

    def poll(self, token: Any, collective: CollectiveWait) -> int:
        """Let ``next`` report the completion of ``collective``; returns the number of collectives watched."""
        self._polled[token] = collective
        return len(self._polled)

    def next(self, limit_s: float, in_flight: Set[Any]) -> CallResult | None:
        """The next outcome of the tokens ``in_flight``; None if there is none within ``limit_s`` >= 0."""
        if not self.finished.empty():
            return self.finished.get()
        alone = in_flight <= self._polled.keys()
        at_once = limit_s == 0.0
        for token, collective in list(self._polled.items()):
            if token not in in_flight:
                del self._polled[token]
            elif collective.within(limit_s if alone else 0.0):
                return _outcome(token, self._polled.pop(token), ())
            elif at_once:
                break  # gloo completes them in this order
            elif alone:
                limit_s = 0.0  # the limit is used up
            elif limit_s > 0.0:
                self.run(token, self._polled.pop(token))
        try:
            return None if at_once and self.finished.empty() else self.finished.get(timeout=limit_s)
        except Empty:
            return None

    def close(self) -> None:
        """End the idle threads; a blocked one ends with the process."""
        while self._idle:
            self._idle.pop().put(None)

    def _serve(self, inbox: SimpleQueue[_Call | None]) -> None:
        while (request := inbox.get()) is not None:
            token, call, arguments = request
            done = _outcome(token, call, arguments)
            del request, call, arguments  # an idle thread keeps no tensors alive
            self._idle.append(inbox)
            self.finished.put(done)
            del done, token


def _outcome(token: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> CallResult:
    try:
        return CallResult(token, call(*arguments), None)
    except BaseException as error:  # raised again by the outcome's reader
        return CallResult(token, None, error)


class Turns:
    """Orders calls from several threads by their turns."""

    def __init__(self) -> None:
        self._last = threading.Event()
        self._last.set()

    def take(self, call: Callable[[], _T]) -> Callable[[], _T]:
        """Take the next turn; the returned function waits for it and makes ``call``. Call it exactly once."""
        before, after = self._last, threading.Event()
        self._last = after

        def run() -> _T:
            before.wait()
            try:
                return call()
            finally:
                after.set()

        return run
