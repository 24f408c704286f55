"""Server of a job's control store: a few small values behind a password, in a process of its own.

Rank 0 starts it by path with ``python -I -S``, so that it imports nothing of the project and takes no time
from the rank. It ends once rank 0 has closed its standard input, or is gone, and no rank is connected.

Both sides prove that they know the job's secret before anything is read: the server sends a nonce, the client
another one with a code (HMAC-SHA256) over both, and the server answers with its own. Each message is its
length, a code over direction, number and content, and the content (JSON), parsed after the code was compared.
The key of these codes is derived from the secret and both nonces, so that no message can be replayed, here or
in another connection. Contents are not encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

MAX_MESSAGE_BYTES: Final = 1 << 24
HANDSHAKE_S: Final = 5.0
"""Time limit of the other side's proof that it knows the secret."""
MAX_STRANGERS: Final = 256
"""Largest number of unauthenticated connections; a further one replaces the oldest."""

_NONCE_BYTES: Final = 32
_CODE_BYTES: Final = 32
_LENGTH: Final = struct.Struct("!I")
_NUMBER: Final = struct.Struct("!Q")
_KEEP_ALIVE: Final = {
    socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 60_000,
}  # fmt: skip
"""When a host counts as gone: seconds of silence, seconds between probes, number of probes, and ms without
an acknowledgement.
"""


class Refused(ConnectionError):
    """The other side does not know the secret, or a message is not authentic."""


class Channel:
    """An authenticated connection, with a key of its own; ``sends`` and ``receives`` label its directions."""

    def __init__(self, connection: socket.socket, key: bytes, sends: bytes, receives: bytes) -> None:
        self._connection = connection
        self._key = key
        self._directions = (sends, receives)
        self._numbers = [0, 0]

    def send(self, body: bytes) -> None:
        """Send a message."""
        self._connection.sendall(_LENGTH.pack(len(body)) + self._code(0, body) + body)

    def receive(self, limit_s: float | None = None) -> bytes:
        """Wait for a message, at most ``limit_s``.

        Raises:
            Refused: it is too long, or its code is wrong (altered, forged or out of order).
            OSError: the connection is closed, or the time is over.
        """
        until_s = None if limit_s is None else time.monotonic() + limit_s
        head = _read(self._connection, _LENGTH.size + _CODE_BYTES, until_s)
        (length,) = _LENGTH.unpack(head[: _LENGTH.size])
        if length > MAX_MESSAGE_BYTES:
            raise Refused(f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are read")
        body = _read(self._connection, length, until_s)
        if not hmac.compare_digest(head[_LENGTH.size :], self._code(1, body)):
            raise Refused("a message whose code is wrong")
        return body

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _code(self, side: int, body: bytes) -> bytes:
        number = self._numbers[side]
        self._numbers[side] += 1
        return _code(self._key, self._directions[side] + _NUMBER.pack(number) + body)


def accept_channel(connection: socket.socket, secret: bytes) -> Channel:
    """Authenticate a client, then prove knowledge of the secret in turn.

    Raises:
        Refused: the client does not know the secret.
        OSError: the connection is closed, or ``HANDSHAKE_S`` is over.
    """
    until_s = time.monotonic() + HANDSHAKE_S
    own = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(own)
    answer = _read(connection, _NONCE_BYTES + _CODE_BYTES, until_s)
    both = own + answer[:_NONCE_BYTES]
    channel = _channel_after(connection, secret, both, b"client", answer[_NONCE_BYTES:], (b"s", b"c"))
    connection.sendall(_code(secret, b"server" + both))
    return channel


def open_channel(connection: socket.socket, secret: bytes) -> Channel:
    """Prove knowledge of the secret to a server, and authenticate it.

    Raises:
        Refused: the server does not know the secret, or refuses this side.
        OSError: the connection is closed, or ``HANDSHAKE_S`` is over.
    """
    until_s = time.monotonic() + HANDSHAKE_S
    both = _read(connection, _NONCE_BYTES, until_s) + (own := secrets.token_bytes(_NONCE_BYTES))
    connection.sendall(own + _code(secret, b"client" + both))
    try:
        answer = _read(connection, _CODE_BYTES, until_s)
    except ConnectionError:
        raise Refused("it closes the connection") from None
    return _channel_after(connection, secret, both, b"server", answer, (b"c", b"s"))


def _channel_after(
    connection: socket.socket,
    secret: bytes,
    both: bytes,
    other: bytes,
    code: bytes,
    ways: tuple[bytes, bytes],
) -> Channel:
    """The channel of two sides, after a check of the ``other`` one's ``code`` over ``both`` nonces."""
    if not hmac.compare_digest(code, _code(secret, other + both)):
        raise Refused("the secret is another one")
    connection.settimeout(None)
    return Channel(connection, _code(secret, b"key" + both), *ways)


class ControlServer:
    """The values of a job, and the connections of its ranks."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener = listener
        self._secret = secret
        self._values: dict[str, str] = {}
        self._strangers: dict[socket.socket, None] = {}
        self._ranks = 0
        self._refused = 0
        self._leaving = False
        self._changed = threading.Condition()

    def accept(self) -> None:
        """Accept connections until ``wait_until_left`` is called; each has its own thread."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._leaving:
                    return
                time.sleep(0.01)  # closed already, or too many: idle ones time out soon
                continue
            with self._changed:
                self._strangers[connection] = None
                if len(self._strangers) > MAX_STRANGERS:
                    _shut(next(iter(self._strangers)))
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def wait_until_left(self) -> None:
        """Stop accepting, and wait until no rank or candidate is connected."""
        self._leaving = True
        _shut(self._listener)
        with self._changed:
            self._changed.wait_for(lambda: self._ranks == 0 and not self._strangers)

    def _serve(self, connection: socket.socket) -> None:
        is_rank = False
        try:
            channel = accept_channel(connection, self._secret)
            with self._changed:
                del self._strangers[connection]
                self._ranks += 1
                is_rank = True
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            while True:
                request = json.loads(channel.receive())
                with self._changed:
                    answer = self._answer(*request)
                channel.send(json.dumps(answer).encode())
        except Refused:
            with self._changed:
                self._refused += not is_rank
        except (OSError, ValueError, TypeError, RecursionError):  # a malformed request ends the connection
            pass
        finally:
            with self._changed:
                self._strangers.pop(connection, None)
                self._ranks -= is_rank
                self._changed.notify_all()
            connection.close()

    def _answer(self, what: str, *arguments: Any) -> Any:
        """Carry out one request, atomically under the caller's lock."""
        values = self._values
        match what, arguments:
            case "set", (key, value):
                values[key] = value
            case "get", (keys,):
                return [values.get(key) for key in keys]
            case "has", (keys,):
                return all(key in values for key in keys)
            case "add", (key, number):
                values[key] = str(int(values.get(key, "0")) + number)
                return int(values[key])
            case "compare and set", (key, expected, desired):
                if values.get(key, "") == expected:
                    values[key] = desired
                return values.get(key, expected)
            case "delete", (key,):
                return values.pop(key, None) is not None
            case "count", ():
                return len(values)
            case "refused", ():
                return self._refused
        return None


def _code(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


def _read(connection: socket.socket, length: int, until_s: float | None) -> bytes:
    content = bytearray()
    while len(content) < length:
        if until_s is not None:
            connection.settimeout(max(until_s - time.monotonic(), 1e-3))
        piece = connection.recv(min(length - len(content), 1 << 16))
        if not piece:
            raise ConnectionError("the connection is closed")
        content += piece
    return bytes(content)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed
        connection.shutdown(socket.SHUT_RDWR)


def main(descriptor: int) -> None:
    """Serve on socket number ``descriptor``; standard input's first line is the secret, in hexadecimal."""
    secret = bytes.fromhex(sys.stdin.readline())
    server = ControlServer(socket.socket(fileno=descriptor), secret)
    threading.Thread(target=server.accept, daemon=True).start()
    sys.stdin.read()
    server.wait_until_left()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
