"""Gradients of many workers, evaluated late and together.

A worker's gradient is a function of its parameters when the computation begins, and nobody can see it before
the computation ends. So nothing is evaluated until a value is needed; then everything in flight is evaluated
in one ``torch.func.vmap`` batch, or in a loop. The two may differ in the last bits, so a fixed rule, and no
stopwatch, chooses between them (``choose_method``).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from .. import seeds
from ..devices import to_device, torch_random
from ..errors import KeyedError, RunError, SchemeError
from ..workloads.partition import Batches, Indices
from ..workloads.sampler import Sampler
from ..workloads.workload import Evaluated, GradientFunction, LossAtTensors, SegmentCallback, Workload

Method = Literal["batched", "looped"]
SAMPLER_KEY = ("workload", "sampler")

Weighted = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

CHUNK_BYTES: Final = 64 * 2**20
"""Parameters of one batched evaluation on a CPU; bounds its memory."""
DEVICE_SHARE: Final = 16
"""Inverse of these parameters' share of a GPU's memory: gradients and intermediate values need room too. A
share of the free memory would fit better, but the same seed must be cut into the same batches again.
"""
BATCHED_WORKERS: Final = 8
"""The fewest workers of a batch on a CPU; with fewer, making the batch costs more than it saves."""
BATCHED_PARAMETERS: Final = 100_000
"""The largest model, in parameters, of a batch on a CPU; batches of larger ones do not fit into its cache."""
BATCHED_FLOP: Final = 100_000_000
"""The most floating-point operations of one gradient in a batch on a CPU; with more of them, the saved calls
no longer count.
"""


def chunk_bytes(device: torch.device) -> int:
    """Largest size in bytes of the parameters of one batched evaluation on ``device``."""
    if device.type != "cuda":
        return CHUNK_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory) // DEVICE_SHARE


@dataclass(eq=False)
class TrainingProblem:
    """A workload, spread over workers.

    Attributes:
        sampler: draws and weighs the examples instead of ``batches``; None: all count the same.
        accumulate: equal parts of each batch, evaluated one after another: a gradient is the mean of theirs.
        gradient_weights, model_weights: factors on workers' gradients, and on their models in means of all,
            where batches differ in size; (): there are none.
    """

    workload: Workload
    batches: Batches
    method: Method
    sampler: Sampler | None = None
    accumulate: int = 1
    gradient_weights: tuple[float, ...] = ()
    model_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.sampler is not None:
            self._weighted = _weighted_evaluation(self.workload)
            self._weighted_batched = torch.func.vmap(self._weighted)
        start, gradient_on = self.workload.start, self.workload.gradient_on
        self._batched = _evaluation(self.workload)
        self._alone: GradientFunction | None = gradient_on and gradient_on(start.device)
        # Gradients per batch; fewer once the memory was too small.
        copies = 1 if self.sampler is None else self.sampler.batch_size  # each example has a gradient
        self._at_once = max(1, chunk_bytes(start.device) // (copies * start.numel() * start.element_size()))

    @cached_property
    def _in_parts(self) -> TrainingProblem:
        """The problem in batches of an ``accumulate``-th of the examples, in their order."""
        return replace(self, batches=self.batches.in_parts(self.accumulate), accumulate=1)

    def of_part(self, index: int, part: int | None) -> tuple[TrainingProblem, int]:
        """The problem, and the index in it, whose gradient is that of one part of batch ``index``.

        ``part``: None for the whole batch, which stands for each part where batches have none, or a sampler
        draws them.
        """
        if part is None or self.accumulate == 1 or self.sampler is not None:
            return self, index
        return self._in_parts, index * self.accumulate + part

    def gradient(
        self, worker: int, index: int, point: Tensor, on_segment: SegmentCallback | None = None
    ) -> Evaluated:
        """One worker's gradient [d] on its batch ``index`` at ``point`` [d].

        ``on_segment``, if given, gets parts of it during the backward pass where the workload can do so.
        """
        if self.sampler is not None:
            values, losses = self._sampled(self.sampler, [worker], [index], point.detach().unsqueeze(0))
            return Evaluated(values[0], losses[0])
        *before, last = enumerate(
            np.split(self.batches.examples(worker, index), self.accumulate), index * self.accumulate
        )
        weight = self.gradient_weights[worker] if self.gradient_weights else 1.0
        if not before and weight == 1.0:
            return self._of_batch(worker, *last, point, on_segment)
        mean = Evaluated(torch.zeros_like(point), point.new_zeros(1))
        for each in before:
            mean = self._add(mean, self._of_batch(worker, *each, point), weight)
        shown = torch.empty_like(point)

        def report(start: int, stop: int, so_far: Evaluated) -> None:
            assert on_segment is not None
            shown[start:stop], loss = self._add(mean, so_far, weight, start, stop)
            on_segment(start, stop, Evaluated(shown, loss))

        return self._add(mean, self._of_batch(worker, *last, point, report if on_segment else None), weight)

    def _add(
        self, mean: Evaluated, batch: Evaluated, weight: float = 1.0, start: int = 0, stop: int | None = None
    ) -> Evaluated:
        """The mean so far of the parts of a batch, at [start, stop), with one more, ``weight`` times."""
        share, part = 1 / self.accumulate, (..., slice(start, stop))
        value = mean.value[part] + weight * share * batch.value[part]
        return Evaluated(value, mean.loss + share * batch.loss)

    def _of_batch(
        self, worker: int, number: int, rows: Indices, point: Tensor, report: SegmentCallback | None = None
    ) -> Evaluated:
        """As ``gradient``, on examples ``rows`` with the random numbers of batch ``number``."""
        workload, picked = self.workload, to_device(torch.from_numpy(rows), point.device)
        inputs, targets = workload.inputs[picked], workload.targets[picked]
        with self._random_numbers(worker, number, point.device):
            if self._alone is not None:
                return self._alone(point, inputs, targets, report)
            leaf = point.detach().requires_grad_()
            loss = workload.loss(leaf, inputs, targets)
            return Evaluated(torch.autograd.grad(loss, leaf)[0], loss.detach().view(1))

    @contextlib.contextmanager
    def _random_numbers(self, worker: int, index: int, device: torch.device) -> Iterator[None]:
        """A context in which torch's random numbers (for dropout) are those of this worker and batch."""
        if not self.workload.stochastic:
            yield
            return
        draws = seeds.generator(self.batches.seed, worker, "dropout", index)
        with torch_random(int(draws.integers(2**62)), device):
            yield

    def gradients(self, workers: list[int], indices: list[int], points: list[Tensor]) -> list[Evaluated]:
        """Gradients at ``points[i]`` [d] of several workers at once; ``RunError`` if not even one fits."""
        twice = self.sampler is not None and len(set(workers)) < len(workers)
        if self._one_by_one(len(points)) or twice:
            return [self.gradient(w, i, x) for w, i, x in zip(workers, indices, points, strict=True)]
        out: list[Evaluated] = []
        for batch in self._in_batches(workers, indices, lambda a, b: torch.stack(points[a:b])):
            out += map(Evaluated, batch.value.unbind(), batch.loss.unbind())
        return out

    def gradients_of_all(self, index: int, points: Tensor) -> Evaluated:
        """Gradient ``index`` of all workers, [n, d] at ``points`` [n, d], and their losses [n, 1].

        Raises ``RunError`` as ``gradients``.
        """
        workers, indices = list(range(len(points))), [index] * len(points)
        if self._one_by_one(len(points)):
            each = [self.gradient(w, index, x) for w, x in zip(workers, points.unbind(), strict=True)]
        else:
            each = list(self._in_batches(workers, indices, lambda a, b: points[a:b]))
            if len(each) == 1:
                return each[0]
            return Evaluated(torch.cat([e.value for e in each]), torch.cat([e.loss for e in each]))
        return Evaluated(torch.stack([e.value for e in each]), torch.stack([e.loss for e in each]))

    def _one_by_one(self, number: int) -> bool:
        alone = self.method == "looped" or number == 1
        return alone or self.workload.stochastic or bool(self.batches.sizes)

    def _in_batches(
        self, workers: list[int], indices: list[int], points: Callable[[int, int], Tensor]
    ) -> Iterator[Evaluated]:
        """Gradients in batches that fit into the memory; ``points(a, b)`` are those of [a, b), stacked."""
        a = 0
        while a < len(workers):
            b = min(a + self._at_once, len(workers))
            try:
                yield self.batched_gradients(workers[a:b], indices[a:b], points(a, b))
            except torch.OutOfMemoryError:
                if b - a == 1:
                    text = "one gradient does not fit into the device's memory: use a smaller batch_size"
                    raise RunError(text) from None
                self._at_once = (b - a) // 2
                continue
            a = b

    def batched_gradients(self, workers: list[int], indices: list[int], points: Tensor) -> Evaluated:
        """Gradients [m, d] of m workers at ``points`` [m, d], and losses [m, 1], in one batch."""
        if self.sampler is not None:
            return self._sampled(self.sampler, workers, indices, points)
        rows = self.batches.of_workers(workers, indices)
        if self.accumulate == 1:
            return self._of_rows(rows, points)
        mean = Evaluated(torch.zeros_like(points), points.new_zeros(len(points), 1))
        for part in np.split(rows, self.accumulate, axis=1):
            mean = self._add(mean, self._of_rows(part, points))
        return mean

    def _of_rows(self, rows: Indices, points: Tensor) -> Evaluated:
        """As ``batched_gradients``, on examples ``rows`` [m, batch]."""
        picked = to_device(torch.from_numpy(rows.ravel()), points.device)
        inputs = self.workload.inputs.index_select(0, picked)
        targets = self.workload.targets.index_select(0, picked)
        values, losses = self._batched(
            points, inputs.view(*rows.shape, *inputs.shape[1:]), targets.view(*rows.shape, *targets.shape[1:])
        )
        return Evaluated(values, losses.unsqueeze(-1))

    def _sampled(self, sampler: Sampler, workers: list[int], indices: list[int], points: Tensor) -> Evaluated:
        """As ``batched_gradients``, on examples drawn by the sampler, which gets their norms."""
        draws = [sampler.draw(worker, index) for worker, index in zip(workers, indices, strict=True)]
        rows = np.stack([draw.examples for draw in draws])
        weights = torch.from_numpy(np.stack([draw.weights for draw in draws])).to(points)
        picked = to_device(torch.from_numpy(rows.ravel()), points.device)
        examples = [
            tensor.index_select(0, picked).view(*rows.shape, *tensor.shape[1:])
            for tensor in (self.workload.inputs, self.workload.targets)
        ]
        if len(workers) == 1:
            alone = self._weighted(points[0], examples[0][0], examples[1][0], weights[0])
            values, losses, norms = (tensor.unsqueeze(0) for tensor in alone)
        else:
            values, losses, norms = self._weighted_batched(points, examples[0], examples[1], weights)
        for worker, draw, row in zip(workers, draws, norms.double().cpu().numpy(), strict=True):
            sampler.refresh(worker, draw, row)
        return Evaluated(values, losses.unsqueeze(-1))


def _evaluation(workload: Workload) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """``(points [m, d], inputs, targets) -> gradients [m, d], losses [m]``, in one batch.

    The gradient of buffers is old minus new.
    """
    if workload.loss_and_buffers is not None:
        alone = torch.func.grad_and_value(workload.loss_and_buffers, has_aux=True)

        def with_buffers(x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            gradient, (loss, buffers) = alone(x, inputs, targets)
            cut = x.numel() - buffers.numel()
            return torch.cat([gradient[:cut], x[cut:] - buffers]), loss

        return torch.func.vmap(with_buffers)
    whole = LossAtTensors((workload.start.shape,), lambda xs, *batch: workload.loss(xs[0], *batch))
    parts = workload.parts or whole
    batched = torch.func.vmap(parts.loss)
    # Attention on a CPU; with all else in a batch, it is still faster than a loop.
    warnings.filterwarnings("ignore", ".*not yet implemented the batching rule", UserWarning)

    def evaluate(points: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # No loss depends on another worker's point, so the gradient of their sum has them all: faster than
        # torch.func.grad within vmap, which also imports torch._dynamo, for a second. Leaves are a model's
        # tensors: splitting it inside vmap, and joining the gradients, takes longer.
        leaves = [part.requires_grad_() for part in parts.of(points.detach())]
        with torch.enable_grad():
            losses = batched(leaves, inputs, targets)
            of_parts = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        if len(leaves) == 1:
            return of_parts[0].reshape(points.shape), losses.detach()
        gradients = points.new_empty(points.shape)
        for place, gradient in zip(parts.of(gradients), of_parts, strict=True):
            place.copy_(gradient)
        return gradients, losses.detach()

    return evaluate


def loss_given(loss: Tensor | None, worker: int) -> Tensor:
    """The loss of a worker's latest gradient; ``SchemeError`` if there has been none."""
    if loss is None:
        raise SchemeError(f"worker {worker} asks for the loss of a gradient before it has had one")
    return loss


class Deferred:
    """Gradients in flight, whose values have not been needed yet."""

    def __init__(self, problem: TrainingProblem) -> None:
        self._problem = problem
        self._started: dict[int, tuple[TrainingProblem, int, int, Tensor, int]] = {}
        self._known: dict[int, tuple[int, Evaluated]] = {}
        self._losses: dict[int, Tensor] = {}
        self._tickets = 0

    def ask(self, worker: int, index: int, point: Tensor, part: int | None = None) -> int:
        """Note a gradient, or a ``part`` of it, that begins now; returns a ticket."""
        self._tickets += 1
        problem, number = self._problem.of_part(index, part)
        self._started[self._tickets] = (problem, worker, number, point, point._version)
        return self._tickets

    def take(self, ticket: int) -> Tensor:
        """The gradient [d] of a ticket, once; evaluates everything in flight if it must.

        Raises ``SchemeError`` for a point that was written in place meanwhile.
        """
        if ticket not in self._known:
            started, self._started = self._started, {}
            for _, worker, _, point, version in started.values():
                if point._version != version:
                    raise SchemeError(
                        f"worker {worker} wrote in place into a tensor whose gradient was in flight"
                    )
            for problem in {each[0] for each in started.values()}:
                own = {ticket: each[1:4] for ticket, each in started.items() if each[0] is problem}
                workers, indices, points = (list(column) for column in zip(*own.values(), strict=True))
                gradients = problem.gradients(workers, indices, points)
                self._known.update(zip(own, zip(workers, gradients, strict=True), strict=True))
        worker, evaluated = self._known.pop(ticket)
        self._losses[worker] = evaluated.loss
        return evaluated.value

    def loss(self, worker: int) -> Tensor | None:
        """The loss [1] that came with this worker's last taken gradient; None before its first."""
        return self._losses.get(worker)


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Floating-point operations in the matrix products of a block, and whether it has convolutions.

    As ``torch.utils.flop_counter.FlopCounterMode`` counts them, which imports torch._dynamo, for a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flop = 0
        self.convolves = False

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch._dynamo is imported

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        self.convolves |= "convolution" in str(func)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flop += count(*args, **keywords, out_val=result)
        return result


def cannot_batch(workload: Workload, batches: Batches) -> str:
    """Reason why ``torch.func.vmap`` cannot give this workload's gradients, or ""."""
    if workload.stochastic:
        return "it draws random numbers (dropout)"
    if batches.sizes:
        return "its batches differ in size"
    numbers = list(range(min(2, len(batches.shards))))
    points = torch.stack([workload.start] * len(numbers))
    problem = TrainingProblem(workload, batches, "batched")
    try:
        together = problem.batched_gradients(numbers, [0] * len(numbers), points).value
    except (RuntimeError, ValueError, RunError) as error:
        return f"torch.func.vmap: {' '.join(str(error).split())[:120]}"
    for number, value in zip(numbers, together, strict=True):
        alone = problem.gradient(number, 0, workload.start).value
        if not torch.allclose(value, alone, rtol=1e-3, atol=1e-4 * alone.abs().max().item()):
            return "a batch of workers gives other gradients than one worker after the other"
    return ""


def choose_method(workload: Workload, batches: Batches, workers: int) -> Method:
    """The method of ``gradients: auto``, by a rule of model, batch size and number of workers.

    Gradients are looped where they cannot be batched (``cannot_batch``), and for one worker. Else they are
    batched on a GPU; and on a CPU for at least ``BATCHED_WORKERS`` workers and a model of at most
    ``BATCHED_PARAMETERS`` parameters, without convolutions, one gradient of which takes at most
    ``BATCHED_FLOP`` operations in matrix products, counted by torch. Source of the numbers:
    ``benchmarks/gradients.py``.
    """
    small = workload.start.device.type == "cuda" or (
        workers >= BATCHED_WORKERS and workload.start.numel() <= BATCHED_PARAMETERS
    )
    if workers < 2 or not small or cannot_batch(workload, batches):
        return "looped"
    if workload.start.device.type == "cuda":
        return "batched"
    problem = TrainingProblem(workload, batches, "looped")
    with FlopCounter() as counter:
        problem.gradient(0, 0, workload.start)
    return "looped" if counter.convolves or counter.flop > BATCHED_FLOP else "batched"


def _weighted_evaluation(workload: Workload) -> Weighted:
    """Build ``(x [d], inputs [m, ...], targets [m, ...], weights [m])`` -> gradient [d], loss, norms [m].

    Raises ``KeyedError`` where examples of this task have no gradients of their own.
    """
    if workload.num_buffers or workload.stochastic:
        why = "batch norm mixes the examples of a batch" if workload.num_buffers else "it has dropout"
        raise KeyedError(SAMPLER_KEY, f"task '{workload.task}' cannot weigh examples one by one: {why}")

    def loss(x: Tensor, example: Tensor, target: Tensor) -> Tensor:
        return workload.loss(x, example.unsqueeze(0), target.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0))

    def evaluate(
        x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients, losses = each(x, inputs, targets)
        return weights @ gradients, weights @ losses, gradients.norm(dim=-1)

    return evaluate


@lru_cache(maxsize=8)
def on_drawn(problem: TrainingProblem, seed: int, examples: int | None) -> TrainingProblem:
    """``problem`` whose scores take that many examples of each set, drawn from the seed; None: as it is."""
    workload = problem.workload
    if examples is None or workload.scored is None:
        return problem
    score, slices = workload.scored.on_drawn(examples, seed)
    return replace(problem, workload=replace(workload, score=score, slices=slices))
