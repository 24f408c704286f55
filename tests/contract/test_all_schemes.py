"""All registered schemes side by side: none is another one under a second name; the bytes of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.sim.schemes import SCHEMES
from paceline.sim.training.learning_rate import Drops, LearningRate
from paceline.sim.training.optimizer import Sgd
from tests.support.factory import make_job, simulated
from tests.support.quadratics import quadratic_job
from tests.support.scheme_forms import FORMS, SIZE, STEPS, WORKERS, Options

CASES = [
    pytest.param(scheme, options, models, id=" ".join([scheme, *options]))
    for scheme, several in FORMS.items()
    for options, models in several
]


def test_every_registered_scheme_is_here() -> None:
    assert set(FORMS) == set(SCHEMES)


@pytest.mark.parametrize(("scheme", "options", "models"), CASES)
def test_bytes_per_step_are_those_that_are_claimed(scheme: str, options: Options, models: float) -> None:
    """Within 1 %: what else is sent, losses and weights, is small beside a model."""
    job = make_job(
        scheme, options, task="quadratic", task_options={"dimension": SIZE, "examples": 48},
        cv=0.0 if scheme == "sgp" and options.get("asynchronous") else 0.3,  # mass goes on after steps
        workers=WORKERS, momentum=0.0 if scheme == "eamsgd" else 0.9, max_iterations=STEPS, every=STEPS,
        batch_size=4, record_events=False,
    )  # fmt: skip
    models_sent = simulated(job).bytes_sent / WORKERS / STEPS / (4 * SIZE)
    assert models_sent == pytest.approx(models, rel=0.01)


@pytest.mark.slow
def test_no_scheme_is_another_one() -> None:
    """From the same data, in the same times, each ends at models of its own, to the last form of each.

    Bits may be equal only where a form is about how the same is sent. The learning rate falls, so that the
    adaptive period has a reason to move.
    """
    ends: dict[str, str] = {}
    for scheme, several in FORMS.items():
        for options, _ in several:
            if options.get("overlap") is True or options == {"part_reduce": True}:
                continue
            job = quadratic_job(scheme, options, workers=WORKERS, max_iterations=32, cv=0.3, every=32)
            drops = LearningRate(drops=Drops.model_validate({"at": ("12 steps",)}))
            job = replace(job, optimizer=Sgd(0.1, 0.0 if scheme == "eamsgd" else 0.9, schedule=drops))
            if scheme == "adaptive_local_sgd":
                job = replace(job, options=SCHEMES[scheme].options(**{**options, "calibration": 8}))
            ends[f"{scheme} {options}"] = simulated(job).digest
    same = [(a, b) for a in ends for b in ends if a < b and ends[a] == ends[b]]
    assert same == []
