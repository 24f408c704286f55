"""Host of each process, and worker numbers by host.

torchrun and Slurm number processes as they please. Workers of one machine are numbered consecutively, in the
order in which the scenario names the machines, so that they are in the scenario's sites.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from paceline.sim.errors import InputError


def host_name() -> str:
    """This machine's hostname."""
    return socket.gethostname()


def boot_id() -> str:
    """The kernel's random boot ID; processes with the same one share a clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine() -> str:
    """This machine, human-readable."""
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores"


def software() -> str:
    """Versions of torch, Python and Linux, human-readable."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, Linux {platform.release()}"


def workers_of(names: Sequence[str], wanted: Mapping[str, int] | None) -> list[int]:
    """Worker number [n] of each process, in rank order, by its host's name.

    ``wanted``: host -> number of workers, in worker order; None: hosts as they come. Raises ``InputError`` if
    a host runs more or fewer processes, or is not named.
    """
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks.setdefault(name if wanted is None else _named(name, wanted), []).append(rank)
    if wanted is not None:
        mistakes = [
            f"{host} runs {_processes(ranks.get(host, []))}, cluster.hosts wants {count}"
            for host, count in wanted.items()
            if len(ranks.get(host, [])) != count
        ]
        mistakes += [
            f"{host} runs {_processes(there)}, and is not in cluster.hosts"
            for host, there in ranks.items()
            if host not in wanted
        ]
        if mistakes:
            raise InputError("; ".join(mistakes))
    order = [rank for host in (wanted or ranks) for rank in ranks[host]]
    workers = [0] * len(names)
    for worker, rank in enumerate(order):
        workers[rank] = worker
    return workers


def _named(name: str, wanted: Mapping[str, int]) -> str:
    """``name`` as spelled in the scenario: with or without its domain."""
    short = name.partition(".")[0]
    return next((host for host in wanted if host == name or host.partition(".")[0] == host == short), name)


def _processes(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no process"
    listed = ", ".join(str(rank) for rank in ranks)
    return f"1 process (rank {listed})" if len(ranks) == 1 else f"{len(ranks)} processes (ranks {listed})"
