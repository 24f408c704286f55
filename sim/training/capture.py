"""Tapes: the tensor operations of a computation, recorded once and replayed.

``torch.func.vmap`` and autograd work out at every call which operations on all workers' tensors a loss and
its backward pass consist of. For small models that takes as long as the operations themselves. A *tape* holds
these operations for inputs of one shape and layout and replays them with others: the same operations, the
same bits. It knows nothing of its code, which must do the same at every call. Before a tape replaces its
code, its results are compared with the code's, to the bit, on other inputs than those of the recording.

Several threads may share a tape's operations where they give the bits of one thread: that is tried, too, on
some inputs for every shape and number of threads. They do not where each sums a part of one number, which a
few inputs need not show: a tape with such an operation is for one thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from ..devices import torch_threads

Computation = Callable[..., tuple[Tensor, ...]]
"""A function of tensors, which depends on nothing else."""

CALLS_BEFORE: Final = 8
"""Calls with inputs of one shape before they get a tape, which takes as long to make as a few calls."""
MOST_TAPES: Final = 256
"""Largest number of shapes with a tape."""
CALLS_COMPARED: Final = 3
"""Calls for which several threads have to give the bits of one thread before they share a tape."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations below autograd and ``torch.func``, with their inputs and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch._dynamo is imported, for a second

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


@dataclass(frozen=True)
class Tape:
    """A graph of the operations between inputs and results, as code of ``torch.fx``.

    ``for_threads``: no operation reduces more than one number per row to a single number.
    """

    graph: fx.GraphModule
    for_threads: bool

    def play(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay the operations with these inputs."""
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = self.graph(*inputs)
        return outputs


def count_flop(call: Callable[[], object]) -> tuple[int, bool]:
    """Floating-point operations in the matrix products of a call, and whether it has convolutions.

    As ``torch.utils.flop_counter.FlopCounterMode`` counts them, which imports torch._dynamo, for a second.
    """
    recorder = _Recorder()
    with recorder:
        call()
    flop = 0
    for operation, arguments, keywords, result in recorder.calls:
        count = flop_registry.get(operation.overloadpacket)
        if count is not None:
            flop += count(*arguments, **keywords, out_val=result)
    return flop, any("convolution" in str(operation) for operation, *_ in recorder.calls)


def record(computation: Computation, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tape | None]:
    """The results of a computation, and its tape; None where the fate of a tensor is unclear."""
    recorder = _Recorder()
    with recorder:
        outputs = computation(*inputs)
    return outputs, _tape(recorder.calls, inputs, outputs)


def _tape(
    calls: Sequence[tuple[Any, Sequence[Any], Mapping[str, Any], Any]],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> Tape | None:
    graph, for_threads = fx.Graph(), True
    nodes = {id(tensor): graph.placeholder(f"input_{number}") for number, tensor in enumerate(inputs)}
    constants: dict[str, Tensor] = {}

    def node_of(value: Any) -> Any:
        if isinstance(value, Tensor) and id(value) not in nodes:
            name = f"constant_{len(constants)}"
            constants[name], nodes[id(value)] = value, graph.get_attr(name)
        return nodes.get(id(value), value)

    for operation, arguments, keywords, result in calls:
        if torch.Tag.inplace_view in operation.tags:  # it changes shape or layout in place
            return None
        tensors = [each for each in tree_leaves((arguments, keywords)) if isinstance(each, Tensor)]
        largest = max((each.numel() for each in tensors), default=0)
        node = graph.call_function(operation, *tree_map(node_of, (arguments, keywords)))
        several = isinstance(result, tuple | list)
        for place, each in enumerate(result if several else (result,)):
            if isinstance(each, Tensor):
                for_threads &= each.numel() > 1 or largest <= len(inputs[0])
                if id(each) not in nodes:  # else it is an argument, written in place
                    nodes[id(each)] = graph.call_function(getitem, (node, place)) if several else node
    if any(id(tensor) not in nodes for tensor in outputs):
        return None
    graph.output(tuple(nodes[id(tensor)] for tensor in outputs))
    graph.eliminate_dead_code()
    return Tape(fx.GraphModule(constants, graph), for_threads)


class Captured:
    """A computation that is replaced by tapes once it has been called often enough.

    It must do the same operations on all tensors of one shape and layout, each of which has rows.
    """

    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        # Calls in which n threads gave the bits of one; None: they did not.
        self._alike: defaultdict[tuple[tuple[Any, ...], int], int | None] = defaultdict(int)
        self._called: Counter[tuple[Any, ...]] = Counter()
        self._tried: dict[tuple[Any, ...], Tape | None] = {}
        self._tapes: dict[tuple[Any, ...], Tape] = {}

    def __call__(self, *inputs: Tensor, threads: int = 1) -> tuple[Tensor, ...]:
        """Run the computation; ``threads`` of torch may share its tape."""
        key = tuple((tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in inputs)
        tape = self._tapes.get(key)
        if tape is not None:
            try:
                return self._play(key, tape, inputs, threads)
            except (RuntimeError, LookupError):  # the code itself says where, as for a wrong class
                return self._computation(*inputs)
        self._called[key] += 1
        if self._called[key] == CALLS_BEFORE and len(self._tried) < MOST_TAPES:
            outputs, self._tried[key] = record(self._computation, inputs)
            return outputs
        outputs = self._computation(*inputs)
        tried = self._tried.get(key)
        if tried is not None:
            self._tried[key] = None
            if _gives(tried, inputs, outputs):
                self._tapes[key] = tried
        return outputs

    def _play(
        self, key: tuple[Any, ...], tape: Tape, inputs: Sequence[Tensor], threads: int
    ) -> tuple[Tensor, ...]:
        """Replay a tape, by several threads where they give the same bits."""
        alike = self._alike[key, threads] if threads > 1 and tape.for_threads else None
        if alike is None:
            return tape.play(inputs)
        if alike == CALLS_COMPARED:
            with torch_threads(threads):
                return tape.play(inputs)
        outputs = tape.play(inputs)
        with torch_threads(threads):
            self._alike[key, threads] = alike + 1 if _gives(tape, inputs, outputs) else None
        return outputs


def _gives(tape: Tape, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    try:
        for a, b in zip(tape.play(inputs), outputs, strict=True):
            bits_of_a, bits_of_b = (each.reshape(-1).view(torch.uint8) for each in (a, b))
            if a.shape != b.shape or not torch.equal(bits_of_a, bits_of_b):
                return False
    except (RuntimeError, LookupError):
        return False
    return True
