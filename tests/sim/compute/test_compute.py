"""How long computations last: hand-computed cases, and laws of the draws."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim import seeds
from paceline.sim.compute.compute_settings import Compute, Straggler
from paceline.sim.compute.model import ComputeModel
from paceline.sim.compute.traces import read_durations
from paceline.sim.config import files
from paceline.sim.errors import InputError
from paceline.sim.jitter import Jitter
from paceline.sim.scenario.schema import dump, load, parse
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import make_job, run_events
from tests.support.made_records import record


def model(compute: Any, *stragglers: Any, seed: int = 1) -> ComputeModel:
    found = tuple(Straggler.model_validate(each) for each in stragglers)
    return ComputeModel(Compute.model_validate(compute), found, seed)


def durations(found: ComputeModel, worker: int = 0, blocks: int = 400) -> np.ndarray[Any, Any]:
    return np.concatenate([found.block_s(worker, block) for block in range(blocks)])


@pytest.mark.parametrize(
    "compute",
    [
        {"time": "2 s"},
        {"time": "2 s", "jitter": {"lognormal": {"cv": 0.3}}},
        {"time": "2 s", "jitter": {"gamma": {"cv": 0.3}}},
        {"time": "2 s", "jitter": {"shifted_exponential": {"cv": 0.3}}},
        {"time": "2 s", "jitter": {"pareto": {"shape": 3}}},
        {"trace": {"durations": ["1 s", "2 s", "3 s"]}},
        {"model": "tests.support.own_models:about_one"},
    ],
    ids=str,
)
def test_all_workers_at_once_take_as_long_as_each_alone(compute: Any) -> None:
    """To the bit: whoever draws for all workers draws from each worker's own stream."""
    drawn = model(
        compute, {"workers": [1], "slowdown": 3.0}, {"probability": 0.1, "slowdown": 2.0, "pause": "1 s"}
    )
    for block in (0, 3):
        together = drawn.blocks_s(range(5), block)
        for worker in range(5):
            alone = [drawn.duration_s(worker, block * seeds.BLOCK + index) for index in range(seeds.BLOCK)]
            assert together[worker].tolist() == alone


def test_draws_are_those_of_a_fresh_generator() -> None:
    jitter = Jitter.model_validate({"lognormal": {"cv": 0.3}})
    variance = math.log1p(0.3**2)
    for worker in (0, 7):
        normals = seeds.generator(5, worker, "compute", 2).standard_normal(seeds.BLOCK)
        expected = np.exp(math.sqrt(variance) * normals - variance / 2)
        assert jitter.factors_of(5, range(9), "compute", 2)[worker].tolist() == expected.tolist()


# --- distributions ----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.sampled_from(["lognormal", "gamma", "shifted_exponential"]), st.floats(0.05, 0.9), st.integers(0))
def test_jitter_has_the_mean_and_the_cv_that_it_claims(kind: str, cv: float, seed: int) -> None:
    drawn = durations(model({"time": "2 s", "jitter": {kind: {"cv": cv}}}, seed=seed))
    assert drawn.min() > 0
    # 102,400 draws: the mean is known to cv / 320; six standard deviations
    assert drawn.mean() == pytest.approx(2, rel=6 * cv / math.sqrt(drawn.size))
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.1)


@settings(max_examples=10)
@given(st.floats(4.5, 20), st.integers(0, 99))
def test_pareto_has_the_mean_the_cv_and_the_tail_of_its_shape(shape: float, seed: int) -> None:
    drawn = durations(model({"time": "1 s", "jitter": {"pareto": {"shape": shape}}}, seed=seed))
    cv = 1 / math.sqrt(shape * (shape - 2))
    least = (shape - 1) / shape
    assert drawn.min() >= least * (1 - 1e-12)
    assert drawn.mean() == pytest.approx(1, rel=6 * cv / math.sqrt(drawn.size))
    assert drawn.std() == pytest.approx(cv, rel=0.35)
    assert (drawn > 2 * least).mean() == pytest.approx(2**-shape, abs=0.01)


def test_a_heavy_pareto_tail_is_allowed() -> None:
    drawn = durations(model({"time": "1 s", "jitter": {"pareto": {"shape": 1.5}}}), blocks=40)
    assert drawn.max() > 20 * np.median(drawn)


def test_a_trace_gives_its_durations_equally_often() -> None:
    drawn = durations(model({"trace": {"durations": ("1 s", "2 s", "5 s")}}), blocks=100)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [1.0, 2.0, 5.0]
    assert counts.min() > 0.95 * drawn.size / 3
    other = durations(model({"trace": {"durations": ("1 s", "2 s", "5 s")}}), worker=1, blocks=100)
    assert (drawn == other).mean() == pytest.approx(1 / 3, abs=0.02)


def test_workers_go_through_their_own_durations_in_order() -> None:
    lists = (("9 s", "1 s", "2 s", "3 s"), ("9 s", "10 s", "20 s", "30 s"))
    found = [model({"trace": {"workers": lists}}, seed=seed) for seed in range(8)]
    for each in found:
        own = [each.duration_s(0, k) for k in range(600)]
        assert own[0] == 9.0
        assert own[1:] == (own[1:4] * 200)[:599]
        assert own[1:4] in ([1.0, 2.0, 3.0], [2.0, 3.0, 1.0], [3.0, 1.0, 2.0])
        assert [each.duration_s(1, k) for k in range(1, 600)] == [10 * value for value in own[1:]]
        assert [each.duration_s(2, k) for k in range(600)] == own
    assert {each.duration_s(0, 1) for each in found} == {1.0, 2.0, 3.0}
    assert [model({"trace": {"workers": (("5 s",),)}}).duration_s(0, k) for k in (0, 1, 7)] == [5.0] * 3


def test_a_record_of_attach_gives_every_worker_its_own(tmp_path: Path) -> None:
    found = record("gossip", {"topology": "ring"}, 40_000, steps=6)
    files.write_json(found, tmp_path / "attached.json")
    (tmp_path / "s.yaml").write_text(FLAT.replace("{time: 10 ms}", "{trace: {attached: attached.json}}"))
    scenario = load(tmp_path / "s.yaml")
    assert scenario.cluster.compute.trace is not None
    assert scenario.cluster.compute.trace.workers == found.gradients_s()
    text = dump(scenario)
    (tmp_path / "attached.json").unlink()
    assert parse(text) == scenario
    (tmp_path / "attached.json").write_text("{")
    with pytest.raises(
        InputError, match=r"s.yaml:8: cluster.compute.trace.attached: .*attached.json: is damaged"
    ):
        load(tmp_path / "s.yaml")


def test_a_function_of_the_users_draws_the_same_whenever_it_is_asked() -> None:
    found = model({"model": "tests.support.own_models:soon"}, {"workers": (1,), "slowdown": 2})
    drawn = [found.duration_s(0, k) for k in range(300)]
    assert {value - k / 16 for k, value in enumerate(drawn)} == {0.0, 1.0}
    assert [found.duration_s(0, k) for k in reversed(range(300))] == drawn[::-1]
    assert found.duration_s(1, 0) in (2.0, 4.0)


# --- stragglers -------------------------------------------------------------------------------------


def test_who_when_and_how_much() -> None:
    found = model(
        {"time": "1 s"},
        {"workers": (1,), "slowdown": 3},
        {"workers": (0, 1), "at": "2 steps", "duration": "3 steps", "slowdown": 2},
        {"at": "4 steps", "pause": "10 s"},
    )
    assert [found.duration_s(0, k) for k in range(7)] == [1, 1, 2, 2, 2 + 10, 1, 1]
    assert [found.duration_s(1, k) for k in range(7)] == [3, 3, 6, 6, 6 + 10, 3, 3]
    assert [found.duration_s(2, k) for k in range(7)] == [1, 1, 1, 1, 1 + 10, 1, 1]


def test_a_period_may_reach_into_the_next_block() -> None:
    at = seeds.BLOCK - 2
    found = model({"time": "1 s"}, {"at": f"{at} steps", "duration": "4 steps", "slowdown": 2})
    assert [found.duration_s(0, at + k) for k in range(-1, 6)] == [1, 2, 2, 2, 2, 1, 1]


@settings(max_examples=20)
@given(st.floats(0.001, 0.3), st.integers(1, 600), st.integers(0, 99))
def test_slow_periods_last_as_long_as_they_should(chance: float, duration: int, seed: int) -> None:
    rule = {"probability": chance, "duration": f"{duration} steps", "slowdown": 2.0}
    drawn = durations(model({"time": "1 s"}, rule, seed=seed), blocks=12) == 2
    # directly from the numbers: slow where one of the last `duration` draws was below the chance
    u = np.concatenate([seeds.uniforms(seed, 0, "straggler 0", block) for block in range(12)])
    expected = [(u[max(0, k - duration + 1) : k + 1] < chance).any() for k in range(u.size)]
    assert drawn.tolist() == expected


@settings(max_examples=20)
@given(st.integers(2, 60), st.integers(2, 400), st.integers(0, 99))
def test_markov_states_do_not_depend_on_the_order_of_asking(slow: int, fast: int, seed: int) -> None:
    rule = {"markov": {"slow": f"{slow} steps", "fast": f"{fast} steps"}, "slowdown": 2.0}
    blocks = 20
    drawn = durations(model({"time": "1 s"}, rule, seed=seed), blocks=blocks)
    late_first = model({"time": "1 s"}, rule, seed=seed)
    again = [late_first.block_s(0, block) for block in reversed(range(blocks))]
    assert np.array_equal(np.concatenate(again[::-1]), drawn)
    # and are those of the chain followed step by step
    u = np.concatenate([seeds.uniforms(seed, 0, "straggler 0", block) for block in range(blocks)])
    state = seeds.uniform(seed, 0, "straggler 0 start", 0) < (1 / fast) / (1 / fast + 1 / slow)
    for k in range(u.size):
        state = True if u[k] < 1 / fast else False if u[k] >= 1 - 1 / slow else state
        assert (drawn[k] == 2) == state


@pytest.mark.parametrize(("slow", "fast"), [(2, 2), (5, 40), (100, 300)])
def test_markov_periods_have_their_mean_lengths(slow: int, fast: int) -> None:
    rule = {"markov": {"slow": f"{slow} steps", "fast": f"{fast} steps"}, "slowdown": 2.0}
    found = model({"time": "1 s"}, rule)
    is_slow = np.concatenate([durations(found, worker, 200) for worker in range(10)]) == 2
    assert is_slow.mean() == pytest.approx(slow / (slow + fast), rel=0.1)
    changes = np.flatnonzero(np.diff(is_slow))
    lengths = [b - a for a, b in pairwise(changes) if is_slow[b]]
    assert np.mean(lengths) == pytest.approx(slow, rel=0.1)


def test_markov_starts_in_its_stationary_state() -> None:
    rule = {"markov": {"slow": "30 steps", "fast": "10 steps"}, "slowdown": 2.0}
    first = [model({"time": "1 s"}, rule, seed=seed).duration_s(0, 0) for seed in range(2000)]
    assert np.mean(np.array(first) == 2) == pytest.approx(0.75, abs=0.04)


def test_a_pause_holds_up_the_others_for_as_long() -> None:
    from dataclasses import replace

    job = make_job("all_reduce", workers=4, max_iterations=3)
    paused = replace(job, compute=model({"time": "1 s"}, {"workers": (2,), "at": "1 steps", "pause": "5 s"}))
    outcome = run_events(paused)
    assert outcome.wall_s == 3 + 5
    assert [a.share(8.0).wait for a in outcome.breakdowns] == [5.0, 5.0, 0.0, 5.0]


# --- files ------------------------------------------------------------------------------------------


def test_csv_with_the_unit_in_the_header_or_in_the_cells(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("# warm\nstep, time [ms]\n1, 50\n2, 51.5\n\n3, 49\n")
    assert read_durations(path, "time", "") == [0.05, 0.0515, 0.049]
    path.write_text("time\n50 ms\n2 s\n")
    assert read_durations(path, None, "") == [0.05, 2.0]


WRONG_FILES = {
    "time\n50\n": "{path}:2: time: '50' has no unit; write for example '50 ms'",
    "time [ms]\n": "{path}: needs a header line and at least one row",
    "time [ms]\n1\n1,2\n": "{path}:3: has 2 cells, the header has 1",
    "a,b\n1,2\n": "{path}: has 2 columns; name one of 'a', 'b'",
    "a,a\n1,2\n": "{path}:1: two columns are called 'a'",
    "time [ms]\n1\n0\n": "{path}:3: time: '0 ms' must be more than 0",
    "time [ms]\n1\n\nx\n": "{path}:4: time: 'x ms' is not a number with a unit; write for example '50 ms'",
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.items())
def test_wrong_files_are_named_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_durations(path, None, "")
    assert str(caught.value) == message.format(path=path)


def test_of_a_long_file_every_kth_duration_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("time [s]\n" + "\n".join(str(k + 1) for k in range(10_000)))
    found = read_durations(path, None, "")
    assert found == [1.0 + 3 * k for k in range(3334)]


def test_a_torch_profiler_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            with torch.profiler.record_function("backward"):
                torch.ones(3).sum()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    path = path.rename(tmp_path / "TRACE.JSON")
    backward = read_durations(path, None, "backward")
    assert len(backward) == 4
    assert all(0 < each < 60 for each in backward)
    with pytest.raises(InputError, match=r"has no event 'backwards'; did you mean 'backward'\?"):
        read_durations(path, None, "backwards")


def test_only_whole_events_of_the_host_count(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events: list[Any] = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{k}", "ts": 0, "dur": 1000.0 * k}
        for k in (1, 2)
    ]
    events += [
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 7.0},
        {"ph": "B", "name": "ProfilerStep#3", "ts": 0},
        {"ph": "M"},
        "junk",
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert read_durations(path, None, "ProfilerStep") == [0.001, 0.002]
    for text, message in {
        "{": "not valid JSON",
        "{}": "is no profiler's trace",
        "[]": "it has no complete events of the host",
    }.items():
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_durations(path, None, "ProfilerStep")


def test_the_resolved_scenario_has_the_contents_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("time [ms]\n50\n0.1\n70\n")
    (tmp_path / "s.yaml").write_text(FLAT.replace("{time: 10 ms}", "{trace: {file: steps.csv}}"))
    found = load(tmp_path / "s.yaml")
    assert found.cluster.compute.trace is not None
    assert found.cluster.compute.trace.durations == (0.05, 1e-4, 0.07)
    text = dump(found)
    (tmp_path / "steps.csv").unlink()
    assert parse(text) == found


def test_an_error_in_the_file_is_one_in_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("time [ms]\n50\nfifty\n")
    (tmp_path / "s.yaml").write_text(FLAT.replace("{time: 10 ms}", "{trace: {file: steps.csv}}"))
    with pytest.raises(InputError) as caught:
        load(tmp_path / "s.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/s.yaml:8: cluster.compute.trace.file: {tmp_path}/steps.csv:3: time: "
        "'fifty ms' is not a number with a unit; write for example '50 ms'"
    )
