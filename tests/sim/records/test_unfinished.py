"""Runs that are kept one by one: who may go on with them, and what is made again."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from paceline.sim.config.files import write_folder_atomically
from paceline.sim.errors import InputError
from paceline.sim.records import unfinished
from paceline.sim.records.folder import (
    describe_caveat,
    read_results,
    runs_of,
    write_results,
)
from paceline.sim.records.run import Run
from paceline.sim.records.summary import MemoryRecord, SchemeFacts, Tuned, TuningTrial
from paceline.sim.records.unfinished import Parts, begin_parts, open_parts
from tests.support.made_runs import made_bounds, made_event, made_run, made_scenario

SCENARIO = made_scenario("s", "stop: {target: {metric: test_accuracy, value: 0.9}}\n")
RUNS = [
    made_run("one", 0, events=[made_event(0), made_event(1)]),
    made_run("two", 0, reached_s=None, status="diverged", message="the loss is not finite"),
    made_run("one", 1, reached_s=4.0),
]

Open = Callable[..., AbstractContextManager[Parts]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "r"


@pytest.fixture
def spoken() -> list[str]:
    return []


@pytest.fixture
def begin(out: Path, spoken: list[str]) -> Open:
    def start(
        scenario: str = SCENARIO, command: str = "simulate on cpu", force: bool = False
    ) -> AbstractContextManager[Parts]:
        say, text = spoken.append, scenario.__str__
        return open_parts(
            out, partial(begin_parts, out, command, "s", force, scenario.__eq__, text, say), say
        )

    return start


def keep(parts: Parts, runs: list[Run]) -> None:
    for number, run in enumerate(runs):
        parts.keep("run", number, run)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_complete_is_there_again(begin: Open, out: Path, spoken: list[str]) -> None:
    with begin() as parts:
        assert parts.kept == {}
        keep(parts, RUNS)
        parts.keep("trial", 0, RUNS[0])
        parts.keep("run", 3, made_run("two", 1, status="partial", message="no worker can go on"))
    with begin() as parts:
        assert parts.kept == {("trial", 0): RUNS[0], **{("run", i): run for i, run in enumerate(RUNS)}}
        assert parts.find("run", 2, "one", 1) == RUNS[2]
        assert parts.find("run", 2, "one", 0) is None
        assert parts.find("run", 3, "two", 1) is None
    assert spoken == [f"going on with {out}: 3 runs are there"]
    assert [path.name for path in out.parent.iterdir()] == ["r"]


def test_a_folder_that_is_not_finished_can_be_read(begin: Open, out: Path) -> None:
    with begin() as parts:
        assert "is not finished" in describe_caveat(out)
        with pytest.raises(InputError, match="r is not finished: none of its runs is complete yet"):
            read_results(out)
        keep(parts, RUNS)
        parts.keep("trial", 0, RUNS[0])
    results = read_results(out)
    assert runs_of(results) == RUNS
    assert results.summary["target"] == {"metric": "test_accuracy", "value": 0.9}
    assert results.scenario == SCENARIO


def test_results_take_the_place_of_the_parts(begin: Open, out: Path) -> None:
    with begin() as parts:
        keep(parts, RUNS)
        write_results(out, SCENARIO, "s", RUNS, force=True)
    write_results(out.with_name("whole"), SCENARIO, "s", RUNS)
    assert files(out) == files(out.with_name("whole"))
    with pytest.raises(InputError, match="r is there already"), begin():
        pass


def test_nothing_is_left_where_nothing_is_complete(begin: Open, out: Path) -> None:
    with pytest.raises(KeyboardInterrupt), begin():
        raise KeyboardInterrupt
    assert not out.exists()
    out.mkdir()
    with begin():
        pass
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_folder_that_is_taken_away_meanwhile_is_begun_anew(
    is_moved: bool, begin: Open, out: Path, spoken: list[str]
) -> None:
    moved = out.with_name("moved")
    with begin() as parts:
        keep(parts, RUNS[:2])
        out.rename(moved)
        if not is_moved:
            shutil.rmtree(moved)
        parts.keep("run", 2, RUNS[2])
        assert runs_of(read_results(out)) == RUNS[2:]
        assert parts.stands
    assert len(spoken) == 1
    assert f"{out} was removed or renamed" in spoken[0]
    if is_moved:
        assert runs_of(read_results(moved)) == RUNS[:2]
    with begin() as parts:
        assert set(parts.kept) == {("run", 2)}


def test_what_has_taken_the_place_of_a_folder_is_left_alone(begin: Open, out: Path) -> None:
    moved = out.with_name("moved")
    with begin() as parts:
        keep(parts, RUNS[:1])
        out.rename(moved)
        write_results(out, SCENARIO, "s", RUNS[1:])
        other = files(out)
        for meet in (parts.check_not_replaced, lambda: parts.keep("run", 1, RUNS[1])):
            with pytest.raises(InputError, match="something else has taken its place"):
                meet()
    assert files(out) == other
    assert runs_of(read_results(moved)) == RUNS[:1]


def test_where_another_command_has_begun_meanwhile_it_is_not_undone(begin: Open, out: Path) -> None:
    with begin():
        shutil.rmtree(out)
        with write_folder_atomically(out / "parts") as new:
            (new / "index.json").write_text("another's")
    assert files(out) == {"parts/index.json": b"another's"}


def test_a_full_disk_leaves_no_empty_folder(begin: Open, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(unfinished, "write_checksums", fail)
    with pytest.raises(InputError, match=r"cannot write .*parts: No space left on device"), begin():
        pass
    assert not out.exists()
    out.mkdir()
    with pytest.raises(InputError, match="No space left"), begin():
        pass
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("events.parquet", "is damaged, or was changed"),
        ("checksums.sha256", "is damaged"),
        ("summary.json", ""),
    ],
)
def test_a_damaged_run_is_named_and_made_again(
    name: str, why: str, begin: Open, out: Path, spoken: list[str]
) -> None:
    with begin() as parts:
        keep(parts, RUNS)
    damaged = out / "parts" / "run-000001" / name
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match="run-000001"):
        read_results(out)
    with begin() as parts:
        assert set(parts.kept) == {("run", 0), ("run", 2)}
        assert f"{damaged.parent}" in spoken[0]
        assert why in spoken[0]
        assert spoken[0].endswith("; this run is made again")
        parts.keep("run", 1, RUNS[1])
    assert runs_of(read_results(out)) == RUNS


def test_a_run_without_checksums_or_of_another_scenario_is_made_again(begin: Open, out: Path) -> None:
    with begin() as parts:
        keep(parts, RUNS)
    (out / "parts" / "run-000000" / "checksums.sha256").unlink()
    write_results(out / "parts" / "run-000001", made_scenario("t"), "t", [RUNS[1]], force=True)
    shutil.copytree(out / "parts" / "run-000002", out / "parts" / ".run-000007.elsewhere-1.new")
    with begin() as parts:
        assert set(parts.kept) == {("run", 2)}
        assert not list((out / "parts").glob(".*"))


def test_an_older_folder_is_never_gone_on_with(begin: Open, out: Path) -> None:
    write_results(out, SCENARIO, "s", RUNS[:1])
    (out / "checksums.sha256").unlink()
    with pytest.raises(InputError, match="r is there already"), begin():
        pass


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"version": 1}, "they are records of version 1, and this program writes"),
        ({"code": "other"}, r"they were begun by other code \(other\), and this is "),
        ({"command": "realrun --lab"}, "they were begun by 'realrun --lab', and this is 'simulate on cpu'"),
        ({"scenario": "name: t\n"}, "they are of another scenario"),
        ({"force": True}, "they were begun with --force"),
    ],
)
def test_runs_of_something_else_are_kept(
    changed: dict[str, object], why: str, begin: Open, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = unfinished.Index
    with monkeypatch.context() as patch:
        patch.setattr(unfinished, "Index", lambda *values: replace(original(*values), **changed))  # type: ignore[arg-type]
        with begin() as parts:
            keep(parts, RUNS)
    before = files(out)
    with (
        pytest.raises(InputError, match=f"r holds unfinished runs, but {why}.*replace them with --force"),
        begin(),
    ):
        pass
    assert files(out) == before
    with begin(force=True) as parts:
        assert set(parts.kept) == (set() if "force" not in changed else {("run", i) for i in range(3)})


def test_a_command_with_force_goes_on_and_older_results_stay(begin: Open, out: Path) -> None:
    write_results(out, SCENARIO, "s", RUNS[:1])
    with begin(force=True) as parts:
        keep(parts, RUNS)
    assert runs_of(read_results(out)) == RUNS[:1]
    with begin(force=True) as parts:
        assert len(parts.kept) == 3


def test_a_damaged_index(begin: Open, out: Path) -> None:
    with begin() as parts:
        keep(parts, RUNS)
    index = out / "parts" / "index.json"
    index.write_text(index.read_text().replace("name: s", "name: t"))
    before = files(out)
    with pytest.raises(InputError, match=r"index\.json is damaged, or was changed.*--force"), begin():
        pass
    index.write_text("{}")
    checksum = hashlib.sha256(b"{}").hexdigest()
    (out / "parts" / "checksums.sha256").write_text(f"{checksum}  index.json\n")
    with pytest.raises(InputError, match=r"index\.json cannot be read.*--force"), begin():
        pass
    assert set(files(out)) == set(before)


def test_whoever_comes_second_is_refused(begin: Open, out: Path) -> None:
    with begin() as parts:
        keep(parts, RUNS)
        with pytest.raises(InputError, match="r is in use: another command"), begin():
            pass
    with begin() as parts:
        assert len(parts.kept) == 3


def test_a_foreign_folder_called_parts_is_not_touched(begin: Open, out: Path) -> None:
    (out / "parts").mkdir(parents=True)
    (out / "parts" / "thesis.tex").write_text("x")
    with (
        pytest.raises(InputError, match="holds parts, which is no part of these results"),
        begin(force=True),
    ):
        pass
    assert (out / "parts" / "thesis.tex").is_file()


def test_what_is_known_of_the_schemes_is_kept_with_their_runs(begin: Open, out: Path) -> None:
    """Bounds, memory and chosen values are known before the first run; a page of some runs has them, too."""
    trial = TuningTrial(values={"optimizer.lr": 0.4}, seed=9, time_to_target_s=1.0, score=0.9)
    tuning = [
        Tuned(label=label, chosen={"optimizer.lr": rate}, at_edge=[], metric="test_accuracy", trials=[trial])
        for label, rate in (("one", 0.4), ("two", 0.8))
    ]
    memory = MemoryRecord(total_bytes=2.0, parts={"parameters": 2.0}, left_out=[], limit_bytes=None)
    facts = {
        label: SchemeFacts(does=f"It is {label}.", draws=True, bounds=made_bounds(), memory=memory)
        for label in ("one", "two")
    }
    with begin() as parts:
        keep(replace(parts, tuning=tuning, facts=facts), RUNS)
        summary = read_results(out).summary
    assert summary.get("tuning") == tuning
    for row in summary["summary"]:
        assert row["does"] == f"It is {row['label']}."
        assert row["bounds"] == made_bounds()
        assert row["memory"] == memory
        assert row["draws"]
    with begin() as parts:
        assert list(parts.kept.values()) == RUNS
