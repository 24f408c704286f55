"""Runs what every driver promises on NCCL: ``python -m benchmarks.nccl_contract [RANKS ...]``.

On a machine with one GPU several ranks have to share it. NCCL takes them for processes of one host and
refuses, unless each says that it is a host of its own and they talk over sockets.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Final

import torch

from paceline.realrun.group.group import Group
from paceline.realrun.transport.connections import PeerGone
from paceline.realrun.transport.device import device_of
from paceline.sim.errors import RunError
from tests.contract import cases as driver_contract
from tests.contract.cluster_contract import broken_promises, run_case
from tests.support.cluster_pool import Pool

_CONNECT_S: Final = 60.0
_SHARED_GPU: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class ContractResult:
    """How many cases a backend passed.

    Attributes:
        ranks: how many processes.
        passed: how many cases were as they should be.
        failed: what was not, one line each.
        refused: NCCL's words if it did not connect the ranks, else "".
    """

    ranks: int
    passed: int
    failed: tuple[str, ...]
    refused: str


def contract_on_nccl(ranks: int) -> ContractResult:
    """The contract's cases for ``ranks`` workers (1 to 4) that do not fail; they share this machine's GPUs.

    Raises:
        InputError: this machine has no GPU, or torch was built without NCCL.
    """
    device_of("nccl", 0)
    return contract_on("nccl", ranks)


def contract_on(backend: str, ranks: int) -> ContractResult:
    """The contract's cases for ``ranks`` workers that do not fail, on any backend of torch."""
    pool = Pool(ranks)
    try:
        refusals = [answer for answer in pool.ask(connect, backend=backend) if answer]
        if refusals:
            return ContractResult(ranks, 0, (), refusals[0])
        failed = [
            f"rank {rank} got {received}"
            for rank, received in enumerate(pool.ask(pass_round, backend=backend))
            if received != [(rank - 1) % ranks] * 2
        ]
        cases = [case for case in driver_contract.GOOD if case.workers == ranks]
        passed = int(not failed)
        for case in cases:
            try:
                wrong = broken_promises(case, pool.ask(run_case, name=case.name, backend=backend))
            except AssertionError as error:
                wrong = [f"{case.name}: {str(error).splitlines()[-1]}"]
            passed += not wrong
            failed += wrong
            if wrong:  # no other run can follow in these processes
                pool.close()
                pool = Pool(ranks)
                pool.ask(connect, backend=backend)
    finally:
        pool.close()
    return ContractResult(ranks, passed, tuple(failed), "")


def share_gpu(group: Group) -> None:
    """In a process of the pool: pose as a host of its own where there are fewer GPUs than ranks."""
    if torch.cuda.is_available() and torch.cuda.device_count() < group.size:
        os.environ.update(_SHARED_GPU, NCCL_HOSTID=f"rank {group.rank}")


def connect(group: Group, backend: str) -> str:
    """In a process of the pool: join the others over the backend; returns why not."""
    share_gpu(group)
    try:
        group.backend(backend, device_of(backend, group.rank), _CONNECT_S)
    except RunError as error:
        return str(error)
    return ""


def pass_round(group: Group, backend: str) -> list[Any]:
    """In a process of the pool: send this rank's number to the next one; returns what came."""
    device = device_of(backend, group.rank)
    sent, got = (torch.full((2,), float(n), device=device) for n in (group.rank, -1))
    receives = [(got, (group.rank - 1) % group.size)]
    sends = [(sent, (group.rank + 1) % group.size)]
    carrier = group.backend(backend, device, _CONNECT_S)
    try:
        carrier.exchange(receives, lambda: sends, 0)()
    except PeerGone as gone:
        return [str(gone.__cause__)]
    return got.tolist()


def main() -> None:
    """Print one line for each number of ranks."""
    for ranks in map(int, sys.argv[1:] or ["1", "2"]):
        result = contract_on_nccl(ranks)
        print(f"{ranks} ranks: {result.passed} passed, {len(result.failed)} failed. {result.refused}")
        for line in result.failed:
            print(f"  {line}")


if __name__ == "__main__":
    main()
