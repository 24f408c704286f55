"""What goes by tapes has the bits of what it was made from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paceline.sim.devices import one_thread
from paceline.sim.training import capture
from paceline.sim.training.capture import (
    CALLS_BEFORE,
    CALLS_COMPARED,
    Captured,
    Tape,
    count_flop,
    record,
)
from paceline.sim.training.gradients import WORKERS_OF_THREAD, TrainingProblem
from paceline.sim.workloads import find_task
from tests.support.factory import make_problem

ROWS = 16
MORE = CALLS_BEFORE + 3
"""Calls of which the last have a tape."""


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """The tapes that are played, one after another."""
    tapes: list[Tape] = []
    original = Tape.play

    def play(self: Tape, inputs: Any) -> tuple[Tensor, ...]:
        tapes.append(self)
        return original(self, inputs)

    monkeypatch.setattr(Tape, "play", play)
    return tapes


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TASKS: list[tuple[str, dict[str, Any]]] = [
    ("digits-mlp", {"hidden": 9}),
    ("logistic", {}),
    ("quadratic", {"dimension": 5, "examples": 64}),
    ("matrix-completion", {}),
    ("random-features", {}),
]


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_gradients_by_a_tape_have_the_bits_of_those_without(
    task: str, options: dict[str, Any], played: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(task, 5, 1, "batched", batch_size=4, **options)
    found = [steps(problem, first) for first in (False, True)]
    assert len(played) >= 2 * (MORE - CALLS_BEFORE)
    monkeypatch.setattr(capture, "CALLS_BEFORE", 10**9)
    without = TrainingProblem(problem.workload, problem.batches, "batched")
    played.clear()
    expected = [steps(without, first) for first in (False, True)]
    assert not played
    for ours, theirs in zip(found, expected, strict=True):
        for (value, loss), (other, other_loss) in zip(ours, theirs, strict=True):
            assert torch.equal(value, other)
            assert torch.equal(loss, other_loss)


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_several_threads_give_the_bits_of_one(task: str, options: dict[str, Any]) -> None:
    problem = make_problem(task, 2 * WORKERS_OF_THREAD, 1, "batched", batch_size=4, **options)
    with one_thread():
        expected = steps(problem, False, MORE + CALLS_COMPARED)
        problem.threads = lambda: 2
        by_threads = steps(problem, False, MORE + CALLS_COMPARED)
    assert isinstance(problem._batched, Captured)
    assert set(problem._batched._alike.values()) <= {CALLS_COMPARED, None}  # as this processor's kernels are
    assert problem._batched._alike
    for (value, loss), (other, other_loss) in zip(by_threads, expected, strict=True):
        assert torch.equal(value, other)
        assert torch.equal(loss, other_loss)


def test_threads_that_would_each_add_up_a_part_are_not_used(played: list[Tape]) -> None:
    """A fifth of such sums comes out the same by chance."""
    captured = Captured(lambda x: (x.sum(), 2 * x))
    with one_thread():
        for k in range(MORE + CALLS_COMPARED):
            x = numbers(ROWS, 2**14 + 1, seed=k)
            for ours, theirs in zip(captured(x, threads=2), (x.sum(), 2 * x), strict=True):
                assert torch.equal(ours, theirs)
    assert played
    assert not any(tape.for_threads for tape in played)


def test_threads_that_give_other_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a library might whose products of matrices depend on how many there are."""
    monkeypatch.setattr(Tape, "play", lambda _, inputs: (inputs[0] * torch.get_num_threads(),))
    captured = Captured(lambda x: (x * 1,))
    with one_thread():
        for k in range(MORE + CALLS_COMPARED):
            x = numbers(ROWS, 3, seed=k)
            assert torch.equal(captured(x, threads=2)[0], x)
    assert list(captured._alike.values()) == [None]


def steps(problem: TrainingProblem, together: bool, calls: int = MORE) -> list[tuple[Tensor, Tensor]]:
    """Gradients of some steps, at points of their own or, in one layout more, all at one point."""
    start, found = problem.workload.start, []
    n = len(problem.batches.shards)
    for k in range(calls):
        apart = start.expand(n, -1) if together else start + 0.1 * numbers(n, start.numel(), seed=k)
        evaluated = problem.gradients_of_all(k, apart)
        found.append((evaluated.value, evaluated.loss))
    return found


@settings(max_examples=20)
@given(m=st.integers(2, 6), b=st.integers(1, 5), widths=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_the_backward_pass_of_any_perceptron_can_be_captured(m: int, b: int, widths: list[int]) -> None:
    shapes = [(after, before) for before, after in pairwise(widths)]

    def loss(weights: list[Tensor], inputs: Tensor) -> Tensor:
        for weight in weights:
            inputs = torch.tanh(inputs @ weight.T)
        return inputs.square().mean()

    def gradients(inputs: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        leaves = [weight.detach().requires_grad_() for weight in weights]
        losses = torch.func.vmap(loss)(leaves, inputs)
        return torch.autograd.grad(losses.sum(), leaves)

    captured = Captured(gradients)
    for k in range(MORE):
        given = [numbers(m, b, widths[0], seed=k), *(numbers(m, *shape, seed=k) for shape in shapes)]
        for ours, theirs in zip(captured(*given), gradients(*given), strict=True):
            assert torch.equal(ours, theirs)


def test_lists_and_writes_in_place_are_captured(played: list[Tape]) -> None:
    def computation(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        out = torch.zeros(2, 6)
        out[:, :3].copy_(x)
        out.index_put_((torch.tensor([1, 1]), torch.tensor([4, 4])), y[0, :2], accumulate=True)
        first, *_ = torch.split(torch.cat([x, y], dim=1), 2, dim=1)
        return out, torch.stack([first, first * 2])

    captured = Captured(computation)
    for k in range(MORE):
        x, y = numbers(2, 3, seed=k), numbers(2, 3, seed=k + 100)
        for ours, theirs in zip(captured(x, y), computation(x, y), strict=True):
            assert torch.equal(ours, theirs)
    assert played


def test_what_depends_on_numbers_gets_no_tape(played: list[Tape]) -> None:
    """Its tape would have the numbers of the inputs that it was made with."""

    def computation(x: Tensor) -> tuple[Tensor, ...]:
        return (x * x.sum().item(),)

    captured = Captured(computation)
    for k in range(MORE):
        x = numbers(3, seed=k)
        assert torch.equal(captured(x)[0], computation(x)[0])
    assert len(played) == 1  # to compare


def test_a_result_that_did_not_come_of_operations_has_no_tape() -> None:
    hidden = torch.ones(3)
    outputs, tape = record(lambda x: (hidden,), [numbers(3)])
    assert tape is None
    assert outputs[0] is hidden


def test_a_tape_keeps_no_tensor_of_the_call_that_it_was_made_of() -> None:
    constant = numbers(4, 4)

    def computation(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat([torch.relu(x @ constant) @ constant, x]),)

    _, tape = record(computation, [numbers(2, 4)])
    assert tape is not None
    assert all(each is constant for each in tape.graph.buffers())


def test_tensors_that_lie_elsewhere_in_their_memory_get_a_tape_of_their_own(played: list[Tape]) -> None:
    def computation(x: Tensor) -> tuple[Tensor, ...]:
        return (x.T * 2,)

    captured = Captured(computation)
    for k in range(MORE):
        both = numbers(2, 3, 3, seed=k)
        for x in both.unbind():
            assert torch.equal(captured(x)[0], computation(x)[0])
    assert len(set(map(id, played))) == 2


def test_a_view_in_other_numbers_is_done_as_it_was() -> None:
    def computation(x: Tensor) -> tuple[Tensor, ...]:
        return (x.view(torch.int32) & 0xFF, torch.view_as_complex(x).conj() * 1j)

    _, tape = record(computation, [numbers(3, 2)])
    assert tape is not None
    x = numbers(3, 2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(tape.play([x]), computation(x), strict=True))


def test_a_tensor_that_changes_its_shape_in_place_has_no_tape() -> None:
    outputs, tape = record(lambda x: ((x + 1).unsqueeze_(0).mul(2),), [numbers(3)])
    assert tape is None
    assert outputs[0].shape == (1, 3)


def test_tensors_in_another_layout_get_a_tape_of_their_own(played: list[Tape]) -> None:
    def computation(x: Tensor) -> tuple[Tensor, ...]:
        return (x.reshape(-1) + 1,)

    captured = Captured(computation)
    for k in range(MORE):
        square = numbers(3, 3, seed=k)
        for x in (square, square.T, square[:1].expand(3, 3)):
            assert torch.equal(captured(x)[0], computation(x)[0])
    assert len(set(map(id, played))) == 3


def test_modules_of_torch_are_steady_and_own_ones_are_not() -> None:
    assert find_task("digits-mlp").build(find_task("digits-mlp").options(), 1).steady
    own = find_task("tests.support.own_tasks:slow_between_layers")
    assert not own.build(own.options(), 1).steady


@pytest.mark.parametrize(
    "task", ["digits-mlp", "digits-cnn", "logistic", "tests.support.own_tasks:embedding"]
)
def test_flop_are_those_that_torch_counts(task: str) -> None:
    problem = make_problem(task, 2, 1, "looped")
    flop, convolves = count_flop(lambda: problem.gradient(0, 0, problem.workload.start))
    with FlopCounterMode(display=False) as counter:
        problem.gradient(0, 0, problem.workload.start)
    assert flop == counter.get_total_flops() > 0
    assert convolves == (task == "digits-cnn")
