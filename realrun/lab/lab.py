"""A wide-area network on one machine: real processes and real TCP over an emulated ``Network``."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from paceline.sim.errors import InputError, RunError
from paceline.sim.network.network import Link, Network
from paceline.sim.network.network_settings import TcpSettings

from . import enter, kernel
from .kernel import INTERFACE, address
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
        tcp: settings of stock hosts; None: tuned ones, without TCP's ramp-up and idle restart.
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
        tcp: TcpSettings | None = None,
        queue: Discipline = "fair",
    ) -> None:
        if tcp is not None and (tcp.loss or tcp.connections > 1):
            key = "loss" if tcp.loss else "connections"
            raise InputError(f"the lab loses nothing and has one connection; leave tcp.{key} out")
        self._network = network
        self._tcp = "tuned" if tcp is None else tcp.model_dump_json()
        self._queue: Discipline = queue
        self._namespaces: list[int] = []
        self._user_namespace = -1
        self.settings: tuple[Mapping[str, str], ...] = ()
        """Per host, as read back: TCP settings, route metrics, and whether processors are kept awake."""
        self._switch: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._order(PLAN.dump_json(plan_of(self._network, self._queue)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

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

    def _start(self, stack: contextlib.ExitStack) -> None:
        awake = kernel.keep_awake()
        if awake >= 0:
            stack.callback(os.close, awake)
        self._lines, its_lines = socket.socketpair()
        self._answers = stack.enter_context(stack.enter_context(self._lines).makefile("rb"))
        self._lines.settimeout(_ANSWER_S)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_lines, ours, theirs:
            command = [sys.executable, "-m", "paceline.realrun.lab.switch"]
            self._switch = subprocess.Popen(
                [*command, str(self._network.num_hosts), self._tcp, str(theirs.fileno())],
                stdin=its_lines.fileno(),
                stdout=its_lines.fileno(),
                pass_fds=[theirs.fileno()],
                env=python_environment(),
                start_new_session=True,  # Ctrl-C goes to this process, which stops the switch
            )
            stack.callback(self._end)
            its_lines.close()
            hello = self._answer()
            if "error" in hello:
                raise InputError(f"no lab on this machine: {hello['error']}. {_NEEDS}")
            latency = {"cpu_dma_latency": kernel.wake_latency(awake)}
            self.settings = tuple({**settings, **latency} for settings in hello["settings"])
            namespaces = []
            for _ in range(self._network.num_hosts + hello["user"]):
                namespaces += socket.recv_fds(ours, 1, 1)[1]
                stack.callback(os.close, namespaces[-1])
            if hello["user"]:
                self._user_namespace = namespaces.pop(0)
            self._namespaces = namespaces

    def _end(self) -> None:
        assert self._switch is not None
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        self._lines.shutdown(socket.SHUT_WR)
        try:
            self._switch.wait(5)
        except subprocess.TimeoutExpired:
            self._switch.kill()
            self._switch.wait()

    def _order(self, line: bytes) -> dict[str, Any]:
        """Send one command to the switch and wait for its answer."""
        if self._switch is None:
            raise RunError("the lab is not running")
        with self._turn:
            return self._answer(line + b"\n")

    def _answer(self, line: bytes = b"") -> dict[str, Any]:
        try:
            self._lines.sendall(line)
            answer = self._answers.readline()
        except TimeoutError as error:
            raise RunError(f"the lab's switch did not answer within {_ANSWER_S:.0f} s") from error
        except OSError:
            answer = b""
        if not answer:
            raise RunError("the lab's switch has ended")
        return dict(json.loads(answer))


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
