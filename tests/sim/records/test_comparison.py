"""Errors and decisions, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.reports.tables import verdict
from paceline.sim.records import comparison
from paceline.sim.records.run import LOST, Evaluation, Run, TimeShare


def run(label: str, time_s: float | None, seed: int = 1, source: str = "simulated", **changes: Any) -> Run:
    made = Run(
        scheme=label, label=label, seed=seed, source=source, status="completed",  # type: ignore[arg-type]
        reached_target=time_s is not None, time_to_target_s=time_s, wall_clock_s=10.0, iterations=10.0,
        bytes_sent=0, time_s=TimeShare(5.0, 3.0, 2.0), evaluations=(), digest="d",
    )  # fmt: skip
    return replace(made, **changes)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = comparison.compare(
        "s",
        [run("gossip", 9.0, wall_clock_s=11.0)],
        [run("gossip", 10.0, source="measured", wall_clock_s=10.0)],
    )
    errors = {cell["metric"]: cell["error_pct"] for cell in found["cells"]}
    assert errors == {
        "time_to_target_s": pytest.approx(-10),
        "wall_clock_s": pytest.approx(10),
        "iteration_time_s": pytest.approx(10),
    }
    assert found["mean_abs_error_pct"] == pytest.approx(10)
    assert found["max_abs_error_pct"] == pytest.approx(10)


def test_runs_of_different_length_are_compared_at_the_last_common_score() -> None:
    def scores(factor: float, last: int) -> tuple[Evaluation, ...]:
        return tuple(
            Evaluation(k, k * factor, 0, {"train_loss": 1.0 / (k + 1)}) for k in range(0, last + 1, 2)
        )

    p = run("gossip", None, iterations=6.0, wall_clock_s=99.0, evaluations=scores(1.0, 6))
    m = run("gossip", None, source="measured", iterations=8.0, wall_clock_s=99.0, evaluations=scores(1.25, 8))
    cells = {cell["metric"]: cell for cell in comparison.Pair(p, m).cells()}
    assert (cells["wall_clock_s"]["predicted"], cells["wall_clock_s"]["measured"]) == (6.0, 7.5)
    assert cells["iteration_time_s"]["measured"] == 1.25
    assert comparison.Pair(p, m).trajectory()["same"] is True


def test_scores_without_the_steps_of_a_lost_rank_are_compared_with_none() -> None:
    """Steps of a rank that took its log with it are not known: the others had done twice as many."""

    def scores(*vectors: tuple[int, int]) -> tuple[Evaluation, ...]:
        return tuple(Evaluation(2 * k, 2.0 * k, 0, {}, steps) for k, steps in enumerate(vectors))

    p = run("gossip", None, iterations=6.0, evaluations=scores((0, 0), (2, 2), (4, 4), (6, 6)))
    partial = run("gossip", None, source="measured", status="partial", iterations=4.0)
    early = replace(partial, evaluations=scores((0, 0), (2, 2), (8, LOST)))
    never = replace(partial, evaluations=scores((0, 0), (4, LOST), (8, LOST)))
    cells = {cell["metric"]: cell for cell in comparison.Pair(p, early).cells()}
    assert (cells["wall_clock_s"]["predicted"], cells["wall_clock_s"]["measured"]) == (2.0, 2.0)
    assert comparison.Pair(p, never).cells() == []
    planned = replace(p, evaluations=never.evaluations)
    assert [cell["error_pct"] for cell in comparison.Pair(planned, never).cells()] == [0.0, 0.0]


def scored(scheme: str, exchanges: tuple[str, ...] | None) -> Run:
    scores = (Evaluation(2, 1.0, 0, {"train_loss": 0.5}),)
    return run(scheme, 1.0, evaluations=scores, iterations=2.0, exchanges=exchanges)


def changed(run: Run, change: float) -> Run:
    scores = (Evaluation(2, 1.0, 0, {"train_loss": 0.5 + change}),)
    return replace(run, digest="other", iterations=3.0, evaluations=scores)


@pytest.mark.parametrize(
    ("scheme", "exchanges", "change", "same"),
    [
        ("gossip", ("mix",), 0.0, True),
        ("gossip", ("mix",), 1e-9, False),
        ("gossip", ("all_reduce", "mix"), 1e-7, True),  # with global_period
        ("gossip", ("all_reduce", "mix"), 1e-3, False),
        ("all_reduce", ("all_reduce",), 1e-7, True),
        ("all_reduce", ("all_reduce",), 1e-3, False),
        ("mine:scheme", ("all_reduce", "receive", "send"), 1e-7, True),
        ("mine:scheme", ("receive", "send"), 1e-9, False),
        ("mine:scheme", ("receive", "receive_any", "send"), 1e-9, True),
        ("mine:scheme", (), 1e-9, False),  # nobody exchanged anything
        ("gossip", None, 1e-7, True),  # not recorded
        ("ad_psgd", ("receive", "send"), 1e-3, None),
    ],
)
def test_trajectories(
    scheme: str, exchanges: tuple[str, ...] | None, change: float, same: bool | None
) -> None:
    p = scored(scheme, exchanges)
    m = changed(p, change)
    assert comparison.Pair(p, m, asynchronous=scheme == "ad_psgd").trajectory()["same"] is same


def test_gradients_of_two_methods_need_not_have_the_same_bits() -> None:
    p = scored("gossip", ("mix",))
    pair = comparison.Pair(p, changed(p, 1e-9), same_gradients=False)
    assert pair.trajectory()["same"] is True


def test_both_sides_have_to_have_recorded_their_exchanges() -> None:
    p = scored("gossip", ("mix",))
    assert comparison.Pair(p, replace(changed(p, 1e-9), exchanges=None)).trajectory()["same"] is True


def test_equal_length_and_other_bits_are_not_the_same_for_messages() -> None:
    p = scored("gossip", ("mix",))
    assert comparison.Pair(p, replace(p, digest="other")).trajectory()["same"] is False
    assert comparison.Pair(p, p).trajectory()["same"] is True


def measured(times: dict[str, float | None]) -> list[Run]:
    return [run(label, time_s, source="measured") for label, time_s in times.items()]


def test_a_wrong_winner_costs_its_regret() -> None:
    predicted = [run("gossip", 10.0), run("all_reduce", 11.0), run("local_sgd", 20.0)]
    found = comparison.decide(
        "s", predicted, measured({"gossip": 12.0, "all_reduce": 10.0, "local_sgd": 30.0})
    )
    assert (found["winner_predicted"], found["winner_measured"]) == ("gossip", "all_reduce")
    assert found["regret_pct"] == pytest.approx(20)
    assert found["kendall_tau"] == pytest.approx((2 - 1) / 3)  # two pairs in order, one not
    assert found["interval_coverage"] is None


def test_a_scheme_that_never_got_there_ranks_last() -> None:
    predicted = [run("gossip", 10.0), run("all_reduce", None)]
    found = comparison.decide("s", predicted, measured({"gossip": None, "all_reduce": 10.0}))
    assert (found["winner_predicted"], found["winner_measured"]) == ("gossip", "all_reduce")
    assert found["regret_pct"] is None
    assert found["kendall_tau"] == pytest.approx(-1)


def repeats(source: str, **times: tuple[float | None, ...]) -> list[Run]:
    return [
        run(label, time_s, seed, source)
        for label, column in times.items()
        for seed, time_s in enumerate(column)
    ]


def test_who_is_first_follows_from_paired_ratios() -> None:
    # Medians of 20 and 15 s, but two of the three ratios are above 1.
    predicted = repeats("simulated", gossip=(10.0, 20.0, 30.0), all_reduce=(11.0, 21.0, 15.0))
    real = repeats("measured", gossip=(12.0, 20.0, 30.0), all_reduce=(10.0, 16.0, 60.0))
    found = comparison.decide("s", predicted, real)
    assert (found["winner_predicted"], found["winner_measured"]) == ("gossip", "all_reduce")
    assert found["regret_pct"] == pytest.approx(20)  # the medians of 20 and 16 s would say 25
    assert found["kendall_tau"] == pytest.approx(-1)


def test_nobody_wins_by_the_clock_where_the_other_side_has_a_target() -> None:
    predicted = repeats("simulated", gossip=(10.0,), all_reduce=(11.0,))
    found = comparison.decide("s", predicted, repeats("measured", gossip=(None,), all_reduce=(None,)))
    assert (found["winner_predicted"], found["winner_measured"]) == ("gossip", None)
    assert (found["regret_pct"], found["kendall_tau"]) == (None, None)


def test_without_a_target_the_wall_clock_decides() -> None:
    predicted = [run("gossip", None, wall_clock_s=3.0), run("all_reduce", None, wall_clock_s=2.0)]
    real = [replace(r, source="measured") for r in predicted]
    found = comparison.decide("s", predicted, real)
    assert (found["winner_predicted"], found["regret_pct"]) == ("all_reduce", 0.0)
    assert found["kendall_tau"] == pytest.approx(1)
    assert found["tie"] is False


@pytest.mark.parametrize("to_target", [True, False])
def test_a_winner_by_half_a_percent_was_predicted_in_a_tie(to_target: bool) -> None:
    def runs(source: str, **times_s: float) -> list[Run]:
        return [
            run(label, time_s if to_target else None, wall_clock_s=time_s, source=source)
            for label, time_s in times_s.items()
        ]

    for second_s, words in ((10.04, "was predicted, in a tie"), (10.06, "was predicted.")):
        predicted = runs("simulated", gossip=10.0, all_reduce=second_s)
        compared = comparison.compare("s", predicted, runs("measured", gossip=10.0, all_reduce=11.0))
        assert words in verdict(compared)
    nothing = runs("simulated", gossip=0.0, all_reduce=0.0)
    real = runs("measured", gossip=1.0, all_reduce=1.0)
    assert comparison.decide("s", nothing, real)["tie"] is True


@pytest.mark.parametrize(
    ("a", "b", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1),
        ([1, 2, 3], [3, 2, 1], -1),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),
        ([1], [1], None),
    ],
)
def test_kendall_tau(a: list[float], b: list[float], tau: float | None) -> None:
    assert comparison.kendall_tau(a, b) == (None if tau is None else pytest.approx(tau))


def test_intervals_cover_what_lies_in_them() -> None:
    predicted = [run("gossip", t, seed=k) for k, t in enumerate((8.0, 9.0, 10.0, 11.0, 12.0))]
    predicted += [run("all_reduce", t, seed=k) for k, t in enumerate([20.0] * 5)]
    real = [run("gossip", 11.0, source="measured"), run("all_reduce", 21.0, source="measured")]
    assert comparison.decide("s", predicted, real)["interval_coverage"] == 0.5


def test_the_verdict_names_the_error_and_the_choice() -> None:
    good = comparison.compare("s", [run("gossip", 9.9)], [run("gossip", 10.0, source="measured")])
    assert "1.00 % at worst; the winner, gossip, was predicted" in verdict(good)
    assert verdict(comparison.compare("s", [], [])) == "There is nothing to compare."


def judged(error_pct: float, noise_pct: float | None, **options: Any) -> comparison.Comparison:
    """Two schemes: gossip is predicted ``error_pct`` off, and real runs of it differ by ``noise_pct``."""
    real = [run(label, None, seed, "measured") for label in ("gossip", "sgd") for seed in (1, 2, 3)]
    off = {"gossip": 1 + error_pct / 100, "sgd": 1.001}
    predicted = [replace(r, source="simulated", wall_clock_s=10 * off[r.label]) for r in real]
    repeated = []
    if noise_pct is not None:
        repeated = [(real[0], replace(real[0], wall_clock_s=10 * (1 + noise_pct / 100)))]
    return comparison.judge(comparison.compare("s", predicted, real), repeated, **options)


@pytest.mark.parametrize(
    ("error_pct", "noise_pct", "options", "outcome", "words"),
    [
        (-3, 1, {}, "pass", "off by up to 3.00 % (gossip), within the tolerance of 5 %; real runs differ"),
        (8, 1, {}, "fail", "off by up to 8.00 % (gossip), more than the tolerance of 5 %"),
        (8, 1, {"tolerance_pct": 10.0}, "pass", "within the tolerance of 10 %"),
        (8, 6, {}, "noisy", "differ from each other by up to 6.00 %, more than the tolerance of 5 %"),
        (1, -6, {}, "noisy", "too noisy to tell"),
        (12, 6, {}, "fail", "more than the tolerance of 5 % and the noise together; real runs differ"),
        (3, None, {}, "pass", "within the tolerance of 5 %"),
        (3, 1, {"failure": "worker 3 was lost"}, "fail", "not all runs were made; of those that were: pass"),
    ],
)
def test_a_tolerance_decides(
    error_pct: float, noise_pct: float | None, options: dict[str, Any], outcome: str, words: str
) -> None:
    answer = judged(error_pct, noise_pct, **options)
    assert answer["verdict"]["outcome"] == outcome
    assert words in answer["verdict"]["text"]
    assert answer["verdict"]["tolerance_pct"] == options.get("tolerance_pct", 5.0)
    floor = answer["noise_floor_pct"]
    assert floor == (None if noise_pct is None else pytest.approx(abs(noise_pct)))
    assert answer["status"] == ("partial" if "failure" in options else "completed")
    assert answer["message"] == options.get("failure", "")
    assert len(answer["noise"]) == (0 if noise_pct is None else 2)


def test_one_bad_repeat_of_three_does_not_decide() -> None:
    real = [run("gossip", None, seed, "measured") for seed in (1, 2, 3)]
    predicted = [replace(r, source="simulated") for r in real]
    predicted[1] = replace(predicted[1], wall_clock_s=20.0)
    assert comparison.judge(comparison.compare("s", predicted, real), [])["verdict"]["outcome"] == "pass"


def test_other_models_are_a_failure_whatever_the_times_are() -> None:
    compared = comparison.compare("s", [run("gossip", 1.0)], [run("gossip", 1.0, source="measured")])
    different = comparison.Trajectory(label="gossip", seed=1, same=False, says="the bits differ")
    answer = comparison.judge({**compared, "trajectories": [different]}, [])
    assert answer["verdict"]["outcome"] == "fail"
    assert "gossip computed other models than predicted" in answer["verdict"]["text"]


def test_nothing_to_compare_is_a_failure() -> None:
    assert comparison.judge(comparison.compare("s", [], []), [])["verdict"]["outcome"] == "fail"


@pytest.mark.parametrize("broken", ["simulated", "measured"])
def test_a_run_that_broke_at_once_is_no_winner(broken: str) -> None:
    """By wall clock, where it ended after no time."""

    def side(source: str) -> list[Run]:
        gossip = run("gossip", None, source=source, wall_clock_s=9.0)
        if source == broken:
            gossip = replace(gossip, status="partial", wall_clock_s=0.0, iterations=0.0)
        return [run("all_reduce", None, source=source), gossip]

    decided = comparison.decide("s", side("simulated"), side("measured"))
    first = {"simulated": decided["winner_predicted"], "measured": decided["winner_measured"]}
    assert first.pop(broken) == "all_reduce"
    assert [*first.values()] == ["gossip"]
