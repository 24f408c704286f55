"""Collectives of blocks under the event driver: by recursion and as flows alike, and the fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.algorithms import Sites
from paceline.sim.collectives.pipelines import double_tree, exchange
from paceline.sim.config.settings import Settings
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.errors import Deadlock, PeerLost
from paceline.sim.network.transport import TRANSPORTS, TransferModel
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.traffic import placing, selection
from paceline.sim.traffic.placing import Placed, _follow, place, price_s
from paceline.sim.traffic.selection import fastest
from tests.support.collectives import PIPELINES
from tests.support.factory import flat_network, make_job, make_scheme, network_of, run_events

laws = settings(derandomize=True, max_examples=25)
IDEAL = TRANSPORTS["ideal"].choices
SITES = {
    "sites": {"us": 3, "eu": 2},
    "within": {"latency": "1 ms", "bandwidth": "10 Gbit/s"},
    "between": {"latency": "40 ms", "bandwidth": "1 Gbit/s", "per_flow": "300 Mbit/s"},
}


async def one_all_reduce(worker: Worker, options: Settings) -> None:
    await worker.all_reduce(torch.zeros(1))


def all_reduce_job(name: str, num_bytes: float, **options: Any) -> Job:
    return make_job(
        make_scheme(one_all_reduce),
        all_reduce=name,
        bytes_per_parameter=num_bytes,
        transport="ideal",
        **options,
    )


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "hierarchical"])
@laws
@given(
    n=st.integers(2, 6),
    num_bytes=st.integers(1, 20_000_000),
    bandwidth=st.floats(1e6, 1e9),
    latency_s=st.floats(0.0, 0.1),
    overhead_s=st.sampled_from([0.0, 0.002]),
)
def test_flows_take_what_the_recursion_takes(
    name: str, n: int, num_bytes: int, bandwidth: float, latency_s: float, overhead_s: float
) -> None:
    model = TransferModel(flat_network(n, latency_s, bandwidth), overhead_s=overhead_s)
    placed = place(PIPELINES[name]((n,), num_bytes), tuple(range(n)), model)
    assert placed.always_apart
    assert placed.access_only
    flows_s = max(_follow(placed, (0.0,) * n)[0])
    assert flows_s == pytest.approx(price_s(placed), rel=1e-7)


@laws
@given(
    n=st.integers(2, 12),
    num_bytes=st.integers(1, 100_000_000),
    bandwidth=st.floats(1e6, 1e9),
    latency_s=st.floats(0.0, 0.1),
    more=st.floats(1.0, 3.0),
)
def test_ideal_is_as_fast_as_its_fastest_algorithm_and_monotonic(
    n: int, num_bytes: int, bandwidth: float, latency_s: float, more: float
) -> None:
    def took_s(name: str, bandwidth: float, latency_s: float) -> float:
        network = flat_network(n, latency_s, bandwidth)
        return run_events(all_reduce_job(name, num_bytes, workers=n, network=network)).wall_s

    auto_s = took_s("auto", bandwidth, latency_s)
    names = [name for name in IDEAL if name != "hierarchical"]
    assert auto_s == pytest.approx(min(took_s(name, bandwidth, latency_s) for name in names))
    assert took_s("auto", bandwidth * more, latency_s) <= auto_s * (1 + 1e-9)
    assert took_s("auto", bandwidth, latency_s * more) >= auto_s * (1 - 1e-9)


def test_many_workers_far_apart_do_not_wait_for_a_ring() -> None:
    job = all_reduce_job("auto", 20_000_000, workers=256, latency_s=0.05, bandwidth_bytes_per_s=1.25e8)
    assert run_events(job).wall_s == pytest.approx(2 * 8 * 0.05 + 2 * 255 / 256 * 0.16)


def test_who_is_late_holds_up_only_what_needs_its_data() -> None:
    """Worker 1 joins after 1 s; everybody is one exchange of halves and one back behind it."""
    late = make_scheme(_late)
    job = make_job(
        late, workers=2, all_reduce="halving_doubling", bytes_per_parameter=200.0, latency_s=0.25,
        bandwidth_bytes_per_s=100.0, transport="ideal",
    )  # fmt: skip
    assert run_events(job).wall_s == 1.0 + 2 * (1.0 + 0.25)


async def _late(worker: Worker, options: Settings) -> None:
    await worker.sleep(float(worker.rank))
    await worker.all_reduce(torch.zeros(1))


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "hierarchical"])
@pytest.mark.parametrize("workers", [2, 5, 8])
def test_who_comes_early_sends_early(name: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As flows do, the recursion lets blocks leave before the last worker is there."""

    async def program(worker: Worker, options: Settings) -> None:
        for k in range(2):
            await worker.sleep(0.3 * ((worker.rank * 7 + k) % 5))
            await worker.all_reduce(torch.zeros(1))

    job = make_job(
        make_scheme(program), workers=workers, all_reduce=name, bytes_per_parameter=3e6, latency_s=0.05,
        bandwidth_bytes_per_s=1e7, transport="nccl" if name.startswith("nccl") else "ideal",
    )  # fmt: skip
    recursion = run_events(job)
    monkeypatch.setattr(EventDriver, "_alone", lambda driver, pending: False)
    flows = run_events(job)
    ends = [[event.end_s for event in run.events] for run in (recursion, flows)]
    assert sorted(ends[0]) == pytest.approx(sorted(ends[1]), rel=1e-9)


@pytest.mark.parametrize("jitter", [None, {"lognormal": {"cv": 0.0001}}])
def test_sites_share_their_pipe(jitter: Any) -> None:
    """Three flows cross at once; each has 300 Mbit/s of its own, and the pipe has enough for them."""
    network = network_of(5, **SITES, **({"jitter": jitter} if jitter else {}))
    job = all_reduce_job("hierarchical", 30_000_000, workers=5, network=network)
    columns, half = 15_000_000, 7_500_000
    inside_s = 2 * columns / 1.25e9 + 0.001  # two members outside a column's owner, in the larger site
    across_s = half / 37.5e6 + 0.040
    assert run_events(job).wall_s == pytest.approx(2 * (inside_s + across_s), rel=2e-3)


@pytest.mark.parametrize("num_bytes", [8, 1_000_000, 400_000_000])
@pytest.mark.parametrize("bandwidth", ["50 Mbit/s", "20 Gbit/s"])
def test_ideal_is_as_fast_as_its_fastest_algorithm_between_sites(num_bytes: int, bandwidth: str) -> None:
    between = {
        "latency": "40 ms",
        "bandwidth": {"us-eu": bandwidth, "eu-us": "1 Gbit/s", "default": "1 Gbit/s"},
    }
    within = {"latency": "1 ms", "bandwidth": "10 Gbit/s", "upload": "2 Gbit/s"}
    network = network_of(6, sites={"us": 3, "eu": 2, "asia": 1}, within=within, between=between)
    took_s = {
        name: run_events(all_reduce_job(name, num_bytes, workers=6, network=network)).wall_s
        for name in ("auto", *IDEAL)
    }
    auto_s = took_s.pop("auto")
    assert auto_s == pytest.approx(min(took_s.values()))


@pytest.mark.parametrize(
    ("sites", "host", "right_s"),
    [
        ((1,) * 4, "400 Gbit/s", 2.771),
        ((4,) * 4, "400 Gbit/s", 10.859),
        ((4,) * 4, "10 Gbit/s", 10.859),
        ((16,), "10 Gbit/s", 10.1101),
    ],
)
def test_an_exchange_fills_all_pipes_between_sites(sites: tuple[int, ...], host: str, right_s: float) -> None:
    """13.48 GB: of each member all others get a share; a pipe carries those of a pair of sites."""
    n = sum(sites)
    network = network_of(
        n, sites={f"s{number}": size for number, size in enumerate(sites)},
        within={"latency": "0.1 ms", "bandwidth": host},
        between={"latency": "75 ms", "bandwidth": "10 Gbit/s"},
    )  # fmt: skip
    placed = place(exchange(sites, 13_480_000_000), tuple(range(n)), TransferModel(network))
    assert price_s(placed) == pytest.approx(right_s, rel=1e-6)
    if len(sites) > 1:
        across = 13_480_000_000 / n * (n / len(sites)) ** 2
        assert right_s == pytest.approx(across / 1.25e9 + 0.075, rel=1e-4)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_shares_are_exchanged_over_all_links_of_a_graph(operation: str) -> None:
    """Each pair of four hosts has a link of its own, over which each sends a quarter of 400 MB."""
    hosts = ("a", "b", "c", "d")
    links = [
        {"source": a, "target": b, "latency": "10 ms", "bandwidth": "1 Gbit/s"}
        for a in hosts
        for b in hosts
        if a < b
    ]

    async def program(worker: Worker, options: Settings) -> None:
        if operation == "all_gather":
            await worker.all_gather_shards(torch.zeros(1), 4)
        else:
            await worker.reduce_scatter(torch.zeros(4))

    job = make_job(
        make_scheme(program), workers=4, bytes_per_parameter=1e8, transport="ideal",
        network=network_of(4, graph={"hosts": hosts, "links": links}),
    )  # fmt: skip
    assert run_events(job).wall_s == pytest.approx(1e8 / 1.25e8 + 0.010)


def test_trees_fill_all_pipes_between_sites() -> None:
    """Four sites: in each tree one has three neighbours, and both trees use the pipes between 1 and 2."""
    network = network_of(
        4, sites={f"s{number}": 1 for number in range(4)}, within={"latency": "0 s", "bandwidth": "4 Tbit/s"},
        between={"latency": "0 s", "bandwidth": "10 Gbit/s"},
    )  # fmt: skip
    placed = place(double_tree((1,) * 4, 10**9), tuple(range(4)), TransferModel(network))
    assert price_s(placed) == pytest.approx(10**9 / 1.25e9)


@pytest.mark.parametrize(
    ("name", "low_s", "high_s"), [("nccl_tree", 0.143, 0.150), ("nccl_ring", 0.268, 0.270)]
)
def test_two_hosts_send_a_payload_over_their_cards_once_each_way_by_a_tree(
    name: str, low_s: float, high_s: float
) -> None:
    """1 GiB at 60 Gbit/s is 143 ms; a GPU's links inside its host are in use beside the card."""
    host = {"gpus": 8, "latency": "5 us", "bandwidth": "120 GB/s"}
    model = TransferModel(network_of(16, latency="20 us", bandwidth="60 Gbit/s", host=host))
    placed = place(PIPELINES[name](((8, 8),), 2**30), tuple(range(16)), model)
    assert low_s < price_s(placed) < high_s
    assert placed.always_apart  # priced by a recursion, however many segments there are
    assert placed.collective.messages < 10_000


@laws
@given(
    sites=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    num_bytes=st.integers(1, 10**8),
    pipe=st.floats(0.1, 10.0),
    card=st.floats(0.1, 10.0),
    late=st.lists(st.sampled_from([0.0, -0.2, -1.0]), min_size=20, max_size=20),
)
def test_flows_of_which_few_differ_take_what_all_of_them_take(
    sites: tuple[int, ...], num_bytes: int, pipe: float, card: float, late: list[float]
) -> None:
    n = sum(sites)
    network = network_of(
        n, sites={f"s{number}": size for number, size in enumerate(sites)},
        within={"latency": "1 ms", "bandwidth": f"{card} Gbit/s"},
        between={"latency": "40 ms", "bandwidth": f"{pipe} Gbit/s"},
    )  # fmt: skip
    model = TransferModel(network, overhead_s=0.001, efficiency=0.9)
    placed = place(exchange(sites, num_bytes), tuple(range(n)), model)
    ready_s = tuple(late[:n])
    assert placed._all_at_once(ready_s) == pytest.approx(_follow(placed, ready_s)[0], rel=1e-9)


@pytest.mark.parametrize("late", [(0.0,) * 4, (0.0, 0.0, -1.0, -0.2)])
def test_links_inside_hosts_may_be_infinitely_fast(late: tuple[float, ...]) -> None:
    network = network_of(4, latency="1 ms", bandwidth="1 Gbit/s", host={"gpus": 2})
    placed = place(exchange(((2, 2),), 4_000_000), (0, 1, 2, 3), TransferModel(network))
    done_s = placed._all_at_once(late)
    assert done_s == pytest.approx(_follow(placed, late)[0])
    assert max(done_s) == pytest.approx(0.001 + 4 * 1_000_000 / 1.25e8)


@pytest.mark.parametrize("sites", [(64,), (16,) * 4, ((8,) * 8,)])
def test_an_exchange_among_64_is_priced_in_bulk(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,032 blocks: by a recursion in a flat network, as a few kinds of flows between hosts or sites."""
    monkeypatch.setattr(placing, "_follow", lambda *_: pytest.fail("block by block"))
    link = {"latency": "1 ms", "bandwidth": "10 Gbit/s"}
    if len(sites) > 1:
        network = network_of(64, sites=dict.fromkeys("abcd", 16), within=link, between=link)
    elif isinstance(sites[0], tuple):
        inside = {"gpus": 8, "latency": "5 us", "bandwidth": "100 GB/s"}
        network = network_of(64, **link, host=inside)
    else:
        network = network_of(64, **link)
    placed = place(exchange(sites, 25_000_001), tuple(range(64)), TransferModel(network))
    busiest = 16 * 16 if len(sites) > 1 else 8 * 56 if isinstance(sites[0], tuple) else 63
    assert price_s(placed) == pytest.approx(0.001 + busiest * 25_000_001 / 64 / 1.25e9, rel=1e-4)
    one_by_one_s = tuple(1e-4 * (rank % 16) for rank in range(64))  # as behind a ring
    assert price_s(placed) < max(placed.completion(one_by_one_s)[0]) < price_s(placed) + 1e-4 * 16


def test_a_ring_goes_site_by_site() -> None:
    """Whatever the ranks of the sites are: each pipe has one flow, so that the recursion holds."""
    network = network_of(5, **SITES)
    mixed = replace(network, site_of=(0, 1, 0, 1, 0))
    job = all_reduce_job("ring", 1_000_000, workers=5, network=mixed)
    order, sites = job.choice.by_site((0, 1, 2, 3, 4))
    assert (order, sites) == ((0, 2, 4, 1, 3), (3, 2))
    assert place(PIPELINES["ring"](sites, 1_000_000), order, job.transfer).always_apart


def test_the_choice_is_made_once_for_each_size_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[int] = []
    real = placing.price_s

    def count(placed: Placed) -> float:
        priced.append(len(placed.members))
        return real(placed)

    monkeypatch.setattr(selection, "price_s", count)
    monkeypatch.setattr(selection, "_prices", {})
    model = TransferModel(network_of(5, **SITES))
    choices = {name: PIPELINES[name] for name in IDEAL}
    names = [fastest(choices, (3, 2), 10**6, tuple(range(5)), model) for _ in range(3)]
    assert len(set(names)) == 1
    assert len(priced) <= len(IDEAL)


def test_started_all_reduces_share_links() -> None:
    """Two at once take as long as both one after another, since each has its bytes to move."""

    async def program(worker: Worker, options: Settings) -> None:
        handles = [await worker.begin(ops.AllReduce(torch.zeros(1))) for _ in range(2)]
        for handle in handles:
            await worker.wait(handle)

    job = make_job(
        make_scheme(program), workers=2, all_reduce="halving_doubling", bytes_per_parameter=200.0,
        bandwidth_bytes_per_s=100.0, transport="ideal",
    )  # fmt: skip
    assert run_events(job).wall_s == 4.0


def test_a_death_is_noticed_by_those_who_wait() -> None:
    caught: list[int] = []

    async def program(worker: Worker, options: Settings) -> None:
        await worker.sleep(float(worker.rank))
        try:
            await worker.all_reduce(torch.zeros(1))
        except PeerLost as lost:
            caught.append(lost.rank)

    job = make_job(make_scheme(program), workers=3, all_reduce="ring", transport="ideal")
    run_events(job, faults={2: 1})
    assert caught == [2, 2]


def test_a_missing_member_is_a_deadlock_with_names() -> None:
    async def program(worker: Worker, options: Settings) -> None:
        if worker.rank:
            await worker.all_reduce(torch.zeros(1))
        else:
            await worker.receive(1, torch.zeros(1))

    with pytest.raises(Deadlock, match="worker 1 waits in all_reduce"):
        run_events(make_job(make_scheme(program), workers=3, all_reduce="ring", transport="ideal"))
