"""What docs/papers/random-features.md is made of: errors, costs, thresholds."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.feature_networks import (
    EACH,
    Outcome,
    Threshold,
    condensed,
    distance_from_pooled,
    errors,
    inverse_gap,
    job_of,
    largest_degree,
    memory_bytes,
    one_machine,
    run_network,
    slopes,
    step_times,
    threshold_slope,
    thresholds,
)
from benchmarks.random_features import MARK, PAGE, PICTURE, threshold_labels


def outcome(topology: str, agents: int, each: int, arrived: int | None = 10) -> Outcome:
    return Outcome(topology, agents, each, 1, 10, 0.1, 0.1, arrived, 10)


@pytest.mark.parametrize(("agents", "each", "expected"), [(25, 100, 22.3), (25, 1000, 24.7), (100, 10, 45.5)])
def test_the_speed_up_of_the_papers_costs(agents: int, each: int, expected: float) -> None:
    """Degree 2, delay over M 10, as many steps: nm / (m + 2 + 10)."""
    assert outcome("cycle", agents, each).speed_up == pytest.approx(expected, abs=0.05)


def test_who_takes_twice_the_steps_has_half_the_speed_up_and_who_never_arrives_none() -> None:
    assert outcome("cycle", 25, 100, 20).speed_up == outcome("cycle", 25, 100).speed_up / 2
    assert outcome("cycle", 25, 100, None).speed_up == 0


@pytest.mark.parametrize(("agents", "gap"), [(25, 0.02095), (49, 0.00547), (100, 0.001315)])
def test_the_gap_of_a_cycle(agents: int, gap: float) -> None:
    assert 1 / inverse_gap("cycle", agents) == pytest.approx(gap, rel=2e-3)
    assert inverse_gap("complete", agents) == pytest.approx(1)
    assert [largest_degree(name, agents) for name in ("cycle", "grid", "complete")] == [2, 4, agents - 1]


def test_a_simulated_step_takes_what_the_papers_costs_say() -> None:
    for cost_s, simulated_s in step_times(9, 20).values():
        assert simulated_s == pytest.approx(cost_s, rel=1e-9)


def test_one_machine_in_closed_form_descends() -> None:
    job = job_of("complete", 2, 20, 1, 1, features=12)
    assert job.problem is not None
    phi, y = (x.double().numpy() for x in (job.problem.workload.inputs, job.problem.workload.targets))
    w = np.zeros(12)
    for model in one_machine(job, 7):
        w = w - phi.T @ (phi @ w - y) / len(y)
        np.testing.assert_allclose(model, w, atol=1e-9)


def test_fewer_examples_have_the_same_gradients() -> None:
    job = job_of("cycle", 5, 40, 1, 1, features=12)
    fewer = condensed(job)
    assert job.problem is not None
    assert fewer.problem is not None
    assert len(fewer.problem.workload.inputs) == 5 * 12
    points = torch.linspace(-1, 1, 60).view(5, 12)
    both = [each.gradients_of_all(0, points).value for each in (job.problem, fewer.problem)]
    torch.testing.assert_close(both[0], both[1], rtol=1e-4, atol=1e-6)
    assert condensed(job_of("cycle", 5, 10, 1, 1, features=12)).problem.workload.inputs.shape == (50, 12)  # type: ignore[union-attr]


def test_complete_averaging_is_one_machine() -> None:
    assert distance_from_pooled() < 1e-8  # of the closed form's clipped eigenvalues


def test_the_error_of_nothing_is_half_the_mean_square_of_the_function() -> None:
    """E cos(2x)^2 / 2 = (1 + e^-8) / 4 for a standard normal x."""
    assert errors(np.zeros((3, 12)), 1) == pytest.approx([(1 + math.exp(-8)) / 4] * 3)


def test_memory_falls_as_one_over_the_agents() -> None:
    alone, shared = (sum(memory_bytes(agents, 4000).values()) for agents in (1, 20))
    assert alone / shared == pytest.approx(20, rel=0.05)


def test_a_small_network_is_run_beside_one_machine() -> None:
    done = run_network("complete", 4, 16, 1)
    assert (done.steps, done.arrived) == (8, done.alone_arrived)
    assert done.excess == pytest.approx(1, rel=1e-4)


def test_thresholds_are_interpolated() -> None:
    excess = {4: 1.8, 16: 1.2, 64: 1.0}
    rows = [
        {"agents": 25, "topology": topology, "each": each, "excess": value}
        for topology, values in (
            ("cycle", excess),
            ("grid", dict.fromkeys(excess, 1.0)),
            ("complete", dict.fromkeys(excess, 2.0)),
        )
        for each, value in values.items()
    ]
    needed = {row.topology: row.needed for row in thresholds(pd.DataFrame(rows))}
    assert needed["cycle"] == pytest.approx(8)
    assert needed["grid"] == 4
    assert math.isinf(needed["complete"])


def test_how_fast_thresholds_grow() -> None:
    rows = [Threshold(25, "cycle", gap, 3 * gap**2) for gap in (4.0, 16.0, 64.0)]
    rows += [Threshold(25, "complete", 1.0, EACH[0]), Threshold(100, "cycle", 900.0, math.inf)]
    assert threshold_slope(rows) == pytest.approx(2)


def test_slopes_are_those_of_the_seeds() -> None:
    rows = [
        {"agents": 25, "topology": topology, "seed": seed, "total": total}
        for topology in ("cycle", "grid", "complete")
        for seed in range(5)
        for total in (100, 200, 400)
    ]
    table = pd.DataFrame(rows)
    fitted = slopes(table.assign(worst=table["total"] ** -0.7, alone=1 / table["total"]), 25)
    assert fitted["grid"]["median"] == pytest.approx(-0.7)
    assert fitted["one machine"]["median"] == pytest.approx(-1)


def test_the_page_is_made() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MARK in text
    assert PICTURE.is_file()
    for topology in ("cycle", "grid", "complete"):
        for agents in (25, 49, 100):
            assert f"| {topology}, {agents} agents |" in text.partition(MARK)[2]


def test_networks_at_one_place_of_the_picture_share_a_label() -> None:
    rows = [Threshold(agents, "complete", 1 + agents * 1e-17, EACH[0]) for agents in (25, 49)]
    rows += [Threshold(25, "cycle", 47.7, 20.0), Threshold(100, "cycle", 760.2, math.inf)]
    assert threshold_labels(rows) == {
        ("complete", 1.0, EACH[0]): "25, 49",
        ("cycle", 47.7, 20.0): "25",
        ("cycle", 760.2, EACH[-1]): "100: more",
    }
