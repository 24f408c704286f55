"""Scenarios that price measured curves: hand-computed times, and a folder's own curves priced again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import paceline
from paceline.sim.errors import InputError
from paceline.sim.records.run import OTHER_CLOCK, Run
from paceline.sim.scenario.schema import dump, parse

SCENARIO = """\
name: priced
workload: {curves: a.csv, batch_size: 32, payload: 125 MB}
cluster:
  workers: 2
  compute: {time: 100 ms}
  network: {latency: 10 ms, bandwidth: 1 Gbit/s, sharing: none}
schemes: [all_reduce, local_sgd: {period: 4}]
stop: {target: {metric: loss, value: 1.0}, max_iterations: 12}
collectives: {all_reduce: ring}
"""
HEADER = "scheme,step,loss,workers,batch_size\n"
STEP_S = 0.1 + 2 * 0.5 + 0.01
"""A gradient, and two rounds of half a model each: in pieces, so that one latency shows."""


def priced(tmp_path: Path, rows: str, *changes: str) -> paceline.Study:
    (tmp_path / "a.csv").write_text(HEADER + "".join(f"{row},2,32\n" for row in rows.split()))
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return paceline.simulate(tmp_path / "s.yaml", changes=changes, jobs=1, progress=False)


DENSE = "all_reduce,0,3 all_reduce,2,0.9 all_reduce,4,1.5 all_reduce,6,0.9 all_reduce,8,0.8 all_reduce,12,0.7"
SPARSE = "local_sgd,0,3 local_sgd,4,1.2 local_sgd,8,1.0 local_sgd,12,0.9"


def test_times_are_those_of_the_clock_at_the_curves_points(tmp_path: Path) -> None:
    first, second = priced(tmp_path, f"{DENSE} {SPARSE}").runs
    # At step 2 the noisy curve is below by chance: with what follows its mean is 1.2.
    assert first.time_to_target_s == pytest.approx(6 * STEP_S)
    assert first.bracket_s == pytest.approx((4 * STEP_S, 6 * STEP_S))
    assert first.steps_between == pytest.approx((0, 6))
    assert [e.metrics["loss"] for e in first.evaluations] == [3, 0.9, 1.5, 0.9]
    assert second.time_to_target_s == pytest.approx(8 * 0.1 + 2 * (STEP_S - 0.1))
    assert second.met is not None
    assert (second.met.step, second.met.metrics) == (8, {"loss": 1.0})


@pytest.mark.parametrize("later", ["", " local_sgd,10,0.9", " local_sgd,10,0.7"])
def test_a_rising_score_and_one_that_is_not_finite(later: str, tmp_path: Path) -> None:
    rows = "all_reduce,4,0.5 all_reduce,8,0.8 local_sgd,4,0.6 local_sgd,8,nan" + later
    changes = ["stop.target.value=0.8", "workload.curves={file: a.csv, falls: false}"]
    study = priced(tmp_path, rows, *changes)
    first, second = study.runs
    assert first.time_to_target_s == pytest.approx(8 * STEP_S)
    assert (second.status, second.time_to_target_s) == ("diverged", None)
    # A history of all columns has NaN where nothing was scored.
    again = ", and finite again at step 10: leave a cell empty where nothing was scored" if later else ""
    assert second.message == f"loss is not finite at step 8 of its curve{again}"


def test_a_target_that_first_scores_meet_is_said(tmp_path: Path) -> None:
    study = priced(tmp_path, f"{DENSE} {SPARSE}", "stop.target.value=3.5")
    assert [run.time_to_target_s for run in study.runs] == [0, 0]
    assert all(run.message.startswith("the first models meet the target") for run in study.runs)
    assert "settled" in study.totals["verdict"]
    resumed = priced(tmp_path, f"all_reduce,0,0.9 all_reduce,4,0.8 {SPARSE}")
    assert resumed.totals["verdict"]["text"] == "all_reduce first, which meets the target from the start"


def test_a_file_of_several_runs_is_named_once(tmp_path: Path) -> None:
    runs = "{file: a.csv, run: all_reduce}, {file: a.csv, run: local_sgd}"
    (tmp_path / "a.csv").write_text(
        HEADER.replace("scheme", "run") + "".join(f"{row},2,32\n" for row in f"{DENSE} {SPARSE}".split())
    )
    (tmp_path / "s.yaml").write_text(SCENARIO)
    study = paceline.simulate(
        tmp_path / "s.yaml", changes=[f"workload.curves=[{runs}]"], jobs=1, progress=False
    )
    assert "(loss 1 in a.csv, noise" in study.totals["verdict"]["break_even"]["text"]


def test_the_verdict_names_the_curves_and_their_one_seed(tmp_path: Path) -> None:
    study = priced(tmp_path, f"{DENSE} {SPARSE}")
    verdict = study.totals["verdict"]
    said = "these curves say 1.33, 0.67 to 8.0 by their points and noise, too close to tell"
    assert f"{said} (loss 1 in a.csv, noise smoothed, one seed: no interval)" in verdict["break_even"]["text"]
    assert study.totals["proxy"].startswith("Nothing was trained")


def test_a_resolved_scenario_holds_the_curves(tmp_path: Path) -> None:
    study = priced(tmp_path, f"{DENSE} {SPARSE}")
    study.save(tmp_path / "out")
    text = (tmp_path / "out" / "scenario.yaml").read_text()
    (tmp_path / "a.csv").unlink()
    again = parse(text)
    assert dump(again) == text
    assert paceline.simulate(again, jobs=1, progress=False).runs == study.runs


def test_an_asynchronous_curve_is_marked(tmp_path: Path) -> None:
    rows = SPARSE.replace("local_sgd", "ad_psgd") + " " + SPARSE
    study = priced(tmp_path, rows, "schemes=[ad_psgd, local_sgd: {period: 4}]")
    messages = {run.label: run.message for run in study.runs}
    assert messages == {"ad_psgd": OTHER_CLOCK, "local_sgd": ""}
    assert "ad_psgd's curve is of another clock" in study.totals["verdict"]["break_even"]["text"]


def test_a_sweep_prices_curves_on_every_network(tmp_path: Path) -> None:
    priced(tmp_path, f"{DENSE} {SPARSE}")
    grid = {"cluster.network.bandwidth": ["1 Gbit/s", "10 Gbit/s"]}
    sweep = paceline.sweep(tmp_path / "s.yaml", grid, jobs=1, progress=False)
    assert [study.runs[0].time_to_target_s for study in sweep.studies] == pytest.approx(
        [6 * STEP_S, 6 * (0.1 + 2 * 0.05 + 0.01)]
    )


TRAINED = """\
name: trained
workload: {task: logistic, batch_size: 8, optimizer: {lr: 0.2}, payload: 3 MB}
cluster:
  workers: 4
  compute: {time: 20 ms, jitter: {lognormal: {cv: CV}}}
  network: {latency: 3 ms, bandwidth: 400 Mbit/s}
evaluate: {every: EVERY steps}
schemes: SCHEMES
repeats: 2
seed: 5
stop: {target: {metric: train_loss, value: 1.2}, max_iterations: MOST}
gradients: looped
"""
SCHEMES = (
    "all_reduce", "{all_reduce: {overlap: true, bucket: 1 MB, label: overlap}}", "{local_sgd: {period: 4}}",
    "{gossip: {topology: ring}}", "{gossip: {topology: complete, label: complete}}", "{diloco: {period: 6}}",
    "{slowmo: {period: 5}}", "{gradient_tracking: {topology: ring}}",
    "{local_sgd: {period: 7, label: seven}}",
)  # fmt: skip


def trained(cv: float, every: int, most: int, schemes: Sequence[str]) -> str:
    values = {"CV": str(cv), "EVERY": str(every), "MOST": str(most), "SCHEMES": f"[{', '.join(schemes)}]"}
    text = TRAINED
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def check_same_times(first: Sequence[Run], again: Sequence[Run]) -> None:
    for a, b in zip(first, again, strict=True):
        assert (a.label, a.seed) == (b.label, b.seed)
        expected = None if a.time_to_target_s is None else pytest.approx(a.time_to_target_s, rel=1e-9)
        assert b.time_to_target_s == expected


@pytest.mark.slow
@settings(max_examples=7, phases=[Phase.explicit, Phase.generate])
@example(cv=1.0, every=11, most=84, schemes=["{gossip: {topology: ring}}", "{local_sgd: {period: 7}}"])
@given(
    cv=st.sampled_from([0.0, 0.3, 1.0]),
    every=st.integers(1, 30),
    most=st.integers(20, 90),
    schemes=st.lists(st.sampled_from(SCHEMES), min_size=1, max_size=4, unique=True),
)
def test_a_folders_own_curves_priced_again_give_its_times(
    cv: float, every: int, most: int, schemes: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        first = paceline.simulate(parse(trained(cv, every, most, schemes)), jobs=1, progress=False)
        first.save(Path(folder) / "first")
        changes = [f"workload.curves={folder}/first"]
        again = paceline.simulate(
            parse(trained(cv, every, most, schemes)), changes=changes, jobs=1, progress=False
        )
        check_same_times(first.runs, again.runs)


def test_a_folders_own_curves_on_its_own_clock(tmp_path: Path) -> None:
    text = trained(1.0, 9, 60, ["{gossip: {topology: ring}}", "{local_sgd: {period: 7}}"])
    first = paceline.simulate(parse(text), jobs=1, progress=False)
    first.save(tmp_path / "first")
    own = f"workload.curves={tmp_path}/first"
    again = paceline.simulate(parse(text), changes=[own], jobs=1, progress=False)
    check_same_times(first.runs, again.runs)
    assert all(run.reached_target for run in again.runs)


def test_another_task_rate_or_scored_model_than_the_folders_is_refused(tmp_path: Path) -> None:
    text = trained(0.3, 10, 60, ["{local_sgd: {period: 4}}"])
    paceline.simulate(parse(text), jobs=1, progress=False).save(tmp_path / "first")
    own = f"workload.curves={tmp_path}/first"
    for change, named in (
        ("workload.optimizer.lr=0.1", "workload.optimizer"),
        ("workload.partition={kind: dirichlet, alpha: 0.1}", "workload.partition"),
        ("schemes.0.local_sgd.period=8", "period 4"),
        ("cluster.workers=2", "workers 4"),
        ("evaluate.on=workers", "evaluate.on published"),
    ):
        with pytest.raises(InputError, match=f"was measured with {named}"):
            parse(text, changes=[own, change])
    plain = parse(
        text, changes=[own, "workload={curves: " + f"{tmp_path}/first" + ", batch_size: 8, payload: 3 MB}"]
    )
    assert len(paceline.simulate(plain, jobs=1, progress=False).runs) == 2


# Inputs that went wrong, by the kind of mistake.
ONE_STEP_OFF = """\
all_reduce,0,10.94 all_reduce,100,2.05 all_reduce,200,1.79 all_reduce,300,1.68
local_sgd,0,10.95 local_sgd,101,2.19 local_sgd,201,1.87 local_sgd,301,1.78
"""
AT_1_9 = ("stop.target.value=1.9", "stop.max_iterations=292")


def test_curves_one_step_apart_reach_a_target_that_both_pass(tmp_path: Path) -> None:
    first, second = priced(tmp_path, ONE_STEP_OFF, *AT_1_9).runs
    assert [run.met and run.met.step for run in (first, second)] == [200, 201]
    assert [run.steps_between for run in (first, second)] == [(100, 200), (101, 201)]
    # Between two points a curve is straight: at 1.74 after 245 steps, at 1.85 after 223.
    first, second = priced(tmp_path, ONE_STEP_OFF, "stop.target.value=1.74", "stop.max_iterations=292").runs
    assert first.time_to_target_s == pytest.approx(292 * STEP_S)
    assert second.time_to_target_s is None


@pytest.mark.parametrize(("most", "reached"), [(157, [True, True]), (158, [True, True]), (79, [False] * 2)])
def test_logs_by_tokens_run_to_their_last_step(most: int, reached: list[bool], tmp_path: Path) -> None:
    rows = "all_reduce,0,3 all_reduce,5032.32,1.2 all_reduce,10068.48,0.9 "
    rows += "local_sgd,0,3 local_sgd,5033,1.3 local_sgd,10069,0.95"
    text = HEADER.replace("step", "examples") + "".join(f"{row},2,32\n" for row in rows.split())
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    changes = [f"stop.max_iterations={most}"]
    runs = paceline.simulate(tmp_path / "s.yaml", changes=changes, jobs=1, progress=False).runs
    assert [run.reached_target for run in runs] == reached


def test_a_score_that_is_not_finite_is_no_divergence_unless_it_decides(tmp_path: Path) -> None:
    lines = [f"{row},{'inf' if ',0,' in row else 1.5},2,32" for row in ONE_STEP_OFF.split()]
    (tmp_path / "a.csv").write_text("\n".join(["scheme,step,loss,grad_norm,workers,batch_size", *lines]))
    (tmp_path / "s.yaml").write_text(SCENARIO)
    for changes in ([*AT_1_9], ["stop={max_iterations: 292}"]):  # without a target the loss decides too
        study = paceline.simulate(tmp_path / "s.yaml", changes=changes, jobs=1, progress=False)
        assert {run.status for run in study.runs} == {"completed"}


@pytest.mark.parametrize(
    ("metric", "scores", "value", "reached"),
    [
        ("acc", "0.1 0.5 0.7 0.8; 0.2 0.1 0.1 0.1", 0.6, [2, None]),
        ("accuracy", "0.1 0.5 0.7 0.8; 0.2 0.1 0.1 0.1", 0.6, [2, None]),
        ("eval_loss", "1.95 1.86 1.80 2.05; 1.95 1.9 1.86 1.85", 1.82, [2, None]),
        ("perplexity", "9 8 7 9.5; 9 8 6 9.1", 7.5, [2, 2]),
        ("top1_error", "0.9 0.3 0.5 0.95; 0.9 0.4 0.3 0.2", 0.35, [1, 2]),
        ("fitness", "1 2 3 4; 1 2 2.5 3", 2.6, [2, 3]),
    ],
)
def test_a_known_name_decides_whether_a_score_falls(
    metric: str, scores: str, value: float, reached: list[int | None], tmp_path: Path
) -> None:
    study = direction(tmp_path, metric, scores, value)
    assert [run.met and run.met.step for run in study.runs] == reached


def direction(tmp_path: Path, metric: str, scores: str, value: float, *changes: str) -> paceline.Study:
    curves = zip(("all_reduce", "local_sgd"), scores.split("; "), strict=True)
    lines = [f"{label},{k},{x},2,32" for label, each in curves for k, x in enumerate(each.split())]
    (tmp_path / "a.csv").write_text("\n".join([HEADER.strip().replace("loss", metric), *lines]))
    (tmp_path / "s.yaml").write_text(SCENARIO)
    changes = (f"stop={{target: {{metric: {metric}, value: {value}}}, max_iterations: 3}}", *changes)
    return paceline.simulate(tmp_path / "s.yaml", changes=changes, jobs=1, progress=False)


@pytest.mark.parametrize(
    "scores", ["1 2 3 4; 4 3 2 1", "1.95 1.86 1.80 2.05; 1.95 1.9 1.85 1.8", "2 2 2 2; 2 2 2 2"]
)
def test_curves_that_disagree_about_a_name_that_says_nothing_are_refused(scores: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stop\.target\.metric: .* whether 'score' .* write 'falls: true'"):
        direction(tmp_path, "score", scores, 2.0 if scores[0] == "2" else 1.82)
    file = "workload.curves={file: a.csv, falls: true}"
    assert direction(tmp_path, "score", scores, 1.82, file).runs[0].status == "completed"


LABELS = ("all_reduce", "local_sgd", "slowmo")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_curves_stand_for_themselves(data: st.DataObject) -> None:
    """A third log changes nothing of two others; a log that is a step off is met at most that step off."""
    scores = st.lists(st.integers(5, 30).map(lambda x: x / 10), min_size=2, max_size=6)
    steps = st.lists(st.integers(1, 11), min_size=1, max_size=5, unique=True).map(lambda x: [0, *sorted(x)])

    drawn = {label: list(zip(data.draw(steps), data.draw(scores), strict=False)) for label in LABELS}

    def log(label: str, shift: int = 0) -> str:
        return " ".join(f"{label},{step + shift * (step > 0)},{score}" for step, score in drawn[label])

    with TemporaryDirectory() as folder:
        ends = "stop.max_iterations=12"
        *two, third = map(log, LABELS)

        def runs(rows: list[str], *changes: str) -> list[Run]:
            padded = [*rows, *(f"{row.partition(',')[0]},13,3.5" for row in rows)]
            return list(priced(Path(folder), " ".join(padded), ends, *changes).runs)

        before = runs(two)
        three = "schemes=[all_reduce, local_sgd: {period: 4}, slowmo: {period: 3}]"
        assert runs([*two, third], three)[:2] == before
        shifted = runs([log("all_reduce", 1), two[1]])
        assert shifted[1] == before[1]
        a, b = (run.time_to_target_s for run in (before[0], shifted[0]))
        assert (a is None) == (b is None)
        assert a is None or b is None or -1e-9 <= b - a <= STEP_S * 1.0001
