"""Many result folders on one page: those that differ in seeds alone are the repeats of one study."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import paceline
from paceline.reports.folders import read_sources
from paceline.reports.page import render
from paceline.sim.errors import InputError
from paceline.sim.records.folder import write_results
from tests.support.made_runs import made_run, made_scenario

SCENARIO = """\
name: noisy
workload: {task: quadratic, dimension: 20, condition: 5, noise: 1, batch_size: 8, optimizer: {lr: 0.1}}
cluster:
  workers: 2
  compute: {time: 10 ms, jitter: {lognormal: {cv: 0.2}}}
  network: {latency: 10 ms, bandwidth: 10 MB/s}
schemes: [all_reduce, {local_sgd: {period: 8}}]
stop: {target: {metric: suboptimality, value: 0.5}, max_time: 10 s, max_iterations: 60}
"""


def simulate(top: Path, seed: int, repeats: int) -> Path:
    """A result folder of a simulation of these seeds."""
    (top / "noisy.yaml").write_text(SCENARIO)
    study = paceline.simulate(paceline.load(top / "noisy.yaml", [f"seed={seed}", f"repeats={repeats}"]))
    study.save(top / f"{seed}-{repeats}")
    return top / f"{seed}-{repeats}"


def made(folder: Path, seed: int, name: str = "one", labels: str = "ab", repeats: int = 1) -> Path:
    """A result folder of hand-made runs with these labels."""
    schemes = ", ".join(f"any: {{label: {label}}}" for label in "ab")
    text = made_scenario(name, f"seed: {seed}\nrepeats: {repeats}\n").replace("any", schemes, 1)
    seeds = range(seed, seed + repeats)
    runs = [made_run(label, i, reached_s=10.0 + i + ord(label)) for i in seeds for label in labels]
    write_results(folder, text, name, runs)
    return folder


JOINED = r"Repeats from [^<]* those of seed 3\. "


@pytest.mark.slow
def test_folders_of_one_seed_give_the_page_of_one_folder(tmp_path: Path) -> None:
    whole = render([simulate(tmp_path, 3, 6)])
    apart = render([simulate(tmp_path, seed, 1) for seed in (5, 3, 8, 4, 7, 6)])
    (sentence,) = re.findall(JOINED, apart)
    assert "6 folders whose scenarios differ in seeds alone, 6 seeds from 3" in sentence
    assert re.sub(JOINED, "", apart) == whole


@pytest.mark.slow
@given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.randoms())
@settings(max_examples=20, deadline=None)
def test_joined_folders_have_the_records_of_one(parts: list[int], random: Random) -> None:
    with TemporaryDirectory() as place:
        top, start = Path(place), 7
        (one,) = read_sources([made(top / "whole", start, repeats=sum(parts))])
        folders = []
        for number, repeats in enumerate(parts):
            folders.append(made(top / str(number), start, repeats=repeats))
            start += repeats
        random.shuffle(folders)
        (joined,) = read_sources(folders)
    assert joined.main.results.summary == one.main.results.summary
    assert joined.main.results.scenario == one.main.results.scenario
    assert_frame_equal(joined.main.results.metrics, one.main.results.metrics)
    assert (joined.title, joined.missing, one.main.results.joined) == (one.title, "", "")


def test_seeds_with_gaps_are_joined_too(tmp_path: Path) -> None:
    (study,) = read_sources([made(tmp_path / str(seed), seed) for seed in (40, 2, 9)])
    assert study.missing == ""
    assert "3 seeds from 2 to 40" in study.main.results.joined
    assert [row["runs"] for row in study.main.rows] == [3, 3]
    assert "seed: 2\nrepeats: 1\n" in study.main.results.scenario


def test_the_same_seed_twice_is_compared(tmp_path: Path) -> None:
    folders = [made(tmp_path / name, seed) for name, seed in (("a1", 1), ("a2", 2), ("b1", 1), ("b2", 2))]
    first, second = read_sources(folders)
    assert (first.title, second.title) == ("one (a1)", "one (b1)")
    assert [row["runs"] for study in (first, second) for row in study.main.rows] == [2, 2, 2, 2]


def test_groups_of_scenarios_and_missing_runs(tmp_path: Path) -> None:
    folders = [made(tmp_path / f"{name}{seed}", seed, name) for seed in (1, 2) for name in ("x", "y")]
    folders += [made(tmp_path / "z", 3, "y", labels="a")]
    x, y = read_sources(folders)
    assert (x.title, y.title, x.missing) == ("x", "y", "")
    assert y.missing == f"1 of 3 folders lack runs; in {tmp_path / 'z'} there is no run of 'b'"


def test_all_unreadable_folders_are_named_once(tmp_path: Path) -> None:
    made(tmp_path / "whole", 1)
    folders = [tmp_path / "gone", tmp_path / "whole", tmp_path, tmp_path / "gone"]
    with pytest.raises(InputError) as refusal:
        read_sources(folders)
    first, second = str(refusal.value).splitlines()
    assert first == f"there is no folder {tmp_path / 'gone'}"
    assert second.startswith(f"{tmp_path} is no result folder")


@pytest.mark.slow
def test_a_page_shows_a_thousand_runs_of_many(tmp_path: Path) -> None:
    text = render([made(tmp_path / "r", 1, repeats=501)])
    assert "The first 1,000 of 1,002 runs." in text
    assert text.count("<td>simulated</td>") == 1000
