"""Averages of all workers at once have the bits of each worker's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.program.averaging import mean_model, mean_of_rows, weighted_sum, weighted_sum_vectorised
from paceline.sim.program.pattern import Pattern

WEIGHTS = st.floats(0.0, 1.0, width=32, allow_subnormal=False)


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    """Everybody hears some others; in half of them one each, or with weights that are all equal."""
    n = draw(st.integers(2, 6))
    others = [[j for j in range(n) if j != i] for i in range(n)]
    shift, alike = draw(st.integers(0, n - 1)), draw(st.booleans())
    weight = draw(WEIGHTS)
    sources = tuple(
        ((i + shift) % n,) if shift else tuple(sorted(draw(st.sets(st.sampled_from(each)))))
        for i, each in enumerate(others)
    )
    weights = tuple(tuple(weight if alike else draw(WEIGHTS) for _ in row) for row in sources)
    own = tuple(1 - weight if alike else draw(WEIGHTS) for _ in range(n))
    return Pattern(own, sources, weights)


@given(pattern=patterns(), seed=st.integers(0, 1000), at_one_point=st.booleans())
def test_all_rows_have_the_bits_of_one_workers_sum(pattern: Pattern, seed: int, at_one_point: bool) -> None:
    n = pattern.workers
    values = torch.randn(n, 17, generator=torch.Generator().manual_seed(seed))
    if at_one_point:
        values = values[:1].expand(n, -1)
    together = weighted_sum_vectorised(pattern, values)
    for i, row in enumerate(together):
        others = [values[j] for j in pattern.sources[i]]
        assert torch.equal(row, weighted_sum(pattern.own[i], values[i], pattern.weights[i], others))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3), (17, 1), (129, 2), (64, 8193), (9, 4, 1), (1, 5), (256, 1)])
def test_the_mean_of_rows_has_the_bits_of_the_mean_of_models(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    values = 100 * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))
    for rows in (values, values.mT if len(shape) > 2 else values.flip(0), values[:1].expand(shape)):
        assert torch.equal(mean_of_rows(rows), mean_model(rows.unbind()))
