from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.folder import write_results
from paceline.sim.records.formats.trace import write_trace
from paceline.sim.records.run import Event
from paceline.sim.scenario.schema import parse
from tests.support.made_runs import made_event, made_run


def read(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())
    assert found["displayTimeUnit"] == "ms"
    rows: list[dict[str, Any]] = found["traceEvents"]
    return rows


def check(rows: list[dict[str, Any]]) -> None:
    """What the Trace Event Format asks of metadata and of complete events, and what importers rely on.

    Names, process and thread are told before they are used, once each; in every thread the slices come in the
    order of time, what contains another before it, and never overlap otherwise.
    """
    told: dict[tuple[str, int, int], str | int] = {}
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows:
        process, thread = row["pid"], row["tid"]
        assert type(process) is type(thread) is int
        assert 0 <= thread < 2**31
        assert isinstance(row["name"], str)
        assert row["name"]
        if row["ph"] == "M":
            assert set(row) == {"ph", "pid", "tid", "name", "args"}
            key = "sort_index" if row["name"].endswith("_sort_index") else "name"
            assert row["name"] in {f"{of}_{key}" for of in ("process", "thread")}
            assert set(row["args"]) == {key}
            assert (row["name"], process, thread) not in told
            told[row["name"], process, thread] = row["args"][key]
            continue
        assert row["ph"] == "X"
        assert set(row) == {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"}
        assert row["cat"] in {"computation", "communication", "waiting"}
        assert row["ts"] >= 0
        assert row["dur"] >= 0
        assert told["process_name", process, 0]
        assert told["thread_name", process, thread]
        start = round(row["ts"] * 1000)
        threads.setdefault((process, thread), []).append((start, start + round(row["dur"] * 1000)))
    for slices in threads.values():
        stack: list[int] = []
        for (start, end), (after, _) in zip(slices, [*slices[1:], (2**62, 0)], strict=True):
            assert start <= after
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)
    for kind in ("process_name", "thread_name"):
        names = [(process, name) for (of, process, _), name in told.items() if of == kind]
        assert len(set(names)) == len(names)


def test_one_exchange_by_hand(tmp_path: Path) -> None:
    events = [
        made_event(0, 0, "gradient", end_s=0.5),
        made_event(0, 0, "send", start_s=0.5, peer_s=0.75, end_s=1.0, num_bytes=8, peer=1),
        made_event(0, 0, "poll", start_s=1.0, end_s=1.0),
    ]
    write_trace(tmp_path / "t.json", [made_run("a", 7, events=events)])
    rows = read(tmp_path / "t.json")
    check(rows)
    assert [row["args"].get("name") for row in rows if row["ph"] == "M" and "name" in row["args"]] == [
        "a, seed 7 (simulated)",
        "worker 0",
    ]
    assert [(r["name"], r["cat"], r["ts"], r["dur"], r["args"]) for r in rows if r["ph"] == "X"] == [
        ("gradient", "computation", 0.0, 500_000.0, {"step": 0}),
        ("send", "communication", 500_000.0, 500_000.0, {"step": 0, "bytes": 8, "peer": 1}),
        ("wait for a peer", "waiting", 500_000.0, 250_000.0, {}),
    ]


def test_what_runs_side_by_side_has_lanes_of_its_own(tmp_path: Path) -> None:
    events = [
        made_event(2, 0, "gradient", handle=0, start_s=0.0, end_s=2.0),
        made_event(2, 0, "mix", handle=1, start_s=1.0, end_s=3.0),
        made_event(2, 0, "mix", handle=2, start_s=2.0, end_s=4.0),
        made_event(2, 0, "wait", handle=1, start_s=2.5, end_s=3.0),
        made_event(2, 0, "receive", task=1, start_s=0.0, end_s=9.0),
    ]
    write_trace(tmp_path / "t.json", [made_run("a", events=events)])
    rows = read(tmp_path / "t.json")
    check(rows)
    titles = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    where = [(r["name"], r["ts"], titles[r["tid"]]) for r in rows if r["ph"] == "X"]
    assert where == [
        ("receive", 0.0, "worker 2, service 1"),
        ("gradient", 0.0, "worker 2, in the background"),
        ("mix", 1e6, "worker 2, in the background 2"),
        ("mix", 2e6, "worker 2, in the background"),
        ("wait", 2.5e6, "worker 2"),
    ]


spans = st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0, 12)).map(
    lambda t: (min(t[:2]), max(t[:2]), t[2])
)


@given(st.lists(spans, max_size=30))
def test_started_operations_never_cross(boxes: list[tuple[float, float, float]]) -> None:
    events: list[Event] = [
        made_event(0, 0, "send", handle=i, start_s=start, end_s=end, peer_s=peer)
        for i, (start, end, peer) in enumerate(boxes)
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, [made_run("a", events=events)])
        check(read(path))


SCENARIO = """\
name: q
workload: {task: quadratic, dimension: 4, noise: 0.1, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 4, compute: {time: 10 ms, jitter: {lognormal: {cv: 0.3}}}, network: {latency: 1 ms}}
schemes: [all_reduce, ad_psgd, {gossip: {topology: ring}}]
stop: {max_iterations: 6}
"""


def test_a_simulation_leaves_a_trace_in_its_folder(tmp_path: Path) -> None:
    asked = parse(SCENARIO)
    write_results(tmp_path / "r", SCENARIO, "q", list(simulate(asked)), trace=True)
    rows = read(tmp_path / "r" / "trace.json")
    check(rows)
    assert {row["pid"] for row in rows} == {1, 2, 3}
    assert {"gradient", "all_reduce", "mix", "send"} <= {row["name"] for row in rows}
