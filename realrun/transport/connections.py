"""Tensors between two ranks over gloo, in a process group of Paceline's own: posted, then waited for.

It is no group of the user's, nor torch's default one: their messages and ours never meet.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from paceline.sim.program.operations import ANY

FOREVER: Final = timedelta(days=1)
"""Time-out of torch's groups: one that ran out would close every connection. The driver watches instead."""

REPORT_TAG: Final = 1 << 21
"""Tag of a rank's report after a run."""
CLOCK_TAG: Final = 1 << 22
"""Tag of the comparison of two clocks."""

COLLECTIVES_AT_ONCE: Final = 16
"""Threads of a group's own: each carries one collective, and more of them wait. torch's groups have two, so
that the layers of a gradient would be summed two after two, each pair for all the latencies of a ring."""


class PeerGone(Exception):
    """gloo says that a connection is closed.

    Args:
        rank: the peer, or -1 where gloo does not tell.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


def connect(store: Store, name: str, rank: int, size: int) -> dist.ProcessGroupGloo:
    """Connect to each of the others; all of them call this at the same time.

    Args:
        store: where they meet.
        name: of the group, the same on all.
        rank, size: this one in the group, and how many there are.
    """
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs call the options by another name
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    devices = [gloo.create_device(interface=interface) for interface in interfaces if interface]
    options = gloo._Options()
    options._devices = devices or [gloo.create_default_device()]
    options._threads = COLLECTIVES_AT_ONCE
    options._timeout = FOREVER
    connected: dist.ProcessGroupGloo = gloo(PrefixStore(name, store), rank, size, options)
    return connected


def send(gloo: dist.ProcessGroupGloo, value: torch.Tensor, destination: int, tag: int) -> dist.Work:
    """Begin to send a tensor.

    Raises:
        PeerGone: the connection is closed already.
    """
    messages: Any = gloo  # torch's stubs leave out what a backend can send
    try:
        work: dist.Work = messages.send([value], destination, tag)
    except RuntimeError as error:
        raise PeerGone(destination) from error
    return work


def receive(gloo: dist.ProcessGroupGloo, buffer: torch.Tensor, source: int, tag: int) -> dist.Work:
    """Post a receive; ``ANY``: from whoever sends.

    Raises:
        PeerGone: the connection is closed already.
    """
    messages: Any = gloo
    try:
        work: dist.Work = (
            messages.recv_anysource([buffer], tag) if source == ANY else messages.recv([buffer], source, tag)
        )
    except RuntimeError as error:
        raise PeerGone(source) from error
    return work


def finish(work: dist.Work, peer: int, patience_s: float = 0.0) -> None:
    """Wait until something is complete, for ``patience_s``; 0: for as long as it takes.

    Raises:
        PeerGone: the connection was closed, or ``patience_s`` is over.
    """
    try:
        work.wait(timedelta(seconds=patience_s))
    except RuntimeError as error:
        raise PeerGone(peer) from error
