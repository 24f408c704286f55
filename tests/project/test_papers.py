"""The pages about papers: claims are judged rightly, and name what is there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from benchmarks import papers
from benchmarks.claim import Claim, Paper, PaperStudy
from benchmarks.claims import PAPERS
from docs.make.page import renewed
from paceline.sim.records.intervals import Interval
from paceline.sim.records.run import Event, Run
from paceline.sim.records.summary import Tuned, TuningTrial
from tests.support.data_packages import forget_data, write_bible, write_images
from tests.support.made_runs import made_run

A, B = ("study", "a"), ("study", "b")


@pytest.fixture
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The data sets that studies take from packages; small ones, since those need not be installed here."""
    forget_data()
    write_images(tmp_path)
    write_bible(tmp_path, books=32)  # one at least for each worker of any study
    monkeypatch.syspath_prepend(tmp_path)
    yield
    forget_data()


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most", "expected"),
    [
        (0.7, 0.9, 0.0, 1.0, "holds"),
        (0.7, 1.1, 0.0, 1.0, "undecided"),
        (1.1, 1.3, 0.0, 1.0, "does not hold"),
        (0.95, 1.05, 0.9, 1.1, "holds"),
        (0.8, 1.05, 0.9, 1.1, "undecided"),
        (0.5, 0.8, 0.9, 1.1, "does not hold"),
        (2.0, None, 1.5, math.inf, "holds"),
        (2.0, None, 0.0, 1.0, "does not hold"),
        (None, None, 0.0, 1.0, "does not hold"),
        (None, None, 0.0, math.inf, "holds"),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    low: float | None, high: float | None, at_least: float, at_most: float, expected: str
) -> None:
    claim = Claim("says", "train_loss", A, B, at_least, at_most)
    assert papers.verdict(claim, Interval(median=1.0, low=low, high=high)) == expected


def test_two_that_never_arrive_decide_nothing() -> None:
    never = {s: made_run("a", s, reached_s=None) for s in range(6)}
    claim = Claim("says", "time to target", A, B, at_most=1.0)
    ratio = papers.ratio_of(claim, {"study": {"a": never, "b": never}})
    assert ratio is None
    assert papers.verdict(claim, ratio) == "undecided"


def test_ratios_are_paired_by_seed() -> None:
    runs = {
        "study": {
            "a": {s: made_run("a", s, reached_s=2.0 * s) for s in range(1, 7)},
            "b": {s: made_run("b", s, reached_s=4.0 * s) for s in range(1, 7)},
        }
    }
    claim = Claim("half the time", "time to target", A, B, at_most=0.5)
    assert papers.ratio_of(claim, runs) == Interval(median=0.5, low=0.5, high=0.5)
    page = papers.page(Paper((PaperStudy("study", "file"),), (claim,)), runs, {})
    assert "| half the time | time to target | study: a / b | ≤ 0.5 | 0.5 | holds |" in page
    assert "| `b` |" in page


def test_an_interval_has_its_unit_once() -> None:
    found = Interval(median=0.364, low=0.363, high=0.365)
    assert papers.shown(found, "s", "\u2013") == "0.364 s (0.363\u20130.365)"
    assert papers.shown(Interval(median=6e8, low=4e5, high=8e8), "B") == "600 MB (400 kB to 800 MB)"
    assert papers.shown(Interval(median=1.0, low=-1.0, high=2.0), between="\u2013") == "1 (-1 to 2)"
    assert papers.shown(Interval(median=1.0, low=0.5, high=None), "s", "\u2013") == "1 s (0.5 to never)"


def test_few_seeds_decide_nothing_and_no_runs_are_no_verdict() -> None:
    runs = {"study": {label: {s: made_run(label, s) for s in range(4)} for label in ("a", "b")}}
    claims = (
        Claim("few", "time to target", A, B, at_most=1.0),
        Claim("none", "time to target", A, ("other", "b"), at_most=1.0),
    )
    page = papers.page(Paper((PaperStudy("study", "file"), PaperStudy("other", "file")), claims), runs, {})
    assert "| few | time to target | study: a / b | ≤ 1 | 1 | undecided: 4 seeds |" in page
    assert "| none | time to target | study: a / other: b | ≤ 1 | - | not simulated |" in page
    assert "## other" not in page


def test_leaders_are_counted_as_one_worker_saw_them() -> None:
    def broadcasts(worker: int, roots: list[int]) -> list[Event]:
        return [Event(worker, 0, -1, k, "broadcast", k, k + 1, k, 0, root) for k, root in enumerate(roots)]

    run = made_run("a", events=[*broadcasts(0, [2, 2, 1, 2, 0]), *broadcasts(3, [9, 9])])
    assert papers.value_of("rounds with another leader", run) == 3 / 4
    assert papers.value_of("rounds of the most frequent leader over an even share", run) == 3 * 4 / 5


def test_what_is_below_the_mark_is_replaced() -> None:
    assert renewed(f"By hand.\n{papers.MARK}old", papers.MARK, "new") == f"By hand.\n{papers.MARK}new"
    with pytest.raises(ValueError, match="has lost the line"):
        renewed("By hand.", papers.MARK, "new")


@pytest.mark.usefixtures("_data")
@pytest.mark.parametrize("name", PAPERS)
def test_claims_are_about_what_is_simulated(name: str) -> None:
    paper = PAPERS[name]
    labels = {s.name: {e.label for e in papers.scenario_of(name, s).schemes} for s in paper.studies}
    text = (papers.ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8")
    for claim in paper.claims:
        for which in (claim.above, claim.below):
            assert which is None or which[1] in labels[which[0]]
        assert f"| {claim.says} |" in text, "run: python -m benchmarks.papers"


def test_the_table_has_every_metric_and_a_dash_where_a_scheme_has_none() -> None:
    plain, own = (made_run(label, 1, reached_s=2.0) for label in ("plain", "own"))
    own.evaluations[-1].metrics["period"] = 23.0
    plain.evaluations[-1].metrics["period"] = None  # as a folder gives it back
    page = papers.page(
        Paper((PaperStudy("study", "file"),), ()), {"study": {"plain": {1: plain}, "own": {1: own}}}, {}
    )
    head, _, first, second = page.partition("## study\n")[2].strip().splitlines()
    at = [cell.strip() for cell in head.split("|")].index("period")
    assert [row.split("|")[at].strip() for row in (first, second)] == ["-", "23"]


def test_the_front_has_who_nobody_equals_in_both_time_and_score() -> None:
    def run(label: str, seed: int, wall_s: float, accuracy: float | None) -> Run:
        one = made_run(label, seed, reached_s=None, wall_s=wall_s)
        one.evaluations[-1].metrics["test_accuracy"] = accuracy
        return one

    values = {"fast": (1.0, 0.8), "good": (3.0, 0.9), "slow": (3.5, 0.9), "lost": (0.5, None)}
    runs = {"study": {label: {1: run(label, 1, *each)} for label, each in values.items()}}

    def front(better: Literal["rising", "falling"]) -> str:
        study = PaperStudy("study", "file", front=("test_accuracy", better))
        return papers.page(Paper((study,), ()), runs, {}).rpartition("(medians): ")[2].strip()

    assert front("rising") == "`fast`, `good`."
    assert front("falling") == "`fast`."


def test_one_trial_is_no_choice() -> None:
    def sentence(trials: int) -> str:
        tuned = Tuned(
            label="a",
            chosen={"optimizer.lr": 0.03},
            at_edge=[],
            metric="train_loss",
            trials=[TuningTrial(values={"optimizer.lr": 0.03}, seed=2, time_to_target_s=None, score=1.0)]
            * trials,
        )
        study = PaperStudy("study", "file")
        runs = {"study": {"a": {1: made_run("a", 1, reached_s=2.0)}}}
        return papers.page(Paper((study,), ()), runs, {"study": [tuned]}).strip().splitlines()[-1]

    assert sentence(1) == "Taken, not chosen: `optimizer.lr` 0.03 for `a`."
    assert sentence(2) == "Chosen from 2 trials each: `optimizer.lr` 0.03 for `a`."


def test_schemes_that_chose_the_same_are_named_together() -> None:
    def tuned(label: str, lr: float, at_edge: list[str]) -> Tuned:
        trials = [
            TuningTrial(values={"optimizer.lr": 0.03}, seed=seed, time_to_target_s=None, score=1.0)
            for seed in (2, 3, 2, 3)
        ]
        chosen: dict[str, bool | int | float | str] = {"optimizer.lr": lr}
        return Tuned(label=label, chosen=chosen, at_edge=at_edge, metric="train_loss", trials=trials)

    found = [tuned("a", 0.03, []), tuned("b", 0.1, ["optimizer.lr"]), tuned("c", 0.03, [])]
    runs = {"study": {each["label"]: {1: made_run(each["label"], 1, reached_s=2.0)} for each in found}}
    page = papers.page(Paper((PaperStudy("study", "file"),), ()), runs, {"study": found})
    assert page.strip().splitlines()[-1] == (
        "Chosen from 4 trials each, on 2 seeds: `optimizer.lr` 0.03 for `a`, `c`; "
        "`optimizer.lr` 0.1 (the end of its list) for `b`."
    )


# --- tuned studies ------------------------------------------------------------------------------

TUNED = """\
# A small study whose schemes choose their learning rates.
name: tuned
seed: 1
workload: {task: quadratic, dimension: 4, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 1 s}, network: {latency: 0 s}}
schemes: [all_reduce, {local_sgd: {period: 2}}]
tune: {optimizer.lr: [0.001, 0.5]}
stop: {max_iterations: 4}
repeats: 2
"""


def test_a_tuned_study_is_simulated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "ROOT", tmp_path)
    (tmp_path / "scenarios" / "papers" / "paper").mkdir(parents=True)
    (tmp_path / "scenarios" / "papers" / "paper" / "file.yaml").write_text(TUNED)
    study = PaperStudy("study", "file")
    results = papers.results_of("paper", study, tmp_path / "out")
    assert {label: list(runs) for label, runs in papers.runs_by_label(results).items()} == {
        "all_reduce": [1, 2], "local_sgd": [1, 2],
    }  # fmt: skip
    assert [each["chosen"] for each in results.summary["tuning"]] == [{"optimizer.lr": 0.5}] * 2
    page = papers.page(
        Paper((study,), ()),
        {"study": papers.runs_by_label(results)},
        {"study": results.summary["tuning"]},
    )
    chosen = "`optimizer.lr` 0.5 (the end of its list) for `all_reduce`, `local_sgd`"
    assert f"Chosen from 6 trials each, on 3 seeds: {chosen}." in page

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was there")

    for name in ("choose_values", "simulate"):
        monkeypatch.setattr(papers, name, never)
    assert papers.results_of("paper", study, tmp_path / "out").summary == results.summary
    other = replace(study, changes=("tune={optimizer.lr: [0.001, 0.4]}",))
    with pytest.raises(AssertionError, match="it was there"):
        papers.results_of("paper", other, tmp_path / "out")
    kept = papers.kept_results("paper", study, tmp_path / "out")
    assert kept is not None
    assert kept.summary == results.summary
    assert papers.kept_results("paper", replace(study, name="other"), tmp_path / "out") is None
