"""Tapes: the tensor operations of a computation, recorded once and replayed.

``torch.func.vmap`` and autograd work out at every call which operations on all workers' tensors a loss and
its backward pass consist of. For small models that takes as long as the operations themselves. A *tape* holds
these operations for inputs of one shape and layout and replays them with others: the same operations, the
same bits. It knows nothing of its code, which must do the same at every call. Before a tape replaces its
code, its results are compared with the code's, to the bit, on other inputs than those of the recording.

Several threads may share a tape's operations where they give the bits of one thread: that is tried, too, on
some inputs for every shape and number of threads. They do not where each sums a part of one number, which a
few inputs need not show: a tape with such an operation is for one thread.

Workers that do not wait for each other come in batches of many sizes. Two tapes of inputs with different
numbers of rows determine the tape for any number, as long as their differences grow evenly.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
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


@dataclass(frozen=True, slots=True)
class _Call:
    """One operation of a tape.

    Attributes:
        arguments: its positional arguments, without those that are tensors of the tape.
        tensors: (position, number) of these.
        lists: (position, (place, number)...) of those that are in lists.
        results: numbers of the returned tensors, None for other results.
        many: whether it returns several.
        last: numbers of the tensors that are not needed after it.
    """

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    tensors: tuple[tuple[int, int], ...]
    lists: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    keywords: Mapping[str, Any]
    results: tuple[int | None, ...]
    many: bool
    last: tuple[int, ...]


@dataclass(frozen=True)
class Tape:
    """Operations on ``size`` numbered tensors: the first are the inputs, ``outputs`` the results.

    ``for_threads``: no operation reduces more than one number per row to a single number.
    """

    calls: tuple[_Call, ...]
    size: int
    outputs: tuple[int, ...]
    for_threads: bool

    def play(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay the operations with these inputs."""
        tensors: list[Any] = [*inputs, *[None] * (self.size - len(inputs))]
        with torch.no_grad():
            for call in self.calls:
                arguments = list(call.arguments)
                for position, number in call.tensors:
                    arguments[position] = tensors[number]
                for position, places in call.lists:
                    values = list(arguments[position])
                    for place, number in places:
                        values[place] = tensors[number]
                    arguments[position] = values
                result = call.operation(*arguments, **call.keywords)
                if call.many:
                    for at, value in zip(call.results, result, strict=True):
                        if at is not None:
                            tensors[at] = value
                elif call.results[0] is not None:
                    tensors[call.results[0]] = result
                for number in call.last:
                    tensors[number] = None
        return tuple(tensors[number] for number in self.outputs)


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
    numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
    roots = {id(tensor): tensor for tensor in inputs}  # of a view: its base
    places = {_place(tensor, tensor): number for number, tensor in enumerate(inputs)}
    size, written, for_threads = len(inputs), [], True
    for operation, arguments, keywords, result in calls:
        if any(isinstance(value, Tensor) for value in keywords.values()):
            return None
        if torch.Tag.inplace_view in operation.tags:  # it changes shape or layout in place
            return None
        tensors = _known(arguments, numbers)
        lists = [(at, _known(each, numbers)) for at, each in enumerate(arguments) if isinstance(each, list)]
        many, writes = isinstance(result, tuple | list), operation._schema.is_mutable
        largest = max((arguments[position].numel() for position, _ in tensors), default=0)
        bases = [] if writes else [roots[id(arguments[position])] for position, _ in tensors]
        returned: list[int | None] = []
        for each in result if many else (result,):
            base = None
            if isinstance(each, Tensor) and each.numel() == 1 and largest > len(inputs[0]):
                for_threads = False
            if isinstance(each, Tensor) and id(each) not in numbers:
                base = next((base for base in bases if _is_view(each, base)), None)
                roots[id(each)] = each if base is None else base
                place = _place(each, roots[id(each)])
                if place not in places:
                    places[place], size = size, size + 1
                    if base is not None:
                        written.append(_view(places[place], numbers[id(base)], place))
                numbers[id(each)] = places[place]
            returned.append(numbers[id(each)] if isinstance(each, Tensor) and base is None else None)
        written.append((operation, arguments, tensors, lists, keywords, tuple(returned), many, writes))
    if any(id(tensor) not in numbers for tensor in outputs):
        return None
    ends = tuple(numbers[id(tensor)] for tensor in outputs)
    return Tape(_needed(written, ends), size, ends, for_threads)


def _is_view(tensor: Tensor, base: Tensor) -> bool:
    """Whether a tensor consists of elements of ``base``, unchanged, in its memory."""
    same = tensor.untyped_storage()._cdata == base.untyped_storage()._cdata and tensor.dtype == base.dtype
    return same and not tensor.is_conj() and not tensor.is_neg()


def _place(tensor: Tensor, base: Tensor) -> tuple[Any, ...]:
    """A key of the elements of the memory of ``base`` that a tensor consists of."""
    return id(base), tensor.shape, tensor.stride(), tensor.storage_offset()


def _view(number: int, base: int, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """The call that makes a view of a tensor: of a chain of views the last one, at once."""
    return torch.as_strided, (None, *place[1:]), ((0, base),), [], {}, (number,), False, False


def _known(values: Sequence[Any], numbers: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """(position, number) of the tensors of the tape among some values."""
    return tuple(
        (position, numbers[id(value)])
        for position, value in enumerate(values)
        if isinstance(value, Tensor) and id(value) in numbers
    )


def _needed(written: Sequence[Any], ends: tuple[int, ...]) -> tuple[_Call, ...]:
    """The calls whose results are used, or that write into a tensor, each with the tensors that end there."""
    needed, calls = set(ends), []
    for operation, arguments, tensors, lists, keywords, returned, many, writes in reversed(written):
        results = {number for number in returned if number is not None}
        if not writes and not results & needed:
            continue
        used = {number for _, number in (*tensors, *(pair for _, pairs in lists for pair in pairs))}
        own = list(arguments)
        for position, _ in tensors:
            own[position] = None  # drop the recorded tensor
        for position, pairs in lists:
            places = dict(pairs)
            own[position] = [None if k in places else each for k, each in enumerate(own[position])]
        last = tuple((used | results) - needed)
        calls.append(
            _Call(
                getattr(operation, "_op", operation),  # without torch's own call around it
                tuple(own), tensors, tuple(each for each in lists if each[1]), keywords, returned,
                many, last,
            )
        )  # fmt: skip
        needed |= used
    return tuple(reversed(calls))


def stretched(rows: int, one: tuple[int, Tape], other: tuple[int, Tape]) -> Tape | None:
    """Interpolate the tape for ``rows`` of inputs from two others; None where they differ in another way.

    It may be wrong: equal parts, or differences that seem to grow evenly, prove nothing.
    """
    (of_one, tape), (of_other, like) = one, other

    def grown(a: int, b: int) -> int:
        growth, rest = divmod(a - b, of_one - of_other)
        if rest:
            raise ValueError
        return a + growth * (rows - of_one)

    def stretch(a: _Call, b: _Call) -> _Call:
        if replace(a, arguments=(), keywords={}) != replace(b, arguments=(), keywords={}):
            raise ValueError
        arguments, keywords = _between((a.arguments, a.keywords), (b.arguments, b.keywords), grown)
        return replace(a, arguments=arguments, keywords=keywords)

    try:
        if tape.outputs != like.outputs:
            raise ValueError
        return replace(tape, calls=tuple(stretch(*pair) for pair in zip(tape.calls, like.calls, strict=True)))
    except (ValueError, LookupError):
        return None


def _between(a: Any, b: Any, grown: Callable[[int, int], int]) -> Any:
    if isinstance(a, tuple | list):
        return type(a)(_between(x, y, grown) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping):
        return {key: _between(value, b[key], grown) for key, value in a.items()}
    if type(a) is int and type(b) is int:
        return grown(a, b)
    if a is b or (type(a) is type(b) and not isinstance(a, Tensor) and a == b):
        return a
    raise ValueError


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
        self._recorded: defaultdict[tuple[Any, ...], dict[int, Tape]] = defaultdict(dict)

    def __call__(self, *inputs: Tensor, threads: int = 1) -> tuple[Tensor, ...]:
        """Run the computation; ``threads`` of torch may share its tape."""
        key = tuple((tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in inputs)
        tape = self._tapes.get(key)
        if tape is not None:
            try:
                return self._play(key, tape, inputs, threads)
            except (RuntimeError, LookupError):  # the code itself says where, as for a wrong class
                return self._computation(*inputs)
        called = self._called[key] = self._called[key] + 1
        if called <= CALLS_BEFORE and len(self._tried) < MOST_TAPES:
            rows = len(inputs[0])
            even = all(len(tensor) == rows for tensor in inputs)
            apart_from_rows = tuple((shape[even:], *layout) for shape, *layout in key)
            alike = self._recorded[apart_from_rows]
            new = key not in self._tried
            if new and len(alike) > 1:
                self._tried[key] = stretched(rows, *islice(alike.items(), 2))
            elif called == CALLS_BEFORE or (new and alike):
                outputs, self._tried[key] = record(self._computation, inputs)
                if (tape := self._tried[key]) is not None:
                    alike[rows] = tape
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
