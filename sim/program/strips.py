"""Strips: the last axis of a value cut into one equally long piece for each member of a group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


def strip_length(length: int, members: int) -> int:
    """Elements of a strip, where ``length`` of them are divided among ``members``: rounded up."""
    return -(-length // members)


def strip(value: Tensor, position: int, members: int) -> Tensor:
    """Strip ``position`` of ``members``: [..., d] becomes [..., ceil(d / members)].

    Zeros stand where the value has ended, so that all strips are equally long.
    """
    length = strip_length(value.shape[-1], members)
    found = value[..., position * length : (position + 1) * length]
    missing = length - found.shape[-1]
    return torch.nn.functional.pad(found, (0, missing)) if missing else found


def strips(value: Tensor, members: int) -> Tensor:
    """All of them: [..., d] becomes [..., members, ceil(d / members)]."""
    length = strip_length(value.shape[-1], members)
    wide = torch.nn.functional.pad(value, (0, members * length - value.shape[-1]))
    return wide.reshape(*value.shape[:-1], members, length)


def joined(found: Sequence[Tensor], length: int) -> Tensor:
    """The strips one after another, without the zeros at the end: [..., length]."""
    return torch.cat(tuple(found), dim=-1)[..., :length]
