"""Workers that go on among the living (``on_fault: shrink``): times by hand, invariants of schemes, laws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.outcome import Outcome, run_record
from paceline.sim.drivers.views import Views
from paceline.sim.errors import RunError
from paceline.sim.faults.fault_settings import Fault
from paceline.sim.faults.outages import Churn
from paceline.sim.program import operations as ops
from paceline.sim.records.accounting import LATE_NOTE, TimeBreakdown
from paceline.sim.records.run import Run
from tests.support.factory import make_job, simulated, sites_of

TASK: dict[str, Any] = {"task": "quadratic", "task_options": {"dimension": 6}, "lr": 0.05, "method": "looped"}


def shrinking(job: Job, *faults: Mapping[str, Any]) -> Job:
    read = tuple(Fault.model_validate(fault) for fault in faults)
    units = tuple(tuple((rank,) for rank in each.workers or range(job.workers)) for each in read)
    return replace(job, churn=Churn(read, units, "shrink", None, job.seed))


def outcome_of(job: Job) -> Outcome:
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    return Views(job, scorer).run()


def run_of(job: Job) -> Run:
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    return run_record(job, Views(job, scorer).run(), scorer, "simulated")


class Published:
    """All that workers publish, by rank of the whole job, in order of time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[int, int, float, Tensor, tuple[Any, ...]]] = []
        publish = EventDriver.publish

        def spy(driver: EventDriver, task: Any, operation: ops.Publish) -> None:
            rank, now_s = driver.job.rank_of(task.rank), driver._clock.now
            self.rows.append((rank, operation.step, now_s, operation.value, operation.kept))
            publish(driver, task, operation)

        monkeypatch.setattr(EventDriver, "publish", spy)

    def last_of(self, step: int) -> dict[int, tuple[Tensor, tuple[Any, ...]]]:
        """Model and kept values after a step, of each worker that did it, as it did it last."""
        return {rank: (x, kept) for rank, at, _, x, kept in self.rows if at == step}


def test_a_part_of_a_run_goes_on_with_all_counts() -> None:
    whole, part = TimeBreakdown(3, 5, 2, 1, {"send"}, {2: 5}, wait_s=1.0), TimeBreakdown(wait_s=0.5)
    part.go_on(replace(whole, sent_to={}))
    part.send([(0, 3), (1, 1)])
    part.publish(3, {LATE_NOTE: 1.0})
    whole.add(part, [2, 4])
    assert whole == TimeBreakdown(4, 9, 3, 2, {"send"}, {2: 8, 4: 1}, wait_s=1.5)


# --- times by hand ------------------------------------------------------------------------------


def test_the_living_repeat_the_step_in_flight_and_stop_for_who_returns() -> None:
    # Steps of 1 s end at 1 and 2; the fault at 2.5 s is seen at 2.75, and the third step begins again: 3.75,
    # 4.75. Worker 2 is back at 4, so that the view ends at 4.75, and healing takes no time: 5.75, 6.75.
    job = make_job("all_reduce", workers=3, max_iterations=6)
    fault = {"workers": [2], "at": "2.5 s", "back_after": "1.5 s", "detect": "250 ms"}
    outcome = outcome_of(shrinking(job, fault))
    assert outcome.wall_s == 6.75
    assert [each.steps for each in outcome.breakdowns] == [6, 6, 6]
    assert outcome.breakdowns[2].down_s == 4.75 - 2.5
    assert outcome.faults is not None
    assert (outcome.faults["outages"], outcome.faults["down_s"]) == (1, 2.25 / 3)
    assert outcome.faults["repeated_s"] == 2 * 0.75 / 3


def test_who_never_returns_is_lost() -> None:
    job = make_job("all_reduce", workers=3, max_iterations=4)
    run = run_of(shrinking(job, {"workers": [1], "at": "1.5 s", "back_after": "1 h"}))
    assert (run.wall_clock_s, run.message, run.status) == (4.5, "worker 1 away at the end", "completed")
    assert run.time_s.down == pytest.approx(3 / 3)
    assert run.time_s.compute == pytest.approx((4.5 + 4.5 + 1.5) / 3)


def test_healing_is_a_message_of_all_that_is_kept() -> None:
    # Two workers, 1 Mbyte/s, models of 0.5 Mbyte: an all-reduce by stop-and-wait takes 0.5 s, so do a model's
    # bytes to who returns, which begins its step that much later.
    job = make_job(
        "all_reduce", workers=2, bandwidth_bytes_per_s=1e6, bytes_per_parameter=5e5, max_iterations=3,
    )  # fmt: skip
    plain = outcome_of(shrinking(job, {"workers": [1], "at": "1 h", "back_after": "1 s"}))
    step_s = plain.wall_s / 3
    # Alone from 0.5 s on, worker 0 does a step in 1 s: 1.5; the next one ends at 2.5 and takes worker 1 in.
    outcome = outcome_of(shrinking(job, {"workers": [1], "at": "500 ms", "back_after": "1.5 s"}))
    assert step_s == 1.5
    assert outcome.wall_s == pytest.approx(2.5 + 0.5 + step_s)
    assert outcome.breakdowns[0].bytes_sent - outcome.breakdowns[1].bytes_sent == 5e5


def test_delays_of_a_profile_count_from_the_view() -> None:
    # Workers begin 0.25 s late, and notice the end of a gradient so much later: 1.5, 2.75, then 4.5, 5.75.
    job = make_job("local_sgd", {"period": 2}, workers=3, max_iterations=4)
    late = replace(job, transfer=replace(job.transfer, wake_up_delays_s=(0.25,)))
    outcome = outcome_of(shrinking(late, {"workers": [1], "at": "3 s", "back_after": "1 h"}))
    assert outcome.wall_s == 5.75
    assert outcome.pace.averages == (2.0, 1.0, 2.0)


def test_a_fault_at_a_step_strikes_at_its_beginning() -> None:
    job = make_job("all_reduce", workers=3, max_iterations=4)
    outcome = outcome_of(shrinking(job, {"workers": [0], "at_step": "2 steps", "back_after": "500 ms"}))
    # At 2 s; back at 2.5, taken in at 3.
    assert (outcome.wall_s, outcome.breakdowns[0].down_s) == (4.0, 1.0)


def test_workers_that_act_as_one_leave_together() -> None:
    job = make_job("diloco", {"period": 2, "inside": "sites"}, workers=6, max_iterations=6,
                   network=sites_of({"a": 2, "b": 2, "c": 2}))  # fmt: skip
    outcome = outcome_of(shrinking(job, {"workers": [3], "at": "2.5 s", "back_after": "1 s"}))
    # Gradients of a site are averaged at every step, so that everybody repeats the third one: 3.5, 4.5.
    assert [each.down_s > 0 for each in outcome.breakdowns] == [False, False, True, True, False, False]
    assert {each.steps for each in outcome.breakdowns} == {6}


def test_nobody_is_left_to_heal() -> None:
    job = make_job("all_reduce", workers=2, max_iterations=9)
    with pytest.raises(RunError, match="all workers have failed"):
        outcome_of(shrinking(job, {"at": "1.5 s", "back_after": "1 s"}))


def test_a_run_ends_at_its_time_while_all_units_lack_somebody() -> None:
    job = make_job("diloco", {"period": 1, "inside": "sites"}, workers=4, max_iterations=None,
                   network=sites_of({"a": 2, "b": 2}))  # fmt: skip
    cut = shrinking(replace(job, max_time_s=7.0), {"workers": [0, 2], "at": "2.5 s", "back_after": "1 h"})
    outcome = outcome_of(cut)
    assert outcome.wall_s == 7.0
    assert [each.steps for each in outcome.breakdowns] == [2] * 4


# --- invariants of schemes ----------------------------------------------------------------------

AT_STEPS = (
    {"workers": [1], "at_step": "5 steps", "back_after": "2.5 s"},
    {"workers": [0], "at_step": "12 steps", "back_after": "1.5 s"},
)


def trained(monkeypatch: pytest.MonkeyPatch, scheme: str, options: dict[str, Any], **more: Any) -> Published:
    published = Published(monkeypatch)
    job = make_job(scheme, options, max_iterations=24, cv=0.2, **(TASK | more))
    outcome = outcome_of(shrinking(job, *AT_STEPS))
    assert {each.steps for each in outcome.breakdowns} == {24}
    assert outcome.faults is not None
    assert outcome.faults["outages"] == 2
    return published


def gradient(job: Job, rank: int, step: int, x: Tensor) -> Tensor:
    assert job.problem is not None
    return job.problem.gradient(rank, step, x).value


def test_divisors_count_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    published = trained(monkeypatch, "all_reduce", {})
    job = make_job("all_reduce", max_iterations=24, **TASK)
    for step in range(1, 24):
        before, after = published.last_of(step - 1), published.last_of(step)
        x = next(iter(before.values()))[0]
        mean = torch.stack([gradient(job, rank, step, x) for rank in after]).mean(0)
        for model, _ in after.values():
            torch.testing.assert_close(model, x - 0.05 * mean)
    assert [len(published.last_of(step)) for step in (4, 5, 6, 23)] == [4, 3, 3, 4]


@pytest.mark.parametrize(
    ("scheme", "options", "at"),
    [
        ("local_sgd", {"period": 4}, slice(0, 1)),
        ("adaptive_local_sgd", {"initial_period": 4, "calibration": 100}, slice(0, 1)),
        ("post_local_sgd", {"switch_at": 2, "period": 2}, slice(0, 1)),
        ("diloco", {"period": 4}, slice(2, None)),
        ("diloco", {"period": 4, "fragments": 2, "delay": 1}, slice(2, None)),
        ("slowmo", {"period": 4}, slice(3, None)),
        ("easgd", {"period": 4, "pull": 0.9}, slice(3, None)),
        ("eamsgd", {"period": 4, "pull": 0.9, "momentum": 0.5}, slice(3, None)),
    ],
)
def test_what_is_common_stays_common(
    scheme: str, options: dict[str, Any], at: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The average, the outer model with its momentum, or the centre is the same on all, whoever comes."""
    published = trained(monkeypatch, scheme, options, momentum=0.5 if scheme == "local_sgd" else 0.0)
    for step in (3, 7, 11, 15, 19, 23):
        common = [tensors_in(kept[at]) for _, kept in published.last_of(step).values()]
        if scheme in ("easgd", "eamsgd") or "delay" in options:
            common = [tensors_in(kept[at]) for _, kept in published.last_of(step - 1).values()]
        assert all(torch.equal(a, b) for each in common[1:] for a, b in zip(common[0], each, strict=True))


def tensors_in(values: Sequence[Any]) -> list[Tensor]:
    out: list[Tensor] = []
    for each in values:
        out += [each] if isinstance(each, Tensor) else tensors_in(each) if isinstance(each, tuple) else []
    return out


def test_gossip_keeps_the_mean_of_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    published = trained(monkeypatch, "gossip", {"topology": "ring"}, workers=6)
    job = make_job("gossip", {"topology": "ring"}, workers=6, **TASK)
    for step in range(1, 24):
        before, after = published.last_of(step - 1), published.last_of(step)
        if before.keys() != after.keys():
            continue  # who is healed gets a model that was not its own
        moved = [x - 0.05 * gradient(job, rank, step, x) for rank, (x, _) in before.items()]
        torch.testing.assert_close(
            torch.stack(moved).mean(0), torch.stack([x for x, _ in after.values()]).mean(0)
        )


@pytest.mark.parametrize("options", [{"topology": "static_exponential", "overlap": 1}, {"topology": "star"}])
def test_push_sum_loses_the_mass_of_who_fails_and_splits_to_heal(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    published = trained(monkeypatch, "sgp", options, workers=5)
    sums = {
        step: sum(float(kept[1]) for _, kept in published.last_of(step).values())
        for step in range(24)
        if all(kept[1] is not None for _, kept in published.last_of(step).values())
    }
    assert max(sums.values()) <= 5 + 1e-5  # healing divides mass and makes none
    assert sums[23] < 5
    if "overlap" not in options:  # nothing is in transit between steps: the sum falls with each fault alone
        assert len({round(total, 4) for total in sums.values()}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "reaches_it"), [("gradient_tracking", True), ("gossip", False)])
def test_tracked_gradients_lead_to_the_optimum_of_the_living(scheme: str, reaches_it: bool) -> None:
    """With whole shards as batches: ``gossip`` stops beside it, as without faults."""
    task = TASK | {"task_options": {"dimension": 6, "examples": 80}, "lr": 0.2, "batch_size": 16}
    job = make_job(
        scheme, {"topology": "ring"}, workers=5, max_iterations=800, record_events=False, every=800, **task
    )  # fmt: skip
    outcome = outcome_of(shrinking(job, {"workers": [1], "at_step": "20 steps", "back_after": "1000 h"}))
    for x in outcome.finals:
        mean = torch.stack([gradient(job, rank, 0, x) for rank in (0, 2, 3, 4)]).mean(0)
        assert (mean.norm() < 1e-4) == reaches_it


def test_public_copies_are_those_of_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """CHOCO-SGD keeps the mean of all models, however little is sent: only if all copies are alike."""
    options = {"topology": "ring", "gamma": 0.3, "compression": {"top_k": {"share": 0.4}}}
    published = trained(monkeypatch, "choco_sgd", options, workers=5)
    job = make_job("choco_sgd", options, workers=5, **TASK)
    for step in range(1, 24):
        before, after = published.last_of(step - 1), published.last_of(step)
        if before.keys() == after.keys():
            moved = [x - 0.05 * gradient(job, rank, step, x) for rank, (x, _) in before.items()]
            torch.testing.assert_close(
                torch.stack(moved).mean(0), torch.stack([x for x, _ in after.values()]).mean(0)
            )


# --- laws ---------------------------------------------------------------------------------------

FORMS: list[tuple[str, dict[str, Any]]] = [
    ("all_reduce", {}),
    ("local_sgd", {"period": 3}),
    ("diloco", {"period": 4, "fragments": 2, "delay": 1}),
    ("gossip", {"topology": "ring", "order": "combine_while_adapting"}),
    ("gossip", {"topology": "one_peer_exponential"}),
    ("sgp", {"topology": "static_exponential", "overlap": 2}),
    ("leader_sgd", {"period": 2, "pull": 0.5}),
    ("slowmo", {"period": 3}),
]


@st.composite
def drawn(draw: st.DrawFn) -> tuple[tuple[str, dict[str, Any]], dict[str, Any], list[dict[str, Any]]]:
    """A form of a scheme, other arguments of ``make_job``, and faults."""
    workers = draw(st.integers(3, 6))
    given = draw(
        st.fixed_dictionaries({
            "workers": st.just(workers),
            "seed": st.integers(0, 99),
            "cv": st.sampled_from([0.0, 0.3]),
            "latency_s": st.sampled_from([0.0, 0.2]),
            "bandwidth_bytes_per_s": st.sampled_from([8.0, math.inf]),
            "max_iterations": st.integers(1, 20),
        })
    )  # fmt: skip
    faults = draw(
        st.lists(
            st.fixed_dictionaries({
                "workers": st.lists(st.integers(1, workers - 1), min_size=1, max_size=2, unique=True),
                "back_after": st.sampled_from(["0 s", "500 ms", "3 s", "20 s"]),
                "detect": st.sampled_from(["0 s", "300 ms", "2 s"]),
            }).flatmap(
                lambda fault: st.one_of(
                    st.builds(lambda at: fault | {"at": f"{at} ms"}, st.integers(0, 25_000)),
                    st.builds(lambda at: fault | {"at_step": f"{at} steps"}, st.integers(0, 20)),
                )
            ),
            max_size=5,
        )
    )  # fmt: skip
    return draw(st.sampled_from(FORMS)), given, faults


@pytest.mark.slow
@settings(max_examples=40)
@given(drawn())
def test_every_run_ends_with_all_its_steps(
    scenario: tuple[tuple[str, dict[str, Any]], dict[str, Any], list[dict[str, Any]]],
) -> None:
    """Worker 0 never fails: whatever befalls the others, those present at the end have done all steps."""
    (scheme, options), arguments, faults = scenario
    job = shrinking(make_job(scheme, options, **arguments, **TASK), *faults)
    run, again = run_of(job), run_of(job)
    assert (run.digest, run.wall_clock_s, run.evaluations) == (
        again.digest,
        again.wall_clock_s,
        again.evaluations,
    )
    assert run.status == "completed"
    assert run.pace is not None
    there = [steps for rank, steps in enumerate(run.pace.steps) if rank not in run.pace.lost]
    assert set(there) == {job.max_iterations}
    shares = run.time_s
    parts = (shares.compute, shares.communicate, shares.wait, shares.idle, shares.down)
    assert math.fsum(parts) == pytest.approx(run.wall_clock_s)
    assert min(parts) >= -1e-9
    assert all(event.start_s <= event.end_s <= run.wall_clock_s for event in run.events)


@settings(max_examples=10)
@given(st.sampled_from(FORMS), st.integers(0, 99))
def test_without_a_fault_it_is_the_run_without_faults(form: tuple[str, dict[str, Any]], seed: int) -> None:
    job = make_job(*form, seed=seed, cv=0.3, latency_s=0.1, max_iterations=8, **TASK)
    plain, run = simulated(job), run_of(shrinking(job, {"workers": [1], "at": "1 h", "back_after": "1 s"}))
    assert replace(run, faults=None, pace=None) == replace(plain, pace=None)
