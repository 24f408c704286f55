"""The arithmetic of links: every time here is worked out by hand. Links of 1,000 bytes/s unless said."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.realrun.lab.queues import MTU_BYTES, Fair, Fifo, Path
from paceline.sim.errors import InputError

Arrival = tuple[float, str, Path, int]


def leaving(
    kind: type[Fair[int]] | type[Fifo[int]], links: Sequence[float], arrivals: Sequence[Arrival]
) -> list[float]:
    """When each arrival leaves its last link."""
    times = [math.nan] * len(arrivals)
    queue = kind(links, [path for _, _, path, _ in arrivals], lambda t, i: times.__setitem__(i, t))
    for i, (time_s, flow, path, size) in enumerate(arrivals):
        while queue.next_s() <= time_s:
            queue.advance(queue.next_s())
        queue.advance(time_s)
        queue.arrive(time_s, flow, path, size, i)
    while queue.next_s() < math.inf:
        queue.advance(queue.next_s())
    return times


ONE = Path((0,))
BOTH = Path((0, 1))


@pytest.mark.parametrize("kind", [Fair, Fifo])
class TestAlone:
    def test_packets_of_one_flow_follow_each_other(self, kind: type[Fair[int]]) -> None:
        arrivals = [(0.0, "a", ONE, 2000), (0.0, "a", ONE, 4000), (7.0, "a", ONE, 2000)]
        assert leaving(kind, [1000], arrivals) == [2.0, 6.0, 9.0]

    def test_a_faster_second_link_takes_no_time(self, kind: type[Fair[int]]) -> None:
        assert leaving(kind, [1000, 4000], [(0.0, "a", BOTH, 4000)]) == [4.0]

    def test_two_links_of_equal_speed_take_the_time_of_one(self, kind: type[Fair[int]]) -> None:
        times = leaving(kind, [1e6, 1e6], [(0.0, "a", BOTH, 64_000), (0.0, "a", BOTH, 64_000)])
        assert times == pytest.approx([0.064, 0.128], abs=1e-12)

    def test_the_slowest_link_sets_the_pace(self, kind: type[Fair[int]]) -> None:
        times = leaving(kind, [4000, 1000], [(0.0, "a", BOTH, 4000), (0.0, "a", BOTH, 4000)])
        assert times == pytest.approx([4.0, 8.0], abs=1e-12)

    def test_the_cap_is_a_link_of_its_own(self, kind: type[Fair[int]]) -> None:
        capped = Path((0,), 500.0)
        assert leaving(kind, [1000], [(0.0, "a", capped, 2000), (0.0, "b", capped, 2000)]) == [4.0, 4.0]

    def test_no_link_no_wait(self, kind: type[Fair[int]]) -> None:
        assert leaving(kind, [], [(3.0, "a", Path(()), 65_000)]) == [3.0]

    def test_an_endless_link_is_none(self, kind: type[Fair[int]]) -> None:
        assert leaving(kind, [1000], [(3.0, "a", Path((), math.inf), 65_000)]) == [3.0]

    def test_links_in_a_circle_are_refused(self, kind: type[Fair[int]]) -> None:
        with pytest.raises(InputError, match="circle"):
            kind([1.0, 1.0], [Path((0, 1)), Path((1, 0))], lambda _t, _p: None)


class TestChanges:
    """Links whose bandwidth changes at 2 s, from 1,000 to 500 bytes/s."""

    def leaving(self, links: Sequence[float], changed: int, arrivals: Sequence[Arrival]) -> list[float]:
        times = [math.nan] * len(arrivals)
        queue = Fair[int](links, [path for _, _, path, _ in arrivals], lambda t, i: times.__setitem__(i, t))
        for i, (time_s, flow, path, size) in enumerate(arrivals):
            queue.advance(time_s)
            queue.arrive(time_s, flow, path, size, i)
        queue.advance(2.0)
        queue.change(2.0, changed, 500.0)
        while queue.next_s() < math.inf:
            queue.advance(queue.next_s())
        return times

    def test_what_is_under_way_goes_on_at_the_new_rate(self) -> None:
        # 2,000 of 5,000 bytes are through at 2 s, 3,000 at 500 take 6 s.
        assert self.leaving([1000.0], 0, [(0.0, "a", ONE, 5000)]) == [8.0]

    def test_two_flows_share_the_new_rate(self) -> None:
        # 1,000 of 3,000 each at 2 s; then 250 each.
        assert self.leaving([1000.0], 0, [(0.0, "a", ONE, 3000), (0.0, "b", ONE, 3000)]) == [10.0, 10.0]

    def test_a_link_further_on_holds_up_what_comes_in(self) -> None:
        # The second link takes 500 from 2 s on, and 1,000 come in until 5 s: through at 2 + 3,000 / 500.
        assert self.leaving([1000.0, 1000.0], 1, [(0.0, "a", BOTH, 5000)]) == [8.0]

    def test_other_links_do_not_notice(self) -> None:
        assert self.leaving([1000.0, 1000.0], 1, [(0.0, "a", ONE, 5000)]) == [5.0]

    def test_small_packets_pass_at_the_new_rate(self) -> None:
        times = [math.nan]
        queue = Fair[int]([1000.0], [ONE], lambda t, i: times.__setitem__(i, t))
        queue.arrive(0.0, "a", ONE, 100, 0)
        assert times == [0.1]
        queue.advance(2.0)
        queue.change(2.0, 0, 500.0)
        queue.arrive(3.0, "a", ONE, 100, 0)
        assert times == [3.2]


class TestOutages:
    """A link of 1,000 bytes/s that carries nothing from 2 to 5 s."""

    def leaving(self, links: Sequence[float], out: int, arrivals: Sequence[Arrival]) -> list[float]:
        times = [math.nan] * len(arrivals)
        queue = Fair[int](links, [path for _, _, path, _ in arrivals], lambda t, i: times.__setitem__(i, t))
        ahead = sorted(
            [(time_s, 1, i) for i, (time_s, *_) in enumerate(arrivals)] + [(2.0, 0, 0), (5.0, 0, 1)]
        )
        for time_s, kind, number in ahead:
            queue.advance(time_s)
            if kind:
                _, flow, path, size = arrivals[number]
                queue.arrive(time_s, flow, path, size, number)
            else:
                queue.change(time_s, out, 1000.0 * number)
        while queue.next_s() < math.inf:
            queue.advance(queue.next_s())
        return times

    def test_what_is_under_way_waits(self) -> None:
        assert self.leaving([1000.0], 0, [(0.0, "a", ONE, 5000)]) == [8.0]

    def test_what_comes_meanwhile_waits_too_small_packets_in_their_order(self) -> None:
        arrivals = [(3.0, "a", ONE, 100), (3.5, "a", ONE, 200), (4.0, "b", ONE, 3000)]
        # From 5 s on 500 bytes/s each: a's 300 bytes are through after 0.6 s, b has 2,700 left at 1,000.
        assert self.leaving([1000.0], 0, arrivals) == pytest.approx([5.2, 5.6, 8.3])

    def test_a_link_further_on_is_filled_meanwhile(self) -> None:
        assert self.leaving([1000.0, 1000.0], 1, [(0.0, "a", BOTH, 5000)]) == [8.0]

    def test_other_links_do_not_notice(self) -> None:
        assert self.leaving([1000.0, 1000.0], 1, [(0.0, "a", ONE, 5000)]) == [5.0]


class TestFair:
    def test_two_flows_get_half_each(self) -> None:
        arrivals = [(0.0, "a", ONE, 4000), (0.0, "b", ONE, 4000)]
        assert leaving(Fair, [1000], arrivals) == [8.0, 8.0]

    def test_the_rest_goes_to_who_stays(self) -> None:
        # Both at 500 until b has its 2,000 at 4 s; a then has 2,000 left at 1,000.
        arrivals = [(0.0, "a", ONE, 4000), (0.0, "b", ONE, 2000)]
        assert leaving(Fair, [1000], arrivals) == [6.0, 4.0]

    def test_a_late_flow_takes_its_share_from_then_on(self) -> None:
        # a alone for 2 s, then half: 2,000 left take 4 s; b has 2,000 by then and ends at 8 s.
        arrivals = [(0.0, "a", ONE, 4000), (2.0, "b", ONE, 4000)]
        assert leaving(Fair, [1000], arrivals) == [6.0, 8.0]

    def test_a_capped_flow_leaves_the_rest_to_others(self) -> None:
        arrivals = [(0.0, "a", Path((0,), 250.0), 2000), (0.0, "b", ONE, 6000)]
        assert leaving(Fair, [1000], arrivals) == [8.0, 8.0]

    def test_a_small_packet_passes_bulk(self) -> None:
        arrivals = [(0.0, "a", ONE, 64_000), (1.0, "b", ONE, 100)]
        assert leaving(Fair, [1000], arrivals) == [64.0, 1.1]

    def test_but_not_that_of_its_own_flow(self) -> None:
        arrivals = [(0.0, "a", ONE, 64_000), (1.0, "a", ONE, 100)]
        assert leaving(Fair, [1000], arrivals) == [64.0, 64.1]

    def test_small_packets_do_not_overtake_each_other(self) -> None:
        arrivals = [(0.0, "a", ONE, 1000), (0.5, "a", ONE, 100), (0.5, "a", ONE, 2000)]
        assert leaving(Fair, [1000], arrivals) == [1.0, 1.1, 2.5]

    def test_bulk_does_not_overtake_a_small_packet(self) -> None:
        links, slow = [1000.0], MTU_BYTES / 1000
        arrivals = [(0.0, "a", ONE, MTU_BYTES), (0.0, "a", ONE, MTU_BYTES), (0.0, "a", ONE, 1600)]
        assert leaving(Fair, links, arrivals) == [slow, 2 * slow, 2 * slow]

    def test_a_flow_held_up_elsewhere_only_shares_that_link(self) -> None:
        # Link 0 carries a and b, link 1 carries b at 200: link 0 still serves both at 500 while b waits there
        # (4 s for its 2,000), then a at 1,000; b needs 10 s at link 1.
        arrivals = [(0.0, "a", Path((0,)), 4000), (0.0, "b", Path((0, 1)), 2000)]
        assert leaving(Fair, [1000, 200], arrivals) == [6.0, 10.0]

    def test_two_senders_to_one_receiver(self) -> None:
        # Each has a link of its own (0, 1) and they share link 2. The first sends alone for 2 s.
        arrivals = [(0.0, "a", Path((0, 2)), 4000), (2.0, "b", Path((1, 2)), 4000)]
        assert leaving(Fair, [1000, 1000, 1000], arrivals) == [6.0, 8.0]

    def test_a_queue_behind_a_crowded_link_drains_at_full_speed(self) -> None:
        # a crosses links 0 (1,000) and 1 (1,000), b only link 1. Until 4 s each gets 500 of link 1, and a has
        # put 4,000 into it: 2,000 wait there and leave at 1,000 when b (2,000) is through.
        arrivals = [(0.0, "a", Path((0, 1)), 4000), (0.0, "b", Path((1,)), 2000)]
        assert leaving(Fair, [1000, 1000], arrivals) == [6.0, 4.0]

    def test_a_pause_of_the_sender_is_lost(self) -> None:
        arrivals = [(0.0, "a", BOTH, 2000), (10.0, "a", BOTH, 2000)]
        assert leaving(Fair, [1000, 500], arrivals) == [4.0, 14.0]


class TestFifo:
    def test_a_small_packet_waits_behind_bulk(self) -> None:
        arrivals = [(0.0, "a", ONE, 64_000), (1.0, "b", ONE, 100)]
        assert leaving(Fifo, [1000], arrivals) == [64.0, 64.1]

    def test_but_not_at_a_link_that_bulk_does_not_fill(self) -> None:
        # 100 kB/s, cut into cells of 1,600 bytes: bulk trickles into the shared link 2, so that a packet from
        # link 1 waits there for one or two of them, not for 64,000 bytes.
        arrivals = [(0.0, "a", Path((0, 2)), 64_000), (0.1, "b", Path((1, 2)), 100)]
        bulk, small = leaving(Fifo, [100e3, 100e3, 200e3], arrivals)
        assert bulk == pytest.approx(0.64, abs=1e-3)
        assert 0.1 < small < 0.1 + 2 * 1600 / 100e3

    def test_two_senders_to_one_receiver(self) -> None:
        arrivals = [(0.0, "a", Path((0, 2)), 40_000), (0.0, "b", Path((1, 2)), 40_000)]
        a, b = leaving(Fifo, [10e3, 10e3, 10e3], arrivals)
        assert max(a, b) == pytest.approx(8.0, abs=0.2)
        assert min(a, b) == pytest.approx(8.0, abs=0.4)


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[float], list[Arrival]]:
    """A few flows over up to three links that are crossed in ascending order."""
    links = draw(st.lists(st.sampled_from([500.0, 1000.0, 3000.0]), min_size=1, max_size=3))
    paths = [
        Path(
            tuple(sorted(draw(st.sets(st.integers(0, len(links) - 1), min_size=1)))),
            draw(st.sampled_from([math.inf, 400.0])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    moments = sorted(draw(st.lists(st.floats(0, 20), min_size=1, max_size=12)))
    choose, sizes = st.integers(0, len(paths) - 1), st.integers(40, 6000)
    arrivals: list[Arrival] = []
    for moment in moments:
        flow = draw(choose)
        arrivals.append((moment, str(flow), paths[flow], draw(sizes)))
    return links, arrivals


@pytest.mark.parametrize("kind", [Fair, Fifo])
class TestLaws:
    @given(case=traffic())
    def test_order_and_speed_limits(
        self, kind: type[Fair[int]], case: tuple[list[float], list[Arrival]]
    ) -> None:
        links, arrivals = case
        times = leaving(kind, links, arrivals)
        last: dict[str, float] = {}
        for (arrived, flow, path, size), time in zip(arrivals, times, strict=True):
            slowest = min([*(links[i] for i in path.links), path.cap_bytes_per_s])
            assert time >= arrived + size / slowest - 1e-9
            assert time >= last.get(flow, 0.0)
            last[flow] = time

    @given(case=traffic())
    def test_one_link_never_idles_while_something_waits(
        self, kind: type[Fair[int]], case: tuple[list[float], list[Arrival]]
    ) -> None:
        _, arrivals = case
        arrivals = [(t, flow, ONE, size + MTU_BYTES) for t, flow, _, size in arrivals]
        free = 0.0
        for arrived, _, _, size in arrivals:
            free = max(free, arrived) + size / 1000
        assert max(leaving(kind, [1000], arrivals)) == pytest.approx(free, abs=1e-9)
