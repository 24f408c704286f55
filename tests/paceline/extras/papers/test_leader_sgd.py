"""Leader SGD: recursions, closed forms, the count of steps, bytes, refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.extras.papers.leader_sgd import StepBudget
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError
from paceline.sim.network.network import Network
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes import SCHEMES
from paceline.sim.training.learning_rate import InverseTime, LearningRate
from paceline.sim.training.optimizer import Sgd
from paceline.sim.training.scoring import digest
from tests.support.closed_forms import bowl, double_well, line_job
from tests.support.factory import make_job, run_events, simulated
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import (
    DIMENSION,
    Array,
    close,
    finals_of,
    gradients_of,
    in_double,
    quadratic_job,
    start_of,
)

STEPS, LR = 23, 0.1


def _losses_of(job: Job, k: int, x: Array) -> Array:
    """All workers' batch losses [n] in step k at x [n, d]."""
    assert job.problem is not None
    examples, batches = job.problem.workload.inputs.numpy(), job.problem.batches
    h = torch.logspace(-1, 0, DIMENSION, base=10.0).double().numpy()
    return np.array(
        [
            0.5 * (h * (x[w] - examples[batches.examples(w, k)]) ** 2).sum(-1).mean()
            for w in range(job.workers)
        ]
    )


# --- trajectories against numpy -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "options", "blocks"),
    [
        (4, {"period": 1, "loss_window": 1}, [range(4)]),
        (4, {"period": 3}, [range(4)]),
        (6, {"period": 2, "groups": 2, "global_period": 6, "pull": 0.3}, [range(3), range(3, 6)]),
        (6, {"period": 2, "groups": "sites", "pull": 0.3}, [range(2), range(2, 6)]),
        (6, {"period": 2, "groups": 6, "global_period": 4}, [range(w, w + 1) for w in range(6)]),
    ],
)
def test_leader_sgd_is_its_recursion(workers: int, options: dict[str, Any], blocks: list[range]) -> None:
    network = Network(
        sites=("a", "b"), site_of=(0, 0) + (1,) * (workers - 2), links=(), latency_s=((0.0,) * 2,) * 2,
        per_flow_bytes_per_s=((np.inf,) * 2,) * 2, up={}, down={},
    )  # fmt: skip
    job = quadratic_job(
        "leader_sgd", options, workers=workers, max_iterations=STEPS, lr=LR, momentum=0.5, network=network
    )
    gradients, x = gradients_of(job), start_of(job)
    m, losses = np.zeros_like(x), []
    period, pull = options["period"], options.get("pull", 0.1)
    leaders = set()
    for k in range(STEPS):
        losses.append(_losses_of(job, k, x))
        m = 0.5 * m + gradients(k, x)
        x = x - LR * m
        score = np.mean(losses[-options.get("loss_window", 10) :], axis=0)
        if (k + 1) % period == 0:
            for block in blocks:
                leader = min(block, key=lambda w: score[w])
                leaders.add(leader)
                x[list(block)] += pull * (x[leader] - x[list(block)])
        if len(blocks) > 1 and (k + 1) % options.get("global_period", period) == 0:
            x += 0.1 * (x[score.argmin()] - x)
    assert len(leaders) > 1
    close(finals_of(job), x)


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_lockstep_is_event_in_groups(groups: int) -> None:
    options = {"period": 1, "groups": groups, "global_period": 3, "spread": 0.5}
    job = quadratic_job("leader_sgd", options, workers=6, max_iterations=STEPS, momentum=0.5, cv=0.3)
    assert digest(list(run_lockstep(job).unbind())) == digest(run_events(job).finals)


def test_asynchronous_leader_sgd_of_equal_workers_meets_as_the_synchronous_one() -> None:
    """Where everybody is equally fast, n * period steps in all are ``period`` steps each."""
    options = {"period": 3, "groups": 2, "global_period": 6}
    a, b = (
        finals_of(
            quadratic_job("leader_sgd", {**options, "asynchronous": free}, workers=4, max_iterations=17)
        )
        for free in (False, True)
    )
    close(a, b)


# --- closed forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 4])
def test_the_gap_to_the_leader_on_a_bowl(monkeypatch: pytest.MonkeyPatch, period: int) -> None:
    """The leader goes down alone; the gap contracts by (1 - pull) (1 - lr h)^period a round."""
    h, starts, rounds = 0.7, (2.0, 0.5, 3.0), 5
    options = {"period": period, "pull": 0.25, "loss_window": 1}
    job = line_job(monkeypatch, "leader_sgd", options, bowl(h), starts, lr=LR, max_iterations=rounds * period)
    outcome = run_events(job)
    x = np.array([final.item() for final in outcome.finals])
    close(x[1], (1 - LR * h) ** (rounds * period) * 0.5)
    gap = (0.75 * (1 - LR * h) ** period) ** rounds
    close(x - x[1], gap * (np.array(starts) - 0.5))
    assert {event.peer for event in outcome.events if event.operation == "broadcast"} == {1}


@pytest.mark.parametrize(
    ("strength", "start", "ends"),
    [
        (0.2, -1.0, (-1 - np.sqrt(0.2)) / 2),
        (0.2, -0.2, 1.0),
        (0.3, -1.0, 1.0),
        (0.3, -0.9, 1.0),
    ],
)
def test_a_follower_in_the_other_well(
    monkeypatch: pytest.MonkeyPatch, strength: float, start: float, ends: float
) -> None:
    """With the leader at 1 the follower rests where (x - 1)(x^2 + x + lambda) = 0: above 1/4 only at 1.

    A step and then a pull rest where f'(x) = -lambda (x - 1) with lambda = pull / (lr (1 - pull)).
    """
    lr = 0.5
    pull = strength * lr / (1 + strength * lr)
    options = {"period": 1, "pull": pull, "loss_window": 1}
    job = line_job(
        monkeypatch, "leader_sgd", options, double_well, (1.0, start), lr=lr, max_iterations=300,
        record_events=False, every=300,
    )  # fmt: skip
    leader, follower = finals_of(job)[:, 0]
    assert leader == 1.0
    assert follower == pytest.approx(ends, abs=1e-9)
    assert follower**3 - follower == pytest.approx(-strength * (follower - leader), abs=1e-9)


def test_the_leader_rests_where_the_gradient_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where elastic averaging holds its workers on the slopes, the leader goes to the bottom."""
    place = np.sqrt(0.8)
    options = {"period": 1, "pull": 0.02, "loss_window": 1}
    job = line_job(
        monkeypatch, "leader_sgd", options, double_well, (place, -place), lr=0.5, max_iterations=200,
        record_events=False, every=200,
    )  # fmt: skip
    x = finals_of(job)[:, 0]
    assert min(abs(x**3 - x)) < 1e-12


@pytest.mark.parametrize("options", [{}, {"groups": 2, "global_period": 4}])
def test_equal_workers_do_plain_sgd(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """With the same start and the same data the pulls vanish: bit by bit."""
    job = line_job(
        monkeypatch, "leader_sgd", {"period": 2, **options}, double_well, (0.3,) * 4, lr=LR, max_iterations=12
    )
    x = torch.tensor([0.3], dtype=torch.float64)
    for _ in range(12):
        point = x.clone().requires_grad_()
        x = torch.add(x, torch.autograd.grad(double_well(point).sum(), point)[0], alpha=-LR)
    assert all(torch.equal(final, x) for final in run_events(job).finals)


@settings(max_examples=100)
@given(x=st.floats(-10, 10), z=st.floats(-10, 10), pull=st.floats(0.01, 1.0), curvature=st.floats(0.1, 10.0))
def test_a_pull_towards_a_better_model_never_hurts_where_f_is_convex(
    x: float, z: float, pull: float, curvature: float
) -> None:
    f = bowl(curvature)
    better, worse = sorted((torch.tensor(x), torch.tensor(z)), key=lambda point: f(point).item())
    moved = worse + pull * (better - worse)
    assert f(moved).item() <= f(worse).item() * (1 + 1e-6)


def _from(job: Job, starts: torch.Tensor) -> Job:
    """The same job in lockstep, the workers at the rows of ``starts`` [n, d]."""

    def program(worker: Worker, options: Any) -> Any:
        return SCHEMES["leader_sgd"].program(replace(worker, start=starts), options)

    return replace(job, scheme=replace(job.scheme, program=program))


@settings(max_examples=20)
@given(
    pull=st.floats(0.005, 0.05),
    lr=st.floats(0.01, 0.5),
    far=st.floats(8.0, 12.0),
    near=st.floats(0.0, 2.0),
    seed=st.integers(0, 10**6),
)
def test_a_step_goes_down_as_the_theorem_says(
    pull: float, lr: float, far: float, near: float, seed: int
) -> None:
    """Fact 6: E f(x+) - f* <= (1 - m eta) (f(x) - f*) - eta lambda (f(x) - f(z)) + eta^2 M sigma^2 / 2.

    A step and then a pull towards z are a step with eta = lr (1 - pull) and eta lambda = pull, which have to
    be small: eta <= 1 / (2 M) and eta lambda <= m / (2 M) will do. Everybody but the leader starts at one x,
    so that the mean over them is the expectation.
    """
    h = torch.logspace(-1, 0, DIMENSION, base=10.0).double()
    low, high = h.min().item(), h.max().item()
    followers = 100
    made = make_job(
        "leader_sgd", {"period": 1, "loss_window": 1, "pull": pull}, workers=followers + 1, batch_size=1,
        max_iterations=1, lr=lr, seed=seed, task="quadratic",
        task_options={"dimension": DIMENSION, "examples": 2 * followers + 2},
    )  # fmt: skip
    job = in_double(made)
    assert job.problem is not None
    examples = job.problem.workload.inputs
    best, direction = examples.mean(0), torch.ones(DIMENSION, dtype=torch.float64)
    x, z = best + far * direction, best + near * direction
    starts = torch.stack([z, *[x] * followers])
    assert _losses_of(job, 0, starts.numpy()).argmin() == 0
    finals = run_lockstep(_from(job, starts))

    def f(points: torch.Tensor) -> float:
        """Above f*, in mean."""
        return (0.5 * h * (points - best) ** 2).sum(-1).mean().item()

    eta = lr * (1 - pull)
    noise = (h**2 * examples.var(0, correction=0)).sum().item()
    bound = (1 - low * eta) * f(x) - pull * (f(x) - f(finals[0])) + eta**2 * high * noise / 2
    assert 0.25 * bound < f(finals[1:]) <= bound


def test_falling_rates_go_down_as_one_over_k() -> None:
    """Fact 6: with a learning rate of Theta(1/k) the expectation, over 24 groups of four, falls as 1/k."""
    options = {"period": 5, "groups": 24, "global_period": 1000}
    schedule = LearningRate(inverse_time=InverseTime.model_validate({"half": "20 steps"}))

    def above(steps: int) -> float:
        job = quadratic_job("leader_sgd", options, workers=96, batch_size=1, max_iterations=steps)
        assert job.problem is not None
        workload = job.problem.workload
        all_data = replace(job.problem.batches, shards=(np.arange(len(workload.inputs)),) * 96)
        best = workload.inputs.mean(0)  # from there: what was far away falls faster
        same = replace(job, problem=replace(job.problem, batches=all_data), start=best)
        means = run_lockstep(replace(same, optimizer=Sgd(1.0, schedule=schedule))).view(24, 4, -1).mean(1)
        return float(np.mean([workload.score(mean)["suboptimality"] for mean in means]))

    assert 3.0 < above(50) / above(200) < 5.0


@pytest.mark.slow
def test_noisy_losses_cost_no_more_than_their_bound() -> None:
    """limsup E f - f* <= lr kappa sigma^2 / 2 + (4 / m) lambda sqrt(p) sigma_f, on the noisy quadratic."""
    job = quadratic_job(
        "leader_sgd", {"period": 1, "loss_window": 1}, workers=4, max_iterations=600, lr=0.05,
        record_events=False,
    )  # fmt: skip
    assert job.problem is not None
    found = [job.problem.workload.score(x.float())["suboptimality"] for x in run_events(job).finals]
    examples = job.problem.workload.inputs.numpy()
    h = torch.logspace(-1, 0, DIMENSION, base=10.0).double().numpy()
    sigma_sq = float(((h * examples.std(0)) ** 2).sum() / 3)
    each = 0.5 * (h * (examples - examples.mean(0)) ** 2).sum(-1)
    sigma_f = float(each.std() / np.sqrt(3))
    strength = 0.1 / (0.05 * 0.9)
    bound = 0.05 * (h.max() / h.min()) * sigma_sq / 2 + 4 / h.min() * strength * 2.0 * sigma_f
    assert max(found) <= bound


def test_half_of_the_better_points_turn_the_step_towards_newtons() -> None:
    """On a convex quadratic, for a weak pull towards z drawn from {f(z) <= f(x)}."""
    rng = np.random.default_rng(5)
    h = np.array([1.0, 4.0, 20.0])

    def cosine(step: Array, x: Array) -> Array:
        return np.asarray(-step @ x / np.linalg.norm(step, axis=-1) / np.linalg.norm(x))

    for _ in range(5):
        x = rng.standard_normal(3)
        level = (h * x**2).sum()
        z = rng.standard_normal((20_000, 3))
        z *= (rng.random((20_000, 1)) ** (1 / 3)) / np.linalg.norm(z, axis=1, keepdims=True)
        z *= np.sqrt(level / h)  # uniform in the ellipsoid f(z) <= f(x)
        assert np.mean(cosine(-h * x + 1e-3 * (z - x), x) >= cosine(-h * x, x)) >= 0.5


# --- the count of all workers' steps ------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=100)
@given(workers=st.integers(1, 6), period=st.integers(1, 5), data=st.data())
def test_between_two_rounds_the_budget_is_used_exactly(
    workers: int, period: int, data: st.DataObject
) -> None:
    """Whoever asks when: workers wait in a round until all have come, as in the scheme."""
    grants = StepBudget(workers, workers * period)
    steps, waiting, gone = Counter[int](), set[int](), set[int]()
    for _ in range(60):
        ready = sorted(set(range(workers)) - waiting - gone)
        rank = data.draw(st.sampled_from(ready))
        if data.draw(st.integers(0, 30)) == 0 and len(gone) + 1 < workers:
            grants.leave(rank)
            gone.add(rank)
        elif grants.grant(rank):
            steps[rank] += 1
            assert sum(steps.values()) <= workers * period
        else:
            waiting.add(rank)
            assert sum(steps.values()) == workers * period
        if waiting and len(waiting | gone) == workers:
            waiting.clear()
            steps.clear()
        assert len(waiting | gone) < workers


def test_faster_workers_do_more_of_the_steps() -> None:
    """Two of four workers a bit more than twice as fast: of 12 steps a round they do 4 each, the others 2."""
    slow = [Straggler(workers=(2, 3), slowdown=2.2)]
    job = make_job(
        "leader_sgd", {"period": 3, "asynchronous": True}, workers=4, max_iterations=24, stragglers=slow,
        compute_s=1.0, latency_s=0.001,
    )  # fmt: skip
    events = run_events(job).events
    rounds = [[e.end_s for e in events if e.worker == w and e.operation == "all_gather"] for w in range(4)]
    done = [[e.end_s for e in events if e.worker == w and e.operation == "gradient"] for w in range(4)]
    for number in range(1, 5):
        counts = [
            sum(rounds[w][number - 1] < end_s < rounds[w][number] for end_s in done[w]) for w in range(4)
        ]
        assert sum(counts) == 12
        assert counts == [4, 4, 2, 2]


def test_the_counter_is_hidden_behind_the_gradients() -> None:
    """Its answer takes 0.5 s there and back, a gradient 1 s: steps take no longer than gradients."""
    options = {"period": 100, "asynchronous": True}
    job = make_job("leader_sgd", options, workers=2, max_iterations=10, latency_s=0.25)
    outcome = run_events(job)
    last = [
        max(e.end_s for e in outcome.events if e.operation == "gradient" and e.worker == w) for w in (0, 1)
    ]
    assert last == [10.0, 10.5]


@pytest.mark.parametrize("cv", [0.0, 0.8])
@pytest.mark.parametrize("period", [1, 4])
def test_everybody_ends_whoever_is_first(period: int, cv: float) -> None:
    job = make_job(
        "leader_sgd", {"period": period, "groups": 2, "global_period": 2 * period, "asynchronous": True},
        task="quadratic", task_options={"dimension": 3, "examples": 64}, workers=4, max_iterations=17,
        cv=cv, latency_s=0.05, bandwidth_bytes_per_s=1e4,
    )  # fmt: skip
    run = simulated(job)
    assert (run.status, run.iterations) == ("completed", 17.0)


# --- bytes, leaders on record, refusals ---------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 5, 8])
@pytest.mark.parametrize("period", [1, 4])
def test_bytes_are_a_broadcast_a_period(workers: int, period: int) -> None:
    model = 1e6
    job = make_job(
        "leader_sgd", {"period": period}, workers=workers, max_iterations=60, bytes_per_parameter=model
    )
    assert simulated(job).bytes_sent / 60 == pytest.approx((workers - 1) * model / period, rel=0.01)


def test_the_counter_costs_two_whole_numbers_a_step() -> None:
    """They are sent as they are, however large the model is: 4 bytes there and 4 back, but for worker 0."""
    options = {"period": 1000, "asynchronous": True}
    job = make_job("leader_sgd", options, workers=5, max_iterations=600, bytes_per_parameter=1e6)
    assert simulated(job).bytes_sent / 600 == pytest.approx(8 * 4, rel=0.02)


def test_bytes_between_groups_only_once_a_global_period() -> None:
    model = 1e6
    options = {"period": 2, "groups": 4, "global_period": 10}
    job = make_job("leader_sgd", options, workers=8, max_iterations=60, bytes_per_parameter=model)
    assert simulated(job).bytes_sent / 60 == pytest.approx((4 / 2 + 7 / 10) * model, rel=0.01)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_where_nothing_is_trained_each_worker_leads_as_often(asynchronous: bool) -> None:
    """Losses are drawn, alike in both drivers; else worker 0 would send all bytes between sites."""
    options = {"period": 1, "loss_window": 1, "asynchronous": asynchronous}
    job = make_job("leader_sgd", options, workers=4, max_iterations=400)
    outcome = run_events(job)
    led = Counter(e.peer for e in outcome.events if e.operation == "broadcast" and e.worker == 1)
    assert [led[rank] for rank in range(4)] == pytest.approx([100] * 4, abs=35)  # 4 standard deviations
    if not asynchronous:
        in_lockstep = LockstepDriver(job, job.scorer()).run().breakdowns
        assert [each.sent_to for each in in_lockstep] == [each.sent_to for each in outcome.breakdowns]


def test_the_leader_changes_and_is_on_record() -> None:
    job = quadratic_job("leader_sgd", {"period": 2}, workers=4, max_iterations=200)
    events = run_events(job).events
    by_worker = [[e.peer for e in events if e.operation == "broadcast" and e.worker == w] for w in range(4)]
    assert all(peers == by_worker[0] for peers in by_worker)
    assert len(by_worker[0]) == 100
    assert set(by_worker[0]) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": 0}, "greater than or equal to 1"),
        ({"period": 1, "pull": 1.1}, "less than or equal to 1"),
        ({"period": 1, "global_pull": 0.0}, "greater than 0"),
        ({"period": 1, "groups": "states"}, "'sites'"),
        ({"period": 1, "loss_window": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SCHEMES["leader_sgd"].options(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": 4, "groups": 3}, "8 workers do not divide into 3 groups; use 2"),
        ({"period": 4, "groups": 16}, "8 workers do not divide into 16 groups; use 8"),
        ({"period": 4, "global_period": 8}, "global_period needs groups"),
        ({"period": 4, "groups": 2, "global_period": 10}, "no multiple of period 4; use 8"),
        ({"period": 4, "groups": 2, "global_period": 3}, "no multiple of period 4; use 4"),
    ],
)
def test_what_does_not_divide_is_refused(options: dict[str, Any], words: str) -> None:
    scheme = SCHEMES["leader_sgd"]
    with pytest.raises(InputError, match=words):
        scheme.check(scheme.options(**options), 8)


SITES = """\
name: sites
workload: {{task: quadratic, batch_size: 1, optimizer: {{lr: 0.1}}}}
cluster:
  compute: {{time: 1 s}}
  network: {{sites: {{{sites}}}, within: {{latency: 0 s}}, between: {{latency: {{default: 1 ms}}}}}}
schemes: [{{leader_sgd: {{period: 2, groups: sites, global_period: 4}}}}]
stop: {{max_iterations: 4}}
"""


@pytest.mark.parametrize("sites", [1, 2])
def test_a_global_period_needs_more_than_one_site(sites: int) -> None:
    text = SITES.format(sites=", ".join(f"s{number}: {4 // sites}" for number in range(sites)))
    if sites == 1:
        with pytest.raises(InputError, match=r"schemes\.0\.leader_sgd: global_period needs groups, but the"):
            parse(text)
    else:
        assert parse(text).schemes[0].name == "leader_sgd"
