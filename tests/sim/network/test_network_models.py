"""Jitter, bandwidths that vary, and tables of them: hand-computed times, and laws."""

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
from paceline.sim.jitter import Jitter
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.sharing import FairSharing
from paceline.sim.network.tcp import TcpSettings
from paceline.sim.network.variation import AddedLatencies, Latencies, bandwidth_changes
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import dump, load, parse
from tests.sim.scenario.test_schema import FLAT, SITES
from tests.support.factory import NoOptions, make_job, make_scheme, network_of, one_message, run_events

X = torch.zeros(1)


# --- bandwidths that vary ---------------------------------------------------------------------------


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


@pytest.mark.parametrize("bandwidth", [-1.0, math.inf, math.nan])
def test_a_link_cannot_become_anything(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="finite bandwidth, zero or above"):
        FairSharing([8.0]).change(0, bandwidth)


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


@settings(deadline=None, max_examples=60)
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


def traced_by(*steps: tuple[float, float, float]) -> dict[str, Any]:
    """Time, bytes per second and seconds of latency that are added."""
    return {
        "steps": [
            {"at": f"{at} s", "bandwidth": f"{rate} B/s", "latency": f"{added} s"}
            for at, rate, added in steps
        ]
    }


def test_outages_have_an_order_and_a_length() -> None:
    for outages, message in (
        ([], "give one outage at least"),
        ([(1, 2), (3, 1)], "an outage at 3 s is not later than the end of the one before"),
        ([(1, 0)], "must be more than 0"),
    ):
        given = [{"at": f"{at} s", "duration": f"{lasts} s"} for at, lasts in outages]
        with pytest.raises(ValueError, match=message):
            network_of(2, latency="0 s", bandwidth="8 B/s", variation=[{"links": "*", "outages": given}])
    with pytest.raises(ValueError, match="one step at least needs a bandwidth above 0"):
        network_of(
            2, latency="0 s", bandwidth="8 B/s", variation=[{"links": "*", "trace": traced_by((0, 0, 0))}]
        )


@pytest.mark.parametrize(
    ("begin_s", "wall_s"),
    [
        (0.0, 2.0 + 0.5),  # as it was when the message began
        (2.0, 4.0 + 0.5 + 1.25),
        (4.0, 6.0 + 0.5 + 0.25),  # and of the way back nothing counts
        (100.0, 102.0 + 0.5 + 0.25),
    ],
)
def test_a_table_adds_to_latencies(begin_s: float, wall_s: float) -> None:
    trace = traced_by((0, 16, 0), (2, 16, 1.25), (4, 16, 0.25))
    network = network_of(
        2, latency="0.5 s", bandwidth="16 B/s", variation=({"links": "host0 up", "trace": trace},)
    )
    assert run_events(one_message(network, 32, begin_s)).wall_s == wall_s


def test_a_table_of_bandwidths_and_latencies_is_read(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("time [s],bandwidth [Mbit/s],latency [ms]\n0,100,0\n60,0,0\n90,50,20\n")
    variation = "variation: [{links: 'host? up', trace: {file: wan.csv}}]"
    (tmp_path / "s.yaml").write_text(FLAT.replace("100 Mbit/s}", f"100 Mbit/s, {variation}}}"))
    found = load(tmp_path / "s.yaml")
    assert parse(dump(found)) == found
    links = build_network(found.cluster.network, 4).links
    added = AddedLatencies(links)
    up = [link.name for link in links].index("host1 up")
    assert [added.at_s(now_s, (up,)) for now_s in (0.0, 89.0, 90.0)] == [0.0, 0.0, 0.02]
    steps = history(replace(build_network(found.cluster.network, 4), links=(links[up],)), 0, 400.0)[0]
    assert steps == [(0.0, 12.5e6), (60.0, 0.0), (90.0, 6.25e6)]


def slow_periods(slow_s: float, fast_s: float, links: int = 2) -> Network:
    markov = {"slow": f"{slow_s} s", "fast": f"{fast_s} s", "factor": 0.25}
    return network_of(
        links, latency="0 s", bandwidth="8 B/s", variation=({"links": "* up", "markov": markov},)
    )


def history(network: Network, seed: int, until_s: float) -> dict[int, list[tuple[float, float]]]:
    changes = bandwidth_changes(network.links, seed)
    found: dict[int, list[tuple[float, float]]] = {}
    while changes.next_s < until_s:
        now_s = changes.next_s
        for link, bandwidth in changes.until(now_s).items():
            found.setdefault(link, []).append((now_s, bandwidth))
    return found


@pytest.mark.parametrize(("slow_s", "fast_s"), [(1.0, 1.0), (2.0, 10.0), (30.0, 5.0)])
def test_slow_periods_have_their_mean_lengths(slow_s: float, fast_s: float) -> None:
    found = history(slow_periods(slow_s, fast_s, links=8), 5, 2000 * (slow_s + fast_s))
    assert len(found) == 8
    lengths: dict[float, list[float]] = {2.0: [], 8.0: []}
    for steps in found.values():
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


# --- jitter -----------------------------------------------------------------------------------------


def jittered(kind: dict[str, Any], network: Network, seed: int = 1) -> Latencies:
    return Latencies(replace(network, jitter=Jitter.model_validate(kind)), seed, 0.5)


@pytest.mark.parametrize("kind", ["lognormal", "gamma", "shifted_exponential"])
def test_latencies_have_the_mean_of_the_route_and_the_cv(kind: str) -> None:
    found = jittered({kind: {"cv": 0.4}}, network_of(3, latency="20 ms"))
    drawn = np.array([found.draw_s(0, 1 + k % 2) for k in range(40_000)]) - 0.5
    assert drawn.min() > 0
    assert drawn.mean() == pytest.approx(0.02, rel=0.015)
    assert drawn.std() / drawn.mean() == pytest.approx(0.4, rel=0.05)


def test_a_hosts_latencies_do_not_depend_on_the_others() -> None:
    network = network_of(3, latency="20 ms")
    alone = jittered({"gamma": {"cv": 1.0}}, network)
    expected = [alone.draw_s(1, 0) for _ in range(600)]
    mixed = jittered({"gamma": {"cv": 1.0}}, network)
    found = []
    for k in range(600):
        mixed.draw_s(k % 2 * 2, 1)
        found.append(mixed.draw_s(1, 0))
    assert found == expected
    other_seed = jittered({"gamma": {"cv": 1.0}}, network, seed=2)
    assert other_seed.draw_s(1, 0) != expected[0]


@pytest.mark.parametrize("sharing", ["max_min", "none"])
def test_each_message_has_its_own_latency(sharing: str) -> None:
    jitter = Jitter.model_validate({"lognormal": {"cv": 0.5}})
    network = network_of(2, latency="2 s", bandwidth="16 B/s", jitter=jitter)
    job = one_message(network, 64)
    job = replace(job, transfer=replace(job.transfer, seed=7, sharing=sharing))
    factor = jitter.factors(7, 0, "latency", 0)[0]
    assert run_events(job).wall_s == 4.0 + 2.0 * factor


@settings(deadline=None, max_examples=40)
@given(
    gaps=st.lists(st.sampled_from([0.0, 0.1, 1.0, 7.0]), min_size=2, max_size=12),
    falls_s=st.sampled_from([0.5, 2.0, 6.0]),
    seed=st.integers(0, 50),
    queue=st.sampled_from(["fair", "fifo"]),
)
def test_messages_on_one_connection_arrive_in_order(
    gaps: list[float], falls_s: float, seed: int, queue: str
) -> None:
    """Whatever the jitter, and where a table's latency falls meanwhile: TCP delivers in order."""
    arrivals: dict[int, float] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        handles = {}
        for number, gap in enumerate(gaps):
            tag = str(number)  # apart, so that they could overtake each other
            if worker.rank == 0:
                await worker.sleep(gap)
                handles[await worker.begin(ops.Send(1, X, tag))] = number
            else:
                handles[await worker.begin(ops.Receive(0, X, tag))] = number
        while handles:
            done = await worker.wait_any(*handles)
            await worker.wait(done)
            number = handles.pop(done)
            if worker.rank == 1:
                arrivals[number] = await worker.now()

    jitter = Jitter.model_validate({"pareto": {"shape": 1.2}})
    varies: dict[str, Any] = {}
    if queue == "fair":
        trace = traced_by((0, 16, 20), (falls_s, 16, 0))
        varies = {"variation": ({"links": "host0 up", "trace": trace},)}
    network = network_of(2, latency="3 s", bandwidth="16 B/s", jitter=jitter, **varies)
    job = make_job(make_scheme(program), workers=2, network=network, bytes_per_parameter=1)
    transfer = replace(job.transfer, streams=True, buffer_bytes=1e6, seed=seed, queue=queue)
    run_events(replace(job, transfer=transfer))
    assert sorted(arrivals) == list(range(len(gaps)))
    assert [arrivals[k] for k in range(len(gaps))] == sorted(arrivals.values())


def test_nothing_overtakes_in_a_stream() -> None:
    arrivals: list[float] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        for _ in range(200):
            if worker.rank == 0:
                await worker.send(1, X)
            else:
                await worker.receive(0, X)
                arrivals.append(await worker.now())

    jitter = Jitter.model_validate({"gamma": {"cv": 2.0}})
    network = network_of(2, latency="10 s", bandwidth="16 B/s", jitter=jitter)
    job = make_job(make_scheme(program), workers=2, network=network, bytes_per_parameter=1)
    run_events(replace(job, transfer=replace(job.transfer, streams=True, buffer_bytes=1e6)))
    assert arrivals == sorted(arrivals)
    assert len(arrivals) == 200


# --- the user's own ---------------------------------------------------------------------------------


def test_a_network_from_a_function() -> None:
    network = network_of(2, model="tests.support.own_models:near")
    assert run_events(one_message(network, 64)).wall_s == 0.25


def test_an_all_reduce_from_a_function() -> None:
    job = make_job(
        "all_reduce", workers=4, max_iterations=1, latency_s=0.5, bandwidth_bytes_per_s=16.0,
        bytes_per_parameter=32, all_reduce="tests.support.own_models:star",
    )  # fmt: skip
    # 1 s of computation, then three messages of 32 bytes over the centre's access link, in and out again
    assert run_events(job).wall_s == 1.0 + 2 * (3 * 32 / 16 + 0.5)


# --- tables -----------------------------------------------------------------------------------------


def test_a_latency_matrix_is_the_pairs_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("[ms],us,eu,asia\nus,-,40,90\neu,41,,95\nasia,90,95.5,0\n")
    text = SITES.replace("{us-eu: 40 ms, default: 90 ms}", "{}")
    pairs = "{us-eu: 40 ms, eu-us: 41 ms, us-asia: 90 ms, eu-asia: 95 ms, asia-eu: 95.5 ms}"
    (tmp_path / "s.yaml").write_text(text.replace("{latency: {}}", "{latency: wan.csv}"))
    found, expected = load(tmp_path / "s.yaml"), parse(text.replace("{latency: {}}", f"{{latency: {pairs}}}"))
    assert found.cluster.network.latencies() == expected.cluster.network.latencies()
    assert parse(dump(found)) == found


def test_a_wrong_latency_matrix_is_named(tmp_path: Path) -> None:
    for text, message in {
        "[ms],us,mars\nus,0,40\nmars,41,0\n": "no two sites have this name; did you mean 'us-asia'?",
        "[ms],us,eu\nus,0,x\n": "wan.csv:2: eu: 'x ms' is not a number with a unit",
        "[ms],us,eu\nus,0,40\n": "says nothing of 'us-asia', 'eu-asia'",
    }.items():
        (tmp_path / "wan.csv").write_text(text)
        (tmp_path / "s.yaml").write_text(SITES.replace("{us-eu: 40 ms, default: 90 ms}", "wan.csv"))
        with pytest.raises(InputError) as caught:
            load(tmp_path / "s.yaml")
        assert f"{tmp_path}/s.yaml:11: cluster.network.between.latency" in str(caught.value)
        assert message in str(caught.value)


def test_a_bandwidth_table(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("time [s],bandwidth [Mbit/s]\n0,100\n60,20\n90,50\n")
    variation = "variation: [{links: 'host? up', trace: {file: wan.csv, period: 5 min}}]"
    (tmp_path / "s.yaml").write_text(FLAT.replace("100 Mbit/s}", f"100 Mbit/s, {variation}}}"))
    found = load(tmp_path / "s.yaml")
    (tmp_path / "wan.csv").unlink()
    assert parse(dump(found)) == found
    network = build_network(found.cluster.network, 4)
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
