"""The largest elements alone: what travels, and what is kept for the next value."""

from __future__ import annotations

import torch

from paceline.sim.program.encoding import Compression, decoded, encode
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.compressed import CompressedAllReduce
from tests.support.factory import NoOptions, make_job, make_scheme, run_events
from tests.support.quadratics import close


def test_the_largest_elements_travel() -> None:
    codec = Compression.model_validate({"top_k": {"share": 0.3}}).codec
    value = torch.tensor([[1.0, -3.0, 2.0, 0.0, 3.0], [0.5, 0.5, -0.5, 0.0, 0.0]])
    encoded = encode(codec, value, lambda: value)
    assert decoded(encoded).tolist() == [[0.0, -3.0, 0.0, 0.0, 3.0], [0.5, 0.5, 0.0, 0.0, 0.0]]
    assert encoded.num_bytes == 2 * 2 * 8
    for i in range(2):
        assert torch.equal(decoded(encode(codec, value[i], lambda: value)), decoded(encoded)[i])


def test_sent_and_kept_add_up_to_what_was_given() -> None:
    """All-reduce SGD with top-k: the model has moved by what was sent, the rest is what is left."""
    values = torch.randn(6, 3, 10, generator=torch.Generator().manual_seed(2)).double()
    left: dict[int, torch.Tensor] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        average = CompressedAllReduce(worker, Compression.model_validate({"top_k": {"share": 0.2}}))
        total = torch.zeros(10).double()
        async for k in worker.steps():
            total = total + await average.all_reduce(values[k, worker.rank], k)
            await worker.publish(k, total)
        assert average.left is not None
        left[worker.rank] = average.left

    job = make_job(
        make_scheme(program), task="quadratic", task_options={"dimension": 10}, workers=3, max_iterations=6,
        start=torch.zeros(10).double(),
    )  # fmt: skip
    sent = run_events(job).finals
    assert torch.equal(sent[0], sent[1])
    kept = torch.stack([left[rank] for rank in range(3)]).mean(0)
    assert kept.abs().max() > 0.1
    close((sent[0] + kept).numpy(), values.sum(0).mean(0).numpy())
