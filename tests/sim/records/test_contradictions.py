"""Result folders whose scenario and tables are of different runs, though their checksums fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.sim.errors import InputError
from paceline.sim.records.comparison import compare
from paceline.sim.records.folder import VALIDATION_FILE, read_results, write_results
from paceline.sim.records.integrity.checksums import write_checksums
from paceline.sim.records.run import Run
from tests.hostile import sandbox
from tests.support.made_runs import made_event, made_run, made_scenario

TEXT = sandbox.SMALL.replace("ad_psgd", "{local_sgd: {period: 2, label: rare}}")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a result folder."""
    folder = tmp_path_factory.mktemp("good")
    sandbox.write_good(folder, TEXT)
    return {path.name: path.read_bytes() for path in (folder / "r").iterdir()}


@pytest.mark.parametrize(
    ("name", "there", "instead", "says"),
    [
        ("scenario.yaml", "name: small", "name: large", "of 'small', and its scenario is 'large'"),
        ("scenario.yaml", "label: rare", "label: often", "no run of 'local_sgd' as 'rare'"),
        (
            "scenario.yaml",
            "- local_sgd: {period: 2",
            "- gossip: {period: 2",
            "no run of 'local_sgd' as 'rare'",
        ),
        ("scenario.yaml", "seed: 3", "seed: 30", "with seed 3"),
        ("scenario.yaml", "workers: 2", "workers: 3", "impossible steps"),
        ("scenario.yaml", "workers: 2", "workers: 1", "none of the scenario's 1"),
        ("scenario.yaml", "max_iterations: 4", "max_iterations: 2", "more steps than the scenario's 2"),
        (
            "scenario.yaml",
            "schemes:\n",
            "schemes:\n- gossip: {label: never}\n",
            "no run of 'never', and nothing",
        ),
        ("scenario.yaml", "repeats: 1", "repeats: 2", "of 'all_reduce' with seed 4, 'rare' with seed 4"),
        ("summary.json", '"first": "', '"first": "nobody', "no run of 'nobody"),
    ],
)
def test_what_belongs_to_another_scenario_is_refused(
    name: str, there: str, instead: str, says: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    for each, content in good.items():
        (tmp_path / each).write_bytes(content)
    text = good[name].decode()
    assert there in text
    assert read_results(tmp_path).verified
    (tmp_path / name).write_text(text.replace(there, instead))
    write_checksums(tmp_path)
    with pytest.raises(InputError, match=says):
        read_results(tmp_path)


TABLE_EDITS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "emptied": lambda table: table[:0],
    "shortened": lambda table: table[:-1],
    "doubled": lambda table: pa.concat_tables([table, table]),
    "reversed": lambda table: table.take([*range(len(table))][::-1]),
    "ends exchanged": lambda table: table.take([len(table) - 1, *range(1, len(table) - 1), 0]),
}


@pytest.mark.parametrize("name", ["metrics.parquet", "events.parquet"])
@pytest.mark.parametrize("edit", TABLE_EDITS)
def test_tables_have_the_rows_that_were_written_in_their_order(
    name: str, edit: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    for each, content in good.items():
        (tmp_path / each).write_bytes(content)
    pq.write_table(TABLE_EDITS[edit](pq.read_table(tmp_path / name)), tmp_path / name)
    write_checksums(tmp_path)
    with pytest.raises(InputError, match=rf"{name} (has \d+ rows|is not in order|does not end)"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([{"start_s": 1.0, "peer_s": 1.0, "end_s": 0.5}], "end_s comes before its peer_s"),
        ([{"start_s": 1.0, "peer_s": 0.5, "end_s": 2.0}], "peer_s comes before its start_s"),
        ([{"start_s": 1.0}, {"start_s": 0.0}], "end_s falls"),
        ([{"step": 1}, {"step": 0}], "step falls"),
    ],
)
def test_operations_follow_upon_each_other(events: list[dict[str, float]], says: str, tmp_path: Path) -> None:
    operations = [made_event(**{"step": 0, **each}) for each in events]  # type: ignore[arg-type]
    write_results(tmp_path / "r", made_scenario("s"), "s", [made_run("a", events=operations)])
    with pytest.raises(InputError, match=says):
        read_results(tmp_path / "r")


def test_what_is_started_may_end_in_any_order(tmp_path: Path) -> None:
    started = [made_event(handle=0, start_s=1.0), made_event(handle=1, start_s=0.0)]
    others = [made_event(start_s=1.0), made_event(1, start_s=0.0), made_event(task=1, start_s=0.0)]
    write_results(tmp_path / "r", made_scenario("s"), "s", [made_run("a", events=started + others)])
    assert len(read_results(tmp_path / "r").events) == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no keys"),
        ("- name: small\n", "holds no keys"),
        ("small\n", "holds no keys"),
        ("name: [1, 2\n", "cannot be read: scenario:2: not valid YAML"),
        ("{name: small, workload: {}, cluster: {}}\n", "has no 'schemes'"),
    ],
)
def test_a_scenario_that_is_none_is_refused(
    text: str, says: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    for name, content in {**good, "scenario.yaml": text.encode()}.items():
        (tmp_path / name).write_bytes(content)
    write_checksums(tmp_path)
    with pytest.raises(InputError, match=rf"scenario\.yaml is damaged: it {says}"):
        read_results(tmp_path)


def test_a_run_that_failed_explains_those_that_are_missing(tmp_path: Path) -> None:
    scenario = made_scenario("s", "seed: 0\nrepeats: 2\n").replace("[any]", "[{a: {label: a}}]")
    write_results(tmp_path / "r", scenario, "s", [made_run("a")])
    with pytest.raises(InputError, match="is not complete: there is no run of 'a' with seed 1"):
        read_results(tmp_path / "r")
    write_results(tmp_path / "r", scenario, "s", [made_run("a", status="partial")], force=True)
    assert read_results(tmp_path / "r").missing == "there is no run of 'a' with seed 1"
    write_results(tmp_path / "r", scenario, "s", [made_run("a", seed) for seed in (0, 1)], force=True)
    assert read_results(tmp_path / "r").missing == ""
    more = scenario.replace("repeats: 2", "repeats: 9")
    write_results(tmp_path / "r", more, "s", [made_run("a", status="partial")], force=True)
    assert read_results(tmp_path / "r").missing == "there is no run of 'a' with 8 of 9 seeds"


@pytest.mark.parametrize(("seeds", "missing"), [((0, 1), ""), ((0,), "there is no run of 'b' with seed 1")])
def test_where_the_runs_decide_how_many_repeats_there_are_all_schemes_have_them(
    seeds: tuple[int, ...], missing: str, tmp_path: Path
) -> None:
    labels = "[{a: {label: a}}, {b: {label: b}}]"
    scenario = made_scenario("s", "seed: 0\nrepeats: {most: 30}\n").replace("[any]", labels)
    runs = [*(made_run("a", seed, status="partial") for seed in (0, 1)), *(made_run("b", s) for s in seeds)]
    write_results(tmp_path / "r", scenario, "s", runs)
    assert read_results(tmp_path / "r").missing == missing


def compared(predicted: list[Run], measured: list[Run], **changes: object) -> dict[str, str]:
    """``validation.json`` of these runs, as a file to be added."""
    return {VALIDATION_FILE: json.dumps({**compare("s", predicted, measured), **changes})}


PREDICTED = [made_run("a"), made_run("b", reached_s=20.0)]
MEASURED = [replace(run, source="measured") for run in PREDICTED]
LATER = [made_run("a", reached_s=11.0, source="measured"), MEASURED[1]]
UNSCORED = [replace(run, reached_target=False, time_to_target_s=None) for run in PREDICTED]
NO_DECISION = {
    "winner_predicted": "c", "winner_measured": None, "tie": None, "regret_pct": None, "kendall_tau": None,
    "interval_coverage": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("added", "says"),
    [
        (compared(PREDICTED, LATER), "another measured run of 'a' with seed 0"),
        (compared(UNSCORED, LATER), "another measured run of 'a' with seed 0"),
        (
            compared([made_run("c")], [made_run("c", source="measured")]),
            "a simulated run of 'c' with seed 0, which is not there",
        ),
        (
            compared([made_run("a", 1)], [made_run("a", 1, source="measured")]),
            "run of 'a' with seed 1, which is not there",
        ),
        (
            compared([made_run("a", scheme="x")], [made_run("a", scheme="x", source="measured")]),
            "another simulated run of 'a' with seed 0",
        ),
        (compared(PREDICTED, MEASURED, decision=NO_DECISION), "names 'c' as first"),
    ],
)
def test_a_comparison_of_other_runs_is_refused(added: dict[str, str], says: str, tmp_path: Path) -> None:
    runs = [*PREDICTED, *MEASURED]
    write_results(tmp_path / "good", made_scenario("s"), "s", runs, added=compared(PREDICTED, MEASURED))
    assert read_results(tmp_path / "good").validation is not None
    write_results(tmp_path / "r", made_scenario("s"), "s", runs, added=added)
    with pytest.raises(InputError, match=rf"validation\.json is of other runs: it .*{says}"):
        read_results(tmp_path / "r")


def test_a_comparison_that_came_later_is_refused(tmp_path: Path) -> None:
    runs, folder = [*PREDICTED, *MEASURED], tmp_path / "r"
    write_results(folder, made_scenario("s"), "s", runs)
    for name, text in compared(PREDICTED, MEASURED).items():
        (folder / name).write_text(text)
    with pytest.raises(InputError, match=r"validation\.json was not written with these results"):
        read_results(folder)
    write_checksums(folder)
    assert read_results(folder).verified
