"""Replicas that average over a slow network: closed form against cases by hand, a table, and a calculator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.large_models.closed_forms.low_communication import (
    BACKWARD_SHARE,
    LowCommunication,
    ring_share,
)

DATA_PARALLEL = LowCommunication(wire_bits=16e9, step_s=0.1, hidden_steps=BACKWARD_SHARE)


def test_data_parallelism_hides_an_exchange_under_the_backward_pass() -> None:
    """16 Gbit at 96 Gbit/s take 1/6 s, of which 1/15 s are hidden: 0.1 s of computing in 0.2 s."""
    assert DATA_PARALLEL.utilisation(96e9) == pytest.approx(0.5)
    assert DATA_PARALLEL.utilisation(240e9) == 1.0
    assert DATA_PARALLEL.exposed_s(96e9) == pytest.approx(0.1)
    assert DATA_PARALLEL.needed_bandwidth(0.5) == pytest.approx(96e9)
    assert DATA_PARALLEL.needed_bandwidth(1.0) == pytest.approx(240e9)


def test_each_fragment_hides_its_own_exchange() -> None:
    """8 fragments of 2 Gbit: 0.4 s each at 5 Gbit/s, of which (2/3 + 1) 0.1 s are hidden."""
    streaming = LowCommunication(16e9, 0.1, 100, 8, BACKWARD_SHARE + 1)
    exposed_s = 8 * (0.4 - 1 / 6)
    assert streaming.utilisation(5e9) == pytest.approx(10 / (10 + exposed_s))
    assert streaming.duration_s(200, 5e9) == pytest.approx(2 * (10 + exposed_s))


def test_latency_is_paid_for_every_fragment() -> None:
    slow = LowCommunication(16e9, 0.1, 100, 4, latency_s=0.5)
    assert slow.exposed_s(16e9) == pytest.approx(1 + 4 * 0.5)
    assert slow.needed_bandwidth(0.999) == math.inf


@given(
    st.floats(1e6, 1e13), st.floats(1e-3, 100.0), st.integers(1, 1000), st.integers(1, 100),
    st.floats(0, 5), st.floats(0.01, 0.999),
)  # fmt: skip
def test_the_needed_bandwidth_gives_the_utilisation(
    bits: float, step_s: float, period: int, fragments: int, hidden: float, utilisation: float
) -> None:
    replicas = LowCommunication(bits, step_s, period, fragments, hidden)
    assert replicas.utilisation(replicas.needed_bandwidth(utilisation)) == pytest.approx(utilisation)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"wire_bits": 0.0}, "wire_bits is 0.0"),
        ({"step_s": math.nan}, "step_s is nan"),
        ({"period": 0}, "period is 0"),
        ({"fragments": 0}, "fragments is 0"),
        ({"hidden_steps": -1.0}, "hidden_steps is -1.0"),
        ({"latency_s": math.inf}, "latency_s is inf"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(DATA_PARALLEL, **changed)  # type: ignore[arg-type]


def test_so_are_bandwidths_utilisations_and_replicas() -> None:
    with pytest.raises(ValueError, match="0 bit/s"):
        DATA_PARALLEL.utilisation(0)
    for utilisation in (0.0, 1.1):
        with pytest.raises(ValueError, match="a utilisation of"):
            DATA_PARALLEL.needed_bandwidth(utilisation)
    with pytest.raises(ValueError, match="0 replicas"):
        ring_share(0)


@given(st.integers(2, 64), st.integers(1, 500), st.integers(1, 64), st.floats(1e8, 1e12), st.floats(0, 1))
def test_the_public_calculator_has_the_same_closed_form(
    replicas: int, period: int, fragments: int, bandwidth: float, latency_s: float
) -> None:
    """mino98/diloco-calculator (739c23f), a chip a replica, staleness 1: see docs/papers/large-models.md."""
    parameters, step_s = 1e9, 0.2
    exchange_s = 2 * 16 * parameters / bandwidth * (1 - 1 / replicas)
    bits = ring_share(replicas) * 16 * parameters
    one_by_one = LowCommunication(bits, step_s, period, fragments, latency_s=latency_s)
    expected = period * step_s / (period * step_s + exchange_s + fragments * latency_s)
    assert one_by_one.utilisation(bandwidth) == pytest.approx(expected)
    beside = replace(one_by_one, hidden_steps=period / fragments)
    expected = period * step_s / max(period * step_s, exchange_s + fragments * latency_s)
    assert beside.utilisation(bandwidth) == pytest.approx(expected)
