"""All registered schemes side by side: none is another one under a second name; the bytes of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import COLLECTIVES
from paceline.sim.schemes import SCHEMES
from paceline.sim.training.learning_rate import Drops, LearningRate
from paceline.sim.training.optimizer import Sgd
from tests.support.factory import make_job, simulated
from tests.support.quadratics import quadratic_job
from tests.support.scheme_forms import DISTINCT, FORMS, SIZE, STEPS, WORKERS, Form, one_each


@pytest.mark.parametrize("name", SCHEMES)
def test_every_registered_scheme_has_forms_with_claims(name: str) -> None:
    forms = [form for form in FORMS if form.scheme == name]
    assert any(form.models_sent is not None and not form.alike for form in forms), (
        "add a form with the models that it sends to tests/support/scheme_forms.py"
    )
    assert all(form.models_sent is not None for form in forms if form.synchronous)
    assert all(form.fits(WORKERS) for form in forms)


@pytest.mark.parametrize("form", one_each([form for form in FORMS if form.models_sent is not None]))
def test_bytes_per_step_are_those_that_are_claimed(form: Form) -> None:
    """Within 1 %: what else is sent, losses and weights, is small beside a model."""
    job = make_job(
        form.scheme, form.options, task="quadratic", task_options={"dimension": SIZE, "examples": 48},
        cv=0.0 if form.scheme == "sgp" and not form.synchronous else 0.3,  # mass goes on after steps
        workers=WORKERS, momentum=form.momentum, max_iterations=STEPS, every=STEPS, batch_size=4,
        record_events=False,
    )  # fmt: skip
    run = simulated(job)
    assert run.bytes_sent / WORKERS / STEPS / (4 * SIZE) == pytest.approx(form.models_sent, rel=0.01)
    assert job.scheme.collectives(job.options) or not set(run.exchanges or ()) & set(
        map(ops.name_of, COLLECTIVES)
    )


@pytest.mark.slow
def test_no_scheme_is_another_one() -> None:
    """From the same data, in the same times, each ends at models of its own, to the last form of each.

    Bits may be equal only where a form is about how the same is sent, or how long it takes. The learning rate
    falls, so that the adaptive period has a reason to move.
    """
    ends: dict[str, str] = {}
    for form in DISTINCT:
        if form.scheme == "sharded" or {"overlap", "part_reduce", "buffers", "round"} & form.options.keys():
            continue
        job = quadratic_job(form.scheme, form.options, workers=WORKERS, max_iterations=32, cv=0.3, every=32)
        drops = LearningRate(drops=Drops.model_validate({"at": ("12 steps",)}))
        job = replace(job, optimizer=Sgd(0.1, form.momentum, schedule=drops))
        if "calibration" in form.options:
            options = {**form.options, "calibration": 8}
            job = replace(job, options=SCHEMES[form.scheme].options(**options))
        ends[str(form)] = simulated(job).digest
    same = [(a, b) for a in ends for b in ends if a < b and ends[a] == ends[b]]
    assert same == []
