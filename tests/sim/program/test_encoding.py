"""Encoded values: exact cases, unbiasedness, the bound on the error, and the bytes that travel."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.program.encoding import (
    Codec,
    Qsgd,
    append_numbers,
    decoded,
    encode,
    message_bytes,
    shard_bytes,
)
from paceline.sim.program.encoding import _packed as packed
from paceline.sim.program.encoding import _unpacked as unpacked
from paceline.sim.program.groups import shards

laws = settings(derandomize=True, max_examples=60)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def buckets(value: torch.Tensor, size: int) -> list[torch.Tensor]:
    return [value[k : k + size] for k in range(0, len(value), size)]


def test_a_case_by_hand() -> None:
    # One level; the norms of the buckets (3, 4), (0, 0) and (-2) are 5, 0 and 2.
    found = encode(
        Qsgd(bits=2, bucket=2),
        torch.tensor([3.0, 4.0, 0.0, 0.0, -2.0]),
        lambda: torch.tensor([0.5, 0.1] * 3)[:5],
    )
    # 3/5 + 0.5 and 2/2 + 0.5 pass 1, 4/5 + 0.1 does not.
    assert torch.allclose(decoded(found), torch.tensor([5.0, 0.0, 0.0, 0.0, -2.0]), rtol=1e-6)
    assert found.num_bytes == 2 + 3 * 4  # eight codes of two bits, three norms
    assert message_bytes(found, 4.0) == 14
    # Ten bytes for each element, 50 in all: 13 elements, in 16 codes of two bits, with seven norms.
    assert message_bytes(found, 10.0) == 4 + 7 * 4


@given(bits=st.integers(2, 8), length=st.integers(1, 40), seed=st.integers(0, 99))
@laws
def test_packing_loses_nothing(bits: int, length: int, seed: int) -> None:
    codec = Qsgd(bits=bits)
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(
        -codec.levels, codec.levels + 1, (3, length), generator=generator, dtype=torch.int8
    )
    codes = packed(levels, codec)
    assert torch.equal(unpacked(codes, codec, length).to(torch.int8), levels)
    assert codes.numel() * codes.element_size() == 3 * (length if bits == 8 else -(-length // 8) * bits)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("bucket", [5, 64])
def test_it_is_unbiased_and_its_error_is_bounded(bits: int, bucket: int) -> None:
    codec = Qsgd(bits=bits, bucket=bucket)
    value = torch.randn(40, generator=torch.Generator().manual_seed(3)).double()
    trials = 20_000
    found = decoded(encode(codec, value.expand(trials, -1), lambda: drawn(trials, 40).double()))
    error = found - value
    squares = error.square().mean(0)
    # Five standard errors of the mean, element by element.
    assert torch.all(error.mean(0).abs() <= 5 * (squares / trials).sqrt() + 1e-6)
    for own, sure in zip(buckets(squares, bucket), buckets(value, bucket), strict=True):
        m, s = min(bucket, 40), codec.levels
        assert own.sum() <= min(m / s**2, math.sqrt(m) / s) * sure.square().sum()


@given(
    bits=st.integers(2, 8), bucket=st.integers(1, 20), length=st.integers(1, 50), size=st.floats(1e-6, 1e6)
)
@laws
def test_an_element_moves_to_a_neighbouring_level(bits: int, bucket: int, length: int, size: float) -> None:
    codec = Qsgd(bits=bits, bucket=bucket)
    value = size * torch.randn(length, generator=torch.Generator().manual_seed(length))
    found = decoded(encode(codec, value, lambda: drawn(length, seed=bits)))
    for near, own in zip(buckets(found, bucket), buckets(value, bucket), strict=True):
        step = own.norm() / codec.levels
        assert torch.all((near - own).abs() <= step * (1 + 1e-4))


@pytest.mark.parametrize("codec", [Qsgd(bits=3, bucket=4), "bf16"])
def test_a_stack_is_encoded_as_each_row_is(codec: Codec) -> None:
    values, draws = torch.randn(3, 2, 10), drawn(3, 2, 10)
    stack = encode(codec, values, lambda: draws)
    for i in range(3):
        one = encode(codec, values[i], lambda i=i: draws[i])  # type: ignore[misc]
        assert torch.equal(decoded(one), decoded(stack)[i])
        assert torch.equal(decoded(stack.row(i)), decoded(one))
        assert 3 * message_bytes(one, 4.0) == message_bytes(stack, 4.0) == stack.num_bytes


def test_a_bucket_beyond_the_value_is_as_wide_as_the_value() -> None:
    value, draws = drawn(700) - 0.5, drawn(700, seed=1)
    wide, fitting = (encode(Qsgd(bits=4, bucket=size), value, lambda: draws) for size in (10**9, 1024))
    assert torch.equal(decoded(wide), decoded(fitting))
    assert wide.num_bytes == fitting.num_bytes == 4 * 88 + 4  # 88 times eight codes, one norm


@pytest.mark.parametrize("bits", [2, 3, 8])
@pytest.mark.parametrize("length", [1, 7, 513])
def test_zeros_take_the_same_parts_and_no_random_numbers(bits: int, length: int) -> None:
    nothing = torch.zeros(3, length)
    almost = nothing.index_fill(-1, torch.tensor([0]), 1e-30)
    zeros = encode(Qsgd(bits=bits), nothing, lambda: pytest.fail("drawn"))
    others = encode(Qsgd(bits=bits), almost, lambda: torch.zeros(3, length))
    assert decoded(zeros).equal(nothing)
    assert [(each.shape, each.dtype) for each in zeros.parts] == [
        (each.shape, each.dtype) for each in others.parts
    ]


def test_bf16_rounds_to_the_nearest() -> None:
    value = torch.tensor([1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-10, -3.0])
    found = encode("bf16", value, lambda: value)
    assert decoded(found).tolist() == [1.0, 1.0 + 2.0**-7, 1.0, -3.0]
    assert (found.num_bytes, message_bytes(found, 4.0), message_bytes(found, 8.0)) == (8, 8, 16)


@pytest.mark.parametrize(("bits", "bucket"), [(8, 512), (4, 512), (2, 64)])
def test_bytes_are_those_of_the_formula(bits: int, bucket: int) -> None:
    # b bits an element, and 32 of norm a bucket (facts: b P / 8 and the norms).
    parameters = 100_000
    found = encode(Qsgd(bits=bits, bucket=bucket), torch.randn(parameters), lambda: drawn(parameters))
    assert found.num_bytes == pytest.approx(parameters * (bits / 8 + 4 / bucket), rel=0.001)
    assert found.num_bytes == message_bytes(found, 4.0)
    one = encode(Qsgd(bits=bits, bucket=bucket), torch.zeros(1), lambda: drawn(1))
    assert message_bytes(one, 4e6) == pytest.approx(1e6 * (bits / 8 + 4 / bucket), abs=4)


@given(
    bits=st.integers(2, 8),
    bucket=st.integers(1, 20),
    length=st.integers(1, 60),
    members=st.integers(1, 9),
    double=st.booleans(),
)
@laws
def test_a_shard_that_stands_for_itself_has_its_own_bytes(
    bits: int, bucket: int, length: int, members: int, double: bool
) -> None:
    value = torch.randn(length, dtype=torch.float64 if double else torch.float32)
    table, own = shards(value, members), float(value.itemsize)
    for codec in (Qsgd(bits=bits, bucket=bucket), "bf16"):
        sent = encode(codec, table, lambda: torch.zeros_like(table), length, members)
        assert message_bytes(sent, own) == sent.num_bytes
        assert shard_bytes(sent.row(0), length, members, own) == sent.row(0).num_bytes
    assert shard_bytes(table[0], length, members, own) == table[0].nbytes


@pytest.mark.parametrize("parameters", [10, 4810])
def test_a_shard_is_a_share_of_the_payload_whatever_the_proxy(parameters: int) -> None:
    """4 MB are a million elements; a tenth of them are 100,000, with 196 norms."""
    table = torch.zeros(10, -(-parameters // 10))
    row = encode(Qsgd(), table, lambda: torch.zeros_like(table), parameters, 10).row(3)
    assert shard_bytes(row, parameters, 10, 4e6 / parameters) == 100_000 + 196 * 4
    assert shard_bytes(table[0], parameters, 10, 4e6 / parameters) == 400_000


def test_appended_numbers_cost_their_own_bytes() -> None:
    value = append_numbers(torch.arange(3.0), torch.tensor([7.0]))
    assert decoded(value).tolist() == [0.0, 1.0, 2.0, 7.0]
    assert [message_bytes(value, element_bytes) for element_bytes in (4.0, 1e6)] == [16, 3_000_004]
