from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from time import sleep

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.reports.figures.bars import draw_waterfall, gap
from paceline.reports.figures.drawing import own_style
from paceline.reports.folders import SourceRuns, read_sources
from paceline.reports.words import ranked
from paceline.sim.records.folder import Results, write_results
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from tests.support.made_runs import made_run, made_scenario


def part(*runs: Run) -> SourceRuns:
    import pandas as pd

    summary = summarise("s", runs)
    return SourceRuns("simulated", Results(summary, pd.DataFrame(), pd.DataFrame(), ""), ranked(summary))


def test_by_hand() -> None:
    # 10 steps of 1 s (0.6 + 0.3 + 0.1) against 20 steps of 2 s (0.6 + 0.8 + 0.6): 30 s between them.
    fast = made_run("fast", reached_s=10.0, steps=10, shares=(0.6, 0.3, 0.1))
    slow = made_run("slow", reached_s=40.0, steps=20, shares=(0.3, 0.4, 0.3))
    found = gap(part(fast, slow))
    assert found is not None
    assert found["number of steps"] == pytest.approx(15.0)  # 10 more steps of 1.5 s
    assert found["computing"] == pytest.approx(0.0)
    assert found["transferring"] == pytest.approx(7.5)  # 0.5 s more in 15 steps
    assert found["waiting"] == pytest.approx(7.5)


@given(
    st.tuples(st.floats(0.1, 1e3), st.integers(1, 1000), st.floats(0, 1)),
    st.tuples(st.floats(0.1, 1e3), st.integers(1, 1000), st.floats(0, 1)),
)
def test_the_parts_add_up(one: tuple[float, int, float], two: tuple[float, int, float]) -> None:
    runs = [
        made_run(label, reached_s=time_s, steps=steps, shares=(share, (1 - share) / 2, (1 - share) / 2))
        for label, (time_s, steps, share) in (("a", one), ("b", two))
    ]
    found = gap(part(*runs))
    assert found is not None
    total = sum(found.values())
    first_s, second_s = sorted(time_s for time_s, _, _ in (one, two))
    assert total == pytest.approx(second_s - first_s, rel=1e-6, abs=1e-6 * second_s)


def test_there_is_none_without_two_who_arrive() -> None:
    assert gap(part(made_run("a"))) is None
    assert gap(part(made_run("a"), made_run("b", reached_s=None))) is None


def test_the_figure_shows_the_same_numbers(tmp_path: Path) -> None:
    runs = [made_run("a", steps=10), made_run("b", reached_s=40.0, steps=20)]
    write_results(tmp_path / "r", made_scenario("s"), "s", runs)
    study = read_sources([tmp_path / "r"])[0]
    found = gap(study.main)
    assert found is not None
    data = draw_waterfall(study, found).data
    assert list(data["part"]) == ["a", "number of steps", "computing", "transferring", "waiting", "b"]
    assert data["to_s"].iloc[4] == pytest.approx(data["to_s"].iloc[5])


def test_rounding_is_no_part(tmp_path: Path) -> None:
    runs = [
        made_run("a", reached_s=10.0, steps=10, shares=(0.3, 0.3, 0.4)),
        made_run("b", reached_s=30.0, steps=30, shares=(0.3, 0.3, 0.4)),
    ]
    write_results(tmp_path / "r", made_scenario("s"), "s", runs)
    study = read_sources([tmp_path / "r"])[0]
    found = gap(study.main)
    assert found is not None
    tiny = found | {"waiting": -2.6e-12}
    texts = [text.get_text() for text in draw_waterfall(study, tiny).figure.axes[0].texts]
    assert texts == ["10", "+20", "0", "0", "0", "30"]


def test_two_threads_that_draw_leave_the_settings_as_they_were() -> None:
    """Each puts back what it has found: the other's, without a lock."""
    entered, before = Event(), dict(mpl.rcParams)

    def draw(first: bool) -> None:
        with own_style({"font.size": 11 + first}):
            if first:
                entered.set()
                sleep(0.2)
            else:
                sleep(0.4)

    threads = [Thread(target=draw, args=(first,)) for first in (True, False)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert dict(mpl.rcParams) == before


def test_many_fewer_steps_end_at_no_negative_time(tmp_path: Path) -> None:
    """100 steps of 0.1 s against 10 of 2 s."""
    runs = [made_run("many", reached_s=10.0, steps=100), made_run("few", reached_s=20.0, steps=10)]
    write_results(tmp_path / "r", made_scenario("s"), "s", runs)
    study = read_sources([tmp_path / "r"])[0]
    found = gap(study.main)
    assert found is not None
    assert 10.0 + found["number of steps"] < 0
    data = draw_waterfall(study, found).data
    assert list(data["part"][1:-1])[-1] == "number of steps"
    assert min(data["from_s"].min(), data["to_s"].min()) >= 0
