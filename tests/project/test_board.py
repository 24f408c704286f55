"""The board: its command, and that predictions stay where docs/board.md says they are."""

from __future__ import annotations

import csv
import doctest
import json
import re
from pathlib import Path

import pytest

from benchmarks.board import decisions, grades, null
from benchmarks.board.__main__ import PAGE, main
from benchmarks.board.bluefog.scheme import between_hosts, inner_outer
from benchmarks.board.collective import Collective, gloo_reduce, predict_ms
from benchmarks.board.decent_dp.scheme import alternating_exponential_ring, exponential
from benchmarks.board.tables import HERE, Line, lines_of, mapping_of, names, score_of
from paceline.sim.config.csv_tables import read_table
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.scenario_facts import DATA
from paceline.sim.scenario.schema import parse
from tests.support.critical_path import critical_path_s

MOVED = 1.02


def published(table: str) -> list[float]:
    """The predictions of a table on the page, in its order."""
    (section,) = re.findall(rf"^## {table}: .*?\n\n(.*?)(?:\n\n|\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines()]
    column = head.index("predicted")
    return [float(row[column].split()[0]) for row in rows]


SECONDS_A_ROW = ("bluefog", "decent_dp", "diloco_crashes", "nccl_hosts", "threads")


@pytest.mark.parametrize(
    "table", [pytest.param(each, marks=[pytest.mark.slow] * (each in SECONDS_A_ROW)) for each in names()]
)
def test_rows_stay_where_the_page_says(table: str, tmp_path: Path) -> None:
    with (HERE / table / "measured.csv").open(encoding="utf-8", newline="") as stream:
        head, *rows = csv.reader(stream)
    known = published(table)
    assert len(known) == len(rows)
    some = slice(None, None, 1 + len(rows) // 6)
    part = tmp_path / "part.csv"
    with part.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([head, *rows[some]])
    for line, predicted in zip(lines_of(table, part), known[some], strict=True):
        assert max(line.predicted, predicted) < MOVED * min(line.predicted, predicted), (
            f"{table}, {dict(line.cells)}: has moved from {predicted} to {line.predicted}: renew the page "
            "(python -m benchmarks.board) and say why in CHANGELOG"
        )


@pytest.mark.parametrize("k", range(6))
def test_bluefog_sends_one_model_from_each_host(k: int) -> None:
    for pattern, receivers in ((inner_outer(k, 24, 8), 24), (between_hosts(k, 24, 8), 3)):
        sent = [(source, rank) for rank, sources in enumerate(pattern.sources) for source in sources]
        assert len({source for source, _ in sent}) == len({rank for _, rank in sent}) == receivers
        leaving = [source for source, rank in sent if source // 8 != rank // 8]
        assert sorted(source // 8 for source in leaving) == [0, 1, 2]


def test_decent_dp_averages_in_pairs_and_between_hosts() -> None:
    assert [exponential(k, 4, 2) for k in (0, 1, 2)] == [
        ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1), (2, 3)),
    ]  # fmt: skip
    ring = [alternating_exponential_ring(k, 8, 2) for k in range(4)]
    assert ring[0] == ring[2] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert ring[1] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert ring[3] == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_a_score() -> None:
    lines = [
        Line({}, 1.1, 1.0, nulls={"naive": 2.0}, committed=1.5),
        Line({}, 1.0, 1.25, nulls={"naive": 1.25}),
        Line({}, 1.8, 2.0, nulls={"naive": 1.0}),
        Line({}, 9.0, 3.0, counts=False),
        Line({}, 5.0, None),
    ]
    score = score_of(lines)
    assert score is not None
    assert (score.rows, score.committed_rows) == (3, 1)
    assert score.mean_pct == pytest.approx((10 + 20 + 10) / 3)
    assert score.median_pct == pytest.approx(10.0)
    assert score.worst_pct == pytest.approx(-20.0)
    assert score.fast == pytest.approx(2 / 3)
    assert score.nulls_pct == pytest.approx({"naive": (100 + 0 + 50) / 3})
    assert score.committed_pct == pytest.approx(50.0)
    assert score.today_pct == pytest.approx(10.0)
    assert score_of(lines[3:]) is None


def test_decisions_are_among_rows_that_differ_in_the_scheme_alone() -> None:
    assert doctest.testmod(decisions) == (0, 1)
    rows = [("ddp", "1 Gbit/s", 2.0, 2.2), ("horovod", "1 Gbit/s", 2.1, 2.0), ("ddp", "4 Gbit/s", 1.0, 1.0)]
    lines = [
        Line({"system": system, "bandwidth": rate}, predicted, measured, nulls={"naive": -predicted})
        for system, rate, predicted, measured in rows
    ]
    known = decisions.decisions_in("bagua", lines)
    assert (known.right, known.pairs, known.close_right, known.close) == (0, 1, 0, 1)
    assert known.regret_pct == pytest.approx(10.0)
    assert decisions.decisions_in("bagua", lines, "naive").right == 1
    assert decisions.decisions_in("dlperf", lines).regret_pct is None
    steps = [
        Line({"algorithm": "ddp", "rate": "1", "steps": "10"}, 10.0, 10.0),
        Line({"algorithm": "diloco", "rate": "1", "steps": "100"}, 50.0, 60.0),
    ]
    assert decisions.decisions_in("diloco_measured", steps).right == 1
    both = decisions.together([known, known])
    assert both.pairs == 2
    assert both.regret_pct == pytest.approx(10.0)


def test_grades_look_at_inputs_alone() -> None:
    assert doctest.testmod(grades) == (0, 1)
    for table in names():
        rows = read_table(HERE / table / "measured.csv")
        known = {
            grades.grade_of(table, dict(zip(rows.names[:-1], row[:-1], strict=True))) for _, row in rows.rows
        }
        assert known == set(mapping_of(table).GRADES)
        assert known <= set(grades.GRADES)


def test_an_interval_covers_a_table_by_the_others() -> None:
    near, far = [1.0 + 0.01 * k for k in range(11)], [3.0, 1.05]
    assert grades.covered({"a": near, "b": near}) == pytest.approx(9 / 11)
    assert grades.covered({"a": near, "b": near, "c": far}) < 20 / 24
    assert grades.covered({"a": near}) == 0.0
    assert grades.interval({"a": [1.0] * 100, "b": [2.0], "c": [3.0]}) == (1.0, 3.0)
    lines = {"ft_diloco": [Line({}, 1.0, each, nulls={}) for each in near]}
    known = grades.graded(lines)["measured"]
    assert (known.score.rows, known.low, known.high) == (11, 1.006, 1.094)
    assert known.covered == 0.0


def test_the_product_says_what_the_page_has() -> None:
    known = json.loads(DATA.read_text("utf-8"))
    rows = re.findall(r"^\| (measured|plate|part): (.*) \|$", PAGE.read_text("utf-8"), re.M)
    assert [name for name, _ in rows] == [*known]
    for name, row in rows:
        inputs, count, _, mean, _, _, _, fast, _, ends, _ = row.split(" | ")
        figures = known[name]
        assert figures["grade"] == name
        assert figures["inputs"] == inputs
        assert figures["rows"] == int(count)
        assert f"{figures['mean_pct']:.1f} %" == mean
        assert f"{100 * figures['fast']:.0f} %" == fast
        assert f"{figures['low']:.2f} to {figures['high']:.2f}" == ends


def test_intervals_cover_four_fifths_of_tables_left_out() -> None:
    covered = re.findall(r"^\| (?:measured|plate|part): .* \| (\S+) % \|$", PAGE.read_text("utf-8"), re.M)
    assert len(covered) == 3
    assert all(75 <= float(each) <= 85 for each in covered)


def test_what_is_shipped() -> None:
    lines = [Line({}, 1.0, 1.0 + 0.01 * k, nulls={}) for k in range(11)]
    tables = {"ft_diloco": lines, "netem_data_parallel": lines}
    (row,) = json.loads(grades.shipped(grades.graded(tables))).values()
    assert (row["grade"], row["rows"], row["mean_pct"], row["fast"]) == ("measured", 11, 4.7, 0.91)
    assert (row["low"], row["high"]) == (1.006, 1.094)


FLAT = """\
name: flat
workload: {timing_only: true, payload: 80 MB}
cluster:
  workers: 4
  compute: {time: 300 ms}
  network: {latency: 1 ms, bandwidth: 100 MB/s}
schemes: [all_reduce]
stop: {max_iterations: 2}
"""


def spreadsheets_s(operation: str, *changes: str) -> tuple[float, float]:
    scenario = parse(FLAT, changes=changes)
    return null.naive_s(scenario, operation), null.expert_s(scenario, operation)


ON_HOSTS = (
    "cluster.network.host={gpus: 2, latency: 10 us, bandwidth: 1 GB/s}",
    "cluster.network.transport=nccl",
)


@pytest.mark.parametrize(
    ("operation", "changes", "naive", "expert"),
    [
        ("", (), 2 * (0.3 + 6 * (0.001 + 0.2)), 2 * (0.3 + 6 * (0.001 + 0.2))),
        (
            "",
            ("schemes=[{all_reduce: {overlap: true, bucket: 40 MB}}]",),
            2 * (0.3 + 6 * (0.001 + 0.2)),
            2 * (0.1 + 0.1 + 2 * 6 * (0.001 + 0.1)),
        ),
        ("", ("schemes=[{diloco: {period: 2}}]",), 0.6 + 6 * 0.201, 0.6 + 6 * 0.201),
        ("", ("schemes=[{gossip: {topology: ring}}]",), 2 * (0.3 + 6 * 0.201), 2 * (0.3 + 0.801)),
        ("all_reduce", ON_HOSTS, 6 * 0.201, 0.8 + 2 * (0.001 + 0.00001)),
        ("broadcast", (), 3 * 0.001 + 0.8, 2 * 0.801),
        ("broadcast", ("cluster.network.transport=nccl",), 3 * 0.001 + 0.8, 3 * 0.001 + 0.8),
        ("reduce_scatter", (), 3 * 0.201, 3 * 0.201),
        ("point_to_point", (), 0.801, 0.801),
        (
            "all_reduce",
            ("collectives={all_reduce: 'benchmarks.board.multi_cloud.mapping:all_to_all'}",),
            6 * 0.201,
            2 * (0.001 + 0.6),
        ),
    ],
)
def test_spreadsheets(operation: str, changes: tuple[str, ...], naive: float, expert: float) -> None:
    assert spreadsheets_s(operation, *changes) == pytest.approx((naive, expert))


def test_spreadsheets_answer_rows_in_the_place_of_the_clock() -> None:
    (line, *_) = lines_of("ft_diloco")
    assert line.nulls["naive"] == pytest.approx(0.7 + 0.811 + 2 * (0.020 + 204.76928e6 / 2 / 125e6))
    crash, with_checkpoint = (parse(FLAT, changes=changes) for changes in (CRASH[:1], CRASH))
    assert null.naive_s(crash, "") - null.naive_s(parse(FLAT), "") == pytest.approx(30.0)
    assert null.expert_s(with_checkpoint, "") - null.expert_s(parse(FLAT), "") == pytest.approx(35.3)


CRASH = (
    "cluster.faults=[{workers: [0], at_step: 1 steps, back_after: 30 s}]",
    "checkpoint={every: 100 steps, restart: 5 s}",
)


def test_other_rows_without_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("rate,period,measured_s\n1000 Mbit/s,1,\n100 Mbit/s,1,20.86\n")
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("rate,period,predicted_s\n1000 Mbit/s,1,6\n100 Mbit/s,1,21.903\n")
    assert main(["ft_diloco", "--rows", str(rows), "--against", str(theirs)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\| 1000 Mbit/s \| 1 \| 6\.\d+ s \|  \|  \|  \|  \| 6 s \|  \|", text)
    assert "| 21.9 s | +5.0 % |" in text
    assert "1 rows: mean" in text


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["ft_dilco"], "did you mean 'ft_diloco'?"),
        (["--rows", "rows.csv"], "need a table"),
        (["ft_diloco", "--rows", "rows.csv"], "other columns than ft_diloco: rate, period, measured_s"),
        (["ft_diloco", "--rows", "none.csv"], "none.csv"),
        (["ft_diloco", "--rows", "bad.csv"], "bad.csv:2: "),
        (["ft_diloco", "--against", "theirs.csv"], "has 1 rows, ft_diloco has"),
        (["ft_diloco", "--against", "text.csv"], "text.csv:2: could not convert"),
        (
            ["diloco_measured", "--rows", "word.csv"],
            "word.csv:2: there is no 'diloko'; did you mean 'diloco'?",
        ),
        (["netem_collectives", "--rows", "what.csv"], "what.csv:2: no collective is called all_to_none"),
    ],
)
def test_bad_input(
    argv: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows.csv").write_text("rate,measured_s\n1 Gbit/s,1\n")
    (tmp_path / "bad.csv").write_text("rate,period,measured_s\n1 Gbit,one,1\n")
    (tmp_path / "theirs.csv").write_text("rate,period,predicted_s\n1 Gbit/s,1,1\n")
    (tmp_path / "text.csv").write_text("rate,period,predicted_s\n1 Gbit/s,1,fast\n")
    (tmp_path / "word.csv").write_text(
        "algorithm,period,rate,steps,averages,measured_s\ndiloko,1,1 Gbit/s,1,1,\n"
    )
    (tmp_path / "what.csv").write_text(
        "collective,workers,latency,bandwidth,transport,payload,fitted,measured_ms\n"
        "all_to_none,4,1 ms,1 Gbit/s,gloo,1 MB,,\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter", "all_gather", "all_to_all"])
@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_other_collectives_take_no_less_than_their_bytes(kind: str, transport: str) -> None:
    least_ms = 96.0 if (kind, transport) == ("reduce", "nccl") else 64.0
    assert least_ms < predict_ms(Collective(kind, 3, "1 ms", "1 Gbit/s", transport, "12 MB")) < 2.6 * least_ms


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_reduce_matches_its_messages(workers: int) -> None:
    assert critical_path_s(gloo_reduce(workers, 10 * 2**20), 0.0, 2.0**20) > 10 * (workers - 1) / workers


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_hiveminds_all_reduce_sends_every_part_twice(workers: int) -> None:
    scenario = f"""\
name: flat
workload: {{timing_only: true, payload: 240 B}}
cluster:
  workers: {workers}
  compute: {{time: 1 s}}
  network: {{latency: 500 ms, bandwidth: 80 bit/s}}
collectives: {{all_reduce: "benchmarks.board.multi_cloud.mapping:all_to_all"}}
schemes: [all_reduce]
stop: {{max_iterations: 1}}
"""
    (run,) = simulate(parse(scenario))
    assert run.wall_clock_s == pytest.approx(1.0 + 2 * (0.5 + 24.0 * (workers - 1) / workers))
