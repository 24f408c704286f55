"""Runs under faults that nobody would write: each ends with a message, or with times that add up."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.faults.goodput import goodput
from paceline.sim.faults.outages import resumed_s
from paceline.sim.records.run import Run
from tests.sim.faults.test_runs_with_faults import runs_of, scenario

TIMES = st.sampled_from(["0 s", "1 us", "50 ms", "200 ms", "1 s", "1000 s"])
WHEN = st.one_of(
    st.builds(lambda at: {"at": at}, TIMES),
    st.builds(lambda step: {"at_step": f"{step} steps"}, st.sampled_from([0, 1, 5, 11])),
    st.builds(lambda mean: {"mean_time_between": mean}, st.sampled_from(["300 ms", "2 s", "1 h"])),
)
WHO = st.lists(st.sampled_from([1, 2, 3]), min_size=1, unique=True)


@st.composite
def faults(draw: st.DrawFn) -> dict[str, Any]:
    times = {key: draw(TIMES) for key in ("back_after", "detect", "warning")}
    how = draw(st.sampled_from(["kill", "stop", "cut"]))
    return {"workers": draw(WHO), "how": how, **draw(WHEN), **times}


CHECKPOINTS = st.fixed_dictionaries(
    {"every": st.sampled_from(["1 steps", "4 steps", "30 ms", "1 h"]), "write": TIMES, "restart": TIMES},
    optional={"blocking": st.booleans()},
)
SCHEMES = st.sampled_from([
    *({"all_reduce": {"on_fault": policy}} for policy in ("wait", "restart", "shrink")),
    *({"local_sgd": {"period": 4, "on_fault": policy}} for policy in ("wait", "restart", "shrink")),
    {"gossip": {"topology": "complete", "on_fault": "shrink"}},
    {"all_reduce": {"quorum": 2, "on_fault": "skip"}},
    {"all_reduce": {"deadline": "100 ms", "on_fault": "skip"}},
    {"ad_psgd": {"topology": "ring", "on_fault": "wait"}},
])  # fmt: skip


def drawn(entry: dict[str, Any], some: list[dict[str, Any]], **more: Any) -> Any:
    cluster = {"workers": 4, "faults": some}
    return scenario(cluster=cluster, schemes=[entry], **{"stop": {"max_iterations": 12}, **more})


def text_of(run: Run) -> str:
    return json.dumps(asdict(run), default=str)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    SCHEMES, st.lists(faults(), min_size=1, max_size=4), CHECKPOINTS, st.sampled_from([None, "300 ms", "2 s"])
)
def test_times_add_up(
    entry: dict[str, Any], some: list[dict[str, Any]], checkpoint: dict[str, Any], max_time: str | None
) -> None:
    stop = {"max_iterations": 12, **({"max_time": max_time} if max_time else {})}
    of = drawn(entry, some, checkpoint=checkpoint, stop=stop)
    (run,), (again,) = runs_of(of), runs_of(of)
    assert text_of(run) == text_of(again)
    shares = run.time_s
    parts = (shares.compute, shares.communicate, shares.wait, shares.idle, shares.down)
    assert all(part >= -1e-9 * run.wall_clock_s for part in parts)
    assert sum(parts) == pytest.approx(run.wall_clock_s, rel=1e-6)
    times = [each.time_s for each in run.evaluations]
    assert all(a <= b for a, b in itertools.pairwise(times))
    job = prepare(of, of.schemes[0], 0)
    there_s = run.wall_clock_s + job.hand_over.time_s  # the last mean model is there an all-reduce later
    assert all(time_s <= there_s * (1 + 1e-9) for time_s in times)
    if max_time:
        assert run.wall_clock_s <= of.stop.max_time * (1 + 1e-9)
    if run.faults is not None:
        assert min(run.faults[key] for key in ("outages", "down_s", "repeated_s", "writing_s")) >= 0
    if job.churn is not None:
        with contextlib.suppress(RunError):  # no progress at all
            assert 0 <= goodput(job.churn, [0.07] * 4, [0.07], 0.035, 0.28) <= 1


@settings(max_examples=10)
@given(SCHEMES, WHO, TIMES)
def test_faults_after_the_end_change_nothing(entry: dict[str, Any], who: list[int], back_after: str) -> None:
    (without,) = runs_of(drawn(entry, []))
    (run,) = runs_of(drawn(entry, [{"workers": who, "at": "1 h", "back_after": back_after}]))
    assert run.digest == without.digest
    assert run.wall_clock_s == pytest.approx(without.wall_clock_s, rel=1e-12)
    assert run.time_s == without.time_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "checkpoint", "error"),
    [
        ({"mean_time_between": "1 ms", "back_after": "0 s"}, None, "more than 100,000 faults"),
        ({"at": "1 s", "back_after": "0 s"}, {"every": "1 ns"}, "more than 1,000,000 checkpoints"),
    ],
)
def test_a_run_without_progress_ends(fault: dict[str, Any], checkpoint: Any, error: str) -> None:
    (run,) = runs_of(drawn({"all_reduce": {}}, [fault], checkpoint=checkpoint))
    assert run.status == "partial"
    assert error in run.message


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"mean_time_between": "1 s", "shape": 0.001}, "equal to 0.01"),
        ({"at": "1 s", "workers": [1, 1]}, "names one twice"),
        ({"trace": 5}, "must be the name of a file"),
    ],
)
def test_a_wrong_fault_is_refused(fault: dict[str, Any], error: str) -> None:
    with pytest.raises((InputError, ValueError), match=error):
        drawn({"all_reduce": {}}, [fault if "trace" in fault else {**fault, "back_after": "1 s"}])


@given(st.floats(0, 1e5), st.floats(0, 300))
def test_time_outs_double_up_to_their_limit(outage_s: float, round_trip_s: float) -> None:
    """RFC 6298, packet by packet."""
    timeout_s = after_s = 0.2 + round_trip_s
    while after_s < outage_s and not math.isclose(after_s, outage_s):
        timeout_s = min(2 * timeout_s, 120.0)
        after_s += timeout_s
    assume(not math.isclose(after_s, outage_s))  # rounding would decide whether a packet came in time
    assert resumed_s(outage_s, round_trip_s) == pytest.approx(after_s, rel=1e-9)
