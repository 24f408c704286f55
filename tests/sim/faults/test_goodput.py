"""The best time between checkpoints: by Daly's exact model, and against simulated runs."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import accumulate, chain, repeat
from typing import Any

import pytest
from scipy.special import lambertw

from paceline.sim.faults.fault_settings import Checkpoint, Fault
from paceline.sim.faults.goodput import best_checkpoints
from paceline.sim.faults.outages import Churn, follow

WRITE_S, RESTART_S, BETWEEN_S = 40.0, 20.0, 2000.0


def churn_of(
    *faults: dict[str, Any], units: int = 1, seed: int = 0, policy: Any = "restart", **checkpoint: Any
) -> Churn:
    """Of workers one by one, under each of ``faults``, with writes of 40 s if nothing else is said."""
    drawn = faults or ({"mean_time_between": f"{BETWEEN_S} s", "back_after": "0 s"},)
    written = {"every": "1 s", "write": f"{WRITE_S} s", "restart": f"{RESTART_S} s", **checkpoint}
    struck = tuple((rank,) for rank in range(units))
    return Churn(
        tuple(Fault.model_validate(each) for each in drawn), (struck,) * len(drawn), policy,
        Checkpoint.model_validate(written), seed,
    )  # fmt: skip


def by_daly(every_s: float) -> float:
    """Daly's equation 20: useful share of a run with exponential faults, which strike restarts too."""
    wall_s = BETWEEN_S * math.exp(RESTART_S / BETWEEN_S) * math.expm1((every_s + WRITE_S) / BETWEEN_S)
    return every_s / wall_s


def test_the_best_interval_is_that_of_dalys_exact_model() -> None:
    best = best_checkpoints(churn_of(), 1.0)
    assert best is not None
    # Where the derivative of equation 20 is zero.
    exact_s = BETWEEN_S * (1 + lambertw(-math.exp(-WRITE_S / BETWEEN_S - 1)).real)
    assert best["every_s"] == pytest.approx(exact_s, rel=0.03)
    for key, factor in (("goodput", 1.0), ("tenfold", 0.1), ("tenth", 10.0)):
        assert best[key] == pytest.approx(by_daly(factor * best["every_s"]), rel=0.03)
    assert best == best_checkpoints(churn_of(every="7 steps"), 1.0)  # whatever is written now


def test_the_interval_is_a_step_at_least() -> None:
    best = best_checkpoints(churn_of(), 900.0)
    assert best is not None
    assert best["every_s"] == 900.0
    assert best["goodput"] == pytest.approx(by_daly(900.0), rel=0.03)


def test_single_faults_and_those_that_are_announced_in_time_ask_for_no_more_checkpoints() -> None:
    fault = {"mean_time_between": f"{BETWEEN_S} s", "back_after": "0 s"}
    alone, with_others = (
        best_checkpoints(churn_of(*each), 1.0)
        for each in ((fault,), (fault, fault | {"warning": "40 s"}, {"at": "3 s", "back_after": "1 s"}))
    )
    late = best_checkpoints(churn_of(fault, fault | {"warning": "39 s"}), 1.0)
    assert alone is not None
    assert with_others is not None
    assert late is not None
    # Saved work is a new beginning: the next checkpoint is due later, and fewer are written than without.
    assert with_others["every_s"] == pytest.approx(alone["every_s"], rel=0.1)
    assert late["every_s"] == pytest.approx(alone["every_s"] / math.sqrt(2), rel=0.06)


@pytest.mark.parametrize(
    "churn",
    [
        churn_of(policy="wait"),
        churn_of(write="0 s"),
        churn_of(blocking=False),
        churn_of(write="5000 s"),
        churn_of({"at": "5 s", "back_after": "1 s"}),
        churn_of({"mean_time_between": "1 h", "back_after": "0 s", "warning": "40 s"}),
        replace(churn_of(), checkpoint=None),
    ],
)
def test_elsewhere_nothing_is_said(churn: Churn) -> None:
    assert best_checkpoints(churn, 1.0) is None


def lost_s(churn: Churn, ends_s: list[float], steps: int) -> float:
    """Writing and repeated work of runs on other seeds, with a number of steps between checkpoints."""
    assert churn.checkpoint is not None
    saves = churn.checkpoint.model_copy(update={"every": steps})
    lines = (follow(replace(churn, checkpoint=saves, seed=1000 + k), ends_s, ends_s[-1]) for k in range(10))
    return sum(each.repeated_s + each.writing_s for each in lines)


@pytest.mark.slow
def test_drawn_settings_lose_no_more_than_at_the_simulated_optimum() -> None:
    """In whole steps of a DiLoCo: in 18 of 20, within 2 % of the least of simulated runs beside it."""
    worst = []
    for number in range(20):
        draw = random.Random(number)
        between_s, units = 10 ** draw.uniform(3, 5), draw.choice([1, 2, 8, 64])
        fault = {
            "mean_time_between": f"{between_s * units} s",
            "back_after": f"{between_s * 10 ** draw.uniform(-3, -0.5)} s",
            "shape": draw.choice([0.7, 1.0, 1.0, 2.0]),
        }
        churn = churn_of(
            fault, units=units, seed=number, write=f"{between_s * 10 ** draw.uniform(-3, -1)} s",
            restart=f"{between_s * 10 ** draw.uniform(-3, -1)} s",
        )  # fmt: skip
        compute_s, period = between_s * 10 ** draw.uniform(-3.3, -2), draw.choice([1, 4, 16])
        own_s = [*repeat(compute_s, period - 1), compute_s * draw.uniform(1, 8)]
        step_s = sum(own_s) / period
        ends_s = list(accumulate(chain.from_iterable(repeat(own_s, round(300 * between_s / sum(own_s))))))
        best = best_checkpoints(churn, step_s)
        assert best is not None
        steps = round(best["every_s"] / step_s)
        tried = sorted({max(1, round(steps * each)) for each in (0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0)})
        losses = {each: lost_s(churn, ends_s, each) for each in tried}
        worst.append(losses[steps] / min(losses.values()))
    assert sorted(worst)[17] <= 1.02, worst
