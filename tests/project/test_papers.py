"""The pages about papers: claims are judged rightly, and name what is there."""

from __future__ import annotations

import math

import pytest

from benchmarks import papers
from benchmarks.claims import PAPERS, Claim, Paper, PaperStudy
from docs.make.page import renewed
from paceline.sim.records.intervals import Interval
from paceline.sim.records.run import Event
from tests.support.made_runs import made_run

A, B = ("study", "a"), ("study", "b")


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
    made = papers.page(Paper((PaperStudy("study", "file"),), (claim,)), runs)
    assert "| half the time | time to target | study: a / study: b | at most 0.5 | 0.5 | holds |" in made
    assert "| `b` |" in made


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
    made = papers.page(
        Paper((PaperStudy("study", "file"),), ()), {"study": {"plain": {1: plain}, "own": {1: own}}}
    )
    head, _, first, second = made.partition("## study\n")[2].strip().splitlines()
    at = [cell.strip() for cell in head.split("|")].index("period")
    assert [row.split("|")[at].strip() for row in (first, second)] == ["-", "23"]
