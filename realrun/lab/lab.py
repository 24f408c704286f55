"""A wide-area network on one machine: real processes and real TCP over an emulated ``Network``."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from paceline.sim.errors import InputError, RunError
from paceline.sim.network.network import Link, Network
from paceline.sim.network.stock_tcp import HostTuning, TcpSettings

from . import enter, kernel
from .namespaces import INTERFACE, address
from .protocol import PLAN, Discipline, Statistics, plan_of

_ANSWER_S = 60.0
"""Time limit of the switch's answers."""
_NEEDS = (
    "The lab needs Linux with /dev/net/tun (modprobe tun; for a container --device /dev/net/tun) and either "
    "root with CAP_NET_ADMIN and CAP_SYS_ADMIN, or unprivileged user namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0) "
    "and that device open to users (chmod 0666 /dev/net/tun)"
)


class Lab:
    """Hosts in network namespaces of their own, joined by a switch that behaves like ``network``.

    A context manager: the hosts exist inside the ``with`` block, one per host of ``network``. Nothing
    outlives it, nor this process however it ends: namespaces have no names, processes die with their parent.
    The kernel reckons a parent by thread: enter the lab, and start processes in it, from a thread that stays.

    Args:
        network: to be emulated. A link or cap without a limit runs as fast as the machine.
        hosts: ``tuned`` removes TCP's ramp-up and idle restart; ``stock`` keeps the kernel's defaults.
        tcp: settings of stock hosts; None: the kernel's.
        queue: discipline of every link, see ``paceline.realrun.lab.queues``.

    Raises:
        InputError: on entry, when this machine cannot run a lab; the message says how to get there. At once,
            when a TCP setting is impossible in a lab.
    """

    interface = INTERFACE
    """Name of the network device inside each host."""

    def __init__(
        self,
        network: Network,
        *,
        hosts: HostTuning = "tuned",
        tcp: TcpSettings | None = None,
        queue: Discipline = "fair",
    ) -> None:
        if tcp is not None and (tcp.loss or tcp.connections > 1):
            key = "loss" if tcp.loss else "connections"
            raise InputError(f"the lab loses nothing and has one connection; leave tcp.{key} out")
        self._network = network
        self._hosts = hosts if tcp is None else tcp.model_dump_json()
        self._queue: Discipline = queue
        self._namespaces: list[int] = []
        self._user_namespace = -1
        self._settings: tuple[Mapping[str, str], ...] = ()
        self._switch: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self._unread = b""
        self._turn = threading.Lock()
        self._awake = -1

    def __enter__(self) -> Self:
        try:
            self._start()
            self._order(PLAN.dump_json(plan_of(self._network, self._queue)))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    @property
    def settings(self) -> tuple[Mapping[str, str], ...]:
        """Per host, as read back: TCP settings, route metrics, and whether processors are kept awake."""
        return self._settings

    def address(self, host: int) -> str:
        """IPv4 address of ``host``, inside the lab."""
        return address(host)

    def popen(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a program inside ``host``; it is killed when the lab or this process ends.

        ``env`` is its whole environment (default: this process's); ``options`` as for ``subprocess.Popen``.
        """
        namespaces = [n for n in (self._user_namespace, self._namespaces[host]) if n >= 0]
        command = [sys.executable, "-I", "-S", enter.__file__, str(os.getpid())]
        command += [str(self._user_namespace), str(self._namespaces[host]), *argv]
        options["pass_fds"] = (*options.get("pass_fds", ()), *namespaces)
        child = subprocess.Popen(command, env=env, **options)
        self._children = [*(c for c in self._children if c.poll() is None), child]
        return child

    def statistics(self) -> Statistics:
        """Statistics of the switch since the start or the last ``reconfigure``."""
        return Statistics(**self._order(b'"statistics"'))

    def reconfigure(self, network: Network, *, queue: Discipline | None = None) -> None:
        """Emulate another network between the same hosts, or the first few of them.

        Waits until no packet is in flight: call it between runs. Raises ``InputError`` if ``network`` has
        more hosts than the lab.
        """
        if network.num_hosts > len(self._namespaces):
            raise InputError(
                f"the lab has {len(self._namespaces)} hosts; a network of {network.num_hosts} does not fit"
            )
        self._order(PLAN.dump_json(plan_of(network, queue or self._queue)))

    def _start(self) -> None:
        self._awake = kernel.keep_awake()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            command = [sys.executable, "-m", "paceline.realrun.lab.switch"]
            self._switch = subprocess.Popen(
                [*command, str(self._network.num_hosts), self._hosts, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=python_environment(),
                start_new_session=True,  # Ctrl-C goes to this process, which stops the switch
            )
            hello = self._answer()
            if "error" in hello:
                raise InputError(f"no lab on this machine: {hello['error']}. {_NEEDS}")
            awake = {"cpu_dma_latency": kernel.wake_latency(self._awake)}
            self._settings = tuple({**settings, **awake} for settings in hello["settings"])
            namespaces = []
            for _ in range(self._network.num_hosts + hello["user"]):
                namespaces += socket.recv_fds(ours, 1, 1)[1]
            if hello["user"]:
                self._user_namespace = namespaces.pop(0)
            self._namespaces = namespaces

    def _stop(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        if self._switch is not None:
            assert self._switch.stdin is not None
            assert self._switch.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._switch.stdin.close()
            try:
                self._switch.wait(5)
            except subprocess.TimeoutExpired:
                self._switch.kill()
                self._switch.wait()
            self._switch.stdout.close()
        for namespace in [*self._namespaces, self._user_namespace]:
            if namespace >= 0:
                os.close(namespace)
        self._namespaces, self._user_namespace = [], -1
        if self._awake >= 0:
            os.close(self._awake)
            self._awake = -1

    def _order(self, line: bytes) -> dict[str, Any]:
        """Send one command to the switch and wait for its answer."""
        if self._switch is None or self._switch.stdin is None:
            raise RunError("the lab is not running")
        with self._turn:
            try:
                self._switch.stdin.write(line + b"\n")
                self._switch.stdin.flush()
            except (BrokenPipeError, ValueError) as error:
                raise RunError("the lab's switch has ended") from error
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._switch is not None
        assert self._switch.stdout is not None
        until_s = time.monotonic() + _ANSWER_S
        while b"\n" not in self._unread:
            wait_s = until_s - time.monotonic()
            if wait_s <= 0 or not select.select([self._switch.stdout], (), (), wait_s)[0]:
                raise RunError(f"the lab's switch did not answer within {_ANSWER_S:.0f} s")
            chunk = os.read(self._switch.stdout.fileno(), 1 << 16)
            if not chunk:
                raise RunError("the lab's switch has ended")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def python_environment() -> dict[str, str]:
    """Environment in which another Python imports the project, and nothing from the working folder."""
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


@functools.cache
def available() -> str | None:
    """Try to make a lab of one host: None, or why this machine cannot and what to do about it."""
    if sys.platform != "linux":
        return f"no lab on {sys.platform}: it needs Linux"
    nowhere = Network(("here",), (0,), (Link("unused", 1.0),), ((0.0,),), ((1.0,),))
    try:
        with Lab(nowhere):
            return None
    except InputError as error:
        return str(error)
