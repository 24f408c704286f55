"""The parts of the cluster driver that need no processes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import product, repeat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import FileStore
from typing_extensions import override

from paceline.realrun.driver.collect import StartTimes, joined_events, time_breakdown
from paceline.realrun.driver.computing import compute_offset_s
from paceline.realrun.driver.exchanges import Drain, PostedCounts, plan_drains
from paceline.realrun.driver.rank_log import (
    Exchange,
    Exposure,
    LoggedOperation,
    RankLog,
    decode,
    encode,
)
from paceline.realrun.driver.watchdog import Heartbeat, Watchdog
from paceline.realrun.group.store import Control, Stopped
from paceline.realrun.transport.connections import ThreadPool, message_tag, operation_tag
from paceline.sim.errors import Deadlock, InputError, PeerLost, RunError
from paceline.sim.records.run import Counts
from paceline.sim.training.scoring import iterate_digest
from paceline.sim.training.snapshots import Published


def _row(
    operation: str, start_s: float, end_s: float, exchange: Exchange, handle: int = -1
) -> LoggedOperation:
    return LoggedOperation(0, handle, 0, operation, start_s, end_s, 0, -1, exchange)


# --- who waited for whom ------------------------------------------------------------------------


def test_the_last_peer_is_found_by_joining_the_rows() -> None:
    all_three = [Exchange("mix 0", tuple(p for p in range(3) if p != r)) for r in range(3)]
    logs = [RankLog(r, torch.zeros(1)) for r in range(3)]
    for rank, start_s in enumerate((1.0, 5.0, 2.0)):
        logs[rank].rows.append(_row("mix", start_s, 6.0, all_three[rank]))
        logs[rank].exposures.append(Exposure(start_s, 6.0 - start_s, all_three[rank], start_s))
    starts = StartTimes(logs)
    assert [e.peer_s for e in sorted(joined_events(logs, starts), key=lambda e: e.worker)] == [
        5.0,
        5.0,
        5.0,
    ]
    accounts = [time_breakdown(log, starts) for log in logs]
    assert [a.wait_s for a in accounts] == [4.0, 0.0, 3.0]
    assert [a.communicate_s for a in accounts] == [1.0, 1.0, 1.0]


def test_a_wait_for_a_started_operation_counts_from_its_own_start() -> None:
    sent, got = Exchange("0>1  1", (1,)), Exchange("0>1  1", (0,))
    sender, receiver = RankLog(0, torch.zeros(1)), RankLog(1, torch.zeros(1))
    sender.rows.append(_row("send", 3.0, 4.0, sent))
    receiver.rows += [
        _row("receive", 1.0, 4.0, got, handle=0),
        _row("wait", 3.5, 4.0, got, handle=0),
    ]
    receiver.exposures.append(Exposure(3.5, 0.5, got, 1.0))
    starts = StartTimes([sender, receiver])
    assert [(e.operation, e.peer_s) for e in joined_events([sender, receiver], starts)] == [
        ("send", 3.0), ("receive", 3.0), ("wait", 3.5),
    ]  # fmt: skip
    found = time_breakdown(receiver, starts)
    assert (found.wait_s, found.communicate_s) == (0.0, 0.5)


def test_a_peer_that_left_no_row_counts_as_not_waited_for() -> None:
    log = RankLog(0, torch.zeros(1))
    log.rows.append(_row("mix", 1.0, 2.0, Exchange("mix 0", (1,))))
    assert joined_events([log], StartTimes([log]))[0].peer_s == 1.0


def test_a_log_survives_its_journey() -> None:
    counts = Counts(4, 7, averages=2, left_out=1, operations={"mix", "send"}, sent_to={1: 7})
    log = RankLog(2, torch.arange(3.0), counts=counts, ended_s=0.1 + 0.2)
    log.rows.append(_row("mix", 1 / 3, 2 / 3, Exchange("mix 0", (0, 1))))
    log.exposures.append(Exposure(1 / 7, 0.5, Exchange("0>2 tag 1", (0,)), 0.25))
    both = torch.full((3,), 2.0)
    log.publish(Published(2, 0, 0.1, None, 5))
    log.publish(Published(2, 1, 0.2, torch.ones(3), 6, leader=torch.full((3,), 3.0)))
    log.publish(Published(2, 2, 0.3, None, 6))
    log.publish(Published(2, 3, 0.4, both, 7, averaged=both, notes={"staleness": 2.0}))
    log.leader = torch.full((3,), 4.0)
    log.timing.overruns = 1
    found = decode(*encode(log))
    for mine, other in ((log, found), (found, log)):
        assert mine.rows == other.rows
        assert mine.exposures == other.exposures
        assert (mine.rank, mine.counts, mine.ended_s) == (2, counts, 0.1 + 0.2)
        assert mine.timing == other.timing
    assert torch.equal(found.final, log.final)
    assert _listed(found.leader) == [4.0] * 3
    numbers = [[ref and ref.number for ref in (p.value, p.leader, p.averaged)] for p in found.published]
    assert numbers == [[None] * 3, [0, 1, None], [None] * 3, [2, None, 2]]  # the average is the model
    assert [_listed(model) for model in log.models] == [[1.0] * 3, [3.0] * 3, [2.0] * 3]
    assert [(p.time_s, p.step, p.bytes_sent) for p in found.published] == [
        (0.1, 0, 5), (0.2, 1, 6), (0.3, 2, 6), (0.4, 3, 7),
    ]  # fmt: skip
    assert found.iterates == (iterate_digest(torch.ones(3)), iterate_digest(both))


def _listed(model: torch.Tensor | None) -> list[float] | None:
    return None if model is None else [float(x) for x in model]


# --- leaving nothing in flight ------------------------------------------------------------------


def test_closings_by_hand() -> None:
    traffic = [PostedCounts() for _ in range(3)]
    traffic[0].any_waiting["a"] += 1  # nobody will answer: 2 releases it
    traffic[1].receives(2, "b")  # 2 releases it
    traffic[1].sends(2, "c", 40)  # 2 swallows it
    traffic[2].sends(0, "d", 8)  # on its way to a receive that is posted
    traffic[0].any_waiting["d"] += 1
    assert plan_drains(traffic) == [Drain(2, 0, "a", 1), Drain(2, 1, "b", 1), Drain(-1, 2, "c", 40)]


_POSTED = st.lists(
    st.tuples(
        st.sampled_from(["send", "receive", "any"]),
        st.integers(0, 3),
        st.integers(1, 3),
        st.sampled_from("xy"),
    ),
    max_size=30,
)


@given(_POSTED)
def test_after_the_closings_every_send_has_its_receive(posted: list[tuple[str, int, int, str]]) -> None:
    n = 4
    traffic = [PostedCounts() for _ in range(n)]
    for kind, rank, away, tag in posted:
        peer = (rank + away) % n
        if kind == "send":
            traffic[rank].sends(peer, tag, 8)
        elif kind == "receive":
            traffic[rank].receives(peer, tag)
        else:
            traffic[rank].any_waiting[tag] += 1
    for tag in "xy":
        pairs = list(product(range(n), repeat=2))
        sends = Counter({(rank, peer): traffic[rank].sent[peer, tag] for rank, peer in pairs})
        receives = Counter({(peer, rank): traffic[rank].received[peer, tag] for rank, peer in pairs})
        anybody = Counter({rank: own.any_waiting[tag] for rank, own in enumerate(traffic)})
        for closing in plan_drains(
            [PostedCounts.from_lists(json.loads(json.dumps(t.as_lists()))) for t in traffic]
        ):
            if closing.tag == tag and closing.source == -1:
                anybody[closing.destination] += 1
            elif closing.tag == tag:
                assert closing.source != closing.destination
                sends[closing.source, closing.destination] += 1
        for rank in range(n):
            left = [sends[peer, rank] - receives[peer, rank] for peer in range(n)]
            assert min(left) >= 0
            assert sum(left) == anybody[rank]


# --- tags, threads ------------------------------------------------------------------------------


def test_tags_of_different_kinds_never_meet() -> None:
    messages = {message_tag(tag) for tag in ("", "offer", "answer", "a", "b")}
    mixes = {operation_tag("mix", k) for k in (0, 1, 2**24 - 1)}
    assert len(messages) == 5
    assert len(mixes) == 3
    assert not messages & mixes
    assert all(2**22 < tag < 2**31 for tag in messages | mixes)


def test_threads_do_not_wait_for_each_other_and_are_used_again() -> None:
    threads = ThreadPool()
    gate = threading.Event()
    threads.run("blocked", gate.wait)
    threads.run("quick", lambda: 7)
    done = threads.finished.get(timeout=10)
    assert (done.token, done.result, done.error) == ("quick", 7, None)
    before = threading.active_count()
    threads.run("fails", lambda: 1 // 0)
    done = threads.finished.get(timeout=10)
    assert (done.token, type(done.error)) == ("fails", ZeroDivisionError)
    assert threading.active_count() == before
    gate.set()
    assert threads.finished.get(timeout=10).token == "blocked"
    threads.close()


# --- the control store and the watchdog ---------------------------------------------------------


def _controls(folder: Path, size: int) -> list[Control]:
    return [Control(FileStore(str(folder / "store"), size), rank, size, "run 1") for rank in range(size)]


def test_a_rank_with_other_facts_is_named(tmp_path: Path) -> None:
    controls = _controls(tmp_path, 3)
    for rank in (0, 2):
        controls[rank].put(f"job/{rank}", {"seed": 1, "scenario": "ab"})
    with pytest.raises(InputError, match=r"^rank 1 has seed 2, the others have 1; start all ranks alike$"):
        controls[1].agree("job", {"seed": 2, "scenario": "ab"}, 5.0)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    controls = _controls(tmp_path, 3)
    controls[2].put("job/2", {})
    with pytest.raises(RunError, match=r"worker 1 did not come within 0.05 s \(job\)"):
        controls[0].agree("job", {}, 0.05)
    controls[2].note_death(1)
    with pytest.raises(RunError, match="worker 1 was lost"):
        controls[0].agree("job", {}, 5.0)


def test_the_first_failure_counts(tmp_path: Path) -> None:
    one, other = (Watchdog(control, 1.0) for control in _controls(tmp_path, 2))
    one.fail(PeerLost(1, "mix"), 7)
    other.fail(Deadlock(("worker 1 waits in mix",)), 3)
    for watch in (one, other):
        failure = watch.failure()
        assert failure is not None
        assert str(failure) == "worker 1 was lost; worker 0 noticed during mix at step 7"
        assert str(failure.error) == "worker 1 was lost during mix"


def test_nobody_is_blamed_while_somebody_can_go_on(tmp_path: Path) -> None:
    controls = _controls(tmp_path, 3)
    watches = [Watchdog(control, 8.0) for control in controls]
    watches[0].look(Heartbeat(8.5, 1.0, False, "barrier"))
    watches[1].look(Heartbeat(9.0, 1.0, True, "gradient"))
    watches[2].look(Heartbeat(9.0, 1.0, False, "mix"))
    watches[0].look(Heartbeat(10.0, 1.0, False, "barrier"))  # worker 1 computes
    watches[1].look(Heartbeat(11.0, 4.0, False, "gradient"))
    with pytest.raises(Deadlock) as caught:
        watches[0].look(Heartbeat(11.5, 1.0, False, "barrier"))
    assert caught.value.waiting == (
        "worker 0 waits in barrier", "worker 1 waits in gradient", "worker 2 waits in mix",
    )  # fmt: skip


def test_a_silent_rank_is_named(tmp_path: Path) -> None:
    controls = _controls(tmp_path, 3)
    watches = [Watchdog(control, 8.0) for control in controls]
    watches[1].look(Heartbeat(2.0, 2.0, True, "gradient"))
    watches[2].look(Heartbeat(9.0, 9.0, True, "gradient"))
    with pytest.raises(Deadlock) as caught:
        watches[0].look(Heartbeat(10.0, 1.0, False, "mix"))
    assert caught.value.waiting == ("worker 0 waits in mix", "worker 1 does not answer")
    watches[0].fail(caught.value, 4)
    failure = watches[2].failure()
    assert failure is not None
    assert failure.collector == 0


def test_those_who_have_ended_and_died_are_not_waited_for(tmp_path: Path) -> None:
    controls = _controls(tmp_path, 3)
    watch = Watchdog(controls[0], 8.0)
    controls[1].put("ended/1", 0.5)
    controls[2].note_death(2)
    with pytest.raises(Deadlock, match=r"^no worker can go on: worker 0 waits in receive$"):
        watch.look(Heartbeat(10.0, 1.0, False, "receive"))


class SlowControl(Control):
    """One whose store is far away: nobody answers before ``gate`` is set."""

    gate: threading.Event

    @override
    def failed(self) -> bool:
        assert self.gate.wait(30)
        return super().failed()


def test_a_rank_does_not_wait_for_the_answers_of_the_store(tmp_path: Path) -> None:
    control = SlowControl(FileStore(str(tmp_path / "store"), 1), 0, 1, "run 1")
    control.gate = threading.Event()
    watch = Watchdog(control, 8.0)
    watch.start()
    for step in range(3):
        watch.beat(Heartbeat(float(step), 0.0, True, "gradient"))
    watch.beat(Heartbeat(3.0, 0.0, True, "gradient", ended=True))
    assert [watch.all_ended] == [False]
    control.gate.set()
    while not watch.all_ended:
        watch.beat(Heartbeat(4.0, 0.0, True, "gradient", ended=True))
    watch.close()


def test_what_the_watchdog_sees_ends_the_rank(tmp_path: Path) -> None:
    mine, other = _controls(tmp_path, 2)
    watch = Watchdog(mine, 1.0)
    watch.start()
    other.put("failed", {})
    with pytest.raises(Stopped):
        any(map(watch.beat, repeat(Heartbeat(1.0, 1.0, True, "gradient"))))
    watch.close()


def test_padded_gradients_of_one_machine_are_computed_one_after_another() -> None:
    waits = [compute_offset_s(rank, 4, 0.080, 0.004) for rank in range(4)]
    assert waits == pytest.approx([0.0, 0.016, 0.032, 0.048])
    assert compute_offset_s(3, 4, 0.010, 0.004) == 0.0  # no room
    assert compute_offset_s(3, 4, 0.0, 0.0) == 0.0
