"""Clocks of several machines: the true difference is always within the bar."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import FileStore

from paceline.realrun.driver import clocks
from paceline.realrun.driver.clocks import Alignment, Reading, alignment, reading
from paceline.realrun.driver.rank_log import Exchange as Peers
from paceline.realrun.driver.rank_log import Exposure, LoggedOperation, RankLog
from paceline.realrun.group.store import Control
from paceline.sim.records.folder import read_results, runs_of
from paceline.sim.records.run import Machine
from paceline.sim.training.snapshots import Published
from tests.support.made_runs import made_run

DELAYS = st.floats(0, 0.5)
OFFSETS = st.floats(-1e6, 1e6)


def test_a_run_begins_when_the_farthest_rank_can_know_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks seven times more, and each time it takes a round trip to the store."""
    control = Control(FileStore(str(tmp_path / "store"), 1), 0, 1)
    monkeypatch.setattr(clocks, "_store_round_trip_s", lambda _: 50.0)
    now_s = time.monotonic()
    begun = clocks.start(cast(dist.ProcessGroupGloo, None), control)
    assert begun.zero_s - now_s >= 7 * 50.0


def test_an_exchange_by_hand() -> None:
    # 5 s behind; 2 s there, 1 s at the other side, 4 s back: 1 s off, of at most 3
    found = reading(sent=100.0, received=107.0, answered=108.0, returned=107.0)
    assert found == Reading(at_s=103.5, offset_s=4.0, error_s=3.0)


def test_the_shortest_round_trip_counts() -> None:
    slow, fast = (0.0, 9.0, 9.0, 2.0), (4.0, 10.5, 11.0, 5.5)
    asked = [slow] * 3 + [fast] + [slow] * (clocks.EXCHANGES - 4)
    own = iter([time_s for sent, _, _, returned in asked for time_s in (sent, returned)])
    answers = iter([(received, answered) for _, received, answered, _ in asked])
    found = clocks.ask(lambda *_: None, lambda: lambda: next(answers), lambda: next(own))
    assert found == Reading(at_s=4.75, offset_s=6.0, error_s=0.5)


@given(OFFSETS, st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1, max_size=9), st.floats(0, 1e5))
def test_the_true_offset_is_within_the_bar(
    offset: float, delays: list[tuple[float, float, float]], now: float
) -> None:
    readings = []
    for there, busy, back in delays:
        heard = now + there
        readings.append(reading(now - offset, heard, heard + busy, heard + busy + back - offset))
        now = heard + busy + back
    found = min(readings, key=lambda each: each.error_s)
    assert abs(found.offset_s - offset) <= found.error_s + 1e-9
    assert found.error_s <= min(there + back for there, _, back in delays) / 2 + 1e-9


@given(
    st.floats(-1e-3, 1e-3), OFFSETS, st.floats(0, 0.05), st.floats(0, 0.05), st.floats(-1, 1),
    st.floats(-1, 1), st.floats(0.5, 5000), st.floats(0, 1),
)  # fmt: skip
def test_corrected_times_are_within_the_bar_at_any_drift(
    drift: float, offset: float, e1: float, e2: float, u1: float, u2: float, length: float, when: float
) -> None:
    """Worker 0's clock shows offset + (1 + drift) t when this one shows t."""

    def worker_0(t: float) -> float:
        return offset + (1 + drift) * t

    begin = Reading(10.0, worker_0(10.0) - 10.0 + u1 * e1, e1)
    end = Reading(10.0 + length, worker_0(10.0 + length) - 10.0 - length + u2 * e2, e2)
    zero_0 = worker_0(10.0)  # the run begins
    zero_s = zero_0 - begin.offset_s
    by = alignment(begin, end, zero_s)
    t = 10.0 + when * length  # on this clock
    found = by.scale * (t - zero_s) + by.shift_s
    assert abs(found - (worker_0(t) - zero_0)) <= by.error_s * (1 + 1e-3) + 1e-8
    if abs(drift) * length > 2.1 * (e1 + e2) + 1e-6:  # what is far smaller is rounded away
        assert by.error_s == max(e1, e2)


def test_a_drift_that_cannot_be_told_changes_no_durations() -> None:
    begin, end = Reading(0.0, 7.0, 0.5), Reading(100.0, 7.75, 0.5)
    assert alignment(begin, end, 1.0) == Alignment(1.0, 0.0, 1.25)
    assert alignment(begin, end._replace(offset_s=9.0), 50.0) == Alignment(1.02, 1.0, 0.5)


def test_all_times_of_a_log_are_corrected() -> None:
    log = RankLog(
        1,
        torch.ones(2),
        rows=[LoggedOperation(0, -1, 0, "mix", 1.0, 3.0, 5, -1, Peers("mix 0", (0,)))],
        exposures=[Exposure(1.0, 0.5, Peers("mix 0", (0,)), 2.0)],
        published=[Published(1, 0, 3.0, None, 5)],
        ended_s=4.0,
    )
    found = clocks.corrected(log, Alignment(2.0, 0.5, 0.0))
    assert found.rows == [LoggedOperation(0, -1, 0, "mix", 2.5, 6.5, 5, -1, Peers("mix 0", (0,)))]
    assert found.exposures == [Exposure(2.5, 1.0, Peers("mix 0", (0,)), 4.5)]
    assert found.published[0].time_s == 6.5
    assert found.ended_s == 8.5
    assert torch.equal(found.final, log.final)


def test_asking_and_answering() -> None:
    """Over two queues, with clocks that count calls: what is asked comes with the times of its own answer."""
    there: queue.Queue[tuple[float, float]] = queue.Queue()
    back: queue.Queue[tuple[float, float]] = queue.Queue()
    ticks = iter(range(1000))
    lock = threading.Lock()

    def clock() -> float:
        with lock:
            return float(next(ticks))

    def receiving(line: queue.Queue[tuple[float, float]]) -> clocks.PostReceive:
        return lambda: lambda: line.get(timeout=20)

    server = threading.Thread(
        target=clocks.answer, args=(lambda *numbers: back.put(numbers), receiving(there), clock)
    )
    server.start()
    found = clocks.ask(lambda *numbers: there.put(numbers), receiving(back), clock)
    server.join()
    assert next(ticks) == 4 * clocks.EXCHANGES
    assert found == Reading(at_s=1.5, offset_s=0.0, error_s=1.0)  # 0 and 3, there 1 and 2


def test_what_people_are_told() -> None:
    one = made_run()
    assert clocks.describe_clocks([one]) == ""
    here = replace(one, machines=(Machine("a", 0.0), Machine("a", 0.0)))
    assert clocks.describe_clocks([here]) == ""
    two = replace(one, machines=(Machine("a", 0.0), Machine("b", 0.00123)))
    assert clocks.describe_clocks([here, two]) == "times of 2 hosts are on one clock, to within 1.23 ms"
    assert clocks.describe_clocks([replace(one, machines=(Machine("a", None), Machine("b", None)))]) == ""


SCENARIO = """\
name: apart
workload: {task: quadratic, dimension: 30, batch_size: 4, optimizer: {lr: 0.1}}
cluster:
  compute: {time: 20 ms}
  network: {sites: {west: 1, east: 1}, within: {latency: 1 ms}, between: {latency: 2 ms}}
  hosts: {alpha: 1, beta: 1}
schemes: [gossip: {topology: ring}]
stop: {max_iterations: 20}
"""

RANK = """\
import os, sys, time
from paceline.realrun.group import hosts
host = os.environ["HOSTS"].split()[int(os.environ["RANK"])]
if host == "beta":  # a clock that is ahead, and 1 % fast
    true = time.monotonic
    began = true()
    time.monotonic = lambda: began + 5000.0 + 1.01 * (true() - began)
hosts.host_name = lambda: host + ".lab"
from paceline.realrun.driver import clocks
clocks.host_name, clocks.boot_id = hosts.host_name, lambda: "boot of " + host
from paceline.realrun.__main__ import main
sys.argv = ["realrun", *sys.argv[1:]]
main()
"""


def start_ranks(folder: Path, hosts: str, *options: str) -> list[subprocess.Popen[str]]:
    (folder / "apart.yaml").write_text(SCENARIO)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = hosts.split()
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder / "apart.yaml"), *options],
            env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(names)),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HOSTS": hosts, "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(len(names))
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_on_two_machines(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path, "beta alpha", "--out", str(tmp_path / "out"), "--json")
    told = [child.communicate(timeout=100) for child in ranks]
    assert [child.returncode for child in ranks] == [0] * 2, told
    assert [bool(out) for out, _ in told] == [False, True]  # worker 0 is on alpha
    (run,) = json.loads(told[1][0])["runs"]
    assert [machine["host"] for machine in run["machines"]] == ["alpha.lab", "beta.lab"]
    errors = [machine["clock_error_s"] for machine in run["machines"]]
    assert errors[0] == 0
    assert errors[1] > 0
    assert "times of 2 hosts are on one clock, to within" in told[1][1]
    (read,) = runs_of(read_results(tmp_path / "out"))
    assert [machine.clock_error_s for machine in read.machines] == errors
    # Nobody can have ended an exchange before its peers began it, on any clock, but for the error.
    mixes = [event for event in read.events if event.operation == "mix"]
    assert len(mixes) == 2 * 20
    begun = {(event.worker, event.step): event.start_s for event in mixes}
    for event in mixes:
        assert event.end_s > begun[1 - event.worker, event.step] - errors[1]
