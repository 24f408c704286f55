"""Runs in several threads of one process share what is kept from one to the next, and disturb no other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.sim.config.user_code import call as user_code
from paceline.sim.config.user_code import code_files
from paceline.sim.experiments import prepare
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads.modules import flatten_module
from paceline.sim.workloads.partition import Batches, Indices
from paceline.sim.workloads.supervised import initial_weights

T = TypeVar("T")
WAIT_S = 0.3
"""For another thread to come in between, where it can."""


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as Python can let them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(*calls: Callable[[], T]) -> list[T]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


class Meeting:
    """The first to come waits for a second one, for a while; whoever comes later does not."""

    def __init__(self) -> None:
        self._first, self._second = threading.Lock(), threading.Event()
        self.begun = threading.Event()

    def wait(self) -> None:
        if self._first.acquire(blocking=False):
            self.begun.set()
            self._second.wait(WAIT_S)
        else:
            self._second.set()


def batches() -> Batches:
    return Batches([np.arange(100 * w, 100 * w + 50) for w in range(4)], batch_size=7, seed=3)


def test_no_thread_sees_a_block_that_another_one_is_cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, shared, meeting = batches().examples(1, 5), batches(), Meeting()
    cut = Batches._sequence

    def slowly(self: Batches, worker: int, first: int, length: int) -> Indices:
        meeting.wait()
        return cut(self, worker, first, length)

    monkeypatch.setattr(Batches, "_sequence", slowly)

    def look(later: bool) -> Indices:
        if later:
            meeting.begun.wait()
        return shared.examples(1, 5)

    for found in in_threads(lambda: look(False), lambda: look(True)):
        assert np.array_equal(found, wanted)


@pytest.mark.usefixtures("switching")
def test_threads_at_other_steps_draw_their_own_batches() -> None:
    """A thread far ahead cuts other blocks than one behind."""
    workers, shared, alone = [0, 1, 2, 3], batches(), batches()
    wanted = {step: alone.of_workers(workers, [step] * 4) for step in range(0, 2_000, 5)}

    def look(first: int) -> bool:
        steps = [*wanted][first:] + [*wanted][:first]
        together = [np.array_equal(shared.of_workers(workers, [k] * 4), wanted[k]) for k in steps]
        return all(together) and all(np.array_equal(shared.examples(2, k), wanted[k][2]) for k in steps)

    assert all(in_threads(*[lambda first=first: look(first) for first in range(0, 400, 50)]))


def test_initial_weights_are_those_of_the_seed() -> None:
    """torch has one generator for all threads."""

    def draw(seed: int, meeting: Meeting | None = None) -> list[float]:
        with initial_weights(seed):
            if meeting is not None:
                meeting.wait()
            return nn.Linear(3, 1).weight.view(-1).tolist()

    meeting = Meeting()
    assert in_threads(lambda: draw(1, meeting), lambda: draw(2, meeting)) == [draw(1), draw(2)]


class Meets(nn.Module):
    """Changes nothing; two threads meet in it."""

    meeting: Meeting | None = None

    def forward(self, x: Tensor) -> Tensor:
        if Meets.meeting is not None:
            Meets.meeting.wait()
        return x


@pytest.mark.parametrize("training", [True, False])
def test_a_module_is_called_at_the_threads_own_model(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters of a call stand in the module meanwhile, which all threads share."""
    inputs = torch.ones(2, 3)
    flat = flatten_module(nn.Sequential(nn.Linear(3, 4), Meets(), nn.Linear(4, 1)), inputs)

    def at(x: Tensor) -> list[float]:
        outputs = flat.train(x, inputs)[0] if training else flat.evaluate(x, inputs)
        values: list[float] = outputs.view(-1).tolist()
        return values

    models = [flat.start, 2 * flat.start]
    wanted = [at(model) for model in models]
    monkeypatch.setattr(Meets, "meeting", Meeting())
    assert in_threads(*[lambda x=x: at(x) for x in models]) == wanted


def test_a_thread_names_what_it_was_given() -> None:
    """Two functions of one name, given to runs in two threads."""

    def give(number: int, meeting: Meeting) -> bool:
        def build() -> int:
            return number

        path = user_code.import_path_of(build)
        meeting.wait()
        return user_code.load_object(path) is build

    meeting = Meeting()
    assert in_threads(lambda: give(1, meeting), lambda: give(2, meeting)) == [True, True]


def test_neighbours_are_found_while_another_thread_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is searched until both are there."""
    held = f"from {__name__} import IMPORTS\nIMPORTS.wait()\n"
    (tmp_path / "first_of_two.py").write_text(held)
    (tmp_path / "second_of_two.py").write_text(held + "import time\ntime.sleep(0.2)\nimport near\n")
    (tmp_path / "near.py").write_text("")
    monkeypatch.chdir(tmp_path)
    names = ["first_of_two", "second_of_two"]

    def load(name: str) -> str:
        if name == names[1]:
            IMPORTS.begun.wait()
        return code_files.load_module(name).__name__

    assert in_threads(*[lambda name=name: load(name) for name in names]) == names
    for name in (*names, "near"):
        del sys.modules[name]


IMPORTS = Meeting()

SCENARIO = """\
name: threads
workload: {task: digits-mlp, batch_size: 8, optimizer: {lr: 0.1}}
cluster: {workers: 4, compute: {time: 10 ms}, network: {latency: 1 ms}}
evaluate: {every: 10 steps}
schemes: [gossip: {topology: ring}]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize(("gradients", "steps"), [("looped", 3), ("batched", 20)])
def test_first_runs_in_threads_give_the_bits_of_one(gradients: str, steps: int) -> None:
    scenario = parse(f"{SCENARIO}stop: {{max_iterations: {steps}}}\ngradients: {gradients}\n")

    def digest() -> str | None:
        (run,) = simulate(scenario)
        return run.digest

    wanted = digest()
    for _ in range(7):
        prepare._built.cache_clear()
        assert in_threads(*[digest] * 6) == [wanted] * 6
