"""Traces of torch's profiler and timelines of Horovod."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.extras.importers.measured import horovod, torch_trace
from paceline.extras.importers.readings import Answers, ForeignFile, Readings
from paceline.sim.errors import InputError
from paceline.sim.foreign import foreign_kind


def event(name: str, begin_us: float, end_us: float, cat: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin_us, "dur": end_us - begin_us, "pid": 1, "tid": 2}


STEPS = [event(f"ProfilerStep#{k}", 1000 * k, 1000 * k + 900 + 10 * k) for k in range(4)]
KERNELS = [
    event("ampere_sgemm", 100, 500, "kernel"),
    event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, 700, "kernel"),  # 200 of them beside nothing
    event("ncclKernel_AllGather", 1400, 1600, "kernel"),
    event("ampere_sgemm", 1300, 1450, "kernel"),
    event("ampere_sgemm", 1550, 1700, "kernel"),  # 100 between the two
]
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": STEPS + KERNELS})


def read(text: str, answers: Answers = Answers()) -> Readings:  # noqa: B008
    return torch_trace.read(ForeignFile("trace.json", text, answers=answers))


def test_steps_without_what_nccl_adds() -> None:
    assert foreign_kind(TRACE) == "torch-trace"
    out = read(TRACE)
    assert out.gradients_s == pytest.approx([(900 + 10 * k - 75) / 1e6 for k in range(4)])
    assert "75 us a step overlap no other" in out.notes[1]
    assert (out.averaging, read(json.dumps({"traceEvents": STEPS})).averaging) == (0.0, None)


def test_steps_without_nccl() -> None:
    out = read(json.dumps({"traceEvents": STEPS}))
    assert out.gradients_s == pytest.approx([(900 + 10 * k) / 1e6 for k in range(4)])
    assert "no kernels of NCCL" in out.notes[1]


def test_an_event_is_named_where_there_are_no_steps() -> None:
    text = json.dumps([event("train", 0, 500), event("train", 600, 1000), event("aten::add", 0, 5, "cpu_op")])
    assert foreign_kind(text) == "torch-trace"
    with pytest.raises(InputError, match=r"^trace\.json: has no events ProfilerStep#1.* --event"):
        read(text)
    with pytest.raises(InputError, match=r"has no event ''; choose from: aten::add, train"):
        read(text, Answers(event=""))
    assert read(text, Answers(event="train")).gradients_s == pytest.approx([5e-4, 4e-4])
    with pytest.raises(InputError, match=r"has no event 'trian'; did you mean 'train'"):
        read(text, Answers(event="trian"))


PROFILED = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

def save(profiled):
    profiled.export_chrome_trace(sys.argv[1])

module = torch.nn.Linear(8, 8)
plan = schedule(wait=1, warmup=1, active=3)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=save) as steps:
    for _ in range(6):
        with record_function("train"):
            module(torch.ones(4, 8)).sum().backward()
        steps.step()
"""


@pytest.mark.slow
def test_a_trace_of_torchs_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    subprocess.run([sys.executable, "-c", PROFILED, str(path)], check=True, capture_output=True)
    text = path.read_text()
    assert foreign_kind(text) == "torch-trace"
    every, inner = read(text).gradients_s, read(text, Answers(event="train")).gradients_s
    assert len(every) == len(inner) == 3
    assert all(a > b > 0 for a, b in zip(every, inner, strict=True))


REFUSED: dict[str, str] = {
    "empty": "",
    "no JSON": TRACE[:-1],
    "no list": '{"traceEvents": 3}',
    "no object": "3",
    "no events": '{"traceEvents": []}',
    "no steps": json.dumps({"traceEvents": KERNELS}),
    "a step without a duration": '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "ts": 1}]}',
    "a duration as text": '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#1", "dur": "3"}]}',
    "no duration": json.dumps([event("ProfilerStep#1", 5, 5)]),
    "negative": json.dumps([event("ProfilerStep#1", 5, 4)]),
    "endless": json.dumps([event("ProfilerStep#1", 0, 1e300)]),
    "NaN": '[{"ph": "X", "name": "ProfilerStep#1", "dur": NaN}]',
    "infinite": '[{"ph": "X", "name": "ProfilerStep#1", "dur": 1e999}]',
    "events are text": '["ProfilerStep#1"]',
    "a number as name": '[{"ph": "X", "name": 3, "dur": 4}]',
    "one step of two without": json.dumps([*STEPS, event("ProfilerStep#9", 0, 1) | {"dur": "3"}]),
    "a kernel without": json.dumps([*STEPS, event("gemm", 0, 4, "kernel") | {"dur": None}]),
    "nothing but NCCL": json.dumps([*STEPS, event("nccl", 0, 4000, "kernel")]),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_trace_is_refused(why: str) -> None:
    with pytest.raises(InputError, match=r"^trace\.json: ") as error:
        read(REFUSED[why])
    assert "\n" not in str(error.value)


TIMELINE = """\
[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":1764240000000000}},
{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad/a"}},
{"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "grad/b"}},
{"ph": "i", "name": "CYCLE_START", "ts": 90, "s": "g"},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},
{"ph": "X", "name": "0", "ts": 110, "pid": 1, "dur": 0},
{"ph": "X", "name": "1", "ts": 170, "pid": 1, "dur": 0},
{"ph": "E", "ts": 180, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 185, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 185, "pid": 2},
{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 190, "pid": 1},
{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 190, "pid": 2},
{"ph": "E", "ts": 900, "pid": 1},
{"ph": "E", "ts": 900, "pid": 2},
{"ph": "E", "ts": 910, "pid": 1, "args": {"dtype": "float32", "shape": "[100, 20]"}},
{"ph": "E", "ts": 911, "pid": 2, "args": {"dtype": "float16", "shape": "[500]"}}"""


def follow(text: str) -> Readings:
    return horovod.read(ForeignFile("timeline.json", text))


@pytest.mark.parametrize("end", ["]", "", ",", ",\n", "\n]\r\n"])
def test_a_timeline_may_never_be_closed(end: str) -> None:
    assert foreign_kind(TIMELINE + end) == "horovod"
    out = follow(TIMELINE + end)
    assert (out.workers, out.averaging) == ({"": 2}, 0.0)
    assert out.notes[0] == "averages: 1, 710 us in the median, 710 us at most, after negotiations of 80 us"


def test_ranks_are_not_told_where_some_are_unseen() -> None:
    assert follow(TIMELINE.replace('"name": "0"', '"name": "2"')).workers is None


def test_a_timeline_of_what_was_not_averaged_is_refused() -> None:
    with pytest.raises(InputError, match=r"^timeline\.json: has no average"):
        follow(TIMELINE.replace("NCCL_ALLREDUCE", "NCCL_ALLGATHER"))


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_timeline_is_refused_or_read(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(TIMELINE)))
    letters = data.draw(st.text(st.characters(max_codepoint=0x2FF), max_size=3))
    for damaged in (
        TIMELINE[:place] + letters,
        TIMELINE[:place] + letters + TIMELINE[place + len(letters) :],
    ):
        with contextlib.suppress(InputError):  # any other error fails the test
            assert follow(damaged).gradients_s == ()


@pytest.mark.parametrize("value", ["null", "[]", "{}", "1e400", '"x"', "[1]", '{"ph": "B"}'])
@pytest.mark.parametrize("where", ["100", '"B"', "910", '"float32"', '"[100, 20]"', '{"sort_index": 0}'])
def test_other_types_are_refused_or_read(value: str, where: str) -> None:
    with contextlib.suppress(InputError):
        assert follow(TIMELINE.replace(where, value, 1)).gradients_s == ()


@pytest.mark.parametrize("cut", range(1, 40, 2))
def test_a_timeline_cut_within_an_event_is_refused(cut: int) -> None:
    with pytest.raises(
        InputError, match=r"^timeline\.json: is no whole timeline; remove an event that is cut"
    ):
        follow(TIMELINE[:-cut])
