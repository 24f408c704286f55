"""The board: its command, and that predictions stay where docs/board.md says they are."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from benchmarks.board.__main__ import PAGE, main
from benchmarks.board.bluefog.scheme import between_hosts, inner_outer
from benchmarks.board.collective import Collective, gloo_reduce, predict_ms
from benchmarks.board.decent_dp.scheme import alternating_exponential_ring, exponential
from benchmarks.board.tables import HERE, Line, lines_of, names, score_of
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from tests.support.critical_path import critical_path_s

MOVED = 1.02


def published(table: str) -> list[float]:
    """The predictions of a table on the page, in its order."""
    (section,) = re.findall(rf"^## {table}: .*?\n\n(.*?)(?:\n\n|\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines()]
    column = head.index("predicted")
    return [float(row[column].split()[0]) for row in rows]


SECONDS_A_ROW = ("decent_dp", "nccl_hosts")


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
        Line({}, 1.1, 1.0), Line({}, 1.0, 1.04), Line({}, 1.8, 2.0), Line({}, 9.0, 3.0, counts=False),
        Line({}, 5.0, None),
    ]  # fmt: skip
    score = score_of(lines)
    assert score is not None
    assert (score.rows, score.ordered, score.pairs) == (3, 2, 2)
    assert score.mean_pct == pytest.approx((10 + 100 * 0.04 / 1.04 + 10) / 3)
    assert abs(score.worst_pct) == pytest.approx(10.0)
    assert score_of(lines[3:]) is None


def test_other_rows_without_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("rate,period,measured_s\n1000 Mbit/s,1,\n100 Mbit/s,1,20.86\n")
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("rate,period,predicted_s\n1000 Mbit/s,1,6\n100 Mbit/s,1,21.903\n")
    assert main(["ft_diloco", "--rows", str(rows), "--against", str(theirs)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\| 1000 Mbit/s \| 1 \| 6\.\d+ s \|  \|  \| 6 s \|  \|", text)
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
