"""Output as nccl-tests print it, of times of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from paceline.extras.importers.measured.nccl_tests import Timed

COLUMNS = {"all_reduce": ("sum", -1), "reduce_scatter": ("sum", -1), "all_gather": ("none", -1)}
COLUMNS |= {"sendrecv": ("sum", -1), "broadcast": ("none", 0), "alltoall": ("none", -1)}


def busbw_factor(operation: str, n: int) -> float:
    """Bus bandwidth over bandwidth of the algorithm (doc/PERFORMANCE.md of nccl-tests)."""
    if operation in ("broadcast", "sendrecv"):
        return 1.0
    return (2 if operation == "all_reduce" else 1) * (n - 1) / n


def _number(value: float, width: int) -> str:
    shown = (f"{value:{width}.{digits}f}" for digits in (2, 1, 0))
    return next((each for each in shown if len(each) <= width), f"{value:{width}.1e}")


def text_of(hosts: Sequence[str], timed: Sequence[Timed], named: bool = True, wrong: str = "0") -> str:
    """A text; ``hosts`` of each rank."""
    operation, n = timed[0].operation, len(hosts)
    redop, root = COLUMNS[operation]
    lines = [f"# Collective test starting: {operation}_perf"] if named else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20", "#"]
    lines += ["# Using devices"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {40 + rank:6d} on {host:>10} device {rank:2d} [0000:04:00] H100"
        for rank, host in enumerate(hosts)
    ]
    group = f"{'time':>7} {'algbw':>6} {'busbw':>6} {'#wrong':>6}"
    lines += ["#", f"# {'size':>10} {'count':>12} {'type':>8} {'redop':>6} {'root':>6} {group} {group}"]
    lines += [f"# {'(B)':>10} {'(elements)':>12}    (us) (GB/s) (GB/s)    (us) (GB/s) (GB/s)"]
    for each in timed:
        algbw = each.num_bytes / each.seconds / 1e9
        values = (
            _number(each.seconds * 1e6, 7),
            _number(algbw, 6),
            _number(algbw * busbw_factor(operation, n), 6),
        )
        row = " ".join([*values, f"{wrong:>6}"])
        lines += [
            f"{each.num_bytes:12d} {each.num_bytes // 4:12d} {'float':>8} {redop:>6} {root:6d} {row} {row}"
        ]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.1 ", "#", ""])


def json_of(hosts: Sequence[str], gpus: int, timed: Sequence[Timed]) -> str:
    """JSON of ``-J``; ``hosts`` of each process, of which each has several ranks."""
    operation, n = timed[0].operation, gpus * len(hosts)
    redop, root = COLUMNS[operation]
    devices = [
        {"rank": k * gpus, "group": 0, "pid": 7, "hostname": host, "device": 0}
        for k, host in enumerate(hosts)
    ]
    results = []
    for each in timed:
        algbw = each.num_bytes / each.seconds / 1e9
        bandwidths = {"alg_bw": algbw, "bus_bw": algbw * busbw_factor(operation, n)}
        one = {"time": each.seconds * 1e6, **bandwidths, "nwrong": 0.0}
        results.append(
            {
                "size": each.num_bytes, "count": each.num_bytes // 4, "type": "float", "redop": redop,
                "root": f"{root:6d}", "out_of_place": one, "in_place": one, "actual_iterations": 20,
            }
        )  # fmt: skip
    document = {
        "version": 3, "start_time": "2026-11-27 10:00:00", "args": [f"./build/{operation}_perf", "-J", "x"],
        "env": ["PATH=/bin"], "nccl_version": 23003,
        "config": {"nthreads": 1, "ngpus": gpus, "iterations": 20, "devices": devices}, "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"}, "end_time": "2026-11-27 10:01:00",
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":"))
