"""A backend for tests that carries bytes as gloo does, and refuses what NCCL refuses or answers by hanging.

It is registered with torch as ``nccl_rules``, so that a run on it takes the very path of a run on NCCL:

- no receive from anybody and no tags;
- one operation of a process at a time, whichever group it is of: NCCL's kernels hold each other up;
- messages posted together are one batch, and complete before anything else begins. Two ranks have to name
  each other in the same batches, and a group's members have to begin the same collectives in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, ProcessGroupGloo, Store
from torch.distributed.distributed_c10d import GroupName

NAME = "nccl_rules"

_VALUE, _HEAD = 0, 1
_COLLECTIVES = ("allreduce", "broadcast", "allgather")


class _Turn:
    """What is under way in this process: one collective, or one batch of messages."""

    def __init__(self) -> None:
        self._group: NcclRules | None = None
        self._batch = self._open = False
        self._left = 0

    def begin(self, group: NcclRules, message: bool) -> None:
        """Something begins; RuntimeError if that would wait for what is under way."""
        if self._left == 0:
            self._group, self._batch, self._open = group, message, True
            group.named.clear()
        elif not (message and self._batch and self._open and group is self._group):
            raise RuntimeError("NCCL would hang: something else of this process is under way")
        self._left += 1

    def finish(self, wait: Callable[[], object]) -> None:
        """Wait for something: the batch that it is of is complete as posted."""
        self._open = False
        try:
            wait()
        finally:
            self._left -= 1


_turn = _Turn()


class _UnderWay(dist.Work):
    """What is posted, and how to wait for it."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__()
        self._wait = wait

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        _turn.finish(self._wait)
        return True


class NcclRules(dist.ProcessGroup):
    """A group that keeps NCCL's rules."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._gloo: Any = ProcessGroupGloo(store, rank, size, timeout)
        self._batches: Counter[int] = Counter()
        self._begun = 0
        self.named: set[int] = set()
        """Ranks that the latest batch has messages from or to."""

    def _get_backend(self, device: torch.device) -> Any:
        """torch asks the backend, of which this group has none, whether it coalesces messages."""
        return self

    supports_coalescing = False

    def _set_group_name(self, name: GroupName) -> None:
        """torch keeps it in a backend, of which this group has none."""
        self._group_name = name

    @property
    def group_name(self) -> GroupName:
        return self._group_name

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        return self._collective("allreduce", tensors[0], lambda: self._gloo.allreduce(tensors, opts))

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        return self._collective("broadcast", tensors[0], lambda: self._gloo.broadcast(tensors, opts))

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        return self._collective("allgather", inputs[0], lambda: self._gloo.allgather(outputs, inputs, opts))

    def _collective(self, name: str, value: Tensor, begin: Callable[[], dist.Work]) -> dist.Work:
        _turn.begin(self, message=False)
        self._begun += 1
        own = torch.tensor([self._begun, _COLLECTIVES.index(name), value.nbytes])
        heads = [torch.empty_like(own) for _ in range(self.size())]

        def wait() -> None:
            self._gloo.allgather([heads], [own], AllgatherOptions()).wait()
            if any(not torch.equal(own, head) for head in heads):
                raise RuntimeError(f"NCCL would hang: {name} meets another collective")
            begin().wait()

        return _UnderWay(wait)

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> dist.Work:
        head = self._head(tensors[0], destination, tag)
        works = [
            self._gloo.send([head], destination, _HEAD),
            self._gloo.send(tensors, destination, _VALUE),
        ]
        return _UnderWay(lambda: [work.wait() for work in works])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> dist.Work:
        own = self._head(tensors[0], source, tag)
        head = torch.empty_like(own)
        work = self._gloo.recv([head], source, _HEAD)

        def wait() -> None:
            work.wait()
            if not torch.equal(own, head):
                raise RuntimeError("NCCL would hang: a receive meets the message of another batch")
            self._gloo.recv(tensors, source, _VALUE).wait()

        return _UnderWay(wait)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        raise RuntimeError("NCCL has no receive from anybody")

    def _head(self, value: Tensor, peer: int, tag: int) -> Tensor:
        """[which batch of those between these two, bytes], as a message begins."""
        if tag != 0:
            raise RuntimeError(f"NCCL has no tags: {tag}")
        _turn.begin(self, message=True)
        self._batches[peer] += peer not in self.named
        self.named.add(peer)
        return torch.tensor([self._batches[peer], value.nbytes])


def _made(store: Store, rank: int, size: int, timeout: timedelta) -> NcclRules:
    return NcclRules(store, rank, size, timeout)


dist.Backend.register_backend(NAME, _made, devices=["cpu"])
