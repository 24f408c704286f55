"""How well scores are known, and what that makes of a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paceline.sim.records.carry.score_error import ScoreSlices, error_of_ratio, score_error, worth_of_score
from paceline.sim.records.rows import row_of, run_of
from paceline.sim.records.run import Run
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summarise import summarise
from paceline.sim.records.verdict import Verdict, find_verdict
from reports.words import beside_verdict
from tests.support.made_runs import made_run

TARGET = Goal(metric="train_loss", value=0.5)


def slices(*means: float, worth: float = 1.0) -> ScoreSlices:
    return ScoreSlices(examples=100, means=list(means), worth=worth)


def test_the_worth_of_a_score_is_that_of_the_straight_line_it_falls_on() -> None:
    line = [(float(time_s), 2.0 - time_s / 10) for time_s in range(20)]  # 1.0 at 10 s: 0.1 a second
    assert worth_of_score(line, 1.0, 10.0) == pytest.approx(-1.0)  # 1 in 10 s, all of the way
    assert worth_of_score(line[::4], 1.0, 10.0) == pytest.approx(-1.0)
    assert worth_of_score(line[:1], 1.0, 10.0) == pytest.approx(-1.0)  # nothing was scored on the way
    steep = [(0.0, 9.0), *line[1:]]
    assert worth_of_score(steep, 1.0, 10.0) == pytest.approx(-1.0)  # far from the target
    assert worth_of_score([(0.0, None), (8.0, 1.2), (9.0, None)], 1.0, 10.0) == pytest.approx(-1.0)
    assert worth_of_score([(0.0, None)], 1.0, 10.0) == 0.0


def test_a_standard_error_by_hand() -> None:
    """Means 1, 3: deviation sqrt 2, error 1, and half a time for each."""
    error = score_error([slices(1.0, 3.0, worth=-0.5)], 0.02)
    assert (error["standard_error"], error["of_time"], error["of_ratio"]) == (1.0, 0.5, 0.02)
    assert error["text"] == (
        "Scores are means of 100 examples: at the target their standard error is 1, worth 50 % of a time to "
        "it and, as all are scored on the same ones, 2 % of the ratio of the first two."
    )
    assert score_error([slices(1.0, 3.0, worth=-0.5)], 0.0)["text"].endswith("worth 50 % of a time to it.")


def test_what_two_schemes_have_in_common_is_no_error_of_their_ratio() -> None:
    one, other = slices(1.0, 3.0, 8.0), slices(2.0, 4.0, 9.0)
    assert error_of_ratio({0: one}, {0: other}) == 0.0
    assert error_of_ratio({0: one}, {1: other}) == 0.0  # no seed in common
    assert error_of_ratio({0: slices(1.0, 3.0)}, {0: slices(3.0, 1.0)}) == 2.0  # -2, 2
    assert error_of_ratio({0: slices(1.0, 3.0)}, {0: slices(1.0, 3.0, worth=0.5)}) == 0.5  # 0.5, 1.5


def test_repeats_average_out_what_is_not_the_same_in_them() -> None:
    rng = np.random.default_rng(3)
    nobody = {seed: slices(*[0.0] * 16) for seed in range(400)}
    apart = {seed: slices(*rng.normal(size=16)) for seed in range(400)}
    assert error_of_ratio(apart, nobody) == pytest.approx(1 / math.sqrt(16 * 400), rel=0.5)
    same = dict.fromkeys(range(400), apart[0])
    assert error_of_ratio(same, nobody) == pytest.approx(error_of_ratio({0: apart[0]}, nobody))


def of_two(b: Sequence[float], error: float, exact: bool = False) -> Verdict:
    times = {"a": dict.fromkeys(range(len(b)), 1.0), "b": dict(enumerate(b))}
    return find_verdict(["a", "b"], times, exact, exact, errors={"b": error})


def test_a_lead_within_the_error_is_not_settled_and_one_beyond_is() -> None:
    """1.96 errors of 5 % are 9.8 %, which log 1.11 exceeds and log 1.10 does not."""
    within, beyond = of_two([1.10] * 5, 0.05), of_two([1.11] * 5, 0.05)
    assert beyond["settled"]
    assert within["text"] == "not settled: a or b; more examples would tell"
    assert (within["settled"], within["repeats_needed"], within["interval"]) == (False, None, [1.10, 1.10])
    assert of_two([1.10], 0.05, exact=True)["settled"] is False
    assert of_two([1.11], 0.05, exact=True)["settled"] is True


def test_the_error_is_added_to_that_of_the_repeats_as_squares() -> None:
    """A lead of log 1.5 with an end at 1.2 leaves sqrt(0.405^2 - 0.223^2) = 0.339: 1.96 errors of 17.3 %."""
    times = [1.2, 1.4, 1.5, 1.6, 1.8]
    assert of_two(times, 0.172)["settled"]
    assert not of_two(times, 0.174)["settled"]
    assert of_two([2.1], 0.0)["settled"]
    assert of_two([2.1], 0.12)["settled"]  # log 2.1 is 0.742, and 0.693 with 0.265 makes that
    assert not of_two([2.1], 0.14)["settled"]
    assert of_two([math.inf] * 5, 9.0)["settled"]


def test_what_repeats_would_not_tell_either_says_both() -> None:
    times = {"a": dict.fromkeys(range(5), 1.0), "b": dict.fromkeys(range(5), 1.1)}
    times["c"] = dict(enumerate([0.9, 0.95, 1.2, 1.4, 1.5]))
    verdict = find_verdict(["a", "b", "c"], times, errors={"b": 0.1, "c": 0.0})
    assert verdict["text"].startswith("not settled: a, b or c; about ")
    assert verdict["text"].endswith(" more repeats and more examples would tell")
    assert verdict["repeats_needed"] is None


def made(label: str, seed: int, reached_s: float, *means: float) -> Run:
    return replace(made_run(label, seed, reached_s=reached_s), slices=slices(*means, worth=-1.0))


def test_a_folder_keeps_slices_and_an_older_one_lacks_them() -> None:
    run = made("a", 0, 1.0, 1.0, 3.0)
    assert row_of(run)["slices"] == run.slices
    assert run_of(row_of(run), run.evaluations, ()) == run
    without = row_of(made_run("a", 0))
    assert "slices" not in without
    assert run_of(without, (), ()).slices is None


def test_a_summary_states_the_error_and_counts_it() -> None:
    def summary(*means: float, a: Sequence[float] = (0.4, 0.6)) -> tuple[Verdict, list[str]]:
        runs = [made("a", seed, 10.0, *a) for seed in range(5)]
        runs += [made("b", seed, 12.0, *means) for seed in range(5)]
        known = summarise("s", runs, TARGET)
        return known["verdict"], beside_verdict(known, "simulated")

    same, sentences = summary(0.4, 0.6)
    assert same["settled"]
    assert same["score_error"]["standard_error"] == pytest.approx(0.1)
    assert same["score_error"]["of_ratio"] == 0.0
    assert same["score_error"]["text"] in sentences
    apart, sentences = summary(0.6, 0.4)
    assert apart["text"] == "not settled: a or b; more examples would tell"
    assert apart["score_error"]["of_ratio"] == pytest.approx(0.2)
    small, sentences = summary(0.499, 0.501, a=(0.501, 0.499))
    assert small["score_error"]["of_time"] == pytest.approx(0.001)
    assert small["score_error"]["text"] not in sentences
    assert "score_error" not in summarise("s", [made_run("a"), made_run("b")], TARGET)["verdict"]
