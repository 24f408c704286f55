"""The sentence says what the interval supports, and no more."""

from __future__ import annotations

import doctest
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from benchmarks.verdicts import drawn_forecast
from paceline.sim.records import verdict as verdicts
from paceline.sim.records.intervals import median_ratio
from paceline.sim.records.run import Status
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import SchemeFacts
from paceline.sim.records.verdict import Tried, Verdict, chance_to_win, find_verdict, find_winner
from tests.support.made_runs import made_bounds, made_run

INF = math.inf
TARGET = Goal(metric="test_accuracy", value=0.95)


def seeded(*times: float) -> dict[int, float]:
    return dict(enumerate(times))


def of_two(a: Sequence[float], b: Sequence[float], by_step: bool = False, exact: bool = False) -> Verdict:
    return find_verdict(["a", "b"], {"a": seeded(*a), "b": seeded(*b)}, by_step, exact)


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(verdicts).failed == 0
    assert doctest.testmod(verdicts).attempted == 1


def test_a_first_that_starts_at_the_target() -> None:
    times = {"a": seeded(0, 0, 0), "b": seeded(1, 2, 3)}
    verdict = find_verdict(["a", "b"], times, False, tried={"b": [Tried({"lr": 0.1}, 1.0, 3)]})
    assert verdict["first"] == "a"


def test_a_settled_order() -> None:
    assert of_two([1, 1, 1, 1, 1], [2.1, 2.3, 2.4, 2.6, 3]) == {
        "text": "a first, 2.4x as fast as b (2.1 to 3.0)",
        "settled": True,
        "first": "a",
        "second": "b",
        "factor": 2.4,
        "interval": [2.1, 3.0],
        "repeats_needed": 0,
    }


def test_an_interval_that_holds_1_settles_nothing() -> None:
    verdict = of_two([10] * 5, [6.3, 12, 13.7, 20, 24])
    assert verdict["text"].startswith("not settled: a or b; ")
    assert not verdict["settled"]
    assert (verdict["first"], verdict["second"]) == ("a", "b")
    assert verdict["factor"] == pytest.approx(1.37)
    assert verdict["interval"] == pytest.approx([0.63, 2.4])
    assert verdict["repeats_needed"] is not None
    assert f"about {verdict['repeats_needed']} more repeats would tell" in verdict["text"]


def test_an_end_of_the_interval_near_1_is_not_rounded_to_it() -> None:
    near = of_two([1] * 5, [1.0004, 1.1, 1.2, 1.3, 1.4])["text"]
    assert near == "a first, 1.20x as fast as b (1.0004 to 1.40)"


def test_few_repeats_settle_what_is_too_far_apart_for_chance_and_say_how_few() -> None:
    verdict = of_two([1], [10])
    assert verdict["text"] == "a first, 10x as fast as b, by one repeat"
    assert (verdict["interval"], verdict["factor"], verdict["repeats_needed"]) == (None, 10.0, 0)
    assert verdict["settled"]
    assert of_two([1] * 4, [9, 9.1, 9, 9.1])["text"] == "a first, 9.0x as fast as b, by 4 repeats"
    assert (
        of_two([1], [9], by_step=True)["text"] == "a first by time per step, 9.0x as fast as b, by one repeat"
    )


def test_few_repeats_settle_nothing_that_chance_may_have_made() -> None:
    verdict = of_two([1], [1.9])
    assert verdict["text"] == "not settled: a or b; at least 4 more repeats would tell"
    assert (verdict["interval"], verdict["factor"], verdict["repeats_needed"]) == (None, 1.9, 4)
    assert not of_two([1] * 4, [9, 9, 9, 1.5])["settled"]  # one repeat shows what chance can do here
    alike = find_verdict(["a", "b", "c"], {"a": seeded(1), "b": seeded(1.2), "c": seeded(9)})
    assert alike["text"] == "not settled: a or b; at least 4 more repeats would tell"


def test_who_did_not_arrive_is_as_late_as_its_run_was_long() -> None:
    def sentence(limit_s: float, status: Status = "completed") -> str:
        runs = [made_run("a", reached_s=10.0), made_run("b", reached_s=None, wall_s=limit_s, status=status)]
        return summarise("s", runs, TARGET)["verdict"]["text"]

    assert sentence(21.0) == "a first: b never reached the target, by one repeat"
    assert sentence(19.0) == "not settled: a or b; at least 4 more repeats would tell"
    assert sentence(1.0, "diverged") == "a first: b never reached the target, by one repeat"
    assert sentence(1.0, "partial").startswith("not settled: a or b; ")


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.25])
@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_of_equal_schemes_few_repeats_settle_few_orders(repeats: int, spread: float) -> None:
    rng, draws = np.random.default_rng([repeats, round(100 * spread)]), 2000
    drawn = np.exp(spread * rng.normal(size=(draws, 2, repeats)))
    wrong = np.mean([of_two(a, b)["settled"] for a, b in drawn])
    assert wrong <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / draws)


def test_a_close_race_takes_more_repeats_than_a_number_is_worth() -> None:
    verdict = of_two([1] * 6, [0.8, 0.9, 0.99, 1.02, 1.1, 1.2])
    assert verdict["text"] == "not settled: a or b; it would take more than 100 more repeats to tell"
    assert verdict["repeats_needed"] is None


def test_ties_are_called_ties() -> None:
    verdict = of_two([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert verdict["text"] == "a and b tie"
    assert (verdict["settled"], verdict["factor"], verdict["repeats_needed"]) == (False, 1.0, None)


def test_a_scheme_that_does_not_always_arrive() -> None:
    sometimes = of_two([1] * 5, [2, 2, 2, INF, INF])
    assert sometimes["text"] == "a first, 2.0x as fast as b (at least 2.0)"
    assert sometimes["interval"] == [2.0, None]
    mostly_not = of_two([1] * 5, [2, 2, INF, INF, INF])
    assert mostly_not["text"] == "a first, at least 2.0x as fast as b"
    assert mostly_not["factor"] is None
    never = of_two([1] * 5, [INF] * 5)
    assert never["text"] == "a first: b never reached the target"
    assert never["interval"] == [None, None]
    # It is ahead where the other fails: whether that is luck, three races of five do not say.
    unsure = of_two([1, 1, 1, INF, INF], [2, 2, 2, 2, 2])
    assert unsure["text"].startswith("not settled: a or b; ")


def test_nobody_arrives() -> None:
    assert of_two([INF], [INF])["text"] == "no scheme reached the target"
    lucky = of_two([INF, INF, 3], [INF, INF, INF])
    assert lucky["text"] == "no scheme reached the target in most of its repeats"
    assert (lucky["first"], lucky["settled"], lucky["repeats_needed"]) == (None, False, None)
    assert find_verdict([], {})["text"] == "nothing was run"


def test_whoever_cannot_be_told_from_the_first_is_named() -> None:
    times = {"a": seeded(*[1.0] * 5), "b": seeded(*[2.0] * 5), "c": seeded(0.9, 2.5, 2.5, 2.5, 2.5)}
    verdict = find_verdict(["a", "b", "c"], times)
    assert verdict["text"].startswith("not settled: a or c; ")
    assert (verdict["second"], verdict["factor"]) == ("c", 2.5)
    close = {label: seeded(1, 0.9 + k / 10, 1.1, 1.2, 1.3) for k, label in enumerate("bcdef")}
    many = find_verdict(["a", *"bcdef"], {"a": seeded(*[1.0] * 5), **close})
    assert many["text"].startswith("not settled: a, b or one of 4 others; ")


def test_steps_decide_where_there_is_no_target() -> None:
    verdict = of_two([0.1] * 5, [0.2, 0.21, 0.22, 0.23, 0.24], by_step=True)
    assert verdict["text"] == "a first by time per step, 2.2x as fast as b (2.0 to 2.4)"
    assert of_two([0.1], [0.2], by_step=True)["text"].startswith("not settled by time per step: a or b; ")


def test_where_nothing_is_random_one_repeat_settles() -> None:
    verdict = of_two([0.1], [0.24], by_step=True, exact=True)
    assert verdict["text"] == "a first by time per step, 2.4x as fast as b (nothing is random)"
    assert (verdict["settled"], verdict["interval"]) == (True, [verdict["factor"]] * 2)
    tie = of_two([0.1], [0.1], by_step=True, exact=True)
    assert (tie["text"], tie["settled"]) == ("a and b tie by time per step", False)


def test_what_a_table_shows_as_equal_is_a_tie_however_sure_the_order_is() -> None:
    steps = {label: seeded(step_s) for label, step_s in {"a": 1.0, "b": 1.0001, "c": 1.004, "d": 1.1}.items()}
    verdict = find_verdict(["a", "b", "c", "d"], steps, by_step=True, exact=True)
    assert verdict["text"] == "a, b and c tie by time per step, within 0.5 %"
    assert (verdict["settled"], verdict["second"], verdict["factor"]) == (False, "b", 1.0001)
    assert of_two([1.0], [1.006], by_step=True, exact=True)["settled"]
    many = find_verdict(list("abcde"), {x: seeded(1.0) for x in "abcde"}, by_step=True, exact=True)
    assert many["text"] == "a, b and 3 others tie by time per step"


def test_repeats_show_a_tie_where_their_whole_interval_is_near_1() -> None:
    assert of_two([1] * 5, [1.001, 1.002, 1.002, 1.003, 1.004])["text"] == "a and b tie, within 0.5 %"
    assert of_two([1] * 5, [0.999, 1.0, 1.001, 1.0, 1.002])["text"] == "a and b tie, within 0.5 %"
    assert (
        of_two([1] * 5, [1.001, 1.002, 1.002, 1.003, 1.006])["text"]
        == "a first, 1.00x as fast as b (1.001 to 1.01)"
    )
    assert of_two([1] * 4, [1.001] * 4)["text"].startswith("not settled: a or b; ")  # too few to tell
    times = {"a": seeded(*[1.0] * 5), "b": seeded(*[1.001] * 5), "c": seeded(0.8, 1.1, 1.2, 1.3, 1.4)}
    verdict = find_verdict(["a", "b", "c"], times)
    assert verdict["text"].startswith("not settled: a, b or c; about ")


@pytest.mark.parametrize(("random", "settled"), [(False, True), (True, False)])
def test_a_summary_knows_whether_anything_is_random(random: bool, settled: bool) -> None:
    runs = [made_run("a", reached_s=None, steps=50), made_run("b", reached_s=None, steps=100)]
    bounds = made_bounds(random=random)
    facts = {label: SchemeFacts(does="It averages.", bounds=bounds) for label in ("a", "b")}
    summary = summarise("s", runs, None, (), facts)
    assert summary["winner"] == "b"
    assert summary["verdict"]["settled"] == settled
    assert summary["summary"][0]["bounds"] == bounds
    # With a target, gradients are random in any case.
    runs = [made_run("a", reached_s=5.0), made_run("b", reached_s=9.0)]
    assert not summarise("s", runs, TARGET, (), facts)["verdict"]["settled"]


def drawn_verdict(rng: np.random.Generator, centres: Sequence[float], repeats: int) -> Verdict:
    """Of lognormal times, whose spread is half common to all schemes and half each one's own."""
    return ranked_verdict(drawn_times(rng, centres, repeats))


def drawn_times(
    rng: np.random.Generator, centres: Sequence[float], repeats: int, first_seed: int = 0
) -> dict[str, dict[int, float]]:
    common = rng.normal(0, 0.2, repeats)
    return {
        f"s{k}": dict(enumerate(np.exp(centre + common + rng.normal(0, 0.2, repeats)), first_seed))
        for k, centre in enumerate(centres)
    }


def ranked_verdict(times: Mapping[str, Mapping[int, float]]) -> Verdict:
    winner = find_winner(times)
    assert winner is not None
    behind = {label: median_ratio(times[label], times[winner]) or INF for label in times}
    return find_verdict(sorted(times, key=lambda label: (label != winner, behind[label])), times)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schemes", "repeats", "most"),
    # Two equal schemes are the worst case. Of five repeats the range is all there is: 6.25 %.
    [(2, 5, 0.0625), (2, 6, 0.05), (2, 8, 0.05), (2, 12, 0.05), (2, 20, 0.05), (4, 5, 0.05), (4, 10, 0.05)],
)
def test_of_equal_schemes_few_orders_are_called_settled(schemes: int, repeats: int, most: float) -> None:
    rng, draws = np.random.default_rng([schemes, repeats]), 2000
    wrong = sum(drawn_verdict(rng, [0.0] * schemes, repeats)["settled"] for _ in range(draws))
    assert wrong / draws <= most + 2.5 * math.sqrt(most * (1 - most) / draws)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [5, 8, 15])
def test_the_wrong_scheme_is_hardly_ever_called_first(repeats: int) -> None:
    rng, draws = np.random.default_rng(repeats), 2000
    drawn = [drawn_verdict(rng, [0.0, 0.05, 0.05], repeats) for _ in range(draws)]
    assert sum(each["settled"] and each["first"] != "s0" for each in drawn) / draws <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [3, 5, 8])
def test_as_many_repeats_as_are_named_mostly_tell(repeats: int) -> None:
    # The ratio's spread is 28 %, its median 1.28: a close race, but not a hopeless one.
    rng, centres, settled_later = np.random.default_rng(repeats), [0.0, 0.25], []
    for _ in range(600):
        times = drawn_times(rng, centres, repeats)
        needed = ranked_verdict(times)["repeats_needed"]
        if needed:
            more = drawn_times(rng, centres, needed, first_seed=repeats)
            settled = ranked_verdict({label: times[label] | more[label] for label in times})["settled"]
            settled_later.append(settled)
    assert len(settled_later) > 100
    assert np.mean(settled_later) >= 0.75


@pytest.mark.parametrize("repeats", [5, 7, 12])
def test_more_than_a_hundred_repeats_are_named_mostly_where_they_are_needed(repeats: int) -> None:
    rng = np.random.default_rng(repeats)
    drawn = [drawn_forecast(rng, repeats, gap) for gap in rng.uniform(0, 4, 2000)]
    many = [each.needed > verdicts.MOST_REPEATS for each in drawn if each is not None and each.named is None]
    assert np.mean(many) > 0.5
    # 27 more than five would do at a gap of 0.64 spreads of the log ratio.
    close = [each for each in (drawn_forecast(rng, repeats, 0.64) for _ in range(600)) if each is not None]
    assert close[0].needed == pytest.approx(32 - repeats, abs=3)
    assert np.mean([each.named is None for each in close]) <= 0.25


def times(**columns: list[float]) -> dict[str, dict[int, float]]:
    return {label: dict(enumerate(column)) for label, column in columns.items()}


def test_the_paired_ratio_decides_and_not_the_medians() -> None:
    # a is the faster one on four seeds of five, and has the larger median.
    found = times(a=[1.0, 4.0, 5.0, 6.0, 7.0], b=[2.0, 4.5, 4.9, 7.0, 8.0])
    assert np.median(list(found["a"].values())) > np.median(list(found["b"].values()))
    assert find_winner(found) == "a"
    assert find_winner(dict(reversed(found.items()))) == "a"


def test_whoever_ties_is_first_by_its_median_time() -> None:
    # On the one seed that they share they are equal.
    assert find_winner({"a": {0: 5.0, 1: 9.0}, "b": {0: 5.0, 2: 4.0}}) == "b"
    assert find_winner({"a": {0: 5.0}, "b": {1: 4.0}}) == "b"
    assert find_winner(times(a=[INF, 1.0, 1.0], b=[1.0, 1.0, 1.0])) == "b"


def test_in_a_circle_the_median_time_decides() -> None:
    # Each is beaten by the one before it on two seeds of three; the medians are 2, 2 and 1.9.
    found = times(a=[1.0, 2.0, 3.0], b=[2.0, 3.0, 1.0], c=[3.0, 1.0, 1.9])
    assert find_winner(found) == "c"


def test_who_mostly_fails_takes_no_part() -> None:
    assert find_winner(times(lucky=[1.0, INF, INF], steady=[50.0, 50.0, 50.0])) == "steady"
    assert find_winner(times(a=[1.0, INF, INF], b=[INF, INF, INF])) is None
    assert find_winner({}) is None


def test_a_chance_is_never_certain() -> None:
    assert chance_to_win(5.0, 5) == pytest.approx(5.5 / 6)
    assert chance_to_win(0.0, 5) == pytest.approx(0.5 / 6)
    assert chance_to_win(2.5, 5) == 0.5  # five ties of two


@pytest.mark.parametrize("races", [5, 6, 30])
def test_the_chances_of_two_add_up_to_one_and_grow_with_the_wins(races: int) -> None:
    chances = [chance_to_win(wins, races) for wins in range(races + 1)]
    assert chances == sorted(chances)
    assert all(0 < chance < 1 for chance in chances)
    assert np.add(chances, chances[::-1]) == pytest.approx(1.0)
