from __future__ import annotations

import pytest

from paceline.sim.scenario.repeats import AutoRepeats, are_enough, max_repeats
from paceline.sim.scenario.schema import dump, parse
from tests.sim.scenario.test_schema import FLAT, refusal
from tests.support.made_runs import made_run

AUTO = AutoRepeats(half_width="10 %")  # type: ignore[arg-type]
TARGET = FLAT.replace("max_iterations: 100", "max_time: 1 min, target: {metric: test_accuracy, value: 0.9}")


def test_it_can_be_written_in_three_ways() -> None:
    assert parse(TARGET + "repeats: 7\n").repeats == 7
    assert parse(TARGET + "repeats: auto\n").repeats == AutoRepeats()
    found = parse(TARGET + "repeats: {half_width: 2.5 %, most: 12}\n")
    assert found.repeats == AutoRepeats(half_width="2.5 %", most=12)  # type: ignore[arg-type]
    assert max_repeats(found.repeats) == 12
    assert parse(dump(found)) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("repeats: often", "must be a number, 'auto' or {half_width: 10 %, most: 30}, not the text 'often'"),
        ("repeats: {half_width: 0.1}", "must be a share such as '10 %', not 0.1"),
        ("repeats: {most: 3}", "repeats.most: must be at least 5, not 3"),
        ("repeats: 0", "must be at least 1, not 0"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    assert says in refusal(TARGET + text + "\n")


def test_without_a_target_there_is_no_ratio_to_narrow() -> None:
    assert "auto narrows ratios of time to target; add stop.target" in refusal(FLAT + "repeats: auto\n")


def test_a_number_is_a_number() -> None:
    runs = [made_run(label, seed) for seed in range(2) for label in ("a", "b")]
    assert [are_enough(n, ["a", "b"], runs) for n in (1, 2, 3)] == [True, True, False]


def test_it_stops_when_ratios_are_narrow() -> None:
    # The ratio b/a is 2 on three seeds of five, 1.9 and 2.1 on the others: half of the interval over the
    # ratio is (2.1 - 1.9) / 2 / 2 = 5 %.
    times = [(10.0, 20.0), (40.0, 80.0), (90.0, 180.0), (10.0, 19.0), (10.0, 21.0)]
    runs = [
        made_run(label, seed, reached_s=time)
        for seed, pair in enumerate(times)
        for label, time in zip("ab", pair, strict=True)
    ]
    assert not are_enough(AUTO, ["a", "b"], runs[:8])  # four repeats: nothing is known about chance
    assert are_enough(AUTO, ["a", "b"], runs)
    assert not are_enough(AutoRepeats(half_width="4 %"), ["a", "b"], runs)  # type: ignore[arg-type]
    assert are_enough(AutoRepeats(half_width="4 %", most=5), ["a", "b"], runs)  # type: ignore[arg-type]


def test_one_scheme_narrows_its_time() -> None:
    runs = [made_run("a", seed, reached_s=100.0 + seed) for seed in range(5)]  # 102, from 100 to 104: 2 %
    assert are_enough(AUTO, ["a"], runs)
    assert not are_enough(AutoRepeats(half_width="1 %"), ["a"], runs)  # type: ignore[arg-type]


def test_who_never_arrives_is_not_waited_for_but_an_open_interval_is() -> None:
    runs = [made_run("a", seed) for seed in range(5)] + [
        made_run("b", seed, reached_s=None) for seed in range(5)
    ]
    assert are_enough(AUTO, ["a", "b"], runs)
    some = [made_run("b", seed, reached_s=20.0 if seed < 3 else None) for seed in range(5)]
    assert not are_enough(AUTO, ["a", "b"], runs[:5] + some)
