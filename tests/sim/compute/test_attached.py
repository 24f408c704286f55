"""Calibration on a run of training: what it tells comes back, what it does not tell stays neutral."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.realrun.calibration import fit as calibrate
from paceline.realrun.calibration import fit as measured
from paceline.realrun.calibration.training_run import TrainingRun, deviations_s, exchanges_s, record_of
from paceline.sim.compute.attached import MAX_RECORDED_STEPS, AttachedRun
from paceline.sim.config import files
from paceline.sim.drivers.job import JobCollectives
from paceline.sim.errors import InputError
from paceline.sim.network.profile import Profile
from paceline.sim.network.transport import TransferModel
from paceline.sim.records.run import Event, Run, TimeShare
from paceline.sim.scenario.entries import SchemeEntry
from tests.support.factory import make_job, run_events
from tests.support.made_measurements import measurements
from tests.support.made_records import TRUE, nominal, record, training_run, true_job

RING = {"topology": "ring"}


@cache
def fitted(scheme: str = "gossip", num_bytes: int = 400_000) -> calibrate.Fit:
    return calibrate.calibrate([training_run(scheme, RING if scheme == "gossip" else {}, num_bytes)])


def wall_s(profile: Profile, scheme: str, options: dict[str, Any], num_bytes: int) -> float:
    job = true_job(scheme, options, num_bytes, 30)
    transfer = profile.transfer(TransferModel(job.transfer.network))
    return run_events(replace(job, transfer=transfer, collectives=JobCollectives("gloo_ring"))).wall_s


# --- what comes back ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options"), [("gossip", RING), ("all_reduce", {}), ("ad_psgd", {})])
def test_the_same_training_is_predicted(scheme: str, options: dict[str, Any]) -> None:
    profile = fitted(scheme).profile
    expected = run_events(true_job(scheme, options, 400_000, 30)).wall_s
    assert wall_s(profile, scheme, options, 400_000) == pytest.approx(expected, rel=0.01)
    assert profile.hosts.kind == "cluster"
    assert profile.factors["buffer_bytes"].value == 4_000_000


@pytest.mark.slow
def test_two_sizes_tell_the_bandwidth_from_what_every_message_costs() -> None:
    several = [training_run("gossip", RING, size) for size in (40_000, 4_000_000)]
    profile = calibrate.calibrate(several).profile
    found = {name: profile.factors[name].value for name in TRUE}
    assert found["efficiency"] == pytest.approx(TRUE["efficiency"], rel=0.005)

    def per_message_s(f: dict[str, float]) -> float:  # an announcement, and the message itself
        return f["overhead_s"] + 2 * f["added_latency_s"] + f["resume_s"]

    assert per_message_s(found) == pytest.approx(per_message_s(TRUE), rel=0.05)
    assert (profile.range.smallest_bytes, profile.range.largest_bytes) == (40_000, 4_000_000)
    for scheme, options in (("all_reduce", {}), ("local_sgd", {"period": 3})):
        expected = run_events(true_job(scheme, options, 400_000, 30)).wall_s
        assert wall_s(profile, scheme, options, 400_000) == pytest.approx(expected, rel=0.01)


def test_what_a_run_does_not_tell_stays_neutral_with_a_wide_interval() -> None:
    factors = fitted(num_bytes=4_000).profile.factors
    assert factors["copy_s_per_byte"].value == pytest.approx(0.0, abs=1e-11)
    assert factors["copy_s_per_byte"].high > 1e-9
    for name, neutral in (
        ("overhead_s", 0.0),
        ("added_latency_s", 0.0),
        ("resume_s", 0.0),
        ("efficiency", 1.0),
    ):
        factor = factors[name]
        assert factor.low <= TRUE[name] <= factor.high, name
        assert factor.low <= neutral <= factor.high, name
        assert neutral - 0.2 < factor.value < neutral + 0.005 or name == "efficiency"


@pytest.mark.slow
def test_probes_settle_what_a_run_leaves_open() -> None:
    run = training_run("gossip", RING, 400_000)
    probes = measurements({**TRUE, "copy_s_per_byte": 4e-10}, hosts=run.origin.hosts)
    fit = calibrate.calibrate([probes, run])
    for name, value in TRUE.items():
        assert fit.profile.factors[name].value == pytest.approx(value, rel=0.01), name
    assert fit.profile.factors["overhead_s"].measurements == (
        "2026-01-01T00:00:00+00:00: probes of 4 workers",
        "2026-01-01T00:00:00+00:00: 30 steps of gossip in a training loop, 4 workers",
    )


# --- what is taken from a record ----------------------------------------------------------------


def event(operation: str, step: int, start_s: float, end_s: float, **more: Any) -> Event:
    """Of worker 0's main coroutine unless told otherwise."""
    values = {"worker": 0, "task": 0, "handle": -1, "peer_s": start_s, "bytes": 0, "peer": -1, **more}
    return Event(operation=operation, step=step, start_s=start_s, end_s=end_s, **values)


def test_exchanges_count_from_when_all_are_there() -> None:
    events = [
        event("mix", 0, 0.0, 9.0),
        event("gradient", 1, 9.0, 10.0),
        event("mix", 1, 10.0, 14.0, peer_s=12.5),
        event("mix", 1, 14.0, 15.0, peer_s=13.0),
        event("mix", 2, 20.0, 24.0, peer_s=12.5),
        event("send", 2, 20.0, 21.0, task=1),
        event("send", 2, 22.0, 25.0, task=1),
    ]
    assert exchanges_s(events) == {
        (0, "mix", 0, 0): [1.5, 4.0],
        (0, "mix", 0, 1): [1.0],
        (1, "send", 0, 0): [1.0, 3.0],
    }


def with_rows(events: list[Event]) -> TrainingRun:
    found = record("gossip", RING, 40_000)
    rows = tuple(
        (e.worker, e.task, e.handle, e.step, e.operation, e.start_s, e.end_s, e.peer_s, e.bytes, e.peer)
        for e in events
    )
    others = tuple((w, 0, -1, 0, "gradient", 0.0, 1.0, 0.0, 0, -1) for w in range(4))
    return TrainingRun(found.model_copy(update={"rows": rows + others}), nominal(), Path("a.json"))


def test_lateness_is_what_a_step_takes_beside_its_operations() -> None:
    step = [
        event("gradient", 1, 10.0, 12.0),
        event("mix", 1, 12.25, 15.0),
        event("gradient", 2, 15.5, 17.0),
        event("mix", 2, 17.0, 18.0),
        event("gradient", 3, 18.0, 19.0),
    ]
    assert with_rows(step).wake_up_delays_s() == [0.75, 0.0]
    started = [
        event("gradient", 1, 10.0, 14.0, handle=3),
        event("send", 1, 10.5, 12.0),
        event("wait", 1, 12.0, 14.0, handle=3),
        event("gradient", 2, 14.25, 16.0, handle=4),
        event("mix", 2, 14.25, 17.0),
    ]
    assert with_rows(started).wake_up_delays_s() == [0.75]


def test_what_workers_have_in_common_does_not_set_them_apart() -> None:
    durations = {1: (1.0, 1.5), 2: (1.0, 1.5), 3: (4.0, 4.5)}
    events = [
        event("mix", step, 10.0 * step, 10.0 * step + values[worker], worker=worker)
        for step, values in durations.items()
        for worker in (0, 1)
    ]
    # from the middle of their step -0.25 and 0.25; means are 1 s above medians
    assert sorted(deviations_s(events)) == pytest.approx([0.75] * 3 + [1.25] * 3)


def run_of(events: list[Event]) -> Run:
    share = TimeShare(0.0, 0.0, 0.0)
    return Run(
        "gossip", "gossip", 1, "measured", "completed", False, None, 1.0, 1.0, 0, share, (), "", tuple(events)
    )


def test_a_record_has_the_first_steps_that_all_have_done() -> None:
    job = make_job("gossip", RING, workers=2)
    entry = SchemeEntry.model_validate({"gossip": RING})
    events = [
        event("gradient", k, float(k), k + 0.5, worker=w)
        for w in (0, 1)
        for k in range(MAX_RECORDED_STEPS + 9)
    ]
    found = record_of(run_of(events), job, entry)
    assert found is not None
    assert (found.steps, max(e.step for e in found.events)) == (MAX_RECORDED_STEPS, MAX_RECORDED_STEPS - 1)
    short = [e for e in events if e.worker == 0 or e.step < 3]
    partial = record_of(run_of(short), job, entry)
    assert partial is not None
    assert partial.gradients_s() == ((0.5,) * 3,) * 2
    assert record_of(run_of([e for e in events if e.worker == 0]), job, entry) is None


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    files.write_json(record("gossip", RING, 40_000, steps=6), tmp_path / "attached.json")
    return tmp_path / "attached.json"


def test_a_record_is_read_as_it_was_written(path: Path) -> None:
    found = measured.load(path, nominal())
    assert isinstance(found, TrainingRun)
    assert found.record == record("gossip", RING, 40_000, steps=6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 9', "is of another version, or of another kind: 9, not 1"),
        ('"version": 1, ', "", "it has no version"),
        ('"attached run"', '"other run"', "hosts: must be a mapping"),
        ('"bytes_per_parameter": 40', '"bytes_per_parameter": NaN', "is damaged: expected value at line"),
        ('"steps": 6', '"steps": 0', "steps: must be at least 1"),
        ('"steps": 6', '"steps": 3', "has 3 steps; at least 5"),
        ('"gradient"', '"gradients"', "rows: there is no gradient of worker 0"),
        ("[[0, ", "[[7, ", "rows.0: there is no worker 7"),
        ('"gradient", 0', '"gradient", 99', "rows.0: a duration is negative"),
        ('"mix"', '"poll"', "nothing was exchanged"),
        ('"rows": [[', '"rows": [[[], ', "rows.0"),
    ],
)
def test_damaged_records_are_refused(path: Path, old: str, new: str, message: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message) as raised:
        measured.load(path, nominal())
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_truncated_records_are_refused(path: Path) -> None:
    path.write_text(path.read_text()[:-200])
    with pytest.raises(InputError, match="is damaged"):
        measured.load(path, nominal())


def test_the_network_has_to_be_known(path: Path) -> None:
    with pytest.raises(InputError, match="say on what network with --nominal SCENARIO"):
        measured.load(path, None)
    with pytest.raises(InputError, match="has 4 workers, but the nominal cluster has 6"):
        measured.load(path, nominal(6))


def changed(**fields: Any) -> TrainingRun:
    found = AttachedRun.model_validate({**record("gossip", RING, 40_000).model_dump(), **fields})
    return TrainingRun(found, nominal(), Path("attached.json"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheme": {"gosip": {}}}, "attached.json: scheme: .*gosip.*gossip"),
        ({"scheme": {"gossip": {"topology": "torus"}}}, "attached.json: its simulation failed: .*torus"),
        (
            {"scheme": {"all_reduce": {}}},
            r"did 84 mix of 80000 bytes on average, its simulation 0 of 0; calib",
        ),
        ({"bytes_per_parameter": 50.0}, r"mix of 80000 bytes on average, its simulation \d+ of 100"),
    ],
)
def test_a_record_of_something_else_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate.calibrate([changed(**fields)])


@pytest.mark.slow
def test_intervals_of_a_profile_from_a_run_can_be_drawn() -> None:
    profile = fitted().profile
    walls = [wall_s(profile.drawn(seed), "gossip", RING, 400_000) for seed in range(6)]
    expected = wall_s(profile, "gossip", RING, 400_000)
    assert np.std(walls) < 0.02 * expected  # what it leaves open hardly matters to the same training
    assert json.loads(profile.model_dump_json())["workers"] == 4
