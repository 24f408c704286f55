"""Stochastic reweighted gradient: the law of the draws, the table, and its noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from paceline.sim.errors import InputError, SchemeError
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.scenario.schema import dump, parse
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads import find_task
from paceline.sim.workloads.partition import Batches
from paceline.sim.workloads.sampler import Coupling, Draw, Sampler, SamplerSettings
from paceline.sim.workloads.workload import Workload
from tests.sim.scenario.test_schema import FLAT

# --- the law of the draws -----------------------------------------------------------------------


def sampler_of(n: int, size: int = 1, smoothness: Any = None, seed: int = 1, **settings: Any) -> Sampler:
    """One worker with n examples."""
    kind = "srg" if smoothness is None else "srg_plus"
    chosen = SamplerSettings.model_validate({kind: settings})
    return Sampler(chosen, (np.arange(n),), size, seed, smoothness)


def draws_of(sampler: Sampler, steps: int, norms: Any) -> list[Draw]:
    """Draws, with the norm of each example's gradient fixed."""
    out = []
    for k in range(steps):
        out.append(sampler.draw(0, k))
        sampler.refresh(0, out[-1], np.asarray(norms)[out[-1].examples])
    return out


def with_table(sampler: Sampler, norms: Any) -> None:
    sampler.draw(0, 0)
    for k, norm in enumerate(norms):
        sampler._tables[0].change(k, float(norm))


def law_of(sampler: Sampler, n: int, draws: int) -> np.ndarray[Any, Any]:
    """How often each example is drawn from the table as it is; the draws are one batch's."""
    many = replace(sampler, batch_size=draws)
    many._tables.update(sampler._tables)
    return np.bincount(_again(many).examples, minlength=n)


def _again(sampler: Sampler) -> Draw:
    sampler._next[0] = 1
    return sampler.draw(0, 1)


def toy_norms(n: int) -> Any:
    """Of f_i = (x - a_i)^2 / 2 with a_n = 1, else 0, at x* = 1/n."""
    return np.array([1 / n] * (n - 1) + [(n - 1) / n])


def test_the_two_stage_draw_has_the_law_of_the_mixture() -> None:
    sampler = sampler_of(20)
    with_table(sampler, toy_norms(20))
    p = np.array([0.0381579] * 19 + [0.275])
    np.testing.assert_allclose(
        [0.5 / 20 + 0.5 * sampler._tables[0].probability(k) for k in range(20)], p, rtol=1e-5
    )
    counts = law_of(sampler, 20, 100_000)
    assert chisquare(counts, 100_000 * p / p.sum()).pvalue > 0.001


def test_the_second_moment_of_the_toy() -> None:
    """n = 20: 0.011316 with theta 1/2 and an exact table; uniform 0.0475; the best possible 0.009025."""
    norms = toy_norms(20)
    q = norms / norms.sum()
    assert q[-1] == pytest.approx(0.5)

    def moment(p: Any) -> float:
        return float((norms**2 / p).sum() / 400)

    assert moment(np.full(20, 1 / 20)) == pytest.approx(0.0475)
    assert moment(q) == pytest.approx(0.009025)
    assert moment(0.5 / 20 + 0.5 * q) == pytest.approx(0.011316, rel=1e-4)
    assert moment(np.full(20, 1 / 20)) / moment(q) == pytest.approx(20**2 / (4 * 19))


@pytest.mark.parametrize(
    ("n", "theta", "expected"),
    [
        (20, 1.0, 0.0475),
        (20, 0.5, 0.011316),
        (20, 1e-9, 0.009025),
        (100, 1.0, 0.0099),
        (100, 1e-9, 3.9204e-4),
    ],
)
def test_weighted_gradients_of_the_toy_have_mean_zero_and_that_second_moment(
    n: int, theta: float, expected: float
) -> None:
    """At x* = 1/n with an exact table; n^2 / (4 (n - 1)) lies between theta = 1 and theta towards 0."""
    draws = 30_000
    many = sampler_of(n, size=draws, theta=theta)
    with_table(many, toy_norms(n))
    assert many._tables[0].probability(0) == pytest.approx(1 / (2 * (n - 1)))
    draw = _again(many)
    slopes = np.array([1 / n] * (n - 1) + [1 / n - 1])
    estimates = draws * draw.weights * slopes[draw.examples]
    squares = np.square(estimates)
    assert squares.mean() == pytest.approx(expected, rel=1e-4, abs=4 * squares.std() / draws**0.5)
    assert abs(estimates.mean()) < 4 * np.sqrt(expected / draws)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.floats(0.05, 1.0), st.integers(0, 5))
def test_weights_are_unbiased_and_bounded(norms: list[float], theta: float, seed: int) -> None:
    """n p_i weight_i = 1, and no weight exceeds 1 / theta."""
    n = len(norms)
    sampler = sampler_of(n, theta=theta, seed=seed)
    with_table(sampler, norms)
    draw = _again(sampler)
    key = int(draw.examples[0])
    p = theta / n + (1 - theta) * norms[key] / sum(norms)
    assert draw.weights[0] == pytest.approx(1 / (n * p))
    assert draw.weights[0] <= 1 / theta + 1e-9


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_the_mixture_is_never_far_from_uniform_nor_from_the_best_law(
    norms: list[float], theta: float
) -> None:
    """Its second moment is at most 1 / theta of the uniform one, and 1 / (1 - theta) of the best."""
    g, n = np.array(norms), len(norms)
    sampler = sampler_of(n, theta=theta)
    with_table(sampler, g)
    p = theta / n + (1 - theta) * np.array([sampler._tables[0].probability(k) for k in range(n)])
    moment = (g**2 / p).sum() / n**2
    assert moment <= (1 + 1e-12) * min((g**2).mean() / theta, g.mean() ** 2 / (1 - theta))


def test_a_point_is_refreshed_every_n_over_theta_steps() -> None:
    n, theta = 6, 0.4
    at = [
        k
        for k, draw in enumerate(draws_of(sampler_of(n, theta=theta), 12_000, np.arange(1, n + 1)))
        if any(key == 2 for _, key in draw.refreshed)
    ]
    waits = np.diff(at)
    assert waits.mean() == pytest.approx(n / theta, rel=0.1)
    assert waits.std() == pytest.approx(np.sqrt(1 - theta / n) * n / theta, rel=0.15)  # geometric


def test_heads_refresh_and_tails_do_not() -> None:
    sampler, rng = sampler_of(10, theta=0.3), np.random.default_rng(0)
    seen = np.ones(10)
    refreshes = 0
    for k in range(3000):
        draw = sampler.draw(0, k)
        norms = rng.uniform(1, 2, 1)
        before = seen.copy()
        for place, key in draw.refreshed:
            assert draw.examples[place] == key
            seen[key] = norms[place]
            refreshes += 1
        sampler.refresh(0, draw, norms)
        assert [sampler._tables[0].weight(i) for i in range(10)] == seen.tolist()
        assert draw.refreshed or (before == seen).all()
    assert refreshes / 3000 == pytest.approx(0.3, abs=0.03)


def test_the_table_has_the_norm_at_the_last_uniform_draw() -> None:
    """|x_s - a_i| where i was last drawn by the coin's heads, at step s; x moves at every step."""
    n = 6
    workload, sampler = toy(np.ones(n), np.arange(float(n))), sampler_of(n, theta=0.4)
    problem = TrainingProblem(workload, Batches((np.arange(n),), 1, 1), "looped", sampler)
    x, expected = torch.tensor([9.0]), np.ones(n)
    for k in range(200):
        draw = sampler.draw(0, k)  # that of the gradient below
        for _, key in draw.refreshed:
            expected[key] = abs(x.item() - key)
        x = x - 0.05 * problem.gradient(0, k, x).value
        known = [sampler._tables[0].weight(i) for i in range(n)]
        assert known == pytest.approx(expected, rel=1e-5)


def test_theta_one_does_not_look_at_the_table() -> None:
    drawn = [
        [(d.examples.tolist(), d.weights.tolist()) for d in draws_of(sampler_of(12, theta=1.0), 200, norms)]
        for norms in (np.ones(12), np.arange(1, 13))
    ]
    assert drawn[0] == drawn[1]
    assert all(weights == [1.0] for _, weights in drawn[0])


def test_equal_norms_are_sgd() -> None:
    assert all(
        d.weights.tolist() == pytest.approx([1.0]) for d in draws_of(sampler_of(9), 100, np.full(9, 1.0))
    )


def test_a_maximal_coupling() -> None:
    """Both margins are right, and the two are equal as often as can be."""
    smoothness = np.array([4.0, 1.0, 1.0, 2.0])
    coupling = Coupling(smoothness)
    v = smoothness / 8
    assert coupling.overlap == pytest.approx(np.minimum(v, 0.25).sum())
    grid = (np.arange(400) + 0.5) / 400
    pairs = np.array([coupling.draw(a, b) for a in grid for b in grid[::8]])
    np.testing.assert_allclose(np.bincount(pairs[:, 0]) / len(pairs), v, atol=0.005)
    np.testing.assert_allclose(np.bincount(pairs[:, 1]) / len(pairs), np.full(4, 0.25), atol=0.005)
    assert (pairs[:, 0] == pairs[:, 1]).mean() == pytest.approx(coupling.overlap, abs=0.005)
    assert Coupling(np.ones(3)).overlap == pytest.approx(1.0)


def test_gradients_are_computed_in_order() -> None:
    sampler = sampler_of(5)
    with pytest.raises(SchemeError, match="gradient 3 needs the one before it"):
        sampler.draw(0, 3)


# --- gradients and noise ------------------------------------------------------------------------


def toy(curvature: Any, centres: Any) -> Workload:
    """f_i = L_i (x - a_i)^2 / 2 in one dimension."""
    examples = torch.tensor(np.stack([curvature, centres], 1)).float()

    def loss(x: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0.5 * (inputs[:, 0] * (x - inputs[:, 1]).square()).mean()

    return Workload(
        "toy", torch.zeros(1), loss, examples, torch.zeros(len(examples)), None, (("x", 0, 1),), lambda x: {},
        smoothness=examples[:, 0],
    )  # fmt: skip


def stationary_noise(
    workload: Workload,
    settings: dict[str, Any],
    optimum: float,
    lr: float = 0.1,
    chains: int = 256,
    steps: int = 120,
) -> float:
    """Mean squared distance from the optimum of independent chains, over the second half of the steps."""
    n = len(workload.inputs)
    assert workload.smoothness is not None
    shards = (np.arange(n),) * chains
    sampler = Sampler(
        SamplerSettings.model_validate(settings), shards, 1, 3, workload.smoothness.double().numpy()
    )
    problem = TrainingProblem(workload, Batches(shards, 1, 3), "batched", sampler)
    x, total = torch.full((chains, 1), optimum), 0.0
    for k in range(steps):
        x = x - lr * problem.gradients_of_all(k, x).value
        if k >= steps // 2:
            total += (x - optimum).square().mean().item()
    return total / (steps - steps // 2)


def centres(n: int) -> Any:
    return np.array([0.0] * (n - 1) + [1.0])


def test_the_noise_of_uniform_draws_is_exact() -> None:
    """Var = lr sigma^2 / (2 - lr) = 0.0025 for n = 20 and lr = 0.1."""
    noise = stationary_noise(toy(np.ones(20), centres(20)), {"srg": {"theta": 1.0}}, 1 / 20)
    assert noise == pytest.approx(0.1 * 0.0475 / 1.9, rel=0.15)


def test_uniform_draws_contract_the_mean_and_add_the_same_noise_at_every_step() -> None:
    """E x - x* falls by 1 - lr a step; Var = lr^2 sigma^2 (1 + (1 - lr)^2 + ... ), wherever x is."""
    n, chains, lr, steps = 20, 2000, 0.1, 15
    shards = (np.arange(n),) * chains
    sampler = Sampler(SamplerSettings.model_validate({"srg": {"theta": 1.0}}), shards, 1, 3)
    problem = TrainingProblem(toy(np.ones(n), centres(n)), Batches(shards, 1, 3), "batched", sampler)
    x = torch.full((chains, 1), 2.0)
    for k in range(steps):
        x = x - lr * problem.gradients_of_all(k, x).value
    mean = 1 / n + (1 - lr) ** steps * (2.0 - 1 / n)
    variance = lr**2 * 0.0475 * sum((1 - lr) ** (2 * k) for k in range(steps))
    assert x.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / chains))
    assert x.var().item() == pytest.approx(variance, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 100])
def test_srg_has_less_noise_than_sgd_by_the_factor_of_its_second_moment(n: int) -> None:
    workload, norms = toy(np.ones(n), centres(n)), toy_norms(n)
    p = 0.5 / n + 0.5 * norms / norms.sum()
    predicted = (norms**2 / p).sum() / n / (norms**2).sum()
    steps = 400 if n == 20 else 2000
    noise = [
        stationary_noise(workload, {"srg": {"theta": theta}}, 1 / n, lr=0.05, chains=128, steps=steps)
        for theta in (0.5, 1.0)
    ]
    assert noise[0] / noise[1] == pytest.approx(predicted, rel=0.25)


@pytest.mark.slow
def test_srg_plus_has_less_noise_than_srg_where_smoothness_differs() -> None:
    n = 20
    curvature = np.array([n - 1.0] + [(n - 1) / (n * (n - 2))] * (n - 2) + [1 / n])
    assert curvature.mean() == pytest.approx(1.0)
    workload = toy(curvature, centres(n))
    optimum = float((curvature * centres(n)).sum() / curvature.sum())
    noise = {
        kind: stationary_noise(workload, {kind: {}}, optimum, lr=0.02, chains=128, steps=1000)
        for kind in ("srg", "srg_plus")
    }
    assert noise["srg_plus"] < noise["srg"]


@pytest.mark.parametrize("kind", ["srg", "srg_plus"])
def test_batched_and_looped_are_the_same_run(kind: str) -> None:
    task = find_task("logistic")
    workload = task.build(task.options(), 1)
    assert workload.smoothness is not None
    shards = tuple(np.array_split(np.arange(1437), 3))
    values = []
    for method in ("batched", "looped"):
        sampler = Sampler(
            SamplerSettings.model_validate(kind), shards, 4, 1, workload.smoothness.double().numpy()
        )
        problem = TrainingProblem(workload, Batches(shards, 4, 1), method, sampler)
        x = workload.start.expand(3, -1)
        for k in range(5):
            x = x - 0.1 * problem.gradients_of_all(k, x).value
        values.append(x)
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-6)


def test_weighted_gradients_average_to_the_full_gradient() -> None:
    """Enumerated: sum_i p_i grad f_i / (n p_i) is the gradient of the mean, after some steps."""
    task = find_task("logistic")
    workload = task.build(task.options(), 1)
    few = replace(workload, inputs=workload.inputs[:12], targets=workload.targets[:12])
    sampler = sampler_of(12)
    problem = TrainingProblem(few, Batches((np.arange(12),), 1, 1), "looped", sampler)
    x = torch.linspace(-0.1, 0.1, workload.start.numel())
    for k in range(30):
        problem.gradient(0, k, x)
    table = sampler._tables[0]
    p = [0.5 / 12 + 0.5 * table.probability(i) for i in range(12)]
    assert sum(p) == pytest.approx(1.0)

    def gradient(rows: slice) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(workload.loss(leaf, few.inputs[rows], few.targets[rows]), leaf)[0]

    known = [table.weight(i) for i in range(12) if i in table._places]
    own = [gradient(slice(i, i + 1)).norm().item() for i in range(12) if i in table._places]
    assert known == pytest.approx(own, rel=1e-5)  # the point has not moved
    weighted = sum(p[i] * gradient(slice(i, i + 1)) / (12 * p[i]) for i in range(12))
    torch.testing.assert_close(weighted, gradient(slice(None)), rtol=1e-4, atol=1e-6)


def test_the_mean_of_a_network_is_unbiased_with_tables_of_their_own() -> None:
    """x_v <- sum_u P_vu (x_u - lr g_u) on a ring of 4: in the mean over many networks pooled descent."""
    networks, each, lr, steps = 400, 5, 0.3, 12
    workload = toy(np.ones(4 * each), np.arange(4.0 * each))
    shards = tuple(np.arange(v * each, (v + 1) * each) for v in range(4)) * networks
    sampler = Sampler(SamplerSettings.model_validate("srg"), shards, 1, 3)
    problem = TrainingProblem(workload, Batches(shards, 1, 3), "batched", sampler)
    x, pooled, centre = torch.zeros(networks, 4, 1), 0.0, (4 * each - 1) / 2
    for k in range(steps):
        moved = x - lr * problem.gradients_of_all(k, x.view(-1, 1)).value.view_as(x)
        x = (moved + moved.roll(1, 1) + moved.roll(-1, 1)) / 3
        pooled -= lr * (pooled - centre)
    means = x.mean((1, 2))
    assert means.mean().item() == pytest.approx(pooled, abs=4 * means.std().item() / networks**0.5)


# --- in a scenario ------------------------------------------------------------------------------

SRG = FLAT.replace("task: digits-mlp", "task: logistic\n  sampler: srg")


def test_a_scenario_names_a_sampler() -> None:
    scenario = parse(SRG)
    assert scenario.workload.sampler == SamplerSettings.model_validate({"srg": {}})
    assert parse(dump(scenario)) == scenario
    job = prepare(scenario, scenario.schemes[0], 1)
    assert job.problem is not None
    again = prepare(scenario, scenario.schemes[0], 1)
    assert again.problem is not None
    assert job.problem.sampler is not again.problem.sampler  # tables are a run's own


def test_its_cost_is_a_part_of_a_gradients_time() -> None:
    plain, srg = (parse(text) for text in (FLAT.replace("task: digits-mlp", "task: logistic"), SRG))
    jobs = [prepare(each, each.schemes[0], 1) for each in (plain, srg)]
    assert jobs[1].problem is not None
    own = len(jobs[1].problem.batches.shards[0])
    added = jobs[1].compute.duration_s(0, 5) - jobs[0].compute.duration_s(0, 5)
    assert srg.workload.batch_size == 32
    assert added == pytest.approx(32 * 1e-7 * np.log2(own + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FLAT.replace("task: digits-mlp", "task: digits-mlp\n  sampler: srg_plus"),
         "workload.sampler: task 'digits-mlp' does not know the smoothness"),
        (FLAT.replace("task: digits-mlp", "task: digits-resnet20\n  sampler: srg"),
         "workload.sampler: task 'digits-resnet20' cannot weigh examples one by one: batch norm"),
        (FLAT.replace("task: digits-mlp", "task: text-transformer\n  dropout: 0.1\n  sampler: srg"),
         "workload.sampler: task 'text-transformer' cannot weigh examples one by one: it has dropout"),
    ],
)  # fmt: skip
def test_what_cannot_be_sampled_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(parse(text), torch.device("cpu"))
