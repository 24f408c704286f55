"""GPUs of a host as workers, each with links of its own beside the card that they share, in the lab."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from paceline.realrun.calibration import validate
from paceline.realrun.calibration.validate import Validation
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import load, over_transport

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SCENARIO = load(Path(__file__).parents[3] / "scenarios" / "lab" / "gpus.yaml")


@pytest.fixture(scope="module")
def found() -> Validation:
    with validate.processes_for(SCENARIO, lab=True, probing=False) as pool:
        return validate.validate(SCENARIO, pool, None, None, lambda _: None)


def test_gpus_of_hosts_go_through_the_predicted_models(found: Validation) -> None:
    assert [each["same"] for each in found.comparison["trajectories"]] == [True] * 3


@pytest.mark.parametrize("label", [entry.label for entry in SCENARIO.schemes])
def test_gpus_of_hosts_take_about_the_predicted_time(label: str, found: Validation) -> None:
    errors = [abs(cell["error_pct"]) for cell in found.comparison["cells"] if cell["label"] == label]
    assert median(errors) < 10


def test_a_ring_over_all_gpus_would_take_far_longer_than_measured(found: Validation) -> None:
    """So that agreement says something about the hierarchy."""
    flat = over_transport(SCENARIO, "gloo").model_copy(
        update={"collectives": SCENARIO.collectives.model_copy(update={"all_reduce": "gloo_ring"})}
    )
    ring = simulate_job(prepare(flat, flat.schemes[0], flat.seed))
    (measured,) = (run for run in found.measured if run.label == "all_reduce")
    assert ring.wall_clock_s > 1.3 * measured.wall_clock_s
