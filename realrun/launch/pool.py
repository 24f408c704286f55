"""Processes that stay: one per worker, in a lab or on this machine's loopback, and one run after another.

Starting a process costs seconds (torch is large), so validation keeps one set of them for all of its runs.
Each is ``realrun.launch.member``, inside its host; what to run goes to its standard input, a JSON object a
line, and the record comes back on its standard output.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paceline.sim.errors import InputError, RunError
from paceline.sim.network.network import Network
from paceline.sim.records.run import Evaluation, Event, Machine, Run, TimeShare

from ..lab import Lab
from ..lab.hosts import HostTuning
from ..lab.lab import python_environment
from ..lab.protocol import Discipline, Statistics


@dataclass(frozen=True)
class Answer:
    """What came back from one run.

    Attributes:
        run: the record.
        overruns: gradients that took longer than their time in the compute model by more than 1 %.
        gradients: how many there were.
        late_s: mean delay with which the end of a gradient was noticed.
    """

    run: Run
    overruns: int
    gradients: int
    late_s: float


class Pool:
    """``size`` processes in the hosts of a lab, or on the loopback where there is no lab.

    Args:
        network: what the lab emulates at first; it has as many hosts as there will ever be workers.
        lab: whether to emulate it.
        hosts, queue: as for ``Lab``.

    Raises:
        InputError: on entry, when this machine cannot run a lab.
    """

    def __init__(
        self, network: Network, *, lab: bool = True, hosts: HostTuning = "tuned", queue: Discipline = "fair"
    ) -> None:
        self._network = network
        self._lab = Lab(network, hosts=hosts, queue=queue) if lab else None
        self._members: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()
        self._joined = (0, 0)

    def __enter__(self) -> Self:
        with self._stack:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-")))
            if self._lab is not None:
                self._stack.enter_context(self._lab)
            self._stack.callback(self._end)
            for host in range(self._network.num_hosts):
                self._members.append(self._start(host))
            for host in range(self._network.num_hosts):
                self._answer(host)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def settings(self) -> tuple[Mapping[str, str], ...]:
        """What the lab read back of each host's settings; () without a lab."""
        return self._lab.settings if self._lab is not None else ()

    def statistics(self) -> Statistics | None:
        """What the switch did since the network was last changed; None without a lab."""
        return self._lab.statistics() if self._lab is not None else None

    def shape(self, network: Network, queue: Discipline | None = None) -> None:
        """Emulate another network between runs, of as many hosts or fewer."""
        if network.num_hosts > len(self._members):
            raise InputError(f"{len(self._members)} processes were started, not {network.num_hosts}")
        if self._lab is not None:
            self._lab.reconfigure(network, queue=queue)

    def run(self, workers: int, what: Mapping[str, Any]) -> Answer:
        """Have the first ``workers`` processes do one run.

        Raises:
            RunError: it failed, or a process died.
        """
        self._join(workers)
        answers = self._ask(workers, what)
        found = next((answer for answer in answers if answer.get("run")), None)
        if found is None:
            raise RunError(str(next((a["error"] for a in answers if a.get("error")), "nobody has a record")))
        if found["error"]:
            raise RunError(found["error"])
        timings = found["timings"]
        gradients = sum(t["gradients"] for t in timings)
        return Answer(
            run=run_from(found["run"]),
            overruns=sum(t["overruns"] for t in timings),
            gradients=gradients,
            late_s=sum(t["late_s"] for t in timings) / max(1, gradients),
        )

    def _join(self, workers: int) -> None:
        size, number = self._joined
        if size == workers:
            return
        store = self._folder / f"store{number}"
        self._ask(max(workers, size), {"join": [workers, str(store)]})
        self._joined = (workers, number + 1)

    def _start(self, host: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "paceline.realrun.launch.member", str(host)]
        environment = {**python_environment(), "OMP_NUM_THREADS": "1"}
        if self._lab is not None:
            environment["GLOO_SOCKET_IFNAME"] = Lab.interface
            return self._lab.popen(host, argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _ask(self, workers: int, what: Mapping[str, Any]) -> list[dict[str, Any]]:
        line = json.dumps(what).encode() + b"\n"
        for host in range(workers):
            if self._members[host].poll() is not None:
                raise RunError(f"the process of worker {host} has ended")
        for host in range(workers):
            pipe = self._members[host].stdin
            assert pipe is not None
            try:
                pipe.write(line)
                pipe.flush()
            except BrokenPipeError as error:
                raise RunError(f"the process of worker {host} has ended") from error
        return [self._answer(host) for host in range(workers)]

    def _answer(self, host: int) -> dict[str, Any]:
        pipe = self._members[host].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise RunError(f"the process of worker {host} has ended")
        answer: dict[str, Any] = json.loads(line)
        if "raised" in answer:
            raise RunError(f"worker {host}: {answer['raised']}")
        return answer

    def _end(self) -> None:
        for member in self._members:
            for pipe in (member.stdin, member.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        for member in self._members:
            try:
                member.wait(5)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()


def run_from(found: Mapping[str, Any]) -> Run:
    """The inverse of ``dataclasses.asdict`` on a ``Run``."""
    return Run(
        **{
            **found,
            "time_s": TimeShare(**found["time_s"]),
            "machines": tuple(Machine(**each) for each in found["machines"]),
            "evaluations": tuple(Evaluation(**each) for each in found["evaluations"]),
            "events": tuple(Event(**each) for each in found["events"]),
        }
    )
