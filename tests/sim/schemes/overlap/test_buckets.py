"""Buckets of a gradient: their order, the next forward pass that waits for them, and what stays the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.sim.errors import InputError, NotInLockstep, SchemeError
from paceline.sim.experiments.simulate import simulate
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import load
from tests.support.factory import NoOptions, make_job, make_scheme, run_events

# A gradient takes 1 s: forward 1/12, 1/12 and 1/6 s, ready after 0.5 (last), 0.75 and 1 s. All-reducing a
# layer alone takes 0.05, 0.15 and 0.6 s: 0.5, 1.5 and 6 MB among two workers at 10 MB/s.
THREE_LAYERS = "layer,parameters,forward_flops\na,125000,1e9\nb,375000,1e9\nc,1500000,2e9\n"
SCENARIO = """\
name: buckets
workload: {timing_only: true, layer_profile: layers.csv, batch_size: 2}
cluster:
  workers: 2
  compute: {speed: 24 Gflop/s}
  network: {latency: 0 s, bandwidth: 80 Mbit/s}
collectives: {all_reduce: ring}
schemes: [{all_reduce: {overlap: true, OPTIONS}}]
stop: {max_iterations: 3}
"""
ORDERS = ("", "send_order: ready_first", "send_order: needed_first")


def run_with(folder: Path, options: str, layers: str = THREE_LAYERS, **changed: str) -> Run:
    (folder / "layers.csv").write_text(layers)
    text = SCENARIO.replace("OPTIONS", options)
    for old, new in changed.items():
        text = text.replace(old, new)
    (folder / "buckets.yaml").write_text(text)
    (run,) = simulate(load(folder / "buckets.yaml"))
    return run


@pytest.mark.parametrize(
    ("options", "step_s"),
    [
        # The link is busy from 0.5 s on, with 0.8 s of bytes, in whatever order.
        ("", 1.3),
        ("send_order: ready_first", 1.3),
        ("send_order: needed_first", 1.3),
        # c until 1.1 s, b until 1.25, a until 1.3: the next forward pass needs a first, and waits for all.
        ("send_order: ready_first, next_forward: true", 1.3),
        # c until 1.1 s, a until 1.15, forward until 1.15 + 1/12; b until 1.3, then b and c: until 1.55.
        ("send_order: needed_first, next_forward: true", 1.55 - 1 / 3),
        # Shares: c and b from 0.75 s, a too from 1.0 on. b is there at 1.075, a at 1.125, c at 1.3 s: forward
        # through a and b until 1.125 + 1/6, through c from 1.3 until 1.3 + 1/6.
        ("next_forward: true", 1.3 + 1 / 6 - 1 / 3),
    ],
)
def test_steps_by_hand(tmp_path: Path, options: str, step_s: float) -> None:
    """A step ends where the next forward pass has, less what that takes; the last one waits for all."""
    run = run_with(tmp_path, options)
    assert run.wall_clock_s == pytest.approx(2 * step_s + 1.3, rel=1e-4)
    agreed = 3 * 3 * 2 * 2 * 4 if "needed" in options else 0  # 4 bytes to all, before buckets
    assert 0 <= run.bytes_sent - 3 * 2 * 8e6 <= agreed


def test_what_waits_and_what_computes(tmp_path: Path) -> None:
    """3 s of computing on each worker, forward passes ahead or not."""
    for options in ("", "next_forward: true", "send_order: needed_first, next_forward: true"):
        run = run_with(tmp_path, options)
        assert run.time_s.compute == pytest.approx(3.0, rel=1e-3)


EIGHT_LAYERS = "layer,parameters,forward_flops\n" + "".join(f"l{k},125000,1e9\n" for k in range(8))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ("", [1] * 8),
        ("bucket: 1.5 MB", [3, 3, 2]),
        ("bucket: 1.5 MB, first_bucket: 0.5 MB", [1, 3, 3, 1]),
        ("bucket: 1.5 MB, first_bucket: 0.6 MB", [2, 3, 3]),
        ("bucket: 0.5 MB, first_bucket: 1.5 MB", [3, 1, 1, 1, 1, 1]),
        ("bucket: 1.5 MB, first_bucket: 0.5 MB, send_order: ready_first", [1, 3, 3, 1]),
    ],
)
def test_buckets_are_filled_backward(tmp_path: Path, options: str, sizes: list[int]) -> None:
    run = run_with(tmp_path, options, EIGHT_LAYERS, **{"max_iterations: 3": "max_iterations: 1"})
    sent = sorted((e.start_s, e.bytes) for e in run.events if (e.worker, e.operation) == (0, "all_reduce"))
    assert [num_bytes for _, num_bytes in sent] == [size * 500_000 for size in sizes]


@pytest.mark.parametrize(
    ("order", "expected"), [("ready_first", [3, 2, 1, 0]), ("needed_first", [3, 0, 1, 2])]
)
def test_the_thread_takes_what_is_needed_first(tmp_path: Path, order: str, expected: list[int]) -> None:
    """The last layer takes long, so that all others are ready when it is through."""
    parameters = (125_000, 250_000, 375_000, 3_250_000)
    layers = "layer,parameters,forward_flops\n" + "".join(
        f"l{k},{number},1e9\n" for k, number in enumerate(parameters)
    )
    run = run_with(tmp_path, f"send_order: {order}", layers, **{"max_iterations: 3": "max_iterations: 1"})
    sent = [e.bytes for e in run.events if e.worker == 0 and e.operation == "all_reduce"]
    assert sent == [4 * parameters[layer] for layer in expected]


@pytest.mark.parametrize("options", [{"send_order": "ready_first"}, {"send_order": "needed_first"}, {}])
@pytest.mark.parametrize("next_forward", [False, True])
def test_the_update_is_that_of_all_reduce(options: dict[str, Any], next_forward: bool) -> None:
    """Workers differ in how long they take, so that they fill buckets at different times."""

    def finals(options: dict[str, Any]) -> list[torch.Tensor]:
        job = make_job(
            "all_reduce", options, workers=3, task="digits-mlp", momentum=0.9, cv=0.5, max_iterations=5,
            latency_s=0.01, bandwidth_bytes_per_s=1e5,
        )  # fmt: skip
        return run_events(job).finals

    expected = finals({})
    whole = {"overlap": True, "next_forward": next_forward, **options}
    for changed in (whole, whole | {"bucket": "3 kB", "first_bucket": "1 kB"}):
        assert all(torch.equal(*pair) for pair in zip(finals(changed), expected, strict=True))


@pytest.mark.parametrize(("order", "ahead"), [*product(ORDERS[1:], (False, True)), ("", True)])
def test_lockstep_leaves_them_to_the_event_driver(tmp_path: Path, order: str, ahead: bool) -> None:
    options = ", ".join([part for part in (order, "next_forward: true" if ahead else "") if part])
    run = run_with(tmp_path, options)
    assert run.engine == "event"
    assert run.engine_reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("overlap: true, first_bucket: 1 MB", "first_bucket needs a 'bucket'"),
        ("send_order: ready_first", "send_order needs 'overlap: true'"),
        ("next_forward: true", "next_forward needs 'overlap: true'"),
        ("overlap: true, send_order: fastest", "needed_first"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_with(tmp_path, "", **{"overlap: true, ": options})


def test_equal_buckets_have_no_first_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave first_bucket out"):
        run_with(
            tmp_path, "bucket: 2 MB, first_bucket: 1 MB", **{"layer_profile: layers.csv": "payload: 8 MB"}
        )


def test_a_forward_pass_ahead_makes_the_gradient_shorter() -> None:
    """A gradient takes 1 s, a third of it forward."""
    times: list[float] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        await worker.forward(0, worker.start.shape[-1])
        times.append(await worker.now())
        await worker.gradient(worker.start)
        times.append(await worker.now())
        await worker.gradient(worker.start)
        times.append(await worker.now())

    outcome = run_events(make_job(make_scheme(program), workers=1))
    assert times == pytest.approx([1 / 3, 1.0, 2.0])
    assert outcome.breakdowns[0].busy_s(2.0) == pytest.approx(2.0)


def test_a_layer_goes_forward_once_before_a_gradient() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        await worker.forward(0, 1)
        await worker.forward(0, 1)

    with pytest.raises(SchemeError, match="goes forward through x twice"):
        run_events(make_job(make_scheme(program), workers=1))


def test_lockstep_has_no_forward_pass_ahead() -> None:
    from paceline.sim.drivers.lockstep.stacked import StackedRunner

    async def program(worker: Worker, options: NoOptions) -> None:
        await worker.forward(0, 1)

    runner = StackedRunner(make_job(make_scheme(program), workers=2))
    with pytest.raises(NotInLockstep, match="forward does not run in lockstep"):
        runner.begin(0)
    runner.close(0)
