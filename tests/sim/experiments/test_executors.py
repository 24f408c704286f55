"""Runs in any executor: text goes, bytes come back, and the results are those of runs one by one."""

from __future__ import annotations

import functools
import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import override

import paceline
from paceline.sim.errors import InputError, PacelineError, RunError
from paceline.sim.experiments import jobs
from paceline.sim.experiments import simulate as simulator
from paceline.sim.experiments.jobs import JobProcesses, PlannedRun
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, dump, parse

SCENARIO: dict[str, Any] = {
    "name": "drawn",
    "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
    "cluster": {
        "workers": 3,
        "compute": {"time": "20 ms", "jitter": {"lognormal": {"cv": 0.2}}},
        "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    },
    "schemes": ["all_reduce"],
    "stop": {"max_iterations": 6},
}
SCHEMES = ("all_reduce", "ad_psgd", {"local_sgd": {"period": 2}}, {"gossip": {"topology": "ring"}})


class Shuffled(Executor):
    """Does each run in a thread of its own after a drawn delay, and lets nothing but text and bytes pass."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (text,) = args
        assert isinstance(fn, functools.partial)
        assert (fn.func, fn.args) == (jobs.run_text, (simulator.run_here,))
        assert type(text) is str
        assert not kwargs
        future: Future[Any] = Future()

        def answer() -> None:
            data = fn(text)
            assert type(data) is bytes
            future.set_result(data)

        threading.Timer(self.draw.uniform(0.0, 0.01), answer).start()
        return future


def written(scenario: Scenario, runs: list[Run], folder: Path) -> dict[str, bytes]:
    write_results(folder, dump(scenario), scenario.name, runs, force=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schemes=st.lists(st.sampled_from(SCHEMES), min_size=1, max_size=3, unique_by=str),
    changes=st.fixed_dictionaries({"repeats": st.integers(1, 3), "seed": st.integers(0, 9)}),
    engine=st.sampled_from(["auto", "event"]),
    task=st.sampled_from(["quadratic", "digits-mlp"]),
    seed=st.integers(0, 99),
)
def test_the_bytes_do_not_depend_on_the_executor(
    tmp_path: Path, schemes: list[Any], changes: dict[str, int], engine: Any, task: str, seed: int
) -> None:
    workload = {**SCENARIO["workload"], "task": task}
    scenario = parse(json.dumps({**SCENARIO, **changes, "schemes": schemes, "workload": workload}))
    one_by_one = list(simulator.simulate(scenario, engine=engine))
    processes = JobProcesses(executor=Shuffled(seed))
    elsewhere = list(simulator.simulate(scenario, engine=engine, processes=processes))
    assert written(scenario, elsewhere, tmp_path / "b") == written(scenario, one_by_one, tmp_path / "a")


def test_python_takes_an_executor_for_all_that_runs() -> None:
    scenario = {**SCENARIO, "repeats": 2, "tune": {"optimizer.lr": [0.05, 0.1]}, "schemes": ["ad_psgd"]}
    grid = {"cluster.network.latency": ["1 ms", "2 ms"]}
    with ThreadPoolExecutor(2) as executor:
        study = paceline.simulate(scenario, executor=executor, progress=False)
        sweep = paceline.sweep(scenario, grid, executor=executor, progress=False)
    assert study == paceline.simulate(scenario, progress=False)
    assert sweep == paceline.sweep(scenario, grid, progress=False)
    with pytest.raises(InputError, match="executor"):
        paceline.simulate(scenario, executor="slurm")  # type: ignore[arg-type]


class Fragile(Executor):
    """Breaks whole where one run is done, as often as it is told to; does the others a little later."""

    def __init__(self, fatal: dict[int, int], submitted: list[int]) -> None:
        self.fatal, self.submitted = fatal, submitted
        self.pending: list[Future[bytes]] = []
        self.broken = False

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.broken:
            raise BrokenExecutor
        number = json.loads(args[0])["number"]
        self.submitted.append(number)
        future: Future[Any] = Future()
        self.pending.append(future)
        dies = self.fatal.get(number, 0) > 0
        if dies:
            self.fatal[number] -= 1
        threading.Timer(0.02, self.end if dies else functools.partial(self.answer, future, fn, *args)).start()
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, **_: Any) -> None:
        pass

    def end(self) -> None:
        self.broken = True
        for future in self.pending:
            if not future.done():
                future.set_exception(BrokenExecutor())

    def answer(self, future: Future[Any], fn: Callable[..., Any], text: str) -> None:
        data = fn(text)
        with suppress(InvalidStateError):  # it broke meanwhile
            future.set_result(data)


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, int], list[int]]:
    """Have processes of this machine break at runs, number -> how often; with the numbers handed out."""
    fatal: dict[int, int] = {}
    submitted: list[int] = []

    def begin(self: JobProcesses, most: int) -> None:
        self.executor = Fragile(fatal, submitted)

    monkeypatch.setattr(JobProcesses, "begin", begin)
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    return fatal, submitted


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_dies_costs_its_run_only(
    fragile: tuple[dict[int, int], list[int]], times: int
) -> None:
    fatal, submitted = fragile
    fatal[3] = times
    scenario = parse(json.dumps({**SCENARIO, "repeats": 8}))
    assert list(simulator.simulate(scenario, processes=JobProcesses(3))) == list(simulator.simulate(scenario))
    assert submitted.count(3) == 1 + times
    assert max(submitted.count(number) for number in range(8)) <= 1 + times


def test_a_run_that_ends_three_processes_is_named(fragile: tuple[dict[int, int], list[int]]) -> None:
    fatal, submitted = fragile
    fatal[3] = 9
    scenario = parse(json.dumps({**SCENARIO, "repeats": 4}))
    with pytest.raises(RunError, match="all_reduce, seed 3: 3 processes"):
        list(simulator.simulate(scenario, processes=JobProcesses(3)))
    assert submitted.count(3) == 3


def test_a_broken_executor_of_others_is_not_replaced() -> None:
    executor = Fragile({0: 1}, [])
    scenario = parse(json.dumps({**SCENARIO, "repeats": 2}))
    with pytest.raises(RunError, match="the executor has ended"):
        list(simulator.simulate(scenario, processes=JobProcesses(executor=executor)))
    (ended := ThreadPoolExecutor(1)).shutdown()
    with pytest.raises(RunError, match="the executor has ended"):
        list(simulator.simulate(scenario, processes=JobProcesses(executor=ended)))


def order(**changes: Any) -> str:
    scenario = parse(json.dumps(SCENARIO))
    planned = PlannedRun("run", 0, scenario, scenario.schemes[0], 0)
    return json.dumps({**json.loads(jobs._text(planned, torch.device("cpu"), "auto")), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"code": "other"}, "code of this process: .*, torch"),
        (
            {"scenario": json.dumps({**SCENARIO, "schemes": ["nowhere:scheme"]})},
            "has not the code of this process: .*nowhere",
        ),
    ],
)
def test_an_executor_with_other_code_is_refused(changes: dict[str, str], message: str) -> None:
    class Other(Executor):
        @override
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(fn(order(**changes)))
            return future

    processes = JobProcesses(executor=Other())
    with pytest.raises(InputError, match=message):
        list(simulator.simulate(parse(json.dumps(SCENARIO)), processes=processes))


def test_an_error_of_a_run_is_raised_as_without_an_executor() -> None:
    scenario = parse(json.dumps({**SCENARIO, "schemes": ["ad_psgd"]}))
    messages = []
    for executor in (None, Shuffled(0)):
        with pytest.raises(PacelineError) as raised:
            list(simulator.simulate(scenario, engine="lockstep", processes=JobProcesses(executor=executor)))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_progress_counts_runs_in_whatever_order_they_end() -> None:
    seen: list[Any] = []

    class Progress:
        def begin(self, *arguments: Any) -> None:
            seen.append(arguments)

        def __call__(self, label: str, steps: int) -> None:
            raise AssertionError("no run is done in this process")

        def complete(self, label: str) -> None:
            seen.append(label)

    scenario = parse(json.dumps({**SCENARIO, "repeats": 3, "tune": {"optimizer.lr": [0.05, 0.1]}}))
    processes = JobProcesses(executor=Shuffled(1))
    chosen, _ = simulator.choose_values(scenario, progress=Progress(), processes=processes)
    list(simulator.simulate(chosen, progress=Progress(), processes=processes))
    assert seen == [("trial", 6, 0), *["all_reduce"] * 6, ("run", 3, 0), *["all_reduce"] * 3]


def test_runs_that_are_kept_are_not_handed_out(tmp_path: Path) -> None:
    """A full disk ends the command, and the same one continues to the same bytes."""
    scenario, cpu = parse(json.dumps({**SCENARIO, "repeats": 6})), torch.device("cpu")
    whole, submitted, room = list(simulator.simulate(scenario)), list[int](), [3]

    class Parts:
        def __init__(self, parts: Any) -> None:
            self.parts, self.find = parts, parts.find
            self.num_kept = parts.num_kept

        def keep(self, *arguments: Any) -> None:
            room[0] -= 1
            if room[0] < 0:
                raise InputError("no space left on device")
            self.parts.keep(*arguments)

    def command() -> list[Run]:
        processes = JobProcesses(executor=Fragile({}, submitted))
        with simulator.begin(scenario, cpu, tmp_path / "r") as (resolved, parts):
            return list(simulator.simulate(resolved, parts=Parts(parts), processes=processes))  # type: ignore[arg-type]

    with pytest.raises(InputError, match="no space left"):
        command()
    room[0] = 99
    submitted.clear()
    assert command() == whole
    assert len(submitted) == 3
