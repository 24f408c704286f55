"""A model's way to others and back: means that stay, values at once or begun, changes since an average."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.sim.program.encoding import Compression, Qsgd
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.exchange import ModelExchange
from tests.support.factory import make_job, make_scheme, run_events

RING = Pattern(
    own=(0.5,) * 4,
    sources=((1, 3), (0, 2), (1, 3), (0, 2)),
    weights=((0.25, 0.25),) * 4,
)
ROUGH = Compression(qsgd=Qsgd(bits=2, bucket=4))
VALUES = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)).double()


def finals_of(program: Any) -> torch.Tensor:
    job = make_job(
        make_scheme(program),
        task="quadratic",
        task_options={"dimension": 10},
        workers=4,
        start=torch.zeros(10).double(),
    )
    return torch.stack(run_events(job).finals)


@pytest.mark.parametrize("waits", [True, False])
def test_a_compressed_mix_leaves_the_mean_as_it_is(waits: bool) -> None:
    async def program(worker: Worker, options: Any) -> None:
        exchange = ModelExchange(worker, ROUGH)
        x, state = VALUES[worker.rank], worker.fresh()[1]
        if waits:
            x, state = await exchange.mix(0, x, state, RING)
        else:
            mixed = await exchange.begin(0, x, state, RING)
            await worker.gradient(x)
            x, state = await mixed()
        await worker.publish(0, x)

    found = finals_of(program)
    assert torch.allclose(found.mean(0), VALUES.mean(0), rtol=0, atol=1e-14)
    assert not torch.allclose(found, VALUES)
    assert not torch.allclose(found, torch.from_numpy(RING.matrix) @ VALUES)


@pytest.mark.parametrize("pattern", [RING, None], ids=["neighbours", "all"])
@pytest.mark.parametrize("momentum", ["local", "mixed"])
def test_buffers_are_averaged_with_the_model_where_they_are_mixed(momentum: Any, pattern: Any) -> None:
    async def program(worker: Worker, options: Any) -> None:
        own = VALUES[worker.rank]
        state = worker.fresh()[1]._replace(moments=(2 * own,))
        x, state = await ModelExchange(worker, None, momentum).mix(0, own, state, pattern)
        await worker.publish(0, torch.stack([x, *state.moments]).flatten()[5:15])

    matrix = torch.full((4, 4), 0.25).double() if pattern is None else torch.from_numpy(RING.matrix)
    mixed = matrix @ VALUES
    buffers = 2 * (mixed if momentum == "mixed" else VALUES)
    expected = torch.cat([mixed, buffers], dim=1)[:, 5:15]
    assert torch.allclose(finals_of(program), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("compression", [None, ROUGH])
def test_all_have_one_average_of_changes(compression: Compression | None) -> None:
    async def program(worker: Worker, options: Any) -> None:
        exchange = ModelExchange(worker, compression)
        last = exchange.first_average()
        assert (last is None) == (compression is None)
        x, _, last = await exchange.average_changes(0, VALUES[worker.rank], worker.fresh()[1], last)
        assert last is None or last.equal(x)
        await worker.publish(0, x)

    found = finals_of(program)
    assert all(each.equal(found[0]) for each in found)
    near = torch.allclose(found[0], VALUES.mean(0), rtol=0, atol=1e-14)
    assert near == (compression is None)
