"""List the TCP ports that listen during each kind of run, and on which interface.

``python -m benchmarks.ports``, where network namespaces can be made: a line for each kind of process and
address, as ``ss -ltn`` sees them from within the process's own network, gathered while the run goes on.
``docs/trust.md`` says what each is for.
"""

from __future__ import annotations

import argparse
import ipaddress
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from paceline.realrun.group.job_store import SECRET_VARIABLE
from paceline.realrun.lab import Lab
from paceline.realrun.lab.lab import python_environment
from paceline.sim.network.build import build_network
from paceline.sim.scenario.schema import load

_MARK: Final = "PACELINE_PORTS"
_LISTENS: Final = "0A"
"""State of a socket that listens, in /proc/net/tcp."""
_LOOK_S: Final = 0.1
"""Seconds between two looks."""
_SCENARIO: Final = """\
name: ports
seed: 3
gradients: looped
workload: {task: quadratic, dimension: 30, examples: 128, batch_size: 4, optimizer: {lr: 0.1}}
cluster:
  workers: 2
  compute: {time: 5 ms}
  network: {latency: 1 ms, bandwidth: 100 Mbit/s}
evaluate: {every: 5 steps}
schemes: [all_reduce, ad_psgd]
stop: {max_iterations: 300}
repeats: 2
"""
_LONG: Final = ["--set", "stop.max_iterations=3000", "--set", "repeats=4"]
"""Enough work for a simulation to start processes."""
_ATTACHED: Final = """\
import torch
import paceline

model = torch.nn.Linear(100, 10)
torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with paceline.attach(model, optimizer, {"gossip": {"topology": "ring"}}, steps=500) as worker:
    for _ in range(500):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 100)).square().mean()
        loss.backward()
        worker.step(loss)
"""
"""A training loop of a user's own."""
_PROCESSES: Final = {
    "control_server": "control store", "torch.distributed.run": "torchrun's agent",
    "attached.py": "rank", "lab.switch": "lab's switch", "paceline.realrun": "rank",
    "loky": "process for runs", "paceline": "command",
}  # fmt: skip
"""What a command line holds -> what the process is; the first that fits."""


@dataclass
class Listeners:
    """Ports seen so far.

    Attributes:
        sockets: (process kind, interface) -> address, port and number of each socket.
        processes: all that were looked at.
    """

    sockets: dict[tuple[str, str], set[tuple[str, int, str]]] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)

    def look(self, mark: str) -> None:
        """Add what the processes listen on now that have ``mark`` (``NAME=value``) in their environment."""
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            with suppress(OSError):  # it has ended meanwhile
                if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    self.processes.add(int(process.name))
                    self._look_at(process)

    def _look_at(self, process: Path) -> None:
        own = {str(descriptor.readlink()) for descriptor in (process / "fd").iterdir()}
        words = (process / "cmdline").read_bytes().decode().split("\0")
        fitting = (name for part, name in _PROCESSES.items() if any(part in word for word in words))
        kind = next(fitting, "another process")
        for table in ("tcp", "tcp6"):
            for line in (process / "net" / table).read_text().splitlines()[1:]:
                local, state, inode = (line.split()[column] for column in (1, 3, 9))
                if state == _LISTENS and f"socket:[{inode}]" in own:
                    written, port = local.split(":")
                    address = _address(written)
                    known = self.sockets.setdefault((kind, _interface(address)), set())
                    known.add((str(address), int(port, 16), inode))


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(written: str) -> _Address:
    """An address as the kernel writes it: in words of the host's byte order."""
    words = [int(written[start : start + 8], 16) for start in range(0, len(written), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    return getattr(address, "ipv4_mapped", None) or address


def _interface(address: _Address) -> str:
    if address.is_unspecified:
        return "every interface"
    return "loopback" if address.is_loopback else f"the interface of {address}"


def _watch(processes: Sequence[subprocess.Popen[bytes]], mark: str, listeners: Listeners) -> Sequence[int]:
    while any(process.poll() is None for process in processes):
        listeners.look(mark)
        time.sleep(_LOOK_S)
    return [process.wait() for process in processes]


def _torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def _commands(scenario: Path, script: Path) -> Mapping[str, list[str]]:
    """Each kind of run on this host alone."""
    paceline = [sys.executable, "-m", "paceline"]
    torchrun = _torchrun("--standalone", "--nproc-per-node", "2")
    return {
        "simulate --jobs 2": [*paceline, "simulate", str(scenario), "--jobs", "2", "--out", "r", *_LONG],
        "sweep --jobs 2": [
            *paceline,
            "sweep",
            str(scenario),
            "--grid",
            "seed=1,2",
            "--jobs",
            "2",
            "--out",
            "w",
            *_LONG,
        ],
        "report": [*paceline, "report", "r"],
        "realrun --processes": [*paceline, "realrun", str(scenario), "--processes"],
        "realrun --lab": [*paceline, "realrun", str(scenario), "--lab"],
        "validate": [*paceline, "validate", str(scenario), "--steps", "60", "--out", "v"],
        "validate --lab": [*paceline, "validate", str(scenario), "--lab", "--steps", "60", "--out", "l"],
        "torchrun, one host": [*torchrun, "-m", "paceline.realrun", str(scenario)],
        "torchrun, one host, paceline.attach": [*torchrun, str(script)],
    }


def _on_two_hosts(
    scenario: Path, environment: Mapping[str, str], stack: ExitStack
) -> list[subprocess.Popen[bytes]]:
    """Torchrun on both hosts of a lab, with a rank on each."""
    cluster = load(scenario).cluster
    lab = stack.enter_context(Lab(build_network(cluster.network, cluster.workers)))
    environment = {**environment, SECRET_VARIABLE: "s" * 32, "GLOO_SOCKET_IFNAME": lab.interface}
    agents = []
    for host in range(2):
        rendezvous = f"--rdzv-backend c10d --rdzv-id 1 --rdzv-endpoint {lab.address(0)}:29400"
        who = f"--rdzv-conf is_host={int(host == 0)} --local-addr {lab.address(host)}"
        options = f"--nnodes 2 --nproc-per-node 1 {rendezvous} {who}".split()
        agents.append(
            lab.popen(
                host, [*_torchrun(*options), "-m", "paceline.realrun", str(scenario)], env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
    return agents


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as work:
        scenario = Path(work) / "ports.yaml"
        scenario.write_text(_SCENARIO, encoding="utf-8")
        script = Path(work) / "attached.py"
        script.write_text(_ATTACHED, encoding="utf-8")
        for name, argv in [*_commands(scenario, script).items(), ("torchrun, two hosts", [])]:
            mark = f"{_MARK}={name}"
            environment = {**python_environment(), _MARK: name, "OMP_NUM_THREADS": "1"}
            listeners = Listeners()
            with ExitStack() as stack:
                if argv:
                    quiet = subprocess.DEVNULL
                    started = [subprocess.Popen(argv, env=environment, cwd=work, stdout=quiet, stderr=quiet)]
                else:
                    started = _on_two_hosts(scenario, environment, stack)
                statuses = _watch(started, mark, listeners)
            print(f"{name}: {len(listeners.processes)} processes, exit status {max(statuses)}", flush=True)
            for (kind, interface), sockets in sorted(listeners.sockets.items()):
                print(f"    {kind}: {len(sockets)} on {interface}", flush=True)
            if not listeners.sockets:
                print("    nothing listens")


if __name__ == "__main__":
    main()
