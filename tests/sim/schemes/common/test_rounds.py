"""Averages that go on without who is late: times and bytes by hand, and what they must equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from typing_extensions import override

from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.records.run import Run
from paceline.sim.schemes import find_scheme
from paceline.sim.training.optimizer import Around
from tests.support.factory import make_job, run_events, simulated
from tests.support.quadratics import close, finals_of, gradients_of, quadratic_job

LATENCY_S = 0.25


def slow(rank: int, times: float) -> tuple[Straggler, ...]:
    return (Straggler.model_validate({"workers": (rank,), "slowdown": times}),)


def timed(options: dict[str, Any], workers: int, steps: int, scheme: str = "all_reduce", **job: Any) -> Run:
    """Gradients of a second, messages of a quarter, and bytes that take no time."""
    return simulated(
        make_job(scheme, options, workers=workers, latency_s=LATENCY_S, max_iterations=steps, **job)
    )


def ends(run: Run, worker: int, operation: str) -> list[float]:
    """When started operations of a worker's main coroutine were complete."""
    return [
        e.end_s
        for e in run.events
        if (e.worker, e.operation, e.task) == (worker, operation, 0) and e.handle >= 0
    ]


def test_a_quorum_goes_on_without_the_slow_one() -> None:
    run = timed({"quorum": 2}, 3, 4, stragglers=slow(2, 4))
    # Worker 1's gradient of a second is at the server after 1.25 s, the mean back at worker 1 after 1.5.
    assert ends(run, 0, "await_signal") == [1.25, 2.75, 4.25, 5.75]
    for worker in (1, 2):
        assert ends(run, worker, "receive") == [t for k in range(1, 5) for t in (1.5 * k, 1.5 * k)]
    # Worker 2's gradients last 4 s: one of round 0, and one of round 2 that the run does not wait for.
    assert ends(run, 2, "gradient") == [4.0]
    assert run.wall_clock_s == 6.0
    assert run.left_out == ((0, 4), (0, 4), (4, 4))


def test_one_that_is_a_little_late_is_dropped_where_it_arrives_and_joins_again() -> None:
    # Worker 1's first gradient and worker 2's second one last 1.125 s: 0.125 s too long to be second.
    late = [{"workers": (rank,), "at": f"{rank - 1} steps", "slowdown": 1.125} for rank in (1, 2)]
    run = timed({"quorum": 2}, 3, 2, stragglers=[Straggler.model_validate(each) for each in late])
    # Worker 1's first contribution is on its way when the round ends at 1.25 s; it takes the mean, too.
    assert run.left_out == ((0, 2), (1, 2), (1, 2))
    sent = [e.end_s for e in run.events if (e.worker, e.operation, e.peer) == (1, "send", 0)]
    assert sent[:2] == [1.125] * 2
    assert ends(run, 1, "gradient") == [1.125, 2.5]
    assert ends(run, 2, "gradient") == [1.0, 2.625]
    assert ends(run, 0, "await_signal") == [1.25, 2.75]


def test_a_deadline_is_counted_from_the_average_before() -> None:
    run = timed({"deadline": "1.75 s"}, 3, 3, stragglers=slow(2, 4))
    assert ends(run, 0, "await_signal") == [1.75, 3.5, 5.25]
    assert ends(run, 1, "gradient") == [1.0, 3.0, 4.75]
    assert run.left_out == ((0, 3), (0, 3), (3, 3))


def test_a_round_in_which_all_are_there_does_not_wait_for_its_deadline() -> None:
    run = timed({"deadline": "100 s"}, 3, 4)
    assert ends(run, 0, "await_signal") == [1.25, 2.75, 4.25, 5.75]
    assert run.left_out == ((0, 4),) * 3
    assert run.wall_clock_s == 6.0


def test_at_a_deadline_with_nobody_there_the_first_one_counts() -> None:
    run = timed({"deadline": "0.5 s"}, 2, 2)
    assert ends(run, 0, "await_signal") == [1.0, 2.0]
    assert run.left_out == ((0, 2), (2, 2))


def test_whichever_is_first_of_quorum_and_deadline_ends_a_round() -> None:
    run = timed({"quorum": 2, "deadline": "1.125 s"}, 3, 2, stragglers=slow(2, 4))
    assert ends(run, 0, "await_signal") == [1.125, 2.25]
    assert run.left_out == ((0, 2), (2, 2), (2, 2))
    run = timed({"quorum": 1, "deadline": "1.125 s"}, 3, 2)
    assert ends(run, 0, "await_signal") == [1.0, 2.0]


def test_what_a_round_costs() -> None:
    # A value of 1020 bytes and 4 beside it are 1024, a second on a link; two meet at the server's host.
    run = timed(
        {"quorum": 3}, 3, 2, bandwidth_bytes_per_s=1024.0, start=torch.zeros(1), bytes_per_parameter=1020.0
    )
    # 1 + 2 + 0.25 s there, 2 + 0.25 s back.
    assert ends(run, 0, "await_signal") == [3.25, 8.75]
    assert ends(run, 1, "gradient") == [1.0, 6.5]
    # The mean of the second round, and 4 bytes from each of two that say that they leave.
    assert run.wall_clock_s == 8.75 + 2.25 + 2 * 4 / 1024
    assert run.bytes_sent == 2 * 2 * 2 * 1024 + 2 * 4


def test_who_is_late_in_a_period_gives_up_the_rest_of_it() -> None:
    run = timed({"period": 3, "quorum": 2}, 3, 6, scheme="local_sgd", stragglers=slow(2, 2))
    # Workers 0 and 1 have done 3 steps after 3 s; the mean is at worker 2 at 3.5 s, in its second step, which
    # ends at 4; then it begins the next period. The run does not wait for its last gradient, which ends at 8.
    assert ends(run, 0, "await_signal") == [3.25, 6.75]
    assert ends(run, 2, "gradient") == [2.0, 4.0, 6.0]
    assert run.left_out == ((0, 2), (0, 2), (2, 2))
    assert run.iterations == 6


@pytest.mark.parametrize(
    ("scheme", "options", "contributors"),
    [
        ("all_reduce", {}, 4),
        ("local_sgd", {"period": 3, "warmup": 2, "momentum": "mixed"}, 4),
        ("diloco", {"period": 4}, 4),
        ("fedavg", {"period": 3, "participation": 0.5}, 2),
        ("fedavg", {"period": 3}, 4),
    ],
)
def test_a_quorum_of_all_is_an_average_of_all(
    scheme: str, options: dict[str, Any], contributors: int
) -> None:
    job: dict[str, Any] = {"workers": 4, "max_iterations": 12, "cv": 0.4, "momentum": 0.9, "latency_s": 0.1}
    found = finals_of(quadratic_job(scheme, {**options, "quorum": contributors}, **job))
    close(found, finals_of(quadratic_job(scheme, options, **job)))


def test_models_are_those_of_who_was_there() -> None:
    """Worker 2 is always late: gradient descent along the mean of the two others, written anew."""
    job = quadratic_job(
        "all_reduce", {"quorum": 2}, workers=3, max_iterations=6, stragglers=slow(2, 50), latency_s=0.1
    )
    gradients, x = gradients_of(job), job.start.numpy()
    for k in range(6):
        x = x - 0.1 * gradients(k, np.tile(x, (3, 1)))[:2].mean(0)
    close(finals_of(job), np.tile(x, (3, 1)))


def test_steps_that_are_left_out_count_for_the_learning_rate() -> None:
    job = quadratic_job(
        "local_sgd", {"period": 2, "quorum": 2}, workers=3, max_iterations=6, stragglers=slow(2, 50)
    )
    states: list[int] = []

    class Noting(Around):
        """The job's rule; notes the number of each of worker 2's updates."""

        @override
        def update(self, x: Any, gradient: Any, state: Any) -> Any:
            states.append(state.updates)
            return self.rule.update(x, gradient, state)

    run_events(replace(job, optimizer=Noting(job.optimizer)))
    assert sorted(states) == sorted(list(range(6)) * 2)


def test_a_worker_that_dies_is_not_missed() -> None:
    crash = (Straggler.model_validate({"workers": (1,), "at": "2 steps", "crash": True}),)
    for options in ({"quorum": 3}, {"deadline": "10 s"}):
        run = timed(options, 3, 5, stragglers=crash)
        assert run.iterations == pytest.approx((5 + 2 + 5) / 3)
        assert "worker 1 died" in run.message


@pytest.mark.parametrize(
    ("scheme", "options", "says"),
    [
        ("all_reduce", {"quorum": 5}, "a quorum of 5 is more than the 4 who contribute; write 4"),
        ("all_reduce", {"quorum": 2, "overlap": True}, "'overlap' needs everybody's part"),
        ("all_reduce", {"deadline": "1 s", "part_reduce": True}, "leave it or 'deadline' out"),
        (
            "local_sgd",
            {"period": 2, "quorum": 2, "compression": {"qsgd": {"bits": 8}}},
            "'compression' needs",
        ),
        ("fedavg", {"period": 2, "participation": 0.5, "quorum": 3}, "more than the 2 who contribute"),
        ("diloco", {"period": 4, "fragments": 2, "quorum": 3}, "'fragments' needs everybody's part"),
    ],
)
def test_what_cannot_be(scheme: str, options: dict[str, Any], says: str) -> None:
    found = find_scheme(scheme)
    with pytest.raises(InputError, match=says):
        found.check(found.options(**options), 4)


@pytest.mark.parametrize("options", [{"quorum": 0}, {"deadline": "0 s"}])
def test_no_quorum_and_no_time_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"quorum|deadline"):
        find_scheme("all_reduce").options(**options)


def test_models_depend_on_the_clock_then() -> None:
    def in_step(**options: Any) -> bool:
        scheme = find_scheme("all_reduce")
        return scheme.in_step(scheme.options(**options))

    assert in_step()
    assert not in_step(quorum=4)
    assert not in_step(deadline="1 s")


def test_all_of_a_run_that_time_ends() -> None:
    job: Job = make_job(
        "all_reduce", {"quorum": 3}, workers=3, latency_s=LATENCY_S, max_iterations=None, task="quadratic"
    )
    run = simulated(replace(job, max_time_s=7.0))
    assert run.status == "completed"
    assert run.wall_clock_s == 7.0
