"""Hostile input: one clear message, exit status 2, nothing written, in little time and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile import bundles, commands, data_files, folders, options, sandbox, scenarios, user_code
from tests.hostile.sandbox import Case, Ended

CLASSES = (scenarios, options, data_files, folders, commands, user_code, bundles)
CASES = {case.name: case for each in CLASSES for case in each.cases()}
SAMPLED = 30
"""Cases that every run of the tests looks at, spread over all classes."""
SAMPLE = list(CASES)[:: -(-len(CASES) // SAMPLED)]
STARTED_ANEW = 4
"""Cases that are run as processes of their own from the start, not forked from one that has loaded torch."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where there are results as they should be."""
    folder = tmp_path_factory.mktemp("good")
    sandbox.write_good(folder, scenarios.text_of(scenarios.GOOD))
    return folder


def check(case: Case, tmp_path: Path, good: Path, run: Callable[..., Ended] = sandbox.run) -> None:
    """Run a case, and compare what comes of it with what should."""
    folder, streams = tmp_path / "here", tmp_path / "streams"
    for each in (folder, streams):
        each.mkdir()
    sandbox.lay_out(case, folder, good)
    before = sandbox.contents(folder)
    ended = run(case.argv, folder, streams)
    assert not sandbox.find_faults(case, ended, before, sandbox.contents(folder)), ended.err[-2000:]


def test_there_are_enough_cases() -> None:
    assert len(CASES) == sum(len(each.cases()) for each in CLASSES) >= 300
    assert len(SAMPLE) <= SAMPLED


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_hostile_input_is_refused(name: str, tmp_path: Path, good: Path) -> None:
    check(CASES[name], tmp_path, good)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(SAMPLE)))
def test_hostile_input_is_refused(name: str, tmp_path: Path, good: Path) -> None:
    check(CASES[name], tmp_path, good)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES)[7 :: -(-len(CASES) // STARTED_ANEW)])
def test_hostile_input_is_refused_by_a_process_started_anew(name: str, tmp_path: Path, good: Path) -> None:
    check(CASES[name], tmp_path, good, sandbox.run_anew)
