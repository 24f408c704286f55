"""Latencies of packets, worked out by hand: 1 s, with the factors 2, 3 and 1/2."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.realrun.lab.switch import Delay


def jittered(*factors: float) -> Delay:
    return Delay(1.0, iter(factors).__next__)


def test_without_jitter_every_packet_takes_the_nominal_latency() -> None:
    delay = Delay(0.25, None)
    assert delay.arrives_s(2.0, delay.enters(1.0, True), True) == 2.25
    assert delay.arrives_s(1.5, delay.enters(1.0, True), True) == 1.75


def test_packets_of_a_burst_share_a_factor() -> None:
    delay = jittered(2.0, 3.0)
    assert [delay.enters(now, True) for now in (0.0, 0.1)] == [2.0, 2.0]
    assert delay.arrives_s(0.5, 2.0, True) == 2.5
    assert delay.enters(0.6, True) == 2.0  # the second has not left its last link
    assert [delay.arrives_s(left, 2.0, True) for left in (0.7, 0.8)] == [2.7, 2.8]
    assert delay.enters(2.75, True) == 2.0  # and here the last one is still on its way
    assert delay.arrives_s(2.75, 2.0, True) == 4.75
    assert delay.enters(4.75, True) == 3.0


def test_nothing_overtakes() -> None:
    delay = jittered(2.0, 0.5)
    assert delay.arrives_s(0.0, delay.enters(0.0, True), True) == 2.0
    assert delay.enters(0.5, False) == 1.0  # an acknowledgement has the nominal latency, but waits its turn
    assert delay.arrives_s(0.5, 1.0, False) == 2.0
    assert delay.arrives_s(2.0, delay.enters(2.0, True), True) == 2.5


def test_acknowledgements_draw_nothing() -> None:
    delay = jittered(3.0)
    for now in range(5):
        assert delay.arrives_s(float(now), delay.enters(float(now), False), False) == now + 1.0
    assert delay.enters(10.0, True) == 3.0


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans(), st.floats(0.01, 10)), max_size=30))
def test_order_is_kept_whatever_is_drawn(packets: list[tuple[float, bool, float]]) -> None:
    factors = iter([factor for _, _, factor in packets])
    delay = Delay(1.0, factors.__next__)
    now, arrivals = 0.0, []
    for wait, contents, _ in packets:
        now += wait
        arrivals.append(delay.arrives_s(now, delay.enters(now, contents), contents))
        assert arrivals[-1] >= now
    assert arrivals == sorted(arrivals)


def test_what_links_add_is_that_of_the_time_and_reorders_nothing() -> None:
    delay = Delay(1.0, None, lambda now_s: 5.0 if now_s < 2.0 else 0.5)
    first, second = delay.enters(1.0, True), delay.enters(3.0, False)
    assert (first, second) == (6.0, 1.5)
    assert [delay.arrives_s(1.0, first, True), delay.arrives_s(3.0, second, False)] == [7.0, 7.0]
    assert delay.arrives_s(8.0, delay.enters(8.0, True), True) == 9.5


def test_what_links_add_comes_beside_the_jitter() -> None:
    delay = Delay(1.0, iter([2.0, 3.0]).__next__, lambda _: 0.25)
    assert delay.enters(0.0, True) == 2.25
    assert delay.enters(0.0, False) == 1.25
