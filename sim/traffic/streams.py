"""Messages over one byte stream per ordered pair of hosts, as gloo sends them over TCP.

Differences from the ideal transfers of ``paceline.sim.traffic.transfers``:

- **Order.** Messages of one stream follow each other; they do not share its bandwidth.
- **Announcements** are bytes of the stream too: one that is posted while messages wait in its direction
  leaves after them.
- **Buffered sends.** The socket takes over the sender's bytes, up to the size of its buffer.

- **First-in-first-out links** (``queue: fifo``) take all that a host sends at once, as windows allow, so that
  messages and announcements wait there, in the same order, and not in the stream.

A message that is split by the buffer's size is two flows one after the other; where several messages wait,
the one at the head counts for the buffer (a later one is complete when its own turn has come).
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from ..network.profile import MessageRange
from ..network.transport import TransferModel
from .clock import Clock
from .rendezvous import Announced, Notice, Transfer
from .transfers import Transfers

if TYPE_CHECKING:
    from .tcp.stock_hosts import Windows

ANNOUNCEMENT_BYTES: Final = 100
"""Size of a receive's announcement, with headers; it takes no time of its own unless it waits."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One direction of one connection.

    Attributes:
        waiting: messages, and announcements with their latency, in order.
        busy: a message's bytes are leaving.
        unsent_bytes: of the messages that wait or are leaving, as they were posted.
        arrival_s: of the latest arrival; nothing overtakes it, whatever the jitter.
        copied_s: of the latest copy from a device; a smaller message does not overtake it.
    """

    waiting: deque[_Message | tuple[Notice, float]] = field(default_factory=deque)
    busy: bool = False
    unsent_bytes: float = 0.0
    arrival_s: float = 0.0
    copied_s: float = 0.0

    def arrives(self, time_s: float) -> float:
        """The arrival, no earlier than the previous one."""
        self.arrival_s = max(self.arrival_s, time_s)
        return self.arrival_s


@dataclass(slots=True, eq=False)
class _Message:
    """A transfer in a stream; ``taken``: the socket holds the rest, so that its sender is done."""

    transfer: Transfer
    stream: _Stream
    taken: bool = False

    @property
    def hosts(self) -> tuple[int, int]:
        return self.transfer.source, self.transfer.destination


class Streams(Transfers):
    """Matches sends with receives and moves their bytes through streams."""

    def __init__(self, clock: Clock, model: TransferModel) -> None:
        super().__init__(clock, model)
        self._device_copy_s_per_byte = model.device_copy_s_per_byte / 2  # at each end
        self._streams = defaultdict[tuple[int, int], _Stream](_Stream)
        self._leaving: dict[int, tuple[_Message, float]] = {}
        self._in_line = model.queue == "fifo"
        self._notices: dict[int, tuple[Notice, _Stream, float]] = {}
        self._at_host = [0] * model.network.num_hosts
        self.traffic = MessageRange()
        if self._hosts is not None:
            self._hosts.wanted_bytes = self._wanted_bytes

    @override
    def uses(self, host: int) -> bool:
        return self._at_host[host] > 0

    @override
    def _announce(self, receiver: int, sender: int) -> Announced:
        if self._in_line and self._announcement:
            return self._announce_in_line(receiver, sender)
        stream = self._streams.get((receiver, sender))
        if not self._announcement or stream is None or not stream.busy:
            return super()._announce(receiver, sender)
        self._send_word(receiver, sender)
        notice = Notice()
        stream.waiting.append((notice, self._announcement * self._latency_s(receiver, sender)))
        return notice

    def _announce_in_line(self, receiver: int, sender: int) -> Notice:
        self._send_word(receiver, sender)
        latency_s = self._announcement * self._latency_s(receiver, sender)
        links = self._network.route(receiver, sender).links
        number = self._sharing.start(self._clock.now, links, ANNOUNCEMENT_BYTES, float("inf"))
        self._solve_late()
        notice = Notice()
        self._notices[number] = (notice, self._streams[receiver, sender], latency_s)
        return notice

    @override
    def _enqueue(self, transfer: Transfer, start_s: float) -> None:
        stream = self._streams[transfer.source, transfer.destination]
        start_s = max(start_s, self._clock.now)
        if copy_s := self._device_copy_s_per_byte * transfer.num_bytes:
            start_s = stream.copied_s = max(start_s + copy_s, stream.copied_s)
        self._clock.at(start_s, self._hand_over, _Message(transfer, stream))

    @override
    def _deliver(self, transfer: Transfer, time_s: float) -> None:
        if not transfer.plain:
            time_s += self._device_copy_s_per_byte * transfer.num_bytes
        super()._deliver(transfer, time_s)

    def _hand_over(self, message: _Message) -> None:
        stream, num_bytes = message.stream, message.transfer.num_bytes
        self._note(message)
        stream.unsent_bytes += num_bytes
        if stream.unsent_bytes <= self._room(message):
            self._take(message)
        if stream.busy and not self._in_line:
            stream.waiting.append(message)
        else:
            self._leave(message)

    def _room(self, message: _Message) -> float:
        """The socket's capacity: as measured, or as TCP has let it grow."""
        socket = self._model if self._hosts is None else self._hosts.connection(*message.hosts)
        return socket.buffer_bytes

    def _note(self, message: _Message) -> None:
        traffic, num_bytes = self.traffic, message.transfer.num_bytes
        traffic.smallest_bytes = min(traffic.smallest_bytes, num_bytes)
        traffic.largest_bytes = max(traffic.largest_bytes, num_bytes)
        for host in message.hosts:
            self._at_host[host] += 1
            traffic.in_flight = max(traffic.in_flight, self._at_host[host])

    def _take(self, message: _Message) -> None:
        message.taken = True
        transfer = message.transfer
        copied_s = self._clock.now + self._model.copy_s_per_byte * transfer.num_bytes
        transfer.sender.sent(copied_s, transfer.receiver_s)

    def _leave(self, message: _Message) -> None:
        message.stream.busy = True
        num_bytes = message.transfer.num_bytes
        if self._hosts is not None:
            last = 0.0  # the buffer grows meanwhile
        else:
            whole = message.taken or self._in_line
            last = num_bytes if whole else min(num_bytes, self._model.buffer_bytes)
        self._leaving[self._flow(message.transfer, num_bytes - last)] = (message, last)

    def _wanted_bytes(self, windows: Windows) -> float:
        leaving = self._leaving.get(windows.flow)
        if leaving is None or leaving[0].taken:
            return windows.rest
        message, connection = leaving[0], windows.connection
        if windows.rest <= connection.buffer_bytes:
            self._take(message)
        elif not connection.in_slow_start:
            return windows.rest - connection.buffer_bytes
        return windows.rest

    @override
    def _arrive(self, number: int, sent_s: float) -> None:
        if number in self._flows:
            super()._arrive(number, sent_s)
            return
        if number in self._notices:
            notice, stream, latency_s = self._notices.pop(number)
            notice.arrives(stream.arrives(sent_s + latency_s))
            return
        message, left = self._leaving.pop(number)
        if not message.taken:
            self._take(message)
        transfer, stream = message.transfer, message.stream
        if left > 0:
            self._leaving[self._flow(transfer, left)] = (message, 0.0)
            return
        self._deliver(transfer, stream.arrives(sent_s + transfer.latency_s))
        for host in message.hosts:
            self._at_host[host] -= 1
        stream.unsent_bytes -= transfer.num_bytes
        stream.busy = False
        while stream.waiting and not stream.busy:
            following = stream.waiting.popleft()
            if isinstance(following, _Message):
                self._leave(following)
            else:
                notice, latency_s = following
                notice.arrives(stream.arrives(sent_s + latency_s))
