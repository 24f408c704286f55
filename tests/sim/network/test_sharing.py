"""Max-min fair sharing: exact hand-computed cases, and laws against a solver in exact fractions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.traffic import sharing as module
from paceline.sim.traffic.sharing import FairSharing, rtt_weight

CLOSE = 1e-9


def timeline(
    bandwidths: list[float], starts: Sequence[tuple[float, tuple[int, ...], float, float]]
) -> dict[int, float]:
    """Run ``starts`` (time, links, size, cap), sorted by time, to their end; when each flow ended."""
    sharing = FairSharing(bandwidths)
    ended: dict[int, float] = {}
    waiting = list(starts)
    while waiting or sharing.next_finish_s < inf:
        now = min(sharing.next_finish_s, waiting[0][0] if waiting else inf)
        for flow in sharing.finished(now):
            ended[flow] = now
        while waiting and waiting[0][0] == now:
            _, links, size, cap = waiting.pop(0)
            sharing.start(now, links, size, cap)
        sharing.solve(now)
    return ended


# --- by hand ------------------------------------------------------------------------------------


def test_three_flows_on_one_link_leave_one_after_another() -> None:
    # 8/3 each until 3; then 4 each: the second has 8 left; then the third alone with 8 left.
    starts = [(0.0, (0,), size, inf) for size in (8.0, 16.0, 24.0)]
    assert timeline([8.0], starts) == {0: 3.0, 1: 5.0, 2: 6.0}


def test_a_late_start_slows_the_first_down() -> None:
    # 12 bytes left at 0.5 and half the rate: 3 s more; then the second has 4 of 16 left at full rate.
    assert timeline([8.0], [(0.0, (0,), 16.0, inf), (0.5, (0,), 16.0, inf)]) == {0: 3.5, 1: 4.0}


@pytest.mark.parametrize("number", [3, 7, 49, 98, 300])
def test_equal_flows_end_in_one_exact_instant(number: int) -> None:
    sharing = FairSharing([1.0])
    for _ in range(number):
        sharing.start(0.0, (0,), 1.0, inf)
    sharing.solve(0.0)
    assert sharing.next_finish_s == number  # 1 / (1 / 49) would not be 49
    assert sharing.finished(float(number)) == list(range(number))
    sharing.solve(float(number))
    assert sharing.next_finish_s == inf


def test_what_one_cannot_use_the_others_get() -> None:
    # Link 0: a and b; link 1: b and c. b and c get 1 each of link 1's 2, so a gets 7 of link 0's 8.
    sharing = FairSharing([8.0, 2.0])
    a = sharing.start(0.0, (0,), 7.0, inf)
    b = sharing.start(0.0, (0, 1), 2.0, inf)
    c = sharing.start(0.0, (1,), 1.0, inf)
    sharing.solve(0.0)
    assert [sharing._flows[flow].rate for flow in (a, b, c)] == [7.0, 1.0, 1.0]
    assert sharing.finished(1.0) == [a, c]
    sharing.solve(1.0)
    assert sharing._flows[b].rate == 2.0
    assert sharing.next_finish_s == 1.5


def test_a_cap_binds_before_the_link_does() -> None:
    # Caps 1 and 2 on a link of 8 with two uncapped flows: 1, 2, 2.5, 2.5.
    sharing = FairSharing([8.0])
    flows = [sharing.start(0.0, (0,), 5.0, cap) for cap in (1.0, 2.0, inf, inf)]
    sharing.solve(0.0)
    assert [sharing._flows[flow].rate for flow in flows] == [1.0, 2.0, 2.5, 2.5]
    assert sharing.next_finish_s == 2.0


def test_a_flow_without_links_runs_at_its_cap_or_ends_at_once() -> None:
    assert timeline([], [(0.25, (), 6.0, 4.0), (0.5, (), 6.0, inf)]) == {0: 1.75, 1: 0.5}


def test_a_flow_without_bytes_ends_at_once_and_takes_no_share() -> None:
    sharing = FairSharing([8.0])
    empty, other = sharing.start(0.0, (0,), 0.0, inf), sharing.start(0.0, (0,), 16.0, inf)
    sharing.solve(0.0)
    assert sharing._flows[other].rate == 8.0
    assert sharing.next_finish_s == 0.0
    assert sharing.finished(0.0) == [empty]
    assert sharing.next_finish_s == 2.0


def test_an_unlimited_link_limits_nothing() -> None:
    assert timeline([inf, 4.0], [(0.0, (0,), 9.0, inf), (0.0, (0, 1), 8.0, inf)]) == {0: 0.0, 1: 2.0}


def test_a_rate_that_stays_keeps_its_finish_to_the_last_bit() -> None:
    # Capped flows never notice the others that come and go on their link and force new solutions.
    sizes = [0.1 + 0.037 * k for k in range(20)]
    sharing = FairSharing([10.0])
    capped = [sharing.start(0.0, (0,), size, 0.3) for size in sizes]
    for size in (0.1, 0.2):
        sharing.start(0.0, (0,), size, inf)
    sharing.solve(0.0)
    ended: dict[int, float] = {}
    while sharing.next_finish_s < inf:
        now = sharing.next_finish_s
        done = sharing.finished(now)
        ended.update(dict.fromkeys(done, now))
        if now < 3.0:
            for _ in set(done).difference(capped):
                sharing.start(now, (0,), 0.2, inf)
        sharing.solve(now)
    assert [ended[flow] for flow in capped] == [size / 0.3 for size in sizes]


def test_a_finish_that_was_put_off_does_not_count() -> None:
    # The second flow would have ended at 2 like the first, had the third not come at 1.
    starts = [(0.0, (0,), 16.0, inf), (0.0, (1,), 16.0, inf), (1.0, (1,), 16.0, inf)]
    assert timeline([8.0, 8.0], starts) == {0: 2.0, 1: 3.0, 2: 4.0}


def test_nothing_ends_before_now() -> None:
    now = 2.0 + 1e-12  # a clock that rounds may be as late as this for a finish at 2
    sharing = FairSharing([8.0])
    sharing.start(0.0, (0,), 16.0, inf)
    sharing.solve(0.0)
    sharing.start(now, (0,), 8.0, inf)
    sharing.solve(now)
    assert sharing.next_finish_s == now
    assert sharing.finished(now) == [0]


def test_stale_finishes_do_not_pile_up() -> None:
    # Each of 300 short flows changes the rates of 20 long ones; the link is never idle. Flow 20 is elsewhere.
    sharing = FairSharing([8.0, 8.0])
    for _ in range(20):
        sharing.start(0.0, (0,), 256.0, inf)
    sharing.start(0.0, (1,), 8000.0, inf)
    now = 0.0
    for _ in range(300):
        sharing.start(now, (0,), 0.5, inf)
        sharing.solve(now)
        now = sharing.next_finish_s
        assert len(sharing.finished(now)) == 1
        sharing.solve(now)
        assert len(sharing._heap) <= 4 * 22 + 1000
    assert sharing.next_finish_s == (20 * 256.0 + 300 * 0.5) / 8.0
    assert sharing.finished(sharing.next_finish_s) == list(range(20))
    assert sharing.next_finish_s == 1000.0


def test_finishes_a_rounding_error_apart_are_one_instant() -> None:
    now = nextafter(1.0, 0.0)
    sharing = FairSharing([1.0, 1.0, 1.0])
    for link, size in enumerate((now, 1.0, 1.0 + 1e-6)):
        sharing.start(0.0, (link,), size, inf)
    sharing.solve(0.0)
    assert sharing.next_finish_s == now
    assert sharing.finished(now) == [0, 1]
    sharing.solve(now)
    assert sharing.next_finish_s == 1.0 + 1e-6


def test_a_link_that_cannot_be_filled_connects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    search = FairSharing._component

    def recorded(self: FairSharing, *arguments: Any) -> Any:
        flows, links = search(self, *arguments)
        sizes.append(len(flows))
        return flows, links

    monkeypatch.setattr(FairSharing, "_component", recorded)
    # Flow 0 crosses links 0 and 2, flow 1 crosses 1 and 2; link 2 carries both at full speed.
    sharing = FairSharing([1.0, 1.0, 2.0])
    sharing.start(0.0, (0, 2), 1.0, inf)
    sharing.solve(0.0)
    sharing.start(0.5, (1, 2), 1.0, inf)
    sharing.solve(0.5)
    assert [sharing._flows[flow].rate for flow in (0, 1)] == [1.0, 1.0]
    sharing.start(0.5, (2,), 0.25, inf)  # now link 2 can be filled, and connects all three
    sharing.solve(0.5)
    assert [3 * sharing._flows[flow].rate for flow in (0, 1, 2)] == [2.0, 2.0, 2.0]
    assert sharing.finished(0.875) == [2]
    sharing.solve(0.875)  # each by itself again
    assert [sharing._flows[flow].rate for flow in (0, 1)] == [1.0, 1.0]
    assert sizes == [1, 1, 3, 1, 1]


@pytest.mark.parametrize("number", [4, 1024])
def test_a_ring_in_lockstep_ends_each_step_in_one_instant(number: int) -> None:
    sharing = FairSharing([8.0] * (2 * number))
    now = 0.0
    for step in range(3):
        for i in range(number):
            for j in ((i - 1) % number, (i + 1) % number):
                sharing.start(now, (i, number + j), 4.0, inf)
        sharing.solve(now)
        now = sharing.next_finish_s
        assert now == step + 1.0
        assert len(sharing.finished(now)) == 2 * number
        sharing.solve(now)


def test_shares_follow_the_weights() -> None:
    # 2 : 1 of 9. When the first is through after 2 s, the second has 9 of its 15 left, at 9.
    sharing = FairSharing([9.0])
    first = sharing.start(0.0, (0,), 12.0, inf, weight=2)
    second = sharing.start(0.0, (0,), 15.0, inf, weight=1)
    sharing.solve(0.0)
    assert [sharing._flows[flow].rate for flow in (first, second)] == [6.0, 3.0]
    assert sharing.finished(2.0) == [first]
    sharing.solve(2.0)
    assert sharing.next_finish_s == 3.0


def test_what_a_heavy_flow_cannot_use_the_others_get_by_weight() -> None:
    # 4 : 2 : 1 of 14 would be 8, 4, 2. The first is held to 2, and 12 are left for 2 : 1.
    sharing = FairSharing([14.0])
    flows = [
        sharing.start(0.0, (0,), 20.0, cap, weight=weight) for cap, weight in ((2.0, 4), (inf, 2), (inf, 1))
    ]
    sharing.solve(0.0)
    assert [sharing._flows[flow].rate for flow in flows] == [2.0, 8.0, 4.0]


def test_the_weight_of_a_round_trip() -> None:
    assert rtt_weight(0.02) == 4 * rtt_weight(0.08)
    assert rtt_weight(0.0) == rtt_weight(1e-6)
    assert rtt_weight(1e9) == 1


# --- laws ---------------------------------------------------------------------------------------

Flow = tuple[tuple[int, ...], Fraction | None, int]  # links, cap (None: none), weight
Planned = list[tuple[int, tuple[int, ...], int, int | None, int]]


def fair_rates(bandwidths: list[Fraction], flows: dict[int, Flow]) -> dict[int, Fraction]:
    """Textbook progressive filling from scratch, in exact fractions: raise all rates until one must stop.

    Rates rise in proportion to the weights.
    """
    rates = dict.fromkeys(flows, Fraction(0))
    rising = set(flows)
    while rising:
        steps = []
        for link, bandwidth in enumerate(bandwidths):
            users = [f for f in flows if link in flows[f][0]]
            up = sum(flows[f][2] for f in users if f in rising)
            if up:
                steps.append((bandwidth - sum(rates[f] for f in users)) / up)
        for f in rising:
            cap = flows[f][1]
            if cap is not None:
                steps.append((cap - rates[f]) / flows[f][2])
        step = min(steps)
        for f in rising:
            rates[f] += step * flows[f][2]
        full = {
            link
            for link, bandwidth in enumerate(bandwidths)
            if sum(rates[f] for f in flows if link in flows[f][0]) == bandwidth
        }
        rising = {f for f in rising if rates[f] != flows[f][1] and not full.intersection(flows[f][0])}
    return rates


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], Planned]:
    """Bandwidths, and flows (wait, links, size, cap, weight); small numbers make ties likely."""
    bandwidths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    links = st.lists(st.integers(0, len(bandwidths) - 1), min_size=1, max_size=4, unique=True).map(tuple)
    weights = st.just(1) if draw(st.booleans()) else st.integers(1, 4)
    flow = st.tuples(st.integers(0, 3), links, st.integers(1, 30), st.none() | st.integers(1, 6), weights)
    return bandwidths, draw(st.lists(flow, min_size=1, max_size=14))


@pytest.mark.parametrize("vectorise_from", [10**9, 0], ids=["python", "arrays"])
@settings(derandomize=True, max_examples=100)
@given(case=cases())
def test_every_history_agrees_with_exact_fractions(
    vectorise_from: int, case: tuple[list[int], Planned]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_VECTORISE_FROM", vectorise_from)
        _check_history(*case)


def _check_history(bandwidths: list[int], planned: Planned) -> None:
    """Run both side by side over every start and end, each with its own clock; compare all that shows."""
    sharing = FairSharing([float(b) for b in bandwidths])
    exact_bandwidths = [Fraction(b) for b in bandwidths]
    starts = []
    clock = 0
    for wait, links, size, cap, weight in planned:
        clock += wait
        starts.append((clock, links, size, cap, weight))
    active: dict[int, Flow] = {}
    left: dict[int, Fraction] = {}
    moved: dict[int, float] = {}  # bytes by the rates that FairSharing shows
    sizes: dict[int, int] = {}
    now, now_exact = 0.0, Fraction(0)
    while starts or active:
        rates = fair_rates(exact_bandwidths, active)
        finish = min((now_exact + left[f] / rates[f] for f in active), default=None)
        assert sharing.next_finish_s == (inf if finish is None else pytest.approx(float(finish), rel=CLOSE))
        then = min(t for t in (finish, Fraction(starts[0][0]) if starts else None) if t is not None)
        after = float(then) if then != finish else sharing.next_finish_s
        for f in active:
            left[f] -= (then - now_exact) * rates[f]
            moved[f] += (after - now) * sharing._flows[f].rate
        now, now_exact = after, then
        done = [f for f in active if left[f] == 0]
        assert sharing.finished(now) == done
        for f in done:
            del active[f]
            assert moved[f] == pytest.approx(sizes[f], rel=CLOSE)
        while starts and starts[0][0] == then:
            _, links, size, cap, weight = starts.pop(0)
            f = sharing.start(now, links, float(size), inf if cap is None else float(cap), weight)
            active[f] = (links, None if cap is None else Fraction(cap), weight)
            left[f], sizes[f], moved[f] = Fraction(size), size, 0.0
        sharing.solve(now)
        shown = {f: sharing._flows[f].rate for f in active}
        assert shown == pytest.approx(
            {f: float(rate) for f, rate in fair_rates(exact_bandwidths, active).items()}, rel=CLOSE
        )
        _check_fair(bandwidths, active, shown)


def _check_fair(bandwidths: list[int], flows: dict[int, Flow], rates: dict[int, float]) -> None:
    """Feasible, and every flow is at its cap or has a full link on which nobody gets more per weight."""
    load = [sum(rates[f] for f in flows if link in flows[f][0]) for link in range(len(bandwidths))]
    assert all(used <= b * (1 + CLOSE) for used, b in zip(load, bandwidths, strict=True))
    level = {f: rates[f] / flows[f][2] for f in flows}
    for f, (links, cap, _) in flows.items():
        at_cap = cap is not None and rates[f] >= float(cap) * (1 - CLOSE)
        has_bottleneck = any(
            load[link] >= bandwidths[link] * (1 - CLOSE)
            and level[f] * (1 + CLOSE) >= max(level[g] for g in flows if link in flows[g][0])
            for link in links
        )
        assert at_cap or has_bottleneck


def test_a_long_history_leaves_nothing_behind() -> None:
    # Thousands of starts and ends with odd numbers: rates must be those of a fresh start with the same flows.
    rng = random.Random(5)
    bandwidths = [rng.uniform(1.0, 3.0) for _ in range(12)]
    sharing = FairSharing(bandwidths)
    flows: dict[int, tuple[tuple[int, ...], float]] = {}
    now = 0.0
    for k in range(3000):
        pause = now + rng.expovariate(4.0)
        while sharing.next_finish_s <= pause:
            now = sharing.next_finish_s
            for flow in sharing.finished(now):
                del flows[flow]
            sharing.solve(now)
        now = pause
        links = tuple(rng.sample(range(12), rng.randint(1, 4)))
        cap = rng.choice([inf, rng.uniform(0.1, 1.0)])
        flows[sharing.start(now, links, rng.expovariate(1.0), cap)] = links, cap
        sharing.solve(now)
        if k % 50 == 0:
            fresh = FairSharing(bandwidths)
            same = {flow: fresh.start(0.0, links, 1.0, cap) for flow, (links, cap) in flows.items()}
            fresh.solve(0.0)
            assert {f: sharing._flows[f].rate for f in flows} == pytest.approx(
                {f: fresh._flows[g].rate for f, g in same.items()}, rel=CLOSE
            )
    while sharing.next_finish_s < inf:
        now = sharing.next_finish_s
        for flow in sharing.finished(now):
            del flows[flow]
        sharing.solve(now)
    assert not flows
    assert sharing._demand == [0.0] * 12


@pytest.mark.parametrize("weights", [(1,), (10_000_000, 12_500_000, 333_333_333)])
def test_one_large_component_is_solved_alike_with_arrays(weights: tuple[int, ...]) -> None:
    rng = random.Random(7)
    bandwidths = [rng.choice([1.0, 2.0, rng.random()]) for _ in range(150)]
    flows = [
        (tuple(rng.sample(range(150), 3)), rng.choice([inf, rng.random()]), rng.choice(weights))
        for _ in range(600)
    ]

    def rates(vectorise_from: int) -> list[float]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_VECTORISE_FROM", vectorise_from)
            sharing = FairSharing(bandwidths)
            numbers = [sharing.start(0.0, links, 1.0, cap, weight) for links, cap, weight in flows]
            sharing.solve(0.0)
            return [sharing._flows[number].rate for number in numbers]

    assert rates(0) == pytest.approx(rates(10**9), rel=CLOSE)
