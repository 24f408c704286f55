from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from paceline.sim.config.files import claim_folder
from paceline.sim.errors import InputError
from paceline.sim.records import folder as result_folder
from paceline.sim.records.folder import check_free, read_results, write_results
from paceline.sim.records.formats import parquet
from paceline.sim.records.formats.result_files import write_checksums
from paceline.sim.records.run import LOST, Run
from tests.support.made_runs import made_event, made_run, made_scenario

SCENARIO = made_scenario("s", "stop: {target: {metric: test_accuracy, value: 0.9}}\n")


def runs() -> list[Run]:
    exchange = made_event(1, operation="all_reduce", start_s=1.0, peer_s=1.25, num_bytes=2**40, peer=3)
    why = "the loss is not finite"
    return [
        made_run("one", 0, events=[made_event(0), exchange]),
        made_run("two", 0, reached_s=None, status="diverged", message=why, events=[made_event(0)]),
        made_run("three", 0, reached_s=4.0),
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = runs()
    written = write_results(tmp_path / "deep" / "r", SCENARIO, "s", made)
    found = read_results(tmp_path / "deep" / "r")
    assert found.summary == written
    assert found.scenario == SCENARIO
    assert written["target"] == {"metric": "test_accuracy", "value": 0.9}

    rows = [e for run in made for e in run.evaluations]
    assert list(found.metrics["step"]) == [e.step for e in rows]
    assert list(found.metrics["time_s"]) == [e.time_s for e in rows]
    assert list(found.metrics["label"]) == ["one"] * 3 + ["two"] * 3 + ["three"] * 3
    assert set(found.metrics["source"]) == {"simulated"}
    losses = [e.metrics["train_loss"] for e in rows]
    assert [None if np.isnan(x) else x for x in found.metrics["train_loss"]] == losses
    assert None in losses

    assert list(found.events["label"]) == ["one", "one", "two"]
    fields = list(asdict(made_event()))
    assert found.events[fields].to_dict("records") == [asdict(e) for run in made for e in run.events]


def test_runs_come_back_with_their_exchanges(tmp_path: Path) -> None:
    made = [made_run("older"), replace(made_run("alone"), exchanges=())]
    made.append(replace(made_run("both"), exchanges=("all_reduce", "mix")))
    write_results(tmp_path / "r", SCENARIO, "s", made)
    assert "exchanges" not in read_results(tmp_path / "r").summary["runs"][0]
    assert result_folder.runs_of(read_results(tmp_path / "r")) == made


def test_runs_come_back_with_what_they_left_out(tmp_path: Path) -> None:
    made = [made_run("older"), replace(made_run("late"), left_out=((0, 4), (3, 4), (0, 0)))]
    write_results(tmp_path / "r", SCENARIO, "s", made)
    assert ["left_out" in row for row in read_results(tmp_path / "r").summary["runs"]] == [False, True]
    assert result_folder.runs_of(read_results(tmp_path / "r")) == made


def test_runs_come_back_with_the_workers_that_they_lost(tmp_path: Path) -> None:
    run = made_run("alone")
    steps = [(0, 0), (50, 50), (100, LOST)]
    scored = tuple(replace(e, steps=each) for e, each in zip(run.evaluations, steps, strict=True))
    partial = replace(run, status="partial", message="worker 1 was lost", evaluations=scored)
    write_results(tmp_path / "r", SCENARIO, "s", [partial])
    assert result_folder.runs_of(read_results(tmp_path / "r")) == [partial]


def test_runs_come_back_with_their_engines(tmp_path: Path) -> None:
    made = [made_run("older"), replace(made_run("fast"), engine="lockstep")]
    made.append(replace(made_run("slow"), engine="event", engine_reason="it has services"))
    write_results(tmp_path / "r", SCENARIO, "s", made)
    rows = read_results(tmp_path / "r").summary["runs"]
    assert ["engine" in row for row in rows] == [False, True, True]
    assert ["engine_reason" in row for row in rows] == [False, False, True]
    assert result_folder.runs_of(read_results(tmp_path / "r")) == made


def test_column_types(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    schema = pq.read_schema(tmp_path / "r" / "events.parquet")
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    words = "dictionary<values=string, indices=int32, ordered=0>"
    assert kinds == {
        "label": words, "seed": "int64", "source": words,
        "worker": "int32", "task": "int16", "handle": "int32", "step": "int32", "operation": words,
        "start_s": "double", "end_s": "double", "peer_s": "double", "bytes": "int64", "peer": "int32",
    }  # fmt: skip
    metrics = pq.read_table(tmp_path / "r" / "metrics.parquet")
    assert metrics.column("train_loss").null_count == 1  # null, not NaN


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_results(tmp_path / name, SCENARIO, "s", runs())
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    names = {"scenario.yaml", "summary.json", "metrics.parquet", "events.parquet", "checksums.sha256"}
    assert set(contents(tmp_path / "a")) == names


def test_the_summary_is_strict_json(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads((tmp_path / "r" / "summary.json").read_text(), parse_constant=refuse)


def test_runs_without_events_and_evaluations(tmp_path: Path) -> None:
    write_results(tmp_path / "r", made_scenario("s"), "s", [])
    found = read_results(tmp_path / "r")
    assert len(found.metrics) == len(found.events) == 0
    assert found.summary["target"] is None


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    out = tmp_path / "r"
    write_results(out, SCENARIO, "s", runs())
    before = contents(out)
    with pytest.raises(InputError, match=r"r is there already.*--force"):
        write_results(out, SCENARIO, "s", runs()[:1])
    assert contents(out) == before
    write_results(out, SCENARIO, "s", runs()[:1], force=True)
    assert [row["label"] for row in read_results(out).summary["runs"]] == ["one"]
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_force_replaces_a_folder_with_its_report(tmp_path: Path) -> None:
    out = tmp_path / "r"
    write_results(out, SCENARIO, "s", runs()[:1])
    (out / "report.html").write_text("a report")
    files = out / "report-files"
    for name in result_folder.REPORT_FILES:
        (files / name).mkdir(parents=True)
    write_results(out, SCENARIO, "s", runs()[:1], force=True)
    assert not files.exists()
    files.mkdir()
    (files / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"choose another folder$"):  # not --force, which would refuse
        write_results(out, SCENARIO, "s", runs())
    with pytest.raises(InputError, match="holds report-files, which is no part of these results"):
        write_results(out, SCENARIO, "s", runs(), force=True)
    assert (files / "notes.txt").is_file()


def test_force_deletes_nothing_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        write_results(tmp_path, SCENARIO, "s", runs(), force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    check_free(tmp_path / "r")
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    assert read_results(tmp_path / "r").summary["winner"] == "three"


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r"
    write_results(out, SCENARIO, "s", runs())
    before = contents(out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "operations_of", full)
    with pytest.raises(InputError, match="No space left"):
        write_results(out, SCENARIO, "s", runs(), force=True)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_the_old_results_come_back_if_the_new_cannot_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"
    write_results(out, SCENARIO, "s", runs())
    before = contents(out)
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InputError, match="Permission denied"):
        write_results(out, SCENARIO, "s", runs()[:1], force=True)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("where", ["/proc/nothing/r", "/dev/null/r"])
def test_where_nothing_can_be_written(where: str) -> None:
    with pytest.raises(InputError, match="cannot"):
        write_results(Path(where), SCENARIO, "s", runs())


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        check_free(tmp_path / "r", force=True)


def test_reading_what_is_no_result_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"file is no result folder$"):
        read_results(tmp_path / "file")
    with pytest.raises(InputError, match="there is no folder"):
        read_results(tmp_path / "none")
    with pytest.raises(InputError, match=r"no result folder: it has no summary\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", b'{"version": 3, "scen', "damaged.*line 1"),
        ("summary.json", b"[]", "no version"),
        ("summary.json", b"{}", "no version"),
        ("summary.json", b'{"version": 1}', "has version 1, this program reads version 3"),
        ("summary.json", b'{"version": 3, "scenario": "s"}', "damaged: target: Field required"),
        ("summary.json", b"\xff\xfe", "is not UTF-8 text"),
        ("metrics.parquet", b"PAR1", "metrics.parquet is damaged"),
        ("metrics.parquet", b"PAR1" + bytes(1000) + b"PAR1", "metrics.parquet is damaged"),
        ("events.parquet", b"", "events.parquet is damaged"),
    ],
)
def test_what_is_of_another_form_is_named_whatever_its_checksum(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / name).write_bytes(content)
    write_checksums(tmp_path / "r")
    with pytest.raises(InputError, match=message):
        read_results(tmp_path / "r")


def test_truncated_events(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    path = tmp_path / "r" / "events.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"events\.parquet is damaged"):
        read_results(tmp_path / "r")


def test_swapped_tables(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / "events.parquet").write_bytes((tmp_path / "r" / "metrics.parquet").read_bytes())
    write_checksums(tmp_path / "r")
    with pytest.raises(InputError, match=r"events\.parquet has no column worker"):
        read_results(tmp_path / "r")


@pytest.mark.parametrize("name", ["summary.json", "scenario.yaml", "metrics.parquet", "events.parquet"])
def test_an_edited_file_is_named(tmp_path: Path, name: str) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    write_results(tmp_path / "other", SCENARIO + "seed: 1\n", "t", runs()[1:])
    read_results(tmp_path / "r")
    (tmp_path / "r" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(InputError, match=rf"{name} is damaged, or was changed after it was written"):
        read_results(tmp_path / "r")


def test_the_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs(), trace=True)
    command = ["sha256sum", "--check", "--strict", "checksums.sha256"]
    checked = subprocess.run(command, cwd=tmp_path / "r", capture_output=True, text=True)
    assert (checked.returncode, checked.stdout.count(": OK\n")) == (0, 5)


@pytest.mark.parametrize("text", ["", "nothing\n", "00  summary.json\n"])
def test_damaged_checksums(tmp_path: Path, text: str) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / "checksums.sha256").write_text(text)
    with pytest.raises(InputError, match=r"checksums\.sha256 is damaged"):
        read_results(tmp_path / "r")


@pytest.mark.parametrize("name", ["summary.json", "metrics.parquet", "checksums.sha256"])
def test_a_pipe_in_the_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "r" / name)
    with pytest.raises(InputError, match=rf"{name}:? is no regular file"):
        read_results(tmp_path / "r")


def test_a_file_with_a_checksum_may_not_be_missing(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs(), trace=True)
    (tmp_path / "r" / "notes.txt").write_text("")
    write_checksums(tmp_path / "r")
    (tmp_path / "r" / "trace.json").unlink()  # large, and only for people
    read_results(tmp_path / "r")
    (tmp_path / "r" / "notes.txt").unlink()
    with pytest.raises(InputError, match=r"notes\.txt is missing"):
        read_results(tmp_path / "r")


def test_a_folder_without_checksums_is_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / "checksums.sha256").unlink()
    with pytest.raises(InputError, match=r"r has no checksums\.sha256"):
        read_results(tmp_path / "r")


def test_runs_that_are_missing_are_named(tmp_path: Path) -> None:
    def missing(repeats: str, *made: Run) -> str:
        scenario = made_scenario("s", f"seed: 0\nrepeats: {repeats}\n")
        scenario = scenario.replace("[any]", "[{a: {label: a}}, {b: {label: b}}]")
        write_results(tmp_path / "r", scenario, "s", made, force=True)
        return read_results(tmp_path / "r").missing

    a, b, c = made_run("a"), made_run("b"), made_run("a", 1)
    assert missing("1", a, b) == ""
    assert missing("1", a) == "there is no run of 'b'"
    assert missing("2", a, b, c) == "there is no run of 'b' with seed 1"
    assert missing("9", a, b, c) == "there is no run of 'a' with 7 of 9 seeds, 'b' with 8 of 9 seeds"
    assert missing("{most: 30}", a, b) == ""
    assert missing("{most: 30}", a, b, c) == "there is no run of 'b' with seed 1"
    assert missing("1", a, b, replace(a, source="measured")) == "there is no run of 'b' (measured)"
    assert read_results(tmp_path / "r").summary["runs"][2]["source"] == "measured"


def test_a_file_that_came_later_is_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / "validation.json").write_text("{}")
    with pytest.raises(InputError, match=r"validation\.json was not written with these results"):
        read_results(tmp_path / "r")


def test_a_command_that_died_while_it_replaced_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "r"
    write_results(out, SCENARIO, "s", runs())
    before = contents(out)
    out.rename(tmp_path / ".r.elsewhere-1.old")
    (tmp_path / ".r.elsewhere-1.new").mkdir()
    (tmp_path / ".r.lock").write_text("")
    with claim_folder(out):
        assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_missing_table(tmp_path: Path) -> None:
    write_results(tmp_path / "r", SCENARIO, "s", runs())
    (tmp_path / "r" / "metrics.parquet").unlink()
    with pytest.raises(InputError, match=r"has no metrics\.parquet"):
        read_results(tmp_path / "r")


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xfd")
    write_results(folder, SCENARIO, "s", runs())
    assert result_folder.runs_of(read_results(folder)) == runs()
