"""Encoded values: fewer bytes travel instead of a tensor, and become one again at the other end.

``encode`` may draw random numbers, which its caller supplies; ``decoded`` is a pure function of what travels.
Both work along the last axis, so that a stack of values is encoded as each of them is.

Source: Alistarh et al., NeurIPS 2017 (QSGD), with one norm for each bucket of elements (their section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..config.settings import OneOf, Settings


class Qsgd(Settings):
    """Stochastic rounding to levels of a bucket's norm: unbiased.

    An element v of a bucket with norm r becomes sign(v) l r / s with a whole number l in 0..s, for
    s = 2^(bits - 1) - 1 levels, such that its expectation is v. The squared error of a bucket of m elements
    is min(m / s^2, sqrt(m) / s) r^2 at most (their lemma 3.1).
    """

    bits: int = Field(default=8, ge=2, le=8, description="of an element on the wire, its sign among them")
    bucket: int = Field(default=512, ge=1, description="elements that share a norm, of 32 bits")

    @property
    def levels(self) -> int:
        """s: how many multiples of the norm there are besides 0."""
        return int(2 ** (self.bits - 1) - 1)


Codec = Qsgd | Literal["bf16"]


class Compression(OneOf):
    """How values are encoded when they travel: one of these."""

    qsgd: Qsgd | None = Field(default=None, description="stochastic rounding to few bits; unbiased")
    bf16: bool = Field(default=False, description="rounding to bfloat16")

    @property
    def codec(self) -> Codec:
        """The codec that values are encoded with."""
        return self.qsgd or "bf16"


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A value [..., m] as it travels.

    Attributes:
        codec: how it is encoded.
        parts: what travels; their leading axes are those of the value.
        length: m.
        dtype: of the value.
        elements: how many elements are paid for; less than there are where some are padding.
    """

    codec: Codec
    parts: tuple[Tensor, ...]
    length: int
    dtype: torch.dtype
    elements: int

    @property
    def _version(self) -> int:
        """Grows when somebody writes in place, as a tensor's does."""
        return sum(part._version for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() * part.element_size() for part in self.parts)

    @property
    def ratio(self) -> float:
        """Bytes on the wire per byte of the plain value, padding included."""
        lead = self.parts[0].shape[:-1].numel()
        return self.num_bytes / (lead * self.length * self.dtype.itemsize)

    @property
    def long_ratio(self) -> float:
        """Bytes on the wire per byte of the plain value as its length grows: without padding."""
        bits = 16 if self.codec == "bf16" else self.codec.bits + 32 / self.codec.bucket
        return bits / 8 / self.dtype.itemsize

    def row(self, index: int) -> Encoded:
        """Row ``index`` of the first axis, which stands for as many elements as it has."""
        return replace(self, parts=tuple(part[index] for part in self.parts), elements=self.length)

    def filled(self, parts: Sequence[Tensor]) -> Encoded:
        """This value with other ``parts`` of the same shapes, as they came over the network."""
        return replace(self, parts=tuple(parts))


Payload = Tensor | Encoded
"""What operations carry."""


def encode(
    codec: Codec, value: Tensor, uniform: Callable[[], Tensor], elements: int | None = None
) -> Encoded:
    """A value, encoded to be sent.

    Args:
        codec: how it is encoded.
        value: [..., m].
        uniform: draws numbers on [0, 1) of the same shape; called at most once.
        elements: see ``Encoded``; absent: all of the last axis.
    """
    parts = (value.to(torch.bfloat16),) if codec == "bf16" else _quantised(codec, value, uniform())
    length = value.shape[-1]
    return Encoded(codec, parts, length, value.dtype, length if elements is None else elements)


def decoded(value: Payload) -> Tensor:
    """The tensor that a payload stands for: itself, if it is one."""
    if isinstance(value, Tensor):
        return value
    if value.codec == "bf16":
        return value.parts[0].to(value.dtype)
    codes, norms = value.parts
    levels = _unpacked(codes, value.codec, value.length).to(value.dtype)
    scale = (norms / value.codec.levels).to(value.dtype)
    return levels * scale.repeat_interleave(value.codec.bucket, dim=-1)[..., : value.length]


def _quantised(codec: Qsgd, value: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of the elements, and norms of the buckets."""
    length, s = value.shape[-1], codec.levels
    padded = torch.nn.functional.pad(value, (0, -length % codec.bucket))
    buckets = padded.reshape(*value.shape[:-1], -1, codec.bucket)
    rounded = torch.linalg.vector_norm(buckets, dim=-1).to(torch.float32)
    norms = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))  # never less than an element
    norms = norms.where(rounded > 0, rounded)
    scale = (s / norms.where(rounded > 0, 1.0)).to(value.dtype)
    scaled = value.abs() * scale.repeat_interleave(codec.bucket, dim=-1)[..., :length]
    levels = (scaled + drawn).floor_().clamp_(max=s)
    return _packed((levels * value.sign()).to(torch.int8), codec), norms


def _packed(levels: Tensor, codec: Qsgd) -> Tensor:
    """Whole numbers from -s to s as bytes: eight of them take ``bits`` bytes."""
    if codec.bits == 8:
        return levels
    codes = torch.nn.functional.pad(levels.to(torch.int64) + codec.levels, (0, -levels.shape[-1] % 8))
    shifts = codec.bits * torch.arange(8, device=levels.device)
    words = (codes.reshape(*codes.shape[:-1], -1, 8) << shifts).sum(-1, keepdim=True)
    return words.view(torch.uint8)[..., : codec.bits].reshape(*codes.shape[:-1], -1)


def _unpacked(codes: Tensor, codec: Qsgd, length: int) -> Tensor:
    """The inverse of ``_packed``."""
    if codec.bits == 8:
        return codes
    grouped = codes.reshape(*codes.shape[:-1], -1, codec.bits)
    words = torch.nn.functional.pad(grouped, (0, 8 - codec.bits)).contiguous().view(torch.int64)
    shifts = codec.bits * torch.arange(8, device=codes.device)
    levels: Tensor = (words >> shifts) & (2**codec.bits - 1)
    return levels.reshape(*codes.shape[:-1], -1)[..., :length] - codec.levels
