"""What goes by tapes has the bits of what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
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
    Computation,
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
    arguments = [each for call in tape.calls for each in call.arguments]
    flat = [each for given in arguments for each in (given if isinstance(given, list) else [given])]
    assert all(each is constant for each in flat if isinstance(each, Tensor))
    ended = [number for call in tape.calls for number in call.last]
    assert sorted([*ended, *tape.outputs]) == list(range(tape.size))


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of those inputs of which a tape is recorded from now on."""
    rows: list[int] = []

    def noted(computation: Computation, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tape | None]:
        rows.append(len(inputs[0]))
        return record(computation, inputs)

    monkeypatch.setattr(capture, "record", noted)
    return rows


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_two_sizes_of_batches_are_enough_for_all(
    task: str, options: dict[str, Any], played: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(task, 9, 1, "batched", batch_size=4, **options)
    start, rows = problem.workload.start, recorded(monkeypatch)
    sizes = [3, *[9] * CALLS_BEFORE, 8, *(2, 3, 4, 5, 6, 7, 8) * 2]
    found = []
    for k, m in enumerate(sizes):
        points = start + 0.1 * numbers(m, start.numel(), seed=k)
        found.append(problem.batched_gradients(list(range(m)), [k] * m, points))
    assert rows == [9, 8]
    assert len(played) == 7 + 7  # once to compare, and once instead
    monkeypatch.setattr(capture, "CALLS_BEFORE", 0)
    without = TrainingProblem(problem.workload, problem.batches, "batched")
    for k, m in enumerate(sizes):
        points = start + 0.1 * numbers(m, start.numel(), seed=k)
        expected = without.batched_gradients(list(range(m)), [k] * m, points)
        assert torch.equal(found[k].value, expected.value)
        assert torch.equal(found[k].loss, expected.loss)
    assert len(played) == 7 + 7


def by_the_square(x: Tensor) -> tuple[Tensor, ...]:
    return (x.repeat(len(x), 1).sum(0, keepdim=True) + x,)


def by_a_share(x: Tensor) -> tuple[Tensor, ...]:
    return (x * (1 / len(x)),)


def by_a_threshold(x: Tensor) -> tuple[Tensor, ...]:
    return (x + 2 if len(x) < 4 else x * 2,)


@pytest.mark.parametrize("computation", [by_the_square, by_a_share, by_a_threshold])
def test_what_does_not_grow_evenly_with_the_rows_gets_a_tape_for_each_size(
    computation: Computation, played: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = recorded(monkeypatch)
    captured = Captured(computation)
    for m in (6, 5, 4, 3, 2):
        for k in range(MORE):
            x = numbers(m, 3, seed=k)
            assert torch.equal(captured(x)[0], computation(x)[0])
    assert rows[:2] == [6, 5]
    assert sorted(set(rows), reverse=True) == rows  # each once
    assert len(set(map(id, played))) >= 5


def test_a_chain_of_views_is_one_and_what_is_no_change_is_none() -> None:
    def computation(x: Tensor) -> tuple[Tensor, ...]:
        same = x.view(3, 4).expand(3, 4).detach()
        columns = same.T.unsqueeze(0).transpose(0, 1).squeeze(1)
        return (columns * 2, torch.split(same, 2)[1].reshape(-1)[1:] + 1)

    _, tape = record(computation, [numbers(3, 4)])
    assert tape is not None
    assert [call.operation is torch.as_strided for call in tape.calls] == [True, False, True, False]
    for x in (numbers(3, 4, seed=1), numbers(3, 4, seed=2)):
        assert all(torch.equal(a, b) for a, b in zip(tape.play([x]), computation(x), strict=True))


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
