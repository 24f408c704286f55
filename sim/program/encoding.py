"""Encoded values: messages with fewer bytes than a tensor, decoded on arrival.

Values of 16 bits can be summed in transit; codes and largest elements cannot. ``encode`` may draw random
numbers, which its caller supplies; ``decoded`` is a pure function of the message. Both work along the last
axis, so that each value of a stack is encoded as it would be alone.

Source: Alistarh et al., NeurIPS 2017 (QSGD), with one norm for each bucket of elements (their section 4);
Stich, Cordonnier, Jaggi, NeurIPS 2018 (arXiv 1809.07599) (top-k with memory).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..config.settings import OneOf, Settings
from .groups import shard_length

_NORM_BYTES: Final = 4
"""Bytes of a bucket's norm, for values of any type."""
_PAIR_BYTES: Final = 8
"""Bytes of an element and its position, for values of any type."""
_STEP: Final = 512
"""Widths of buckets that are larger than the value are multiples of this number of elements."""


class Qsgd(Settings):
    """Stochastic rounding to levels of a bucket's norm: unbiased.

    An element v of a bucket with norm r becomes sign(v) l r / s with an integer l in 0..s, for
    s = 2^(bits - 1) - 1 levels, such that its expectation is v. The squared error of a bucket of m elements
    is min(m / s^2, sqrt(m) / s) r^2 at most (their lemma 3.1).
    """

    bits: int = Field(default=8, ge=2, le=8, description="bits per element on the wire, with the sign")
    bucket: int = Field(default=512, ge=1, description="elements per norm of 32 bits")

    @property
    def levels(self) -> int:
        """s: the number of multiples of the norm besides 0."""
        return int(2 ** (self.bits - 1) - 1)

    def width(self, elements: int) -> int:
        """Computed elements of a bucket; those beyond the value would add zeros only."""
        return min(self.bucket, _STEP * max(1, -(-elements // _STEP)))


class TopK(Settings):
    """The largest elements in magnitude, each as 32 bits with its position; the others become 0.

    In averages over all workers, a worker adds its unsent part to its next value (error feedback), and all
    gather the messages of all, so that bytes grow with the number of workers.
    """

    share: float = Field(gt=0, le=1, description="share of elements to send, rounded up")

    def count(self, elements: int) -> int:
        """Number of elements sent out of ``elements``."""
        return min(elements, max(1, math.ceil(self.share * elements)))


Half = Literal["bf16", "fp16"]
Codec = Qsgd | TopK | Half
HALF: Final[Mapping[Half, torch.dtype]] = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})
"""Types of 16 bits: values in them can be summed in transit."""


class Compression(OneOf):
    """Encoding of the messages: one of these."""

    qsgd: Qsgd | None = Field(default=None, description="stochastic rounding to few bits; unbiased")
    bf16: bool = Field(default=False, description="rounding to bfloat16")
    fp16: bool = Field(default=False, description="rounding to half precision, 65,504 at most")
    top_k: TopK | None = Field(
        default=None,
        description="largest elements alone; the rest is added to the next value (error feedback)",
    )

    @property
    def codec(self) -> Codec:
        """The codec that values are encoded with."""
        return self.qsgd or self.top_k or ("bf16" if self.bf16 else "fp16")


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A value [..., m] in encoded form.

    Attributes:
        codec: its encoding; None: its parts are pieces of the plain value, one behind the other.
        parts: the tensors to send; their leading axes are those of the value. Without a codec only the first
            one stands for a part of the model: the others are numbers of their own.
        length: m.
        whole: elements of the value that this is a shard of; m, if it is one itself.
        shards: number of shards of that value.
    """

    codec: Codec | None
    parts: tuple[Tensor, ...]
    length: int
    dtype: torch.dtype
    whole: int
    shards: int = 1

    @property
    def _version(self) -> int:
        """Grows with every write in place, as a tensor's does."""
        return sum(part._version for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def half(self) -> Tensor | None:
        """The value [..., m] in 16 bits, which can be summed in transit; None: it has another encoding."""
        return self.parts[0] if isinstance(self.codec, str) else None

    def row(self, index: int) -> Encoded:
        """Row ``index`` of the first axis."""
        return replace(self, parts=tuple(part[index] for part in self.parts))

    def filled(self, parts: Sequence[Tensor]) -> Encoded:
        """This value with other ``parts`` of the same shapes, as received from the network."""
        return replace(self, parts=tuple(parts))


Payload = Tensor | Encoded
"""The values of operations."""


def encode(
    codec: Codec,
    value: Tensor,
    uniform: Callable[[], Tensor],
    whole: int | None = None,
    shards: int = 1,
) -> Encoded:
    """Encode a value [..., m] for sending.

    ``uniform`` draws numbers on [0, 1) of the same shape, at most once. Where rows of ``value`` are shards,
    ``whole`` and ``shards`` are those of ``Encoded``.
    """
    if isinstance(codec, str):
        parts: tuple[Tensor, ...] = (value.to(HALF[codec]),)
    elif isinstance(codec, TopK):
        parts = _largest(codec, value)
    else:
        parts = _quantised(codec, value, uniform)
    length = value.shape[-1]
    return Encoded(codec, parts, length, value.dtype, length if whole is None else whole, shards)


LIKE_INT: Final = torch.zeros(1, dtype=torch.int32)


def int_message(value: int) -> Tensor:
    """An integer like ``LIKE_INT``; as int32 it counts its own bytes, not those of a model's elements."""
    return torch.full((1,), value, dtype=torch.int32)


def append_numbers(value: Tensor, numbers: Tensor) -> Encoded:
    """``value`` [..., m] with ``numbers`` [..., k] behind it, at their own bytes even in a scaled model."""
    length = value.shape[-1] + numbers.shape[-1]
    return Encoded(None, (value, numbers), length, value.dtype, length)


def as_shard(value: Tensor, whole: int, shards: int) -> Encoded:
    """``value`` [..., m] as one of ``shards`` equal byte shares of a value [..., whole]; padding is free."""
    return Encoded(None, (value,), value.shape[-1], value.dtype, whole, shards)


def decoded(value: Payload) -> Tensor:
    """The tensor of a payload: itself, if it is one."""
    if isinstance(value, Tensor):
        return value
    if value.codec is None:
        return torch.cat(value.parts, dim=-1) if len(value.parts) > 1 else value.parts[0]
    if isinstance(value.codec, str):
        return value.parts[0].to(value.dtype)
    if isinstance(value.codec, TopK):
        positions, elements = value.parts
        zeros = elements.new_zeros((*elements.shape[:-1], value.length), dtype=value.dtype)
        return zeros.scatter(-1, positions.to(torch.int64), elements.to(value.dtype))
    codes, norms = value.parts
    levels = _unpacked(codes, value.codec, value.length).to(value.dtype)
    scale = (norms / value.codec.levels).to(value.dtype)
    if scale.shape[-1] > 1:
        scale = scale.repeat_interleave(value.codec.width(value.length), dim=-1)[..., : value.length]
    return levels * scale


def message_bytes(value: Payload, element_bytes: float) -> int:
    """Bytes of ``value`` on the wire, where an element of the model stands for ``element_bytes``.

    A value that stands for more bytes than it has is encoded as one of that many bytes: every one of its
    elements takes its bits, and every bucket of them a norm. Integers are sent plain.

    >>> model = torch.zeros(10)  # stands for 4 MB: a million elements
    >>> message_bytes(encode(Qsgd(bits=8, bucket=500), model, lambda: model), 4e5)
    1008000
    """
    if isinstance(value, Tensor):
        return round(value.numel() * element_bytes) if value.is_floating_point() else value.nbytes
    if value.codec is None and value.shards == 1:
        return round(value.parts[0].numel() * element_bytes) + sum(part.nbytes for part in value.parts[1:])
    rows = value.parts[0].shape[:-1].numel()
    elements = shard_length(_elements(value.whole, value.dtype, element_bytes), value.shards)
    if value.codec is None:
        return rows * elements * value.dtype.itemsize
    return rows * _encoded_bytes(value.codec, elements)


def share_on_the_wire(codec: Codec) -> float:
    """Bytes of a long encoded value over those in single precision: 0.5 of ``bf16``."""
    elements = 2**24
    return _encoded_bytes(codec, elements) / (4 * elements)


def shard_bytes(shard: Payload, length: int, members: int, element_bytes: float) -> int:
    """Bytes of one of ``members`` equal shards of a value [length] on the wire; see ``message_bytes``."""
    if isinstance(shard, Encoded):
        return message_bytes(shard, element_bytes)
    return shard_length(_elements(length, shard.dtype, element_bytes), members) * shard.itemsize


def _elements(length: int, dtype: torch.dtype, element_bytes: float) -> int:
    """Elements of the value that ``length`` elements stand for."""
    return -(-round(length * element_bytes) // dtype.itemsize)


def _encoded_bytes(codec: Codec, elements: int) -> int:
    if isinstance(codec, str):
        return HALF[codec].itemsize * elements
    if isinstance(codec, TopK):
        return _PAIR_BYTES * codec.count(elements)
    codes = elements if codec.bits == 8 else -(-elements // 8) * codec.bits  # eight in ``bits`` bytes
    return codes + _NORM_BYTES * -(-elements // codec.bucket)


def _quantised(codec: Qsgd, value: Tensor, uniform: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    length, s = value.shape[-1], codec.levels
    width = codec.width(length)
    if value.is_cpu and not value.any():  # untrained; on a device this would wait
        norms = value.new_zeros((*value.shape[:-1], -(-length // width)), dtype=torch.float32)
        return _packed(torch.zeros_like(value, dtype=torch.int8), codec), norms
    padded = torch.nn.functional.pad(value, (0, -length % width))
    buckets = padded.reshape(*value.shape[:-1], -1, width)
    rounded = torch.linalg.vector_norm(buckets, dim=-1).to(torch.float32)
    norms = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))  # never less than an element
    norms = norms.where(rounded > 0, rounded)
    scale = (s / norms.where(rounded > 0, 1.0)).to(value.dtype)
    scaled = value.abs() * scale.repeat_interleave(width, dim=-1)[..., :length]
    levels = (scaled + uniform()).floor_().clamp_(max=s)
    return _packed((levels * value.sign()).to(torch.int8), codec), norms


def _largest(codec: TopK, value: Tensor) -> tuple[Tensor, Tensor]:
    """Positions, ascending, and values of the largest elements; of equal ones the first count."""
    order = torch.sort(value.abs(), dim=-1, descending=True, stable=True).indices
    positions = order[..., : codec.count(value.shape[-1])].sort(dim=-1).values
    return positions.to(torch.int32), value.gather(-1, positions).to(torch.float32)


def _packed(levels: Tensor, codec: Qsgd) -> Tensor:
    """Pack integers from -s to s into bytes: eight of them take ``bits`` bytes."""
    if codec.bits == 8:
        return levels
    codes = torch.nn.functional.pad(levels.to(torch.int64) + codec.levels, (0, -levels.shape[-1] % 8))
    shifts = codec.bits * torch.arange(8, device=levels.device)
    words = (codes.reshape(*codes.shape[:-1], -1, 8) << shifts).sum(-1, keepdim=True)
    return words.view(torch.uint8)[..., : codec.bits].reshape(*codes.shape[:-1], -1)


def _unpacked(codes: Tensor, codec: Qsgd, length: int) -> Tensor:
    if codec.bits == 8:
        return codes
    grouped = codes.reshape(*codes.shape[:-1], -1, codec.bits)
    words = torch.nn.functional.pad(grouped, (0, 8 - codec.bits)).contiguous().view(torch.int64)
    shifts = codec.bits * torch.arange(8, device=codes.device)
    levels: Tensor = (words >> shifts) & (2**codec.bits - 1)
    return levels.reshape(*codes.shape[:-1], -1)[..., :length] - codec.levels
