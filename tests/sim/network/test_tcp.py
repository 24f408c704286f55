"""TCP's windows by hand: segments of 1448 bytes, ten of them first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.alone import leave_alone
from paceline.sim.network.network_settings import SEGMENT_BYTES, Congestion, TcpSettings, describe_hosts
from paceline.sim.network.transport import TransferModel
from paceline.sim.program.worker import Worker
from paceline.sim.traffic.tcp.windows import Connection, Queues
from tests.support.factory import flat_network, make_job, make_scheme, run_events

IW = 10 * SEGMENT_BYTES
RTT_S = 0.125
FAST = 1e12
"""At this rate bytes take no time worth mentioning."""


def connection(tcp: TcpSettings | None = None, peak: float = FAST) -> Connection:
    return Connection(tcp or TcpSettings(), RTT_S, peak)


def test_a_window_doubles_in_every_round_trip() -> None:
    # 10, 20, 40 segments leave at 0, 1 and 2 round trips, at once but for the bytes' own time.
    each = connection()
    end_s = leave_alone(each, 0.0, IW + 2 * IW + 1000, FAST)
    assert end_s == pytest.approx(2 * RTT_S, abs=1e-6)
    assert each.window == 4 * IW


def test_what_fits_into_the_window_takes_its_bytes_time_alone() -> None:
    assert leave_alone(connection(), 1.0, IW, 1e6) == 1.0 + IW / 1e6


def test_at_the_links_rate_there_are_no_more_rounds() -> None:
    # A round trip holds four windows: after 1 and 2 of them the third leaves without a pause.
    rate = 4 * IW / RTT_S
    each = connection(TcpSettings(congestion="reno"), rate)
    end_s = leave_alone(each, 0.0, 100 * IW, rate)
    assert end_s == pytest.approx(2 * RTT_S + 97 * IW / rate, rel=0.01)


def test_an_acknowledgement_comes_when_two_segments_are_there() -> None:
    each = connection(peak=1e6)
    assert each.next(0.0, 2 * IW).num_bytes == IW
    assert each.next(0.0, IW).not_before_s == RTT_S + 2 * SEGMENT_BYTES / 1e6


def test_pieces_of_a_message_do_not_grow_with_its_length() -> None:
    each, pieces, now_s = connection(peak=1.25e8), 0, 0.0
    rest = 1e12
    while rest:
        leave = each.next(now_s, rest)
        if leave.num_bytes:
            pieces += 1
            end_s = now_s + leave.num_bytes / min(leave.cap_bytes_per_s, 1.25e8)
            each.left(now_s, end_s, leave.num_bytes)
            rest, now_s = rest - leave.num_bytes, end_s
        else:
            now_s = leave.not_before_s
    assert pieces < 12


def test_the_window_stays_between_messages_and_is_halved_for_every_idle_time_out() -> None:
    timeout_s = RTT_S + 0.2
    for idle_s, halvings in ((0.9 * timeout_s, 0), (1.5 * timeout_s, 1), (2.5 * timeout_s, 2), (100.0, 9)):
        each = connection()
        end_s = leave_alone(each, 0.0, 7 * IW, FAST)
        assert each.next(end_s + idle_s, 1e9).num_bytes == max(8 * IW / 2**halvings, IW)


def test_bbr_and_a_kernel_told_so_do_not_shrink_windows() -> None:
    for tcp in (TcpSettings(congestion="bbr"), TcpSettings(slow_start_after_idle=False)):
        each = connection(tcp)
        end_s = leave_alone(each, 0.0, 7 * IW, FAST)
        assert each.next(end_s + 10.0, 1e9).num_bytes == pytest.approx(8 * IW)


def test_a_window_grows_to_no_more_than_twice_what_was_on_its_way() -> None:
    each, now_s = connection(), 0.0
    for _ in range(10):
        now_s = leave_alone(each, now_s, 10_000, FAST) + RTT_S
    assert each.next(now_s, 1e9).num_bytes == 14 * SEGMENT_BYTES  # the last of seven segments is not full


def test_a_window_stays_where_little_is_sent_too_often_to_be_idle() -> None:
    each = connection()
    now_s = leave_alone(each, 0.0, 31 * IW, FAST)
    for _ in range(12):  # for about seven time-outs
        now_s = leave_alone(each, now_s + 0.2, IW, FAST)
    assert each.next(now_s + RTT_S, 1e9).num_bytes == 32 * IW


def test_a_segment_that_comes_alone_after_a_rest_costs_a_round_trip() -> None:
    # 69.06 segments are 10 + 20 + 40; but after a rest the first ten leave as 3 + 3 + 3 + 1, at the pace of
    # the window before, and the last one is acknowledged with what comes next: 10 + 18 + 38 are too few.
    rtt_s, rate = 0.04, 12.5e6
    each = Connection(TcpSettings(), rtt_s, rate)
    end_s = leave_alone(each, 0.0, 100_000, rate)
    assert end_s == pytest.approx(2 * rtt_s, abs=0.006)
    rested_s = end_s + 1.0
    assert leave_alone(each, rested_s, 100_000, rate) - rested_s == pytest.approx(3 * rtt_s, abs=0.006)


def test_after_slow_start_too_what_fits_into_the_window_leaves_at_once() -> None:
    each = connection(peak=1e9)
    each.window = each.threshold = 20 * IW
    assert each.next(0.0, 10 * IW) == (10 * IW, math.inf, -math.inf)
    each.left(0.0, 0.001, 10 * IW)
    assert leave_alone(each, 0.2, 20 * IW, 1e9) == pytest.approx(0.2, abs=0.001)
    assert each.next(0.201, IW).not_before_s == pytest.approx(0.2 + RTT_S, abs=0.001)


def test_something_short_now_and_then_is_not_idle() -> None:
    each = connection()
    end_s = leave_alone(each, 0.0, 7 * IW, FAST)
    for number in range(1, 40):
        each.sends(end_s + 0.3 * number)
    assert each.next(end_s + 0.3 * 40, 1e9).num_bytes == 8 * IW


@pytest.mark.parametrize(
    ("buffers", "window", "rounds"),
    [({"receive_buffer": "2 MB"}, 1.32e6, 7), ({"send_buffer": "1 MB"}, 0.75e6, 6)],
)
def test_a_full_buffer_is_a_window_in_every_round_trip(
    buffers: dict[str, str], window: float, rounds: int
) -> None:
    each = connection(TcpSettings.model_validate(buffers))
    end_s = leave_alone(each, 0.0, 1e8, FAST)
    assert each.next(end_s, 1e8).cap_bytes_per_s == window / RTT_S
    # Windows of 10 to 640 or 320 segments, then what the buffer allows in a round trip.
    assert end_s == pytest.approx((rounds + (1e8 - (2**rounds - 1) * IW) / window) * RTT_S, rel=1e-4)


def test_what_fits_into_the_send_buffer_is_held_back_by_the_receiver_s_alone() -> None:
    each = connection()
    leave_alone(each, 0.0, 1e8, FAST)
    assert each.next(100.0, 4e6).num_bytes < 4e6  # after a long rest
    leave_alone(each, 200.0, 1e8, FAST)
    assert each.next(each._sent_s, 4e6).num_bytes == 4e6


def test_the_send_buffer_grows_with_the_window_and_never_shrinks() -> None:
    # Linux: two windows of ten segments, of 4352 bytes each in memory; then 6 times a window that is larger.
    each = connection()
    assert each.buffer_bytes == 20 * 4352
    end_s = leave_alone(each, 0.0, 7 * IW, FAST)
    assert each.buffer_bytes == 20 * 4352  # windows of up to 58 kB
    end_s = leave_alone(each, end_s + RTT_S, 24 * IW, FAST)  # windows of 8 and 16
    grown = each.buffer_bytes
    assert grown == 2 * 80 * 4352  # when 80 segments were more than it held
    leave_alone(each, end_s + 100.0, 1000, FAST)
    assert (each.window, each.buffer_bytes) == (IW, grown)


def test_all_that_is_acknowledged_counts_where_the_window_has_held_something_back() -> None:
    # 7 windows and a half: the last half window is acknowledged, too, and nothing was sent since.
    each = connection()
    end_s = leave_alone(each, 0.0, 7.5 * IW, FAST)
    each.next(end_s + RTT_S, 1.0)
    assert each.window == 8.5 * IW


def test_halved_windows_are_whole_segments() -> None:
    each = connection()
    end_s = leave_alone(each, 0.0, IW, FAST)
    each.window = 25.0 * SEGMENT_BYTES
    assert each.next(end_s + 1.5 * (RTT_S + 0.2), 1e9).num_bytes == 12 * SEGMENT_BYTES


def test_a_word_is_a_segment_of_what_is_acknowledged() -> None:
    # It is sent amid a message that the window holds back, and the window grows by it as well.
    each = connection()
    now_s = leave_alone(each, 0.0, 3 * IW, FAST)
    each.sends(now_s)
    assert each.next(now_s, 1e9).not_before_s == pytest.approx(now_s + RTT_S, abs=1e-6)
    assert each.next(now_s + 1.01 * RTT_S, 1e9).num_bytes == 4 * IW + SEGMENT_BYTES


def test_acknowledgements_wait_behind_what_goes_the_other_way() -> None:
    there, back = connection(), connection()
    there.other, back.other = back, there
    assert there.next(0.0, 1e9).num_bytes == back.next(0.0, 1e9).num_bytes == IW
    there.left(0.0, 0.001, IW)
    assert there.next(0.001, 1e9).not_before_s == math.inf  # it is not known when the other window has left
    back.left(0.0, 2 * RTT_S, IW)
    assert there.next(2 * RTT_S, 1e9).not_before_s == 2.5 * RTT_S
    assert there.next(2.5 * RTT_S, 1e9).num_bytes == 2 * IW
    # What the other way begins after an acknowledgement has left is not in front of it.
    assert back.next(2 * RTT_S, 1e9).num_bytes == 2 * IW


def test_acknowledgements_wait_behind_a_message_that_leaves_without_rounds_too() -> None:
    there, back = connection(peak=1e6), connection(peak=1e6)  # a round trip holds 8.6 IW
    there.other, back.other = back, there
    there.window = 100 * IW
    back.window = 10 * IW
    assert there.next(0.0, 80 * IW).num_bytes == 80 * IW
    assert back.next(0.001, 80 * IW).num_bytes == 10 * IW
    back.left(0.001, 0.3, 10 * IW)
    assert back.next(0.3, 70 * IW).not_before_s == math.inf


def test_bytes_and_acknowledgements_wait_in_queues_where_links_serve_first_what_comes_first() -> None:
    # A second in front of the bytes, two in front of their acknowledgement.
    each, plain = connection(), connection()
    then_s = pytest.approx(1.0 + RTT_S / 2)
    each.queues = Queues(there=lambda _: 1.0, back=lambda at_s: 2.0 if at_s == then_s else 0.0)
    for other, acked_s in ((each, 3.0 + RTT_S), (plain, RTT_S)):
        assert other.next(0.0, 2 * IW).num_bytes == IW
        assert other.next(0.0, IW).not_before_s == pytest.approx(acked_s)
    plain.left(0.0, 0.01, IW)
    each.left(0.0, 1.01, IW)
    assert each.next(0.5, IW).num_bytes == 0
    assert plain.next(0.5, IW).num_bytes == IW


def test_what_waits_in_a_queue_ends_cubics_slow_start() -> None:
    # Nine packets of two segments are late if an eighth of a round trip's queue is in front of them.
    least_s = min(RTT_S / 8, 0.016)
    for queued_s, threshold in ((0.99 * least_s, math.inf), (1.01 * least_s, (20 + 16) * SEGMENT_BYTES)):
        each = connection()
        leave_alone(each, 0.0, IW, FAST)
        each.queues = Queues(there=lambda _, s=queued_s: s, back=lambda _: 0.0)  # type: ignore[misc]
        assert each.next(1.001 * RTT_S, 2 * IW).num_bytes == 2 * IW
        assert each.threshold == threshold


def test_what_waits_on_both_ways_together_ends_cubics_slow_start() -> None:
    # Neither wait alone is an eighth of a round trip. The second window, of 20 segments, begins a round:
    # slow start ends with its ninth acknowledgement.
    least_s = min(RTT_S / 8, 0.016)
    for back_s, threshold in ((0.49 * least_s, math.inf), (0.51 * least_s, (20 + 16) * SEGMENT_BYTES)):
        each = connection()
        leave_alone(each, 0.0, IW, FAST)
        each.queues = Queues(there=lambda _: 0.5 * least_s, back=lambda _, s=back_s: s)  # type: ignore[misc]
        assert each.next(1.1 * RTT_S, 3 * IW).num_bytes == 2 * IW
        assert each.threshold == math.inf
        each.left(1.1 * RTT_S, 1.1 * RTT_S + 1e-6, 2 * IW)
        assert each.next(3 * RTT_S, IW).num_bytes == IW
        assert each.threshold == threshold


def test_acknowledgements_are_late_only_where_there_are_nine() -> None:
    # Ten segments take 16 ms where a round trip takes 4, but leave as three packets.
    each = Connection(TcpSettings(), 0.004, 1e9)
    leave_alone(each, 0.0, 3 * IW, 8 * IW / 0.125)
    assert each.threshold == math.inf


def test_losses_bound_the_rate() -> None:
    # Mathis: sqrt(3/2) / sqrt(p) segments a round trip; cubic's own law is above it over long round trips.
    reno, cubic, bbr = (
        TcpSettings(congestion=name, loss=1e-4).window_at_loss_bytes(RTT_S) for name in CONTROLS
    )
    assert reno == pytest.approx(SEGMENT_BYTES * math.sqrt(1.5e4))
    assert cubic == pytest.approx(SEGMENT_BYTES * 1.0537 * (RTT_S * 1e4) ** 0.75, rel=1e-3)
    assert bbr == math.inf
    assert TcpSettings(loss=1e-4).window_at_loss_bytes(1e-3) == pytest.approx(reno)
    each = connection(TcpSettings(congestion="reno", loss=1e-4))
    end_s = leave_alone(each, 0.0, 1e8, FAST)
    assert end_s == pytest.approx(1e8 / reno * RTT_S, rel=0.01)


CONTROLS: tuple[Congestion, ...] = ("reno", "cubic", "bbr")


def test_cubics_slow_start_ends_when_acknowledgements_come_for_half_a_round_trip() -> None:
    rate = 64 * IW / RTT_S
    each = connection(peak=rate)
    leave_alone(each, 0.0, 800 * IW, rate)
    # The window of 64 IW takes a round trip; when half of it was acknowledged, it was 64 + 32 IW.
    assert each.threshold == pytest.approx(64 * IW + rate * (RTT_S / 2 + 0.0005))
    assert connection(TcpSettings(congestion="reno")).threshold == math.inf


def test_what_others_send_between_acknowledgements_hides_their_train() -> None:
    # In front of an acknowledgement are 1.9 or 2.1 ms of others' bytes; a train may pause for 2 ms.
    rate = 64 * IW / RTT_S
    thresholds = []
    for waits_s in (0.0019, 0.0021):
        each = connection(peak=rate)
        each.queues = Queues(there=lambda _: 0.0, back=lambda _, s=waits_s: s)  # type: ignore[misc]
        leave_alone(each, 0.0, 800 * IW, rate)
        thresholds.append(each.threshold)
    # Without a train all acknowledgements have to be late, which those are of the window of 128 IW.
    assert thresholds == [pytest.approx(64 * IW + rate * (RTT_S / 2 + 0.0005)), 128 * IW + 16 * SEGMENT_BYTES]


def test_cubics_slow_start_ends_when_all_of_a_window_is_acknowledged_late() -> None:
    # Two segments take 3 ms, too long for one train of acknowledgements. The window of 16 IW takes two round
    # trips: those of the next one, up to 32 IW, are late from the first on, of which eight are looked at.
    rate = 8 * IW / RTT_S
    each = connection(peak=100 * rate)
    leave_alone(each, 0.0, 100 * IW, rate)
    assert each.threshold == 32 * IW + 16 * SEGMENT_BYTES


def test_a_pause_within_a_round_hides_its_train_until_something_waits_in_front() -> None:
    # Traced on the lab: two words, and half a round trip after them what ten segments leave room for, so that
    # every round leaves in two parts. The 64 segments of the seventh part take longer than half a round trip,
    # but their round has begun with the 16 before them. The next 32 wait behind the 64. They begin a round,
    # which is late: slow start ends with its ninth acknowledgement, at 160 + 16 segments, as in the trace.
    rtt_s, rate = 0.0408, 3.125e6
    each = Connection(TcpSettings(), rtt_s, 12.5e6)
    each.sends(-rtt_s / 2)
    each.sends(-rtt_s / 2)
    taken, now_s = [], 0.0
    while each.threshold == math.inf:
        leave = each.next(now_s, 1e6)
        if not leave.num_bytes:
            now_s = leave.not_before_s
            continue
        end_s = now_s + leave.num_bytes / rate
        each.left(now_s, end_s, leave.num_bytes)
        taken.append(round(leave.num_bytes / SEGMENT_BYTES))
        now_s = end_s
    assert taken == [8, 4, 16, 8, 32, 16, 64, 32]
    assert each.threshold == 176 * SEGMENT_BYTES


def test_a_rest_is_measured_by_the_smoothed_round_trip_not_by_the_last_one() -> None:
    # Fifteen windows in four rounds queue up at the link: the round trip is smoothed to 169 ms when what is
    # left of the message has one of 125 ms. A time-out of 0.39 s has not passed 0.37 s after that.
    rate = 10 * IW / RTT_S
    each = connection(TcpSettings(congestion="reno"), 100 * rate)
    end_s = leave_alone(each, 0.0, 15.01 * IW, rate)
    each.next(end_s + 0.37, IW)
    assert each.window > 16 * IW


def test_after_slow_start_windows_grow_by_reno_s_segment_a_round_trip() -> None:
    each = connection(TcpSettings(congestion="reno"))
    each.window = each.threshold = 100 * SEGMENT_BYTES
    leave_alone(each, 0.0, 10_500 * SEGMENT_BYTES, FAST)
    # As long as it is about 100 to 160 segments: 50 to 100 round trips.
    assert 160 * SEGMENT_BYTES < each.window < 190 * SEGMENT_BYTES


def test_bbr_s_windows_are_paced() -> None:
    # Ten segments leave at once; the next window at 0.99 * 2 / ln 2 of their rate, but for its first packet.
    each = connection(TcpSettings(congestion="bbr"))
    pace = 0.99 * 2 / math.log(2) * IW / RTT_S
    end_s = leave_alone(each, 0.0, 3 * IW, FAST)
    assert end_s == pytest.approx(RTT_S + (2 * IW - 2 * SEGMENT_BYTES) / pace, rel=0.02)


def test_bbr_s_pace_is_that_of_the_message_before() -> None:
    # 20 segments: 10 at once and 10 at the first pace, in 0.35 round trips, seen as 20 / 1.35 a round trip.
    each = connection(TcpSettings(congestion="bbr"))
    each.window = 4.0 * IW
    gain = 0.99 * 2 / math.log(2)
    end_s = leave_alone(each, 0.0, 2 * IW, FAST)
    assert end_s == pytest.approx(RTT_S / gain, rel=1e-3)
    start_s = end_s + RTT_S
    pace = gain * 2 * IW / (RTT_S + end_s)
    end_s = leave_alone(each, start_s, 2 * IW, FAST)
    assert end_s - start_s == pytest.approx((2 * IW - 2 * SEGMENT_BYTES) / pace, rel=0.01)


def test_several_connections_open_as_many_windows() -> None:
    each = connection(TcpSettings(connections=16))
    assert leave_alone(each, 0.0, 16 * IW, FAST) == 16 * IW / FAST


@given(
    sizes=st.lists(st.floats(1.0, 1e8), min_size=1, max_size=5),
    gaps=st.lists(st.floats(0.0, 5.0), min_size=5, max_size=5),
    congestion=st.sampled_from(CONTROLS),
    rate=st.floats(1e4, 1e9),
    rtt_s=st.floats(1e-4, 0.5),
)
def test_no_message_is_faster_than_the_link_and_every_one_ends(
    sizes: list[float], gaps: list[float], congestion: Congestion, rate: float, rtt_s: float
) -> None:
    each, now_s = Connection(TcpSettings(congestion=congestion), rtt_s, rate), 0.0
    for size, gap in zip(sizes, gaps, strict=False):
        end_s = leave_alone(each, now_s, size, rate)
        assert end_s - now_s >= size / rate - 1e-9 * end_s
        assert each.window >= IW
        rounds = 2 + math.log2(max(2.0, rate * rtt_s / IW))
        slowest = min(rate, 3 * 2**20 / rtt_s)
        assert end_s - now_s <= 1e-9 * end_s + 20 * (size / slowest + rounds * rtt_s)
        now_s = end_s + gap


def test_the_event_driver_has_the_same_windows() -> None:
    # A new connection, one byte per parameter: 3 windows and 1000 bytes, then as much again.
    async def program(worker: Worker, options: object) -> None:
        for _ in range(2):
            value = torch.zeros(3 * IW + 1000)
            await (worker.send(1, value) if worker.rank == 0 else worker.receive(0, value))

    rate = 1e7
    model = TransferModel(flat_network(2, RTT_S / 2, rate))
    ends = {}
    for tcp in (None, TcpSettings()):
        job = make_job(make_scheme(program, synchronous=False), workers=2, bytes_per_parameter=1.0)
        events = run_events(replace(job, transfer=replace(model, tcp=tcp))).events
        ends[tcp] = [event.end_s for event in events if event.operation == "receive"]
    size = 3 * IW + 1000
    assert ends[None] == pytest.approx([size / rate + RTT_S / 2, 2 * size / rate + RTT_S])
    each = Connection(TcpSettings(), RTT_S, rate)
    first_s = leave_alone(each, 0.0, size, rate)
    second_s = leave_alone(each, first_s + RTT_S / 2, size, rate)  # when it is received again
    assert ends[TcpSettings()] == pytest.approx([first_s + RTT_S / 2, second_s + RTT_S / 2], rel=1e-12)
    assert first_s == pytest.approx(2 * RTT_S + (1000 + 2 * 2 * SEGMENT_BYTES) / rate, abs=2e-4)


@pytest.mark.parametrize(("waits", "halvings"), [(True, 1), (False, 2)])
def test_a_sender_that_waits_has_sent_a_word_and_does_not_rest(waits: bool, halvings: int) -> None:
    # Seven windows, a rest of more than two time-outs, four windows.
    # A sender that comes after more than one time-out says so.
    timeout_s = RTT_S + 0.2

    async def program(worker: Worker, options: object) -> None:
        for size in (7 * IW, 4 * IW):
            value = torch.zeros(size)
            if worker.rank:
                await worker.receive(0, value)
            else:
                await worker.send(1, value)
            late = worker.rank == 1 or not waits
            await worker.sleep(
                2.2 * timeout_s + 3 * RTT_S - await worker.now() - (0 if late else 0.7 * timeout_s)
            )

    model = TransferModel(
        flat_network(2, RTT_S / 2, 1e9), announcement=1.0, streams=True, tcp=TcpSettings(), buffer_bytes=1e9
    )
    job = make_job(make_scheme(program, synchronous=False), workers=2, bytes_per_parameter=1.0)
    events = run_events(replace(job, transfer=model)).events
    begun_s, received_s = [(e.start_s, e.end_s) for e in events if e.operation == "receive"][1]
    # A round trip from the receiver's word to the message, where all of it fits into the window.
    rounds = 1 if 8 / 2**halvings >= 4 else 2
    assert received_s - begun_s == pytest.approx(rounds * RTT_S, rel=0.02)


def test_hosts_are_named_with_what_is_not_usual() -> None:
    assert describe_hosts(None) == "tuned"
    assert describe_hosts(TcpSettings()) == "stock"
    assert describe_hosts(TcpSettings(congestion="bbr")) == "stock (congestion bbr)"
