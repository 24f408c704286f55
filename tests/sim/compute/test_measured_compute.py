"""How long gradients take on this device: timing them, and other batch sizes from those."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.sim.compute import timing
from paceline.sim.compute.compute_settings import fit_batch_law, seconds_at
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare, resolve, resolved_in
from paceline.sim.experiments.simulate import begin, simulate
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads.workload import Evaluated
from tests.sim.scenario.test_schema import FLAT


def _timer(seconds: Iterator[float]) -> timing.Timer:
    def timer(run: Any) -> float:
        run()
        return next(seconds)

    return timer


def test_the_warm_up_does_not_count_and_a_disturbance_hardly() -> None:
    runs = count()
    seconds = iter([9.0] * timing.WARM_UP_RUNS + [0.25, 0.25, 7.0] * 99)
    assert timing.typical_times_s([lambda: next(runs)], _timer(seconds)) == [0.25]
    # 20 runs come to more than enough seconds
    assert next(runs) == timing.WARM_UP_RUNS + timing.MIN_RUNS


def test_short_runs_are_repeated_until_there_are_enough() -> None:
    runs = count()
    assert timing.typical_times_s([lambda: next(runs)], _timer(iter(lambda: 2**-8, None))) == [2**-8]
    assert next(runs) == timing.WARM_UP_RUNS + 2**8
    runs = count()
    timing.typical_times_s([lambda: next(runs)], _timer(iter(lambda: 1e-6, None)))
    assert next(runs) == timing.WARM_UP_RUNS + timing.MAX_RUNS


def test_several_runs_are_timed_in_turn() -> None:
    order: list[str] = []
    seconds = iter(lambda: 0.5 if order[-1] == "a" else 0.25, None)
    runs = [lambda: order.append("a"), lambda: order.append("b")]
    assert timing.typical_times_s(runs, _timer(seconds)) == [0.5, 0.25]
    assert order == ["a"] * timing.WARM_UP_RUNS + ["b"] * timing.WARM_UP_RUNS + ["a", "b"] * timing.MIN_RUNS


def test_the_host_is_timed_by_its_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([3.0, 5.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert timing.timer_of(torch.device("cpu"))(lambda: None) == 2.5


def test_a_gpu_is_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("synchronize")

        def elapsed_time(self, end: Event) -> float:
            return 4.0  # milliseconds

    monkeypatch.setattr("torch.cuda.Event", Event)
    assert timing.timer_of(torch.device("cuda"))(lambda: log.append("run")) == 0.004
    assert log == ["record", "run", "record", "synchronize"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    monkeypatch.setattr(
        "paceline.sim.experiments.prepare.typical_times_s",
        lambda runs, timer: [(run(), 0.03125)[1] for run in runs],
    )
    return parse(FLAT.replace("{time: 10 ms}", "measured") + "gradients: looped\n")


def test_what_was_measured_stands_in_the_resolved_scenario(measured: Scenario) -> None:
    resolved = resolve(measured, torch.device("cpu"))
    found = resolved.cluster.compute.measured
    assert found is not None
    assert (found.batch_sizes, found.times) == ((32,), (0.03125,))
    assert found.device == timing.device_name(torch.device("cpu"))
    assert prepare(resolved, resolved.schemes[0], 0).compute.duration_s(0, 0) == 0.03125
    again = parse(dump(resolved))
    assert again == resolved
    assert resolve(again, torch.device("cpu")) is again  # nothing is measured twice
    assert resolved_in(dump(resolved), measured) == resolved
    assert resolved_in(dump(resolved), parse(FLAT)) is None
    other = parse(dump(measured), changes=["workload.batch_size=64"])
    assert resolved_in(dump(resolved), other) is None


def test_what_goes_on_is_not_measured_again(
    measured: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, out = torch.device("cpu"), tmp_path / "r"
    with begin(measured, cpu, out) as (resolved, parts):
        run = next(iter(simulate(resolved, parts=parts)))
    monkeypatch.setattr("paceline.sim.experiments.prepare.typical_times_s", None)
    with begin(measured, cpu, out) as (again, parts):
        assert again == resolved
        assert list(parts.kept.values()) == [run]
    other = measured.model_copy(update={"seed": 8})
    with pytest.raises(InputError, match="of another scenario"), begin(other, cpu, out):
        pass


SEVERAL = FLAT.replace("{time: 10 ms}", "{measured: {batch_sizes: [4, 16, 64]}}") + "gradients: looped\n"


def test_other_batch_sizes_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    gradient = TrainingProblem.gradient

    def noted(self: TrainingProblem, worker: int, index: int, point: torch.Tensor) -> Evaluated:
        seen.append(len(self.batches.examples(worker, index)))
        return gradient(self, worker, index, point)

    def typical_times_s(runs: Any, timer: Any) -> list[float]:
        for run in runs:
            run()
        return [0.25, 0.25, 0.5]

    monkeypatch.setattr(TrainingProblem, "gradient", noted)
    monkeypatch.setattr("paceline.sim.experiments.prepare.typical_times_s", typical_times_s)
    resolved = resolve(parse(SEVERAL), torch.device("cpu"))
    assert seen == [4, 16, 64]
    problem = prepare(resolved, resolved.schemes[0], 0).problem
    assert problem is not None
    assert len(problem.batches.examples(0, 0)) == 32  # those of a run are left alone
    assert resolved_in(dump(resolved), parse(SEVERAL)) == resolved
    assert prepare(resolved, resolved.schemes[0], 0).compute.duration_s(0, 0) == pytest.approx(
        seconds_at(32, (4, 16, 64), (0.25, 0.25, 0.5)), rel=1e-12
    )
    larger = parse(dump(resolved), changes=["workload.batch_size=64"])
    assert prepare(larger, larger.schemes[0], 0).compute.duration_s(0, 0) == pytest.approx(0.5, rel=1e-12)


def test_a_batch_size_beyond_the_measured_ones_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "paceline.sim.experiments.prepare.typical_times_s", lambda runs, timer: [0.25] * len(runs)
    )
    resolved = resolve(parse(SEVERAL), torch.device("cpu"))
    told: list[str] = []
    next(iter(simulate(resolved, warn=told.append)))
    assert told == []
    larger = parse(dump(resolved), changes=["workload.batch_size=65", "stop.max_iterations=8"])
    next(iter(simulate(larger, warn=told.append)))
    assert told == ["the time of a gradient at batch size 65 is extrapolated from 4 to 64"]


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (
            "{measured: {batch_sizes: [8]}}",
            "one batch size (8) tells nothing about another (32); measure at two",
        ),
        ("{measured: {batch_sizes: [8, 8]}}", "write them in ascending order, each once"),
        ("{measured: {batch_sizes: [8, 9], times: [1 s]}}", "1 times for 2 batch sizes; give one for each"),
        ("{measured: true, time: 1 s}", "give exactly one of time, speed, trace, measured, model"),
    ],
)
def test_wrong_batch_sizes_are_refused(compute: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse(FLAT.replace("{time: 10 ms}", compute))


# --- prediction at other batch sizes ----------------------------------------------------------------


def test_the_law_is_found_by_hand() -> None:
    # a floor of 3 ms up to 20 examples, then 1 ms + 0.1 ms each
    law = fit_batch_law((1, 10, 30, 50, 100), (3.0, 3.0, 4.0, 6.0, 11.0))
    assert (law.floor_s, law.fixed_s, law.per_example_s) == (3.0, 1.0, 0.1)
    assert seconds_at(20, (1, 10, 30, 50, 100), (3.0, 3.0, 4.0, 6.0, 11.0)) == pytest.approx(3.0)
    assert seconds_at(200, (1, 10, 30, 50, 100), (3.0, 3.0, 4.0, 6.0, 11.0)) == pytest.approx(21.0)


@given(
    st.floats(1e-5, 1e-2),
    st.floats(0, 1e-2),
    st.floats(1e-7, 1e-3),
    st.lists(st.integers(1, 2000), min_size=6, max_size=9, unique=True),
    st.integers(1, 4000),
)
@settings(max_examples=60)
def test_exact_times_give_exact_predictions(
    floor: float, fixed: float, each: float, sizes: list[int], asked: int
) -> None:
    def law(b: int) -> float:
        return max(floor, fixed + each * b)

    sizes = sorted(sizes)
    below = sum(floor > fixed + each * b for b in sizes)
    assume(below in (0, len(sizes)) or len(sizes) - below >= 2)  # one point above the floor is no line
    found = seconds_at(asked, sizes, [law(b) for b in sizes])
    if below < len(sizes) and (below > 0 or asked >= sizes[0]):
        assert found == pytest.approx(law(asked), rel=1e-6)


@given(
    st.lists(st.tuples(st.integers(1, 999), st.floats(1e-6, 10)), min_size=1, max_size=8),
    st.integers(1, 2000),
)
@settings(max_examples=60)
def test_what_was_measured_is_kept_and_every_prediction_is_a_duration(
    measurements: list[tuple[int, float]], asked: int
) -> None:
    known = dict(measurements)
    sizes = sorted(known)
    times = [known[b] for b in sizes]
    for b in sizes:
        assert seconds_at(b, sizes, times) == pytest.approx(known[b], rel=1e-9)
    assert 0 < seconds_at(asked, sizes, times) < math.inf


def test_one_disturbed_time_hardly_counts() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64)
    times = [1.0 + 0.5 * b for b in sizes]
    times[3] *= 3
    law = fit_batch_law(sizes, times)
    assert (law.fixed_s, law.per_example_s) == (1.0, 0.5)


def test_what_cannot_be_measured_is_refused(measured: Scenario) -> None:
    workload = measured.workload.model_copy(update={"timing_only": True})
    timing_only = measured.model_copy(update={"workload": workload})
    with pytest.raises(InputError, match="nothing to measure"):
        resolve(timing_only, torch.device("cpu"))
    with pytest.raises(InputError, match="for a real run write a time"):
        prepare(measured, measured.schemes[0], 0).compute.duration_s(0, 0)
