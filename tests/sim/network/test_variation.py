"""Bandwidths and latencies that change as time goes on: hand-computed times, laws, and tables of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import Deadlock, InputError
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import TcpSettings
from paceline.sim.network.variation import AddedLatencies, bandwidth_changes
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import dump, load, parse
from paceline.sim.traffic.sharing import FairSharing
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import NoOptions, make_job, make_scheme, network_of, one_message, run_events

X = torch.zeros(1)


def test_a_change_counts_from_its_instant_on() -> None:
    sharing = FairSharing([8.0, 100.0])
    slow = sharing.start(0.0, (0, 1), 24.0, math.inf)
    capped = sharing.start(0.0, (0,), 6.0, 2.0)
    sharing.solve(0.0)
    assert (sharing._flows[slow].rate, sharing._flows[capped].rate) == (6.0, 2.0)
    sharing.change(0, 3.0)
    sharing.solve(1.0)  # 6 and 2 bytes are through, 18 and 4 left at 1.5 bytes/s each
    assert sharing.next_finish_s == 1.0 + 4 / 1.5
    sharing.change(0, 12.0)
    sharing.solve(2.0)  # 16.5 and 2.5 left, at 10 and 2
    assert (sharing._flows[slow].rate, sharing._flows[capped].rate) == (10.0, 2.0)
    assert sharing.next_finish_s == 2.0 + 2.5 / 2.0


def test_a_lone_transfer_follows_its_link_up_and_down() -> None:
    sharing = FairSharing([8.0])
    sharing.start(0.0, (0,), 32.0, math.inf)
    sharing.solve(0.0)
    for now_s, bandwidth, finish_s in ((1.0, 4.0, 7.0), (2.0, 20.0, 3.0), (2.5, 1.0, 12.5)):
        sharing.change(0, bandwidth)
        sharing.solve(now_s)
        assert sharing.next_finish_s == finish_s


FLOWS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.sets(st.integers(0, 3), min_size=1),
        st.integers(1, 40),
        st.sampled_from([math.inf, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=12,
)
CHANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(1, 9)), max_size=12)


@settings(max_examples=60)
@given(FLOWS, CHANGES)
def test_bytes_are_conserved_and_rates_are_those_of_a_fresh_solution(flows: Any, changes: Any) -> None:
    bandwidth = [5.0] * 4
    sharing = FairSharing(bandwidth)
    events = sorted(
        [(time_s, 0, each) for time_s, *each in flows] + [(time_s, 1, each) for time_s, *each in changes],
        key=lambda event: event[:2],
    )
    active: dict[int, tuple[tuple[int, ...], float]] = {}
    sizes: dict[int, float] = {}
    carried: dict[int, float] = {}
    now_s = 0.0
    while events or active:
        next_s = min(sharing.next_finish_s, events[0][0] if events else math.inf)
        for flow in active:
            carried[flow] += sharing._flows[flow].rate * (next_s - now_s)
        now_s = next_s
        for flow in sharing.finished(now_s):
            assert carried[flow] == pytest.approx(sizes[flow], rel=1e-9)
            del active[flow]
        while events and events[0][0] <= now_s:
            _, kind, what = events.pop(0)
            if kind == 0:
                links, size, cap = tuple(sorted(what[0])), float(what[1]), what[2]
                number = sharing.start(now_s, links, size, cap)
                active[number], sizes[number], carried[number] = (links, cap), size, 0.0
            else:
                link, new = what
                bandwidth[link] = float(new)
                sharing.change(link, float(new))
        sharing.solve(now_s)
        fresh = FairSharing(bandwidth)
        numbers = {flow: fresh.start(0.0, links, 1e9, cap) for flow, (links, cap) in active.items()}
        fresh.solve(0.0)
        for flow, number in numbers.items():
            assert sharing._flows[flow].rate == pytest.approx(fresh._flows[number].rate, rel=1e-9)


TRACE = {"steps": ({"at": "0 s", "bandwidth": "16 B/s"}, {"at": "2 s", "bandwidth": "8 B/s"})}


def traced(**more: Any) -> Network:
    variation = ({"links": "host0 up", "trace": {**TRACE, **more}},)
    return network_of(2, latency="0.5 s", bandwidth="16 B/s", variation=variation)


@pytest.mark.parametrize(
    ("begin_s", "num_bytes", "sent_s"),
    [
        (0.0, 32, 2.0),  # all before the change
        (0.0, 64, 2 + 32 / 8),  # 32 bytes by 2 s, then 8 bytes/s
        (1.0, 64, 2 + 48 / 8),
        (5.0, 64, 5 + 64 / 8),  # the change came while nobody sent
    ],
)
def test_a_message_takes_the_bandwidth_as_it_is_then(begin_s: float, num_bytes: int, sent_s: float) -> None:
    assert run_events(one_message(traced(), num_bytes, begin_s)).wall_s == sent_s + 0.5


def test_a_trace_with_a_period_begins_again() -> None:
    # 32 bytes in seconds 0 to 2, 16 in 2 to 4, and so on: 112 bytes are through after 9 s
    assert run_events(one_message(traced(period="4 s"), 112)).wall_s == 9.0 + 0.5


def test_the_efficiency_counts_for_changed_bandwidths_too() -> None:
    job = one_message(traced(), 64)
    job = replace(job, transfer=replace(job.transfer, efficiency=0.5))
    assert run_events(job).wall_s == 2 + (64 - 16) / 4 + 0.5


def test_changes_to_come_do_not_hide_a_deadlock() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        await worker.receive(1 - worker.rank, X)

    job = make_job(make_scheme(program), workers=2, network=traced(period="4 s"))
    with pytest.raises(Deadlock):
        run_events(job)


def test_streams_follow_a_varying_link_as_well() -> None:
    job = one_message(traced(), 64)
    job = replace(job, transfer=replace(job.transfer, streams=True))
    assert run_events(job).wall_s == 6.5


def interrupted(**more: Any) -> Network:
    """Worker 0's way out carries nothing from 2 to 5 s."""
    outages = ({"at": "2 s", "duration": "3 s"},)
    return network_of(
        2, latency="0.5 s", bandwidth="16 B/s", variation=({"links": "host0 up", "outages": outages},), **more
    )


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("begin_s", "num_bytes", "sent_s"),
    [
        (0.0, 16, 1.0),  # all before the outage
        (1.0, 16, 2.0),  # up to its first instant
        (0.0, 64, 5 + 32 / 16),  # 32 bytes by 2 s, the others from 5 s on
        (3.0, 64, 5 + 64 / 16),  # begun in it
        (5.0, 64, 5 + 64 / 16),
    ],
)
def test_a_message_waits_for_the_end_of_an_outage(
    begin_s: float, num_bytes: int, sent_s: float, streams: bool
) -> None:
    job = one_message(interrupted(), num_bytes, begin_s)
    job = replace(job, transfer=replace(job.transfer, streams=streams))
    assert run_events(job).wall_s == sent_s + 0.5


def test_a_bandwidth_of_zero_in_a_table_is_an_outage() -> None:
    steps = [(0, 16), (2, 0), (5, 16)]
    trace = {"steps": [{"at": f"{at} s", "bandwidth": f"{rate} B/s"} for at, rate in steps]}
    network = network_of(
        2, latency="0.5 s", bandwidth="16 B/s", variation=({"links": "host0 up", "trace": trace},)
    )
    assert run_events(one_message(network, 64)).wall_s == 7.5


def test_what_shares_a_link_with_a_message_that_waits_has_it_alone() -> None:
    """Workers 0 and 1 send 32 bytes each to worker 2, whose way in carries 16 bytes/s."""
    arrivals: dict[int, float] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank < 2:
            await worker.send(2, X)
            return
        both = {await worker.begin(ops.Receive(source, X)): source for source in (0, 1)}
        while both:
            done = await worker.wait_any(*both)
            await worker.wait(done)
            arrivals[both.pop(done)] = await worker.now()

    outages = ({"at": "1 s", "duration": "4 s"},)
    network = network_of(
        3, latency="0 s", bandwidth="16 B/s", variation=({"links": "host0 up", "outages": outages},)
    )
    run_events(make_job(make_scheme(program), workers=3, network=network, bytes_per_parameter=32))
    # 8 bytes of each in the first second; then 24 at 16 bytes/s, of 1 at once, of 0 after 5 s
    assert arrivals == {1: 2.5, 0: 6.5}


def test_stock_hosts_go_on_after_an_outage() -> None:
    """No sooner than its end, and no later than the same bytes of a new connection from there on."""
    network = interrupted(hosts="stock", tcp={"initial_window": 2})
    job = one_message(network, 16 * 1448)
    job = replace(job, transfer=replace(job.transfer, tcp=TcpSettings(initial_window=2)))
    plain = run_events(replace(job, transfer=replace(job.transfer, network=network.steady))).wall_s
    assert plain + 3.0 <= run_events(job).wall_s <= plain + 3.0 + 1.0


def test_outages_have_an_order_and_a_length() -> None:
    for outages, message in (
        ([], "give one outage at least"),
        ([(1, 2), (3, 1)], "an outage at 3 s is not later than the end of the one before"),
        ([(1, 0)], "should be greater than 0"),
    ):
        given = [{"at": f"{at} s", "duration": f"{lasts} s"} for at, lasts in outages]
        with pytest.raises(ValueError, match=message):
            network_of(2, latency="0 s", bandwidth="8 B/s", variation=[{"links": "*", "outages": given}])
    never = {"steps": [{"at": "0 s", "bandwidth": "0 B/s"}]}
    with pytest.raises(ValueError, match="one step at least needs a bandwidth above 0"):
        network_of(2, latency="0 s", bandwidth="8 B/s", variation=[{"links": "*", "trace": never}])


def test_a_table_of_bandwidths_and_latencies_is_read(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("time [s],bandwidth [Mbit/s],latency [ms]\n0,100,0\n60,0,0\n90,50,20\n")
    variation = "variation: [{links: 'host? up', trace: {file: wan.csv}}]"
    (tmp_path / "s.yaml").write_text(FLAT.replace("100 Mbit/s}", f"100 Mbit/s, {variation}}}"))
    scenario = load(tmp_path / "s.yaml")
    assert parse(dump(scenario)) == scenario
    links = build_network(scenario.cluster.network, 4).links
    added = AddedLatencies(links)
    up = [link.name for link in links].index("host1 up")
    assert [added.at_s(now_s, (up,)) for now_s in (0.0, 89.0, 90.0)] == [0.0, 0.0, 0.02]
    steps = history(replace(build_network(scenario.cluster.network, 4), links=(links[up],)), 0, 400.0)[0]
    assert steps == [(0.0, 12.5e6), (60.0, 0.0), (90.0, 6.25e6)]


def test_a_table_with_another_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("time [s],bandwidth [Mbit/s],latncy [ms]\n0,100,0\n")
    variation = "variation: [{links: 'host? up', trace: {file: wan.csv}}]"
    (tmp_path / "s.yaml").write_text(FLAT.replace("100 Mbit/s}", f"100 Mbit/s, {variation}}}"))
    with pytest.raises(InputError, match=r"wan\.csv: takes no column 'latncy'; did you mean 'latency'"):
        load(tmp_path / "s.yaml")


def slow_periods(slow_s: float, fast_s: float, links: int = 2) -> Network:
    markov = {"slow": f"{slow_s} s", "fast": f"{fast_s} s", "factor": 0.25}
    return network_of(
        links, latency="0 s", bandwidth="8 B/s", variation=({"links": "* up", "markov": markov},)
    )


def history(network: Network, seed: int, until_s: float) -> dict[int, list[tuple[float, float]]]:
    changes = bandwidth_changes(network.links, seed)
    steps: dict[int, list[tuple[float, float]]] = {}
    while changes.next_s < until_s:
        now_s = changes.next_s
        for link, bandwidth in changes.until(now_s).items():
            steps.setdefault(link, []).append((now_s, bandwidth))
    return steps


@pytest.mark.parametrize(("slow_s", "fast_s"), [(1.0, 1.0), (2.0, 10.0), (30.0, 5.0)])
def test_slow_periods_have_their_mean_lengths(slow_s: float, fast_s: float) -> None:
    histories = history(slow_periods(slow_s, fast_s, links=8), 5, 2000 * (slow_s + fast_s))
    assert len(histories) == 8
    lengths: dict[float, list[float]] = {2.0: [], 8.0: []}
    for steps in histories.values():
        for (begin_s, bandwidth), (end_s, after) in pairwise(steps):
            lengths[bandwidth].append(end_s - begin_s)
            assert after == 10.0 - bandwidth
    # some 16,000 periods of each kind; six standard deviations are 5 %
    assert np.mean(lengths[2.0]) == pytest.approx(slow_s, rel=0.05)
    assert np.mean(lengths[8.0]) == pytest.approx(fast_s, rel=0.05)
    assert np.std(lengths[2.0]) == pytest.approx(slow_s, rel=0.1)


def test_slow_periods_begin_in_their_stationary_state() -> None:
    first = [bandwidth_changes(slow_periods(3.0, 1.0).links, seed).until(0.0)[0] for seed in range(1000)]
    assert np.mean(np.array(first) == 2.0) == pytest.approx(0.75, abs=0.06)


def test_a_link_varies_the_same_whatever_the_others_do() -> None:
    both = history(slow_periods(1.0, 2.0), 3, 100.0)
    one = network_of(
        2, latency="0 s", bandwidth="8 B/s",
        variation=({"links": "host1 up", "markov": {"slow": "1 s", "fast": "2 s", "factor": 0.25}},),
    )  # fmt: skip
    (only,) = history(one, 3, 100.0).values()
    assert only in both.values()
    assert both[0] != both[2]


def test_a_bandwidth_table(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("time [s],bandwidth [Mbit/s]\n0,100\n60,20\n90,50\n")
    variation = "variation: [{links: 'host? up', trace: {file: wan.csv, period: 5 min}}]"
    (tmp_path / "s.yaml").write_text(FLAT.replace("100 Mbit/s}", f"100 Mbit/s, {variation}}}"))
    scenario = load(tmp_path / "s.yaml")
    (tmp_path / "wan.csv").unlink()
    assert parse(dump(scenario)) == scenario
    network = build_network(scenario.cluster.network, 4)
    varied = [link for link in network.links if link.variation is not None]
    assert [link.name for link in varied] == [f"host{h} up" for h in range(4)]
    steps = history(replace(network, links=(varied[0],)), 0, 400.0)[0]
    assert steps == [
        (0.0, 12.5e6),
        (60.0, 2.5e6),
        (90.0, 6.25e6),
        (300.0, 12.5e6),
        (360.0, 2.5e6),
        (390.0, 6.25e6),
    ]


def test_a_lab_says_what_it_cannot_emulate() -> None:
    from paceline.realrun.lab.protocol import plan_of

    with pytest.raises(InputError, match="cannot change their bandwidth"):
        plan_of(traced(), "fifo")
