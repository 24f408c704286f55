"""Moments of gradients on populations whose moments are known, and Fieller's interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks.gradient_noise import POPULATIONS, coverage
from paceline.sim.records.carry.noise import NOT_RESOLVED, RULE, NoisePoint, hint, ratio_of_means
from paceline.sim.training.gradient_noise import Moments, half_batch, moments_of_halves


def test_two_workers_by_hand() -> None:
    halves = torch.tensor([[[3.0, 0.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]])
    # g_1 = (2, 0), g_2 = (0, 1), g = (1, 1/2); all gaps are 2.
    # S2_i = 4 * 4 / 4 = 4; e_i = 4 / 4 * (1 - 4 / 8) = 1/2.
    # H2 = (|(1, -1/2)|^2 + |(-1, 1/2)|^2) / 1 - 1/2 = 2; G2 = 5/4 - 2 * 1/2 / 4 = 1.
    assert moments_of_halves(halves, [4, 4], [8, 8]) == pytest.approx(Moments(4.0, 2.0, 1.0))


def test_a_batch_of_more_than_the_shard_is_the_whole_shard() -> None:
    halves = torch.tensor([[[3.0, 0.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]])
    assert moments_of_halves(halves, [64, 64], [8, 8]) == moments_of_halves(halves, [8, 8], [8, 8])
    assert moments_of_halves(halves, [8, 8], [8, 8]) == pytest.approx(Moments(8.0, 2.5, 1.25))


def test_one_worker_has_no_heterogeneity() -> None:
    halves = torch.tensor([[[3.0, 0.0], [1.0, 0.0]]])
    assert moments_of_halves(halves, [4], [8]) == Moments(4.0, None, 3.5)


@pytest.mark.parametrize(("batch", "shard", "half"), [(32, 100, 16), (7, 100, 3), (32, 7, 3), (1, 9, 1)])
def test_a_half_batch(batch: int, shard: int, half: int) -> None:
    assert half_batch(batch, shard) == half


def test_a_hint_by_hand() -> None:
    def points(noise: float, apart: float) -> list[NoisePoint]:
        point = NoisePoint(
            step=0, examples=100, loss=1.0, lr=0.1, noise=noise, heterogeneity=apart, norm2=1.0
        )  # fmt: skip
        return [point, point]

    a, c, d = RULE["local SGD (16)"]
    factor = math.exp(a + c * math.log(0.2) + d * math.log(2.0))
    assert f"local SGD (16) {factor:.2f}" in hint(points(20.0, 1.0))
    assert hint(points(20.0, 9.0)) == ""  # beyond the study
    assert hint(points(20.0, -0.5)) == hint(points(20.0, 0.0)) != ""
    assert hint(points(20.0, 1.0)[:1]) == ""


def test_fiellers_interval_by_hand() -> None:
    # Means 4 and 2, variances of the means 1/3 and 0, t = 4.3027 with two degrees of freedom.
    got = ratio_of_means([3, 4, 5], [2, 2, 2])
    half = 4.302653 * (1 / 3) ** 0.5 / 2
    assert [got["value"], got["low"], got["high"]] == pytest.approx([2, 2 - half, 2 + half], rel=1e-6)


def test_fiellers_interval_holds_the_ratio() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        noise = rng.chisquare(8, 12)
        got = ratio_of_means((20 + 3 * noise).tolist(), (1 + 0.1 * noise + rng.normal(0, 0.5, 12)).tolist())
        assert got["low"] is not None
        assert got["high"] is not None
        held += got["low"] <= 44 / 1.8 <= got["high"]
    assert 0.92 * 400 <= held <= 0.98 * 400


@pytest.mark.parametrize("below", [[1.0, -1.5, 0.9, -0.3], [-1.0, -1.1, -0.9, -1.0], [0.0] * 4])
def test_a_denominator_not_told_from_zero_resolves_nothing(below: list[float]) -> None:
    assert ratio_of_means([1.0, 2.0, 3.0, 4.0], below) == NOT_RESOLVED


def test_one_point_resolves_nothing() -> None:
    assert ratio_of_means([1.0], [1.0]) == NOT_RESOLVED


@pytest.mark.parametrize("name", POPULATIONS)
def test_bias_and_coverage_on_known_populations(name: str) -> None:
    """A faster form of ``python -m benchmarks.gradient_noise``."""
    population = POPULATIONS[name]
    values, true = population.draw(4_000, 5), population.true
    error = values.std(axis=0) / np.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - true) < np.minimum(3 * error, 0.01 * true)).all()
    for resolved, held in coverage(population, 200, 12):
        assert resolved == 200
        assert 0.90 * 200 <= held <= 0.98 * 200
