"""Tasks: gradients against plain torch, buffers, dropout, the files of data sets, users' own functions."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.sim.errors import InputError, RunError
from paceline.sim.scenario.schema import dump, parse
from paceline.sim.training.gradients import TrainingProblem, cannot_batch, choose_method
from paceline.sim.workloads import TASKS, find_task
from paceline.sim.workloads.modules import flatten, flatten_module
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.supervised import initial_weights
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import make_job, make_problem, run_events, simulated
from tests.support.lockstep import run_lockstep


def own(name: str) -> str:
    return f"tests.support.own_tasks:{name}"


def problem_of(task: str, workers: int, method: Any = "looped", **options: Any) -> TrainingProblem:
    found = find_task(task)
    workload = found.build(found.options(**options), 1)
    parts = shards(Partition(), len(workload.inputs), None, workers, 1)
    return TrainingProblem(workload, Batches(parts, 8, 1), method)


# --- gradients and updates against plain torch --------------------------------------------------------


@pytest.mark.parametrize("task", ["digits-cnn", "text-transformer", own("normed"), own("embedding")])
def test_one_worker_does_what_a_training_loop_does(task: str) -> None:
    """Parameters and running buffers after five steps with momentum."""
    workload = problem_of(task, 1).workload
    job = make_job(
        "all_reduce",
        task=task,
        workers=1,
        max_iterations=5,
        batch_size=8,
        momentum=0.9,
        method="looped",
        every=5,
    )
    assert job.problem is not None
    module, criterion = _plain(task)
    buffers = [b for b in module.buffers() if b.is_floating_point()]
    start = torch.cat([flatten(module), *(b.reshape(-1) for b in buffers)])
    assert torch.equal(start, job.start)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        rows = torch.from_numpy(job.problem.batches.examples(0, step))
        optimizer.zero_grad()
        criterion(module(workload.inputs[rows]), workload.targets[rows]).backward()
        optimizer.step()
    (final,) = run_events(job).finals
    expected = torch.cat([flatten(module), *(b.reshape(-1) for b in buffers)])
    torch.testing.assert_close(final, expected, rtol=1e-5, atol=1e-6)
    assert workload.num_buffers == sum(b.numel() for b in buffers)
    module.eval()
    scored = 128 if task == "text-transformer" else 2048
    outputs = module(workload.inputs[:scored])
    score = workload.score(expected)["train_loss"]
    assert score == pytest.approx(criterion(outputs, workload.targets[:scored]).item(), rel=1e-5)


def _plain(task: str) -> tuple[nn.Module, Callable[..., Any]]:
    """Module and loss of a task, made apart from it."""
    from paceline.sim.workloads.tasks.text import TextTransformerOptions, Transformer
    from tests.support import own_tasks

    with initial_weights(1):
        if task == "digits-cnn":
            module: nn.Module = nn.Sequential(
                nn.Unflatten(1, (1, 8, 8)),
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(128, 10),
            )  # fmt: skip
        elif task == "text-transformer":
            module = Transformer(TextTransformerOptions())
        else:
            return getattr(own_tasks, task.partition(":")[2])()[:2]  # type: ignore[no-any-return]
    return module, nn.functional.cross_entropy


@pytest.mark.parametrize("task", ["digits-cnn", "logistic", "text-mlp", "text-transformer", own("embedding")])
def test_batched_and_looped_gradients_agree(task: str) -> None:
    problem = problem_of(task, 3)
    assert cannot_batch(problem.workload, problem.batches) == ""
    d = problem.workload.start.numel()
    points = [problem.workload.start + 0.01 * k * torch.linspace(-1, 1, d).abs() for k in range(3)]
    batched = TrainingProblem(problem.workload, problem.batches, "batched").gradients(
        [0, 1, 2], [4, 5, 6], points
    )
    looped = problem.gradients([0, 1, 2], [4, 5, 6], points)
    for b, l in zip(batched, looped, strict=True):  # noqa: E741
        torch.testing.assert_close(b.value, l.value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.loss, l.loss)


def test_batch_norm_is_not_batched() -> None:
    """``torch.func.vmap`` loses what the forward pass writes into the buffers."""
    problem = problem_of(own("normed"), 3)
    assert "other gradients" in cannot_batch(problem.workload, problem.batches)
    assert choose_method(problem.workload, problem.batches, 8) == "looped"


@pytest.mark.parametrize(
    ("task", "options", "workers", "batch_size", "method"),
    [
        ("digits-mlp", {}, 8, 32, "batched"),
        ("digits-mlp", {}, 7, 32, "looped"),
        ("digits-mlp", {"hidden": 2000}, 64, 32, "looped"),
        ("digits-cnn", {}, 64, 1, "looped"),
        ("quadratic", {}, 8, 128, "batched"),
        ("text-transformer", {}, 8, 8, "batched"),
        ("text-transformer", {}, 8, 32, "looped"),
    ],
)
def test_the_method_of_gradients_follows_from_model_batch_and_workers(
    task: str,
    options: dict[str, Any],
    workers: int,
    batch_size: int,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = make_problem(task, workers, 1, "looped", batch_size, **options)
    for pace_s in (-1.0, 1.0):  # a clock on which whatever is measured later takes less, or more
        reads = itertools.count()
        monkeypatch.setattr(
            time, "perf_counter", lambda pace_s=pace_s, reads=reads: pace_s * next(reads) ** 2
        )
        assert choose_method(problem.workload, problem.batches, workers) == method


NEED_FILES = {"mnist-cnn", "cifar-cnn7", "cifar-resnet20", "mnist-5k-mlp", "mnist-5k-cnn"}


@pytest.mark.parametrize("task", sorted(set(TASKS) - NEED_FILES))
def test_segments_cover_the_model(task: str) -> None:
    workload = problem_of(task, 2).workload
    cuts = [(start, stop) for _, start, stop in reversed(workload.segments)]
    assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])]
    assert cuts[-1][1] == workload.start.numel()
    found = TASKS[task]
    facts = found.facts(found.options(), 1)
    assert tuple(workload.score(workload.start)) == facts.metrics == found.metrics
    assert facts.num_examples == len(workload.inputs)
    assert facts.labelled == (workload.labels is not None)


@pytest.mark.parametrize(
    ("task", "metric", "lr", "reached"),
    [("digits-cnn", "test_accuracy", 0.1, 0.6), ("logistic", "test_accuracy", 0.5, 0.8),
     ("text-transformer", "test_loss", 0.5, 4.0)],
)  # fmt: skip
def test_something_is_learnt(task: str, metric: str, lr: float, reached: float) -> None:
    run = simulated(
        make_job("all_reduce", task=task, workers=2, max_iterations=30, lr=lr, momentum=0.9, every=30)
    )
    before, after = (each.metrics[metric] for each in (run.evaluations[0], run.evaluations[-1]))
    assert before is not None
    assert after is not None
    assert before < reached < after if metric == "test_accuracy" else before > reached > after


# --- buffers ------------------------------------------------------------------------------------------


def test_running_buffers_are_averaged_with_the_model() -> None:
    """By hand: (1 - 0.1) * old + 0.1 * batch statistic on each worker, then the mean over workers."""
    job = make_job(
        "local_sgd",
        {"period": 1},
        task=own("normed"),
        workers=2,
        max_iterations=1,
        batch_size=8,
        method="looped",
    )
    assert job.problem is not None
    workload = job.problem.workload
    first = nn.Linear(6, 8)
    torch.nn.utils.vector_to_parameters(job.start[:56].clone(), first.parameters())
    means, variances = [], []
    for rank in range(2):
        rows = torch.from_numpy(job.problem.batches.examples(rank, 0))
        hidden = first(workload.inputs[rows]).detach()
        means.append(0.1 * hidden.mean(0))
        variances.append(0.9 + 0.1 * hidden.var(0))
    expected = torch.cat([sum(means) / 2, sum(variances) / 2])
    for final in run_events(job).finals:
        torch.testing.assert_close(final[-16:], expected)
    torch.testing.assert_close(run_lockstep(job)[:, -16:], expected.expand(2, -1))


def test_an_optimiser_leaves_buffers_alone() -> None:
    """Adam with weight decay on the parameters; the buffers take their new values."""
    from paceline.sim.training.optimizer import Adam, AdamSettings, WithBuffers

    rule = WithBuffers(Adam(AdamSettings(lr=0.1, weight_decay=0.5)), 2)
    x, gradient = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0, 0.5, -0.5])
    inner = Adam(AdamSettings(lr=0.1, weight_decay=0.5))
    expected, _ = inner.update(x[:2], gradient[:2], inner.init(x[:2]))
    for shape in [(4,), (3, 4)]:
        new, state = rule.update(x.expand(shape), gradient.expand(shape), rule.init(x.expand(shape)))
        assert torch.equal(new, torch.cat([expected, torch.tensor([2.5, 4.5])]).expand(shape))
        assert all(m.shape[-1] == 2 for m in state.moments)


def test_a_running_variance_below_zero_does_no_harm_to_a_score() -> None:
    workload = problem_of(own("normed"), 1).workload
    x = workload.start.clone()
    x[-8:] = -1.0
    assert np.isfinite(workload.score(x)["train_loss"])


def test_what_is_not_trained_is_not_sent() -> None:
    workload = problem_of(own("frozen"), 2).workload
    assert (workload.start.numel(), workload.num_buffers) == (10, 0)
    assert workload.segments == (("1", 0, 10),)


# --- dropout ------------------------------------------------------------------------------------------


def test_batches_of_all_workers_are_those_of_each() -> None:
    """Put together a block at a time, across blocks and back again."""
    batches, alone = (make_problem("digits-mlp", 5, 1, "batched", batch_size=8).batches for _ in range(2))
    workers = list(range(5))
    for index in (0, 3, 15, 16, 40, 2):
        expected = [alone.examples(worker, index).tolist() for worker in workers]
        assert batches.of_workers(workers, [index] * 5).tolist() == expected
        assert batches.of_workers(workers[1:3], [index] * 2).tolist() == expected[1:3]
    different = batches.of_workers(workers, [4, 5, 4, 4, 4]).tolist()
    assert different == [alone.examples(w, i).tolist() for w, i in zip(workers, [4, 5, 4, 4, 4], strict=True)]
    order, indices = [3, 0, 3, 4, 0], [15, 2, 16, 40, 3]  # worker 3 has batches of two blocks
    mixed = batches.of_workers(order, indices).tolist()
    assert mixed == [alone.examples(w, i).tolist() for w, i in zip(order, indices, strict=True)]


def test_a_batch_stays_as_it_was_handed_out() -> None:
    batches = make_problem("digits-mlp", 2, 1, "batched", batch_size=8).batches
    first = batches.examples(1, 0)
    kept = first.copy()
    batches.examples(1, 16)
    assert (first == kept).all()


def test_dropout_is_a_function_of_worker_and_batch() -> None:
    problem = problem_of(own("dropping"), 2)
    start = problem.workload.start
    assert problem.workload.stochastic
    assert "random numbers" in cannot_batch(problem.workload, problem.batches)
    before = torch.get_rng_state()
    first = problem.gradient(0, 3, start).value
    torch.rand(7)  # somebody else draws
    assert torch.equal(problem.gradient(0, 3, start).value, first)
    torch.set_rng_state(before)
    assert torch.equal(torch.get_rng_state(), before)
    same_rows = TrainingProblem(problem.workload, copy.copy(problem.batches), "looped")
    object.__setattr__(same_rows.batches, "shards", (problem.batches.shards[0],) * 2)
    others = [problem.gradient(1, 3, start).value, problem.gradient(0, 4, start).value]
    assert not any(torch.equal(other, first) for other in others)


def test_dropout_repeats_bit_for_bit_in_any_order() -> None:
    job = make_job("gossip", {"topology": "ring"}, task=own("dropping"), workers=4, max_iterations=6, cv=0.3)
    assert simulated(job).digest == simulated(job, permute_seed=5).digest


# --- files of data sets -------------------------------------------------------------------------------


def test_the_users_own_text(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"abcdefgh" * 20)
    options: dict[str, Any] = {"file": str(tmp_path / "book.txt"), "context": 8}
    workload = problem_of("text-transformer", 2, **options).workload
    assert workload.inputs[0].tolist() == list(b"abcdefgh")
    assert workload.targets[0].tolist() == list(b"bcdefgha")
    assert len(workload.inputs) == 19 - 1  # of (160 - 1) // 8 pieces one is for the test


# --- the user's own -----------------------------------------------------------------------------------


def test_an_own_task_in_a_scenario() -> None:
    text = FLAT.replace("task: digits-mlp", f"task: {own('classify')}\n  width: 5")
    text = text.replace("batch_size: 32", "batch_size: 4\n  partition: {kind: by_label}")
    text = text.replace("max_iterations: 100", "target: {metric: test_accuracy, value: 0.9}, max_time: 1 h")
    found = parse(text)
    assert found.workload.options.model_dump() == {"width": 5, "slope": 0.1}
    assert parse(dump(found)) == found
    assert hash(found.workload) == hash(parse(dump(found)).workload)


def test_replicated_examples_need_no_classes() -> None:
    found = parse(FLAT.replace("digits-mlp", "quadratic\n  partition: {kind: replicated}"))
    assert found.workload.partition.kind == "replicated"


def test_an_own_task_is_the_same_for_one_seed_and_leaves_the_generators_alone() -> None:
    before = torch.get_rng_state()
    task = find_task(own("classify"))
    starts = [task.build(task.options(), seed).start for seed in (1, 2, 3, 1)]
    assert torch.equal(starts[0], starts[3])
    assert not torch.equal(starts[0], starts[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_options_come_from_the_signature() -> None:
    assert {
        name: field.annotation for name, field in find_task(own("classify")).options.model_fields.items()
    } == {
        "width": int,
        "slope": float,
    }
    regress = find_task(own("regress"))
    assert list(regress.options.model_fields) == ["noise"]
    first, second = (regress.build(regress.options.model_validate({"noise": 2.0}), seed) for seed in (1, 2))
    assert not torch.equal(first.inputs, second.inputs)
    assert (first.inputs.dtype, first.targets.shape, first.labels) == (torch.float32, (40, 1), None)


MODEL_LOSS_DATA = (
    "(model, loss, data): a torch.nn.Module, a function loss(outputs, targets), and the examples"
)
PAIR = (
    "a pair (inputs, targets) of tensors or arrays, a torch Dataset, or {'train': ..., 'test': ...} of these"
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", " raised ValueError: no such file (own_tasks.py, line "),
        ("gives_a_dict", f": returned a dict; it must return {MODEL_LOSS_DATA}"),
        ("gives_two", f": returned 2 values; it must return {MODEL_LOSS_DATA}"),
        ("gives_a_class", f": its model is a type; it must return {MODEL_LOSS_DATA}"),
        ("gives_no_loss", ": its loss is a float; it must be a function loss(outputs, targets)"),
        ("gives_no_targets", f": its data is a Tensor; it must be {PAIR}"),
        (
            "gives_other_keys",
            ": its data has the keys 'train', 'valid'; they must be 'train' and perhaps 'test'",
        ),
        (
            "other_inputs",
            ": its data['test'] has other inputs than its data['train']: names, shapes or types",
        ),
        ("no_labels", ": its data has the keys 'inputs', 'label'; they must be 'train' and perhaps 'test'"),
        ("few_sources", ": its data['sources'] must be a whole number or a name for each of 64"),
        ("gives_lists", f": its data holds a list; it must be {PAIR}"),
        (
            "gives_unequal_lengths",
            ": its data has inputs of shape [5, 6] and targets of shape [64]; "
            "the first axis of both counts the examples",
        ),
        (
            "model_fails",
            ": its model, called with inputs of shape [2, 6] (torch.float32), raised RuntimeError: ",
        ),
        (
            "loss_fails",
            ": its loss, called with outputs [2, 2] (torch.float32) and targets [2] (torch.float32), "
            "raised RuntimeError: expected ",
        ),
        (
            "loss_is_a_vector",
            ": its loss returned a tensor of shape [2]; it must return one number, the mean over the batch, "
            "as a tensor",
        ),
        (
            "loss_is_a_number",
            ": its loss returned a float; it must return one number, the mean over the batch, as a tensor",
        ),
        (
            "loss_is_detached",
            ": its loss does not depend on the model's parameters (detached, or under no_grad?)",
        ),
        ("double", ": 'weight' of the model is torch.float64, not torch.float32; call its .float()"),
        ("cumulative", ": '1' averages over all batches (momentum=None); give it a momentum"),
        ("many", ": its parameter 'widths' cannot be given by name"),
        ("NOT_A_FUNCTION", f" is an int; it must be a function that returns {MODEL_LOSS_DATA}"),
    ],
)
def test_an_own_task_that_is_wrong_is_told_what_was_expected(name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(FLAT.replace("digits-mlp", own(name)), "f.yaml")
    assert str(caught.value).startswith(f"f.yaml:3: workload.task: '{own(name)}'{said}")


def test_an_own_task_that_fails_in_training_is_told_where() -> None:
    problem = problem_of(own("breaks_later"), 2)
    said = r"breaks_later' raised ArithmeticError: too many for me \(own_tasks.py, line \d+\)"
    with pytest.raises(RunError, match=said):
        problem.gradient(0, 0, problem.workload.start)
    assert "too many for me" in cannot_batch(problem.workload, problem.batches)


def test_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_broken_task.py").write_text("import torch\nx = 1 / 0\n", encoding="utf-8")
    (tmp_path / "my_needy_task.py").write_text("import not_there_at_all\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # taken away again at the end
    for name, said in {
        "my_broken_task": "importing 'my_broken_task' raised ZeroDivisionError: division by zero "
        "(my_broken_task.py, line 2)",
        "my_needy_task": "importing 'my_needy_task' raised ModuleNotFoundError: No module named "
        "'not_there_at_all' (my_needy_task.py, line 1)",
        "my_absent_task": f"there is no module 'my_absent_task'; it is looked for in {tmp_path}; "
        "did you mean 'my_broken_task'?",
    }.items():
        with pytest.raises(InputError) as caught:
            find_task(f"{name}:build")
        assert (
            str(caught.value).replace(f"{Path(__file__).parents[3]} or ", "") == said
        )  # where tests look for their own


def test_a_module_is_taken_apart_without_being_changed() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    before = copy.deepcopy(module.state_dict())
    flatten_module(module, torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


class _SharedBuffer(torch.nn.Module):
    """Two parts that count in one buffer, and share no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Any = torch.nn.Linear(2, 2)
        self.second: Any = torch.nn.Linear(2, 2)
        total = torch.zeros(1)
        self.first.register_buffer("total", total)
        self.second.register_buffer("total", total)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.first.total += 1.0
        outputs: torch.Tensor = self.second(self.first(inputs)) + self.second.total
        return outputs


def test_a_buffer_that_two_parts_share_is_one() -> None:
    found = flatten_module(_SharedBuffer(), torch.ones(1, 2))
    outputs, buffers = found.train(found.start, torch.ones(1, 2))
    again, _ = found.train(torch.cat([found.start[:-1], torch.tensor([5.0])]), torch.ones(1, 2))
    assert buffers.tolist() == [1.0]
    assert (again - outputs).tolist() == [[5.0, 5.0]]
