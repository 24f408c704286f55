from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.reports import page as pages
from paceline.reports.figures.drawing import Picture
from paceline.reports.figures.metric_curves import By, draw_curves
from paceline.reports.folders import ReportSources, read_sources
from paceline.reports.page import about, build, render, tight
from paceline.sim.errors import InputError
from paceline.sim.records.comparison import compare, judge
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Run
from paceline.sim.records.summary import SchemeFacts, Tuned
from paceline.sim.records.unfinished import begin_parts
from tests.support.html_page import Page
from tests.support.made_results import EVIL, SCENARIO, measured, simulated, write_made_results
from tests.support.made_runs import made_bounds, made_run, made_scenario
from tests.support.markup import MARKUP


@pytest.fixture
def one_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture of curves is drawn, and stands for all: for tests that look at words."""
    drawn: list[Picture] = []

    def draw_once(study: ReportSources, metric: str, by: By) -> Picture:
        if not drawn:
            drawn.append(draw_curves(study, metric, by))
        return drawn[0]

    monkeypatch.setattr(pages, "draw_curves", draw_once)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_made_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def text(folders: Path) -> str:
    return render([folders / "simulated"])


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_answer_comes_first(page: Page) -> None:
    verdict = f"not settled: gossip ring or {EVIL}; about 2 more repeats would tell"
    assert page.headings[1].replace("\u00a0", " ") == verdict
    assert f"gossip ring reaches a test accuracy of 0.9 after 11 s, {EVIL} after 21 s" in page.text
    assert "was first in 3 of 3 paired repeats." in page.text
    assert "gossip ring needs as many steps as" in page.text
    assert "gone diverged in 3 of 3 repeats (not finite)." in page.text
    assert "Simulated, not measured" in page.text
    assert "exchanges were timed as if the model had 20 MB" in page.text


def test_all_sections_are_there(page: Page) -> None:
    assert page.headings == [
        "four",
        page.headings[1],
        "The schemes compared",
        "At equal time, and at equal data",
        "What makes the difference",  # with three repeats nobody is said to be ahead
        f"From gossip ring to {EVIL}",
        "The cluster",
        "Against the clock",
        "Training loss by wall clock",
        "If the target were another",
        "Where the time goes",
        "A step",
        "To the target",
        "Against data sent",
        "Training loss by data sent",
        "Test accuracy by data sent",
        "Against steps",
        "Training loss by step",
        "Test accuracy by step",
        "Consensus distance by step",
        "The first steps",
        "What the workers do",
        "Details",
    ]
    assert page.tags.count("figure") == page.tags.count("figcaption") == 13


@pytest.mark.usefixtures("undrawn")
def test_the_consensus_distance_is_drawn_once_by_step_where_nothing_else_is_scored(tmp_path: Path) -> None:
    whole = made_run("ring")
    scored = [
        replace(each, metrics={name: each.metrics[name] for name in ("train_loss", "consensus_distance")})
        for each in whole.evaluations
    ]
    write_results(tmp_path, made_scenario("s"), "s", [replace(whole, evaluations=tuple(scored))])
    headings = Page(render([tmp_path])).headings
    assert headings.count("Consensus distance by step") == 1
    assert headings.count("Consensus distance by wall clock") == 1


def test_the_table(page: Page) -> None:
    assert page.row(0, "gossip ring") == [
        "gossip ring", "11 s", "1.00x", "100", "1 kB", "50 / 25 / 25 %", "reached 3/3",
    ]  # fmt: skip
    assert page.row(0, "late")[1:3] == ["> 60 s", "-"]
    assert page.row(0, "gone")[1] == "-"
    assert page.row(0, "gone")[-1] == "diverged 3/3"
    assert [row[0].strip() for row in page.tables[0]] == [
        "Scheme", "gossip ring", EVIL, "all_reduce", "late", "gone",
    ]  # fmt: skip
    assert len(page.tables[2]) == 1 + 15  # every run


@pytest.mark.parametrize("chosen", [0.4, None])
@pytest.mark.usefixtures("undrawn")
def test_some_runs_of_a_tuned_scenario_say_what_tuning_has_chosen_or_nothing(
    tmp_path: Path, chosen: float | None
) -> None:
    scenario = """\
name: s
workload: {task: digits-mlp, optimizer: {lr: 0.1}}
cluster: {}
schemes: [{all_reduce: {label: sync}}, {gossip: {label: ring}}]
tune: {optimizer.lr: [0.2, 0.4, 0.8], trials: 3}
repeats: 3
seed: 0
"""
    tuning = [
        Tuned(label="sync", chosen={"optimizer.lr": value}, at_edge=[], metric="test_accuracy", trials=[])
        for value in ([] if chosen is None else [chosen])
    ]
    parts = begin_parts(tmp_path / "r", "simulate", "s", False, bool, lambda: scenario, print)
    schemes = {"sync": "all_reduce", "ring": "gossip"}
    planned = ((0, "sync"), (0, "ring"), (1, "sync"))
    runs = [made_run(label, seed, scheme=schemes[label]) for seed, label in planned]
    for number, run in enumerate(runs):
        replace(parts, tuning=tuning).keep("run", number, run)
    (study,) = read_sources([tmp_path / "r"])
    text = Page(render([tmp_path / "r"])).text
    rates = [each["assumes"] for each in about(study)]
    assert rates == ([] if chosen is None else ["learning rate 0.4, tuned", ""])
    assert "not tuned" not in text
    assert "0 of 1 paired repeats" not in text
    assert "Medians over 1 to 2 repeats" in text


@pytest.mark.usefixtures("undrawn")
def test_what_bounds_the_schemes_and_what_they_assume(tmp_path: Path) -> None:
    scenario = """\
name: s
workload: {task: digits-mlp, optimizer: {lr: 0.1}}
cluster: {}
collectives: {all_reduce: ring}
schemes: [{all_reduce: {label: sync, optimizer: {adam: {lr: 0.003}}}}, {gossip: {label: ring}}]
evaluate: {every: 10 steps, keep: every 5 steps}
stop: {target: {metric: test_accuracy, value: 0.9}, max_time: 60 s}
"""
    first, *scored = made_run("sync").evaluations
    scored = [replace(each, steps=(each.step, each.step - 4)) for each in scored]
    sync = replace(
        made_run("sync"), scheme="all_reduce", exchanges=("all_reduce",), evaluations=(first, *scored)
    )
    runs = [sync, replace(made_run("ring", reached_s=20.0), scheme="gossip")]
    facts = {
        "sync": SchemeFacts(does="It averages <all>.", bounds=made_bounds(waiting=0.4)),
        "ring": SchemeFacts(does="It gossips.", bounds=None),
    }
    tuning = [Tuned(label="sync", chosen={"optimizer.lr": 0.003}, at_edge=[], metric="train_loss", trials=[])]
    write_results(tmp_path / "r", scenario, "s", runs, tuning=tuning, facts=facts)
    page = Page(render([tmp_path / "r"]))
    assert page.row(1, "sync")[1:] == [
        "It averages <all>.",
        "40 % waiting for worker 2, 35 % computing, 20 % bandwidth, 5 % latency",
        "all-reduce by ring; learning rate 0.003, tuned; "
        "models kept every 5 steps, on average 2.0 steps old when scored",
    ]
    assert page.row(1, "ring")[1:] == ["It gossips.", "-", "learning rate 0.1, not tuned"]
    assert page.headings[2:4] == ["The schemes compared", "What the schemes do, and what bounds them"]


def test_the_first_thing_on_the_page_is_the_verdict_with_its_picture(text: str) -> None:
    verdict, picture = text.index("not settled: gossip ring"), text.index('<svg aria-hidden="true"')
    assert verdict < text.index("<figure") < picture < text.index("The schemes compared")
    first = text[text.index("<figure") : text.index("</figure>")]
    assert "Test accuracy by wall clock" in first
    assert "target 0.9" in first


@pytest.mark.slow
def test_without_a_target_steps_are_compared(folders: Path) -> None:
    page = Page(render([folders / "timed"]))
    assert page.tables[0][0][1:4] == ["Time per step", "vs best", "Wall clock"]
    assert page.row(0, "a")[1:4] == ["100 ms", "1.00x", "10 s"]
    assert "nobody wins" not in page.text


def test_scores_at_equal_time_and_data(page: Page) -> None:
    # The winner is there after 11 s, in the median, and after 1,000 bytes.
    assert [" ".join(cell.split()) for cell in page.tables[1][0]] == [
        "Scheme",
        "after 2.75 s",
        "after 5.50 s",
        "after 11 s",
        "after 1 kB sent",
    ]
    assert page.row(1, "gossip ring") == ["gossip ring", "0.100", "0.500", "0.950", "0.950"]
    assert page.row(1, "all_reduce") == [
        "all_reduce",
        "0.100",
        "0.100",
        "0.100",
        "0.950",
    ]  # its second score is that of 15 s


def test_what_users_write_is_text(page: Page, text: str) -> None:
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert "<b>bold</b>" in page.text
    # In sentences, tables, legends and figures, where dollars mean no mathematics.
    assert page.text.count(EVIL) > 10
    svg = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "&lt;script&gt;alert(1" in svg


@pytest.mark.slow
@pytest.mark.usefixtures("one_curve")
def test_labels_with_markup_stand_on_the_page_as_they_are(tmp_path: Path) -> None:
    runs = [made_run(label, reached_s=10.0 + k) for k, label in enumerate(MARKUP)]
    write_results(tmp_path / "r", made_scenario("r"), "r", runs)
    page = Page(render([tmp_path / "r"]))
    for label in MARKUP:
        assert page.row(0, label)
    assert "http://x" not in page.links


def test_nothing_is_loaded(page: Page, text: str) -> None:
    assert all(link.startswith("#") for link in page.links)
    assert "http" not in text
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []


def test_ids_are_unique_and_links_lead_somewhere(page: Page, text: str) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)


def test_figures_follow_the_theme(text: str) -> None:
    assert "#01f0" not in text
    assert "#02f0" not in text
    assert "var(--ink)" in text
    assert "var(--s1)" in text  # gossip, the second scheme of the scenario
    assert "color-mix(in srgb, var(--s1)" in text  # the other gossip
    assert "prefers-color-scheme: dark" in text


def test_a_scheme_has_one_colour_on_the_page_and_no_other_scheme_has_it(tmp_path: Path) -> None:
    names = ["gossip", "all_reduce", *(f"mine:scheme{i}" for i in range(13))]
    write_results(tmp_path / "one", made_scenario("one"), "one", [made_run(name) for name in names])
    others = [made_run("mine:other"), made_run("all_reduce")]
    write_results(tmp_path / "two", made_scenario("two"), "two", others)
    one, two = read_sources([tmp_path / "one", tmp_path / "two"])
    colours = {label: style.colour for study in (one, two) for label, style in study.styles.items()}
    assert len(set(colours.values())) == len(colours) == 16
    assert one.styles["all_reduce"] == two.styles["all_reduce"]
    assert one.styles == read_sources([tmp_path / "one"])[0].styles


@pytest.mark.slow
def test_the_same_folders_give_the_same_bytes(folders: Path, text: str) -> None:
    assert render([folders / "simulated"]) == text


def test_predicted_beside_measured(folders: Path) -> None:
    page = Page(render([folders / "measured", folders / "simulated"]))
    assert page.row(0, "gossip ring")[1:4] == ["11 s", "12.5 s", "-12.0 %"]
    assert page.row(0, "gossip ring")[4:] == ["110 ms", "125 ms", "-12.0 %"]
    assert page.row(0, "all_reduce")[1:4] == ["31 s", "31 s", "+0.0 %"]
    assert "Predicted: not settled: gossip ring or" in page.text
    assert "Measured: gossip ring first, 2.5x as fast as all_reduce, by one repeat" in page.text
    assert "off by 6.0 % on average, 12.0 % at most; gossip ring was first in both." in page.text
    assert "The first steps, predicted" in page.headings
    assert "The first steps, measured" in page.headings
    assert "Simulated, not measured" not in page.text
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.usefixtures("undrawn")
def test_a_validation_has_its_verdict_on_the_page(tmp_path: Path) -> None:
    runs = [*simulated(), *measured()]
    compared = compare("four", simulated(), measured())
    repeated = [(run, replace(run, wall_clock_s=1.01 * run.wall_clock_s)) for run in measured()]
    judged = judge(compared, repeated, 7.0, "worker 3 was lost")
    path = tmp_path / "v" / "validation.json"
    write_results(tmp_path / "v", SCENARIO, "four", runs, added={path.name: json.dumps(judged)})
    page = Page(render([tmp_path / "v"]))
    assert judged["verdict"]["text"][1:] in page.text
    assert "the tolerance of 7 %; real runs differ from each other by up to 1.00 %" in page.text
    assert "Not all runs were made: worker 3 was lost." in page.text
    path.write_text(json.dumps({**judged, "cells": 5}))
    with pytest.raises(InputError, match=r"validation\.json is damaged"):
        render([tmp_path / "v"])


@pytest.mark.slow
def test_several_scenarios_on_one_page(folders: Path) -> None:
    page = Page(render([folders / "simulated", folders / "other"]))
    assert page.headings[0] == "2 results"
    assert page.row(0, "all_reduce") == ["all_reduce", "31 s", "100 ms ★"]
    assert page.row(0, "gossip ring") == ["gossip ring", "11 s", ""]
    assert {"study-1", "study-2"} <= set(page.ids)
    assert "all_reduce takes 100 ms a step" in page.text
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.slow
@pytest.mark.usefixtures("one_curve")
def test_the_same_scenario_twice_is_told_apart_by_folder(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "timed", tmp_path / "again")
    page = Page(render([folders / "timed", tmp_path / "again"]))
    assert {"timed (timed)", "timed (again)"} <= set(page.headings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "runs",
    [
        [],
        [made_run("a", reached_s=None, steps=0, wall_s=0.0)],
        [made_run("a", 0, reached_s=None, status="diverged")],
        [made_run(f"gossip number {i} with a long name", scheme="gossip") for i in range(9)],
        [made_run("x" * 200, scheme="mine", seed=i) for i in range(2)],
    ],
    ids=["none", "no steps", "diverged", "many labels", "long label"],
)
def test_odd_results(tmp_path: Path, runs: list[Run]) -> None:
    write_results(tmp_path / "r", SCENARIO, "four", runs)
    assert "four" in Page(render([tmp_path / "r"])).headings


@pytest.mark.usefixtures("undrawn")
def test_runs_that_are_missing_are_named(tmp_path: Path) -> None:
    there = [made_run("sync", status="partial", message="worker 1 was lost")]
    schemes = "[{sync: {label: sync}}, {gossip: {label: ring}}]"
    scenario = made_scenario("s", "seed: 0\nrepeats: 1\n").replace("[any]", schemes)
    write_results(tmp_path / "r", scenario, "s", there)
    assert build([tmp_path / "r"], tmp_path / "r.html") == ["s is not complete: there is no run of 'ring'"]
    assert "Not complete: there is no run of 'ring'." in Page((tmp_path / "r.html").read_text()).text
    write_results(tmp_path / "whole", scenario, "s", [*there, made_run("ring", scheme="gossip")])
    assert "Not complete" not in Page(render([tmp_path / "whole"])).text


def test_timing_only(folders: Path) -> None:
    page = Page(render([folders / "timed"]))
    assert "Nothing was trained" in page.text
    assert "gradients were really computed" not in page.text
    assert "Against the clock" not in page.headings


@pytest.mark.slow
def test_an_older_report_is_replaced(folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    build([folders / "timed"], out)
    first = out.read_text()
    assert first.startswith("<!DOCTYPE html>")
    build([folders / "other"], out)
    assert out.read_text() != first
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_only_a_report_is_replaced(folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "index.html"
    out.write_text("<!DOCTYPE html><title>mine</title>")
    with pytest.raises(InputError, match=r"index\.html is there already, and it is no report"):
        build([folders / "other"], out)
    assert out.read_text() == "<!DOCTYPE html><title>mine</title>"


def test_bad_places_and_folders(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder: name a file"):
        build([folders / "timed"], tmp_path)
    with pytest.raises(InputError, match="cannot write"):
        build([folders / "timed"], Path("/proc/nothing/report.html"))
    with pytest.raises(InputError, match="no result folder"):
        build([tmp_path], tmp_path / "r.html")
    with pytest.raises(InputError, match="at least one"):
        build([], tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_numbers_keep_their_units() -> None:
    assert tight("waits 14.0 ms instead of 190 ms, 3 % of 5 steps") == (
        "waits 14.0\u00a0ms instead of 190\u00a0ms, 3\u00a0% of 5 steps"
    )


@pytest.mark.slow
def test_reports_import_no_matplotlib_until_they_draw() -> None:
    code = "import reports, sys; sys.exit(bool({'matplotlib', 'seaborn', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
