"""The control store of a job started by something else: torchrun, Slurm, or the user's own script.

torch's store listens on every interface, open to anybody. So that store holds only the address of rank 0, as
a signed entry; all else goes through rank 0's own server (``paceline.realrun.group.control_server``), which
requires the job's secret: it lets its holders take part and steer. gloo's addresses are exchanged there too:
for torch it is one of its stores.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError
from typing_extensions import override

from paceline.sim.errors import InputError, RunError

from . import control_server
from .control_server import Channel, Refused, open_channel
from .hosts import boot_id

POLL_S: Final = 0.01
"""Poll interval of a rank that waits for a value."""
_ANSWER_S: Final = 30.0
"""Time limit of the server's answers."""
_MAX_REFUSALS: Final = 3
"""A server with too many unauthenticated connections refuses, too."""
_DEFAULT_WAIT: Final = timedelta(seconds=300)
_SIOCGIFADDR: Final = 0x8915
_BACKLOG: Final = 1024

_Address = tuple[str, int]


class JobStore(Store):
    """A connection to the job's server, as a torch ``Store``; failures raise torch's ``DistStoreError``.

    The rank that started the server has its process.
    """

    def __init__(self, channel: Channel, server: subprocess.Popen[bytes] | None = None) -> None:
        super().__init__()
        self._channel = channel
        self._server = server
        self._turn = threading.Lock()
        self._lost = ""
        self._wait_s = _DEFAULT_WAIT.total_seconds()

    @override
    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _text(value))

    @override
    def get(self, key: str) -> bytes:
        (value,) = self.multi_get([key])
        return value

    @override
    def multi_get(self, keys: list[str]) -> list[bytes]:
        values = self._ask("get", keys)
        if None in values:
            self.wait(keys)
            values = self._ask("get", keys)
        return [str(value).encode("latin-1") for value in values]

    @override
    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("has", keys))

    @override
    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key, value))

    @override
    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        value = self._ask("compare and set", key, _text(expected_value), _text(desired_value))
        return str(value).encode("latin-1")

    @override
    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key))

    @override
    def num_keys(self) -> int:
        return int(self._ask("count"))

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815  (by these names torch's C++ calls them)

    @override
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        limit_s = self._wait_s if timeout is None else timeout.total_seconds()
        until_s = time.monotonic() + limit_s
        while not self.check(keys):
            if time.monotonic() > until_s:
                raise DistStoreError(f"nobody has set {', '.join(keys)} within {limit_s:g} s")
            time.sleep(POLL_S)

    @override
    def set_timeout(self, timeout: timedelta) -> None:
        self._wait_s = timeout.total_seconds()

    def clone(self) -> JobStore:
        """Return this one: threads take turns."""
        return self

    def close(self) -> None:
        """Disconnect; the server ends after the last rank."""
        with self._turn:
            self._lost = self._lost or "it was closed"
            self._channel.close()
            if self._server is not None and self._server.stdin is not None:
                self._server.stdin.close()

    def end(self) -> None:
        """End the server, and with it the other ranks' waits."""
        if self._server is not None:
            self._server.kill()
        self.close()

    def _ask(self, *request: Any) -> Any:
        body = json.dumps(request).encode()
        if len(body) > control_server.MAX_MESSAGE_BYTES:
            raise DistStoreError(f"{request[0]}: {len(body)} bytes are more than the job's store takes")
        with self._turn:
            if not self._lost:
                try:
                    self._channel.send(body)
                    return json.loads(self._channel.receive(_ANSWER_S))
                except OSError as error:
                    self._lost = f"{type(error).__name__}: {error}"
                    self._channel.close()
        raise DistStoreError(f"the job's control store is lost ({self._lost}); rank 0 holds it")


def open_job_store(
    environment: MutableMapping[str, str],
    rank: int,
    size: int,
    timeout_s: float,
    torch_store: Store | None,
    name: str = "",
) -> JobStore:
    """Start the job's store on rank 0, and connect to it.

    On one machine gloo gets the loopback, unless the environment names another interface.

    Args:
        timeout_s: time limit for the ranks to find each other.
        torch_store: for rank 0's address; None: it listens at MASTER_ADDR and MASTER_PORT.
        name: of this use of the processes, alike on all ranks.

    Raises:
        InputError: there are several hosts and no secret; the address cannot be used.
        RunError: rank 0 did not come, or does not have the same secret.
    """
    entry = f"paceline control {environment.get('TORCHELASTIC_RESTART_COUNT', '0')} {name}"
    until_s = time.monotonic() + timeout_s
    one_host = is_one_host(environment, size)
    if torch_store is not None and not one_host:
        one_host = _share_loopback(torch_store, entry, rank, size, timeout_s)
    secret = job_secret(environment, one_host)
    if one_host:
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    server = None
    port = int(environment["MASTER_PORT"]) if torch_store is None else 0
    address = ("127.0.0.1" if one_host else environment.get("MASTER_ADDR", ""), port)
    if rank == 0:
        listener = _listen(environment, *address, one_host)
        address = listener.getsockname()[:2]
        server = _start_server(listener, secret)
        if torch_store is not None:
            torch_store.set(entry, json.dumps([*address, _sign(secret, entry, address)]))
    try:
        if rank != 0 and torch_store is not None:
            address = _look_up(torch_store, entry, secret, timeout_s)
        store = JobStore(_connect(address, secret, until_s), server)
    except RunError:
        if rank != 0 and torch_store is not None:
            torch_store.set(f"{entry} refused", "")  # rank 0 polls it
        raise
    if rank == 0:
        _wait_for_ranks(store, torch_store, entry, size, until_s)
    else:
        store.set(f"{entry} rank {rank}", "")
    return store


def _wait_for_ranks(
    store: JobStore, torch_store: Store | None, entry: str, size: int, until_s: float
) -> None:
    """Wait on rank 0 until all ranks are connected; on failure end the server and raise ``RunError``.

    A refused rank says so in torch's store, if any: a writer there can end the job in other ways, too.
    A connection with another secret ends nothing by itself, as it may be a stranger's.
    """
    keys = [f"{entry} rank {rank}" for rank in range(1, size)]
    while not store.check(keys):
        why = ""
        if torch_store is not None and torch_store.check([f"{entry} refused"]):
            why = f"a rank was refused: {SECRET_VARIABLE} is not the same on all hosts"
        elif time.monotonic() > until_s:
            missing = [rank for rank, key in enumerate(keys, 1) if not store.check([key])]
            why = f"rank {missing[0]} does not connect to rank 0" if missing else ""
            if refused := store._ask("refused"):
                why += f"; {refused} connections showed another secret: is {SECRET_VARIABLE} the same?"
        if why:
            store.end()
            raise RunError(why)
        time.sleep(POLL_S)


def is_one_host(environment: Mapping[str, str], size: int) -> bool:
    """Whether all ``size`` ranks run on one host, as far as the environment tells."""
    if environment.get("LOCAL_WORLD_SIZE") == str(size) or environment.get("SLURM_NNODES") == "1":
        return True
    host = environment.get("MASTER_ADDR", "")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _share_loopback(torch_store: Store, entry: str, rank: int, size: int, timeout_s: float) -> bool:
    """Whether all ranks share a network namespace, as announced in torch's store."""
    keys = [f"{entry} loopback {each}" for each in range(size)]
    torch_store.set(keys[rank], f"{boot_id()} {Path('/proc/self/ns/net').stat().st_ino}")
    _wait(torch_store, keys, timeout_s)
    return len({torch_store.get(key) for key in keys}) == 1


def _wait(torch_store: Store, keys: list[str], timeout_s: float) -> None:
    try:
        torch_store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise RunError(
            "the ranks did not find each other in torch's store: one has ended, or a firewall keeps it from "
            f"torchrun's ports ({error})"
        ) from None


def _listen(environment: Mapping[str, str], host: str, port: int, one_host: bool) -> socket.socket:
    """Listen on the job's interface: the loopback, gloo's, or that of MASTER_ADDR."""
    interface = environment.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    try:
        if interface and not one_host:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                request = struct.pack("256s", os.fsencode(interface)[:15])
                host = socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
        family, *_, where = socket.getaddrinfo(host or socket.gethostname(), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"rank 0 cannot listen at {host}, port {port}: {error}; GLOO_SOCKET_IFNAME names the interface "
            "that joins the hosts, MASTER_PORT the port"
        ) from None


def _start_server(listener: socket.socket, secret: bytes) -> subprocess.Popen[bytes]:
    """Start the server; it ends once this process is gone and no rank is connected."""
    with listener:
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", control_server.__file__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C goes to the ranks; the server waits for their end
        )
    assert server.stdin is not None
    server.stdin.write(secret.hex().encode() + b"\n")
    server.stdin.flush()
    threading.Thread(target=server.wait, daemon=True).start()
    return server


def _sign(secret: bytes, entry: str, address: _Address) -> str:
    return hmac.digest(secret, json.dumps([entry, *address]).encode(), "sha256").hex()


def _look_up(torch_store: Store, entry: str, secret: bytes, timeout_s: float) -> _Address:
    """Rank 0's address from torch's store, if signed with the secret."""
    _wait(torch_store, [entry], timeout_s)
    try:
        host, port, code = json.loads(torch_store.get(entry))
        if hmac.compare_digest(str(code), _sign(secret, entry, (host, port))):
            return host, port
    except (ValueError, TypeError, RecursionError):
        pass
    raise RunError(
        f"rank 0's address in torch's store is not signed with this rank's secret: {SECRET_VARIABLE} is not "
        "the same on all hosts, or somebody else writes into that store"
    )


def _connect(address: _Address, secret: bytes, until_s: float) -> Channel:
    """Connect to the server, which may still be starting."""
    refusals, where = 0, f"{address[0]}, port {address[1]}"
    while True:
        connection = None
        try:
            connection = socket.create_connection(address, timeout=control_server.HANDSHAKE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return open_channel(connection, secret)
        except OSError as error:
            if connection is not None:
                connection.close()
            refusals += isinstance(error, Refused)
            if refusals == _MAX_REFUSALS:
                raise RunError(
                    f"what listens at {where} does not share this rank's secret: {SECRET_VARIABLE} is not "
                    "the same on all hosts, or it is another program"
                ) from None
            if time.monotonic() > until_s:
                raise RunError(
                    f"rank 0 does not answer at {where} ({error}): a firewall, or GLOO_SOCKET_IFNAME names "
                    f"another interface, or {SECRET_VARIABLE} is not the same on all hosts"
                ) from None
            time.sleep(POLL_S)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


SECRET_VARIABLE: Final = "PACELINE_SECRET"
MIN_SECRET_LETTERS: Final = 16
"""Minimum length of a secret chosen by a user."""

_JOB: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that identify a job among one user's, to keep them apart."""


def job_secret(environment: Mapping[str, str], one_host: bool) -> bytes:
    """Key of this job's control messages, alike on all of its ranks.

    Derived from ``PACELINE_SECRET`` or, with all ranks on one host, from a file private to this user.
    Raises ``InputError`` for several hosts and no secret, a secret too short, or another user's folder.
    """
    written = environment.get(SECRET_VARIABLE, "")
    if written:
        secret = os.fsencode(written).strip()  # hosts may differ in a trailing line end
        if (letters := len(secret)) < MIN_SECRET_LETTERS:
            raise InputError(f"{SECRET_VARIABLE} has {letters} letters; give it {MIN_SECRET_LETTERS} or more")
    elif one_host:
        secret = _read_secret()
    else:
        raise InputError(
            "the ranks are on several hosts, and share no secret, so that anybody on the network could steer "
            f"them; on every host add the line: export {SECRET_VARIABLE}=...  (the same everywhere, for "
            "example what 'openssl rand -hex 32' prints)"
        )
    job = os.fsencode("\0".join(environment.get(name, "") for name in _JOB))
    return hmac.digest(hashlib.sha256(secret).digest(), job, "sha256")


def _read_secret() -> bytes:
    """Read this user's secret on this host; make it when first needed."""
    try:
        folder = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}"
        file = _make_secret(folder)
        secret = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"the ranks of this host can share no secret: {error.filename or tempfile.gettempdir()}: "
            f"{error.strerror}; set {SECRET_VARIABLE}"
        ) from error
    if len(secret) < MIN_SECRET_LETTERS:  # a full disk, or a crashed host
        raise InputError(f"{file} holds no secret: remove it, or set {SECRET_VARIABLE}")
    return secret


def _make_secret(folder: Path) -> Path:
    """Make the secret's file, if missing, in a folder of this user alone."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_private(folder, stat.S_ISDIR)
    file = folder / "secret"
    if not file.exists():
        draft = folder / f"secret.{secrets.token_hex(8)}"
        with open(draft, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as new:
            new.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(draft, file)  # atomic; the first one wins
        draft.unlink()
    _check_private(file, stat.S_ISREG)
    return file


def _check_private(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Refuse a path that others may have made, or may read."""
    status = path.lstat()
    if not is_kind(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InputError(
            f"{path} is not this user's alone, so that it keeps no secret: remove it, or set "
            f"{SECRET_VARIABLE}"
        )
