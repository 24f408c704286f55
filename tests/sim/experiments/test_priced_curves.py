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
    # At step 2 the noisy curve is below by chance, where the other one has no point; 4 and 8 both have.
    assert first.time_to_target_s == pytest.approx(6 * STEP_S)
    assert first.bracket_s == pytest.approx((4 * STEP_S, 6 * STEP_S))
    assert [e.metrics["loss"] for e in first.evaluations] == [3, 0.9, 1.5, 0.9, 0.8]
    assert second.time_to_target_s == pytest.approx(8 * 0.1 + 2 * (STEP_S - 0.1))
    assert second.met is not None
    assert (second.met.step, second.met.metrics) == (8, {"loss": 1.0})


def test_a_rising_score_and_one_that_is_not_finite(tmp_path: Path) -> None:
    rows = "all_reduce,4,0.5 all_reduce,8,0.8 local_sgd,4,0.6 local_sgd,8,nan"
    first, second = priced(tmp_path, rows, "stop.target.value=0.8").runs
    assert first.time_to_target_s == pytest.approx(8 * STEP_S)
    assert (second.status, second.time_to_target_s) == ("diverged", None)


def test_the_verdict_names_the_curves_and_their_one_seed(tmp_path: Path) -> None:
    study = priced(tmp_path, f"{DENSE} {SPARSE}")
    verdict = study.totals["verdict"]
    assert "these curves say 1.33 (loss 1 in a.csv, one seed: no interval)" in verdict["break_even"]["text"]
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
@settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
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
        ("evaluate.on=workers", "evaluate.on mean"),
    ):
        with pytest.raises(InputError, match=f"was measured with {named}"):
            parse(text, changes=[own, change])
    plain = parse(
        text, changes=[own, "workload={curves: " + f"{tmp_path}/first" + ", batch_size: 8, payload: 3 MB}"]
    )
    assert len(paceline.simulate(plain, jobs=1, progress=False).runs) == 2
