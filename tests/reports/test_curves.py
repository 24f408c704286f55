from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

import paceline
from paceline.reports.figures.metric_curves import bands, draw_curves, set_limits
from paceline.reports.folders import read_sources
from tests.support.made_results import write_made_results


def frame(*repeats: list[tuple[float, float]]) -> pd.DataFrame:
    rows = [(seed, x, y) for seed, repeat in enumerate(repeats) for x, y in repeat]
    return pd.DataFrame(rows, columns=["seed", "x", "loss"])


def test_one_repeat_is_its_own_median() -> None:
    found = bands(frame([(0, 3.0), (2, 1.0)]), "loss")
    assert found.to_numpy().tolist() == [[0, 3, 3, 3], [2, 1, 1, 1]]


def test_three_repeats_by_hand() -> None:
    # They end at 1, 2 and 4, so that the curve ends at 2. At 1 they stand at 2, 3 and 3.5 (interpolated),
    # at 2 the first keeps its 2, the others have 1 and 3.
    found = bands(frame([(0, 4.0), (1, 2.0)], [(0, 5.0), (2, 1.0)], [(0, 4.0), (4, 2.0)]), "loss")
    assert found["x"].tolist() == [0, 1, 2]
    assert found["median"].tolist() == [4.0, 3.0, 2.0]
    # 10 % and 90 % of three values: a fifth of the way from the outer ones to the middle one.
    assert np.allclose(found["low"], [4.0, 2.2, 1.2])
    assert np.allclose(found["high"], [4.8, 3.4, 2.8])


def test_scores_that_are_missing_are_left_out() -> None:
    found = bands(frame([(0, 4.0), (1, float("nan")), (2, 2.0)]), "loss")
    assert found["x"].tolist() == [0, 2]
    assert not len(bands(frame([(0, float("nan"))]), "loss"))


def test_long_curves_are_thinned_but_keep_their_ends() -> None:
    found = bands(frame([(float(k), float(k)) for k in range(5000)]), "loss")
    assert len(found) == 300
    assert (found["x"].iloc[0], found["x"].iloc[-1]) == (0, 4999)


@pytest.mark.parametrize("proxy", [True, False])
def test_curves_of_a_proxy_say_so(proxy: bool) -> None:
    study = paceline.simulate(
        {
            "name": "stands-for-another",
            "workload": {
                "task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1},
                **({"payload": "1 MB"} if proxy else {}),
            },
            "cluster": {
                "workers": 2,
                "compute": {"time": "10 ms"},
                "network": {"latency": "1 ms", "bandwidth": "100 Mbit/s"},
            },
            "schemes": ["all_reduce"],
            "stop": {"max_iterations": 4},
        },
        progress=False,
    )  # fmt: skip
    assert ("of the proxy" in study.plot().axes[0].get_ylabel()) == proxy


@settings(max_examples=40)
@given(
    st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=8, unique=True),
    st.sampled_from(["log", "linear"]),
)
def test_what_is_drawn_takes_most_of_the_height(heights: list[float], scale: str) -> None:
    assume(max(heights) > (1 + 1e-9) * min(heights))  # else their logarithms may be one number
    ax = Figure().subplots()
    ax.set_yscale(scale)
    set_limits(ax, heights)
    bottom, low, high, top = (
        math.log(each) if scale == "log" else each
        for each in (*ax.get_ylim()[:1], min(heights), max(heights), *ax.get_ylim()[1:])
    )
    assert bottom < low < high < top
    assert high - low > 0.85 * (top - bottom)


def test_a_diverged_scheme_does_not_squeeze_the_others(tmp_path: Path) -> None:
    study = read_sources([write_made_results(tmp_path) / "simulated"])[0]
    picture = draw_curves(study, "train_loss", "time_s")
    calm = picture.data[picture.data["label"] != "gone"]
    low, high = picture.figure.axes[0].get_ylim()
    assert 0 < calm["low"].min() / 1.3 < low < calm["low"].min()
    assert calm["high"].max() < high < 1.3 * calm["high"].max()
