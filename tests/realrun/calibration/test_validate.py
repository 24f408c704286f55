"""The order in which a validation measures, and what it does when a run fails; ranks are simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from paceline.commands.measure import compare, measure_hosts
from paceline.realrun.calibration import probes, validate
from paceline.realrun.driver.rank_log import Timing
from paceline.realrun.launch.cells import RankPool, Result, RunRequest, requested_job
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.folder import read_results
from paceline.sim.scenario.schema import parse

SCENARIO = """
name: small
seed: 3
workload: {task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 3, compute: {time: 5 ms}, network: {latency: 1 ms}}
evaluate: {every: 2 steps}
schemes: [ad_psgd, {ad_psgd: {label: again}}]
stop: {max_iterations: 6}
repeats: 2
"""


class SimulatedRanks(RankPool):
    """Ranks that take ``slower`` times as long as predicted; the run of number ``broken`` fails."""

    def __init__(self, broken: int = -1, partial: bool = False, slower: float = 1.02) -> None:
        self.asked_for: list[tuple[int, int]] = []
        self._broken, self._partial, self._slower = broken, partial, slower

    @override
    def run(self, request: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        number = len(self.asked_for)
        self.asked_for.append((request.entry, request.seed))
        if number == self._broken and not self._partial:
            raise RunError("worker 2 was lost (ready)")
        run = simulate_job(requested_job(request, 0))
        run = replace(run, source="measured", wall_clock_s=self._slower * run.wall_clock_s)
        if number == self._broken:
            run = replace(run, status="partial", message="worker 2 was lost; worker 0 noticed during mix")
        return Result(run, (Timing(18),))


def run(ranks: RankPool, tolerance_pct: float = 5.0, more: str = "") -> validate.Validation:
    lines: list[str] = []
    return validate.validate(parse(SCENARIO + more), ranks, None, None, lines.append, tolerance_pct)


def test_schemes_take_turns_and_the_first_seed_comes_once_more() -> None:
    ranks = SimulatedRanks()
    answer = run(ranks).comparison
    assert ranks.asked_for == [(0, 3), (1, 3), (0, 4), (1, 4), (0, 3), (1, 3)]
    assert {(row["label"], row["seed"]) for row in answer["noise"]} == {("ad_psgd", 3), ("again", 3)}
    assert answer["noise_floor_pct"] == 0.0
    assert answer["verdict"]["outcome"] == "pass"
    assert validate.exit_status(run(SimulatedRanks(), 1.0)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("broken", [1, 3, 5])
def test_a_run_that_fails_is_the_last_one_and_what_there_is_is_written(
    broken: int, partial: bool, tmp_path: Path
) -> None:
    ranks = SimulatedRanks(broken, partial)
    answer = run(ranks)
    assert len(ranks.asked_for) == broken + 1
    assert answer.comparison["status"] == "partial"
    assert answer.comparison["message"].startswith("worker 2 was lost")
    assert answer.comparison["verdict"]["outcome"] == "fail"
    assert answer.comparison["cells"]
    assert validate.exit_status(answer) == 1
    validate.write(answer, tmp_path / "out", False, None, None)
    results = read_results(tmp_path / "out")
    assert results.validation == answer.comparison
    measured = [row for row in results.summary["runs"] if row["source"] == "measured"]
    assert len(measured) == min(broken, 4) + (partial and broken < 4)


@pytest.mark.parametrize(
    ("name", "warned"), [("auto", False), ("gloo_ring", False), ("recursive_doubling", True)]
)
def test_an_all_reduce_that_real_runs_do_not_have_is_named(name: str, warned: bool) -> None:
    found = run(SimulatedRanks(), more=f"collectives: {{all_reduce: {name}}}\n").comparison["warnings"]
    assert any("and real runs their library's own" in each for each in found) == warned


def test_without_any_real_run_there_is_nothing_to_write() -> None:
    with pytest.raises(RunError, match="worker 2 was lost"):
        run(SimulatedRanks(0))


def test_options_are_checked_before_anything_starts() -> None:
    scenario = parse(SCENARIO)
    for steps, tolerance, words in ((0, 5.0, "--steps 0"), (None, 0.0, "--tolerance 0"), (1, -2.0, "than 0")):
        with pytest.raises(InputError, match=words):
            validate.check_options(scenario, steps, tolerance)


SLOW_LINK = SCENARIO.replace("latency: 1 ms", "latency: 1 ms, bandwidth: 8 kbit/s")


def test_how_long_probes_take_is_said_before_they_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Their pauses are by the nominal rates: 4 MB at 1 kB/s take more than an hour each."""

    def begin(*_: object) -> None:
        raise RunError("begun")

    monkeypatch.setattr("paceline.realrun.calibration.cluster_probes.measure", begin)
    scenario, hosts = parse(SLOW_LINK), probes.hosts_of(parse(SLOW_LINK), lab=False)
    with pytest.raises(RunError, match="begun"):
        measure_hosts(scenario, hosts, nullcontext(), tmp_path / "m.json")  # type: ignore[arg-type]
    with pytest.raises(RunError, match="begun"):
        compare(scenario, hosts, lambda _: nullcontext(), None, None, 5.0, None, False, False)  # type: ignore[arg-type, return-value]
    for line in capsys.readouterr().err.splitlines():
        assert re.search(r"probing .*, for \d\d\d h \d+ min$", line)
