"""Which machine a process is on, and which worker it is.

torchrun and Slurm number processes as they please. Workers of one machine have consecutive numbers, in the
order in which the scenario names the machines, so that its sites are where it says.
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
    """This machine's name for itself."""
    return socket.gethostname()


def boot_id() -> str:
    """A random word that the kernel drew when this machine was started; its processes share a clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine() -> str:
    """This machine, human-readable."""
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores"


def software() -> str:
    """Versions of what runs here, human-readable."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, Linux {platform.release()}"


def workers_of(names: Sequence[str], wanted: Mapping[str, int] | None) -> list[int]:
    """The worker that each process is, [n].

    Args:
        names: the name of each process's host, in the order of the ranks.
        wanted: host -> workers, in the order of the workers; None: hosts as they come.

    Raises:
        InputError: a host runs more or fewer processes than it should, or is not named.
    """
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks.setdefault(name if wanted is None else _named(name, wanted), []).append(rank)
    mistakes = []
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
    """``name`` as the scenario spells it: with or without its domain."""
    short = name.partition(".")[0]
    return next((host for host in wanted if host == name or host.partition(".")[0] == host == short), name)


def _processes(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no process"
    listed = ", ".join(str(rank) for rank in ranks)
    return f"1 process (rank {listed})" if len(ranks) == 1 else f"{len(ranks)} processes (ranks {listed})"
