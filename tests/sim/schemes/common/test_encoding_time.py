"""Encoding and decoding take a worker's time, on every driver alike."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from paceline.extras.replay.replay_driver import replay
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import UNTIMED_ENCODING, untimed
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import parse
from tests.support.both_drivers import assert_the_same, job_of
from tests.support.factory import make_job, run_events, simulated

Options = dict[str, Any]

QSGD: Options = {"compression": {"qsgd": {"bits": 8}}}
TENTH: Options = {"compression": {"top_k": {"share": 0.1}}}
MODEL_BYTES = 4000.0
TOP_K_RATE = 2 * MODEL_BYTES


RATES = {"qsgd": f"{MODEL_BYTES} B/s", "top_k": f"{TOP_K_RATE} B/s"}
"""A second to encode a model's codes, half of one to sort out its largest elements."""


@pytest.mark.parametrize(
    ("scheme", "options", "step_s"),
    [
        # a gradient of 1 s; out: all elements, in: as many; back: a quarter of them, in: all
        ("all_reduce", QSGD, 1 + 1 + 1 + 0.25 + 1),
        ("local_sgd", {"period": 1, **QSGD}, 1 + 1 + 1 + 0.25 + 1),
        ("diloco", {"period": 1, **QSGD}, 1 + 1 + 1 + 0.25 + 1),
        # all elements, and a tenth of each of four workers'
        ("all_reduce", TENTH, 1 + 0.5 + 4 * 0.05),
        # to two neighbours one value, of each of them one
        ("gossip", {"topology": "ring", **QSGD}, 1 + 1 + 2),
        ("gossip", {"topology": "ring", "order": "combine_while_adapting", **QSGD}, 1 + 1 + 2),
        # model and tracked gradient
        ("gradient_tracking", {"topology": "ring", **QSGD}, 1 + 2 * (1 + 2)),
        ("choco_sgd", {"topology": "ring", "gamma": 0.1, **TENTH}, 1 + 0.5 + 2 * 0.05),
        ("all_reduce", {"compression": {"bf16": True}}, 1),
        ("all_reduce", {}, 1),
    ],
)
def test_a_step_takes_what_is_encoded_and_decoded(scheme: str, options: Options, step_s: float) -> None:
    start = torch.zeros(1000)
    job = make_job(scheme, options, workers=4, max_iterations=3, start=start, encoding=RATES)
    run = simulated(job)
    assert run.wall_clock_s == pytest.approx(3 * step_s, rel=1e-3)
    assert run.time_s.compute == pytest.approx(run.wall_clock_s)  # nobody waits for anything
    assert simulated(replace(job, compute=make_job("all_reduce").compute)).wall_clock_s == pytest.approx(3)


def test_a_server_decodes_what_it_is_brought() -> None:
    """Three workers visit the first one's host at once; it decodes for each, beside its own steps."""
    options = {"period": 1, "exchange": 9, **QSGD}
    start = torch.zeros(1000)
    job = make_job("halos", options, workers=4, max_iterations=2, start=start, encoding=RATES)
    visits = [e for e in simulated(job).events if e.operation == "encode"]
    assert all(e.end_s - e.start_s == pytest.approx(1.0) for e in visits)
    assert sum(e.worker > 0 for e in visits) == 3 * 2
    assert sum(e.worker == 0 for e in visits) == 3 * 2


@pytest.mark.parametrize("options", [QSGD, TENTH], ids=["qsgd", "top_k"])
@pytest.mark.parametrize(
    ("scheme", "own"),
    [("all_reduce", {}), ("gossip", {"topology": "star"}), ("choco_sgd", {"topology": "star", "gamma": 0.1}),
     ("slowmo", {"period": 2}), ("gradient_tracking", {"topology": "path"})],
)  # fmt: skip
def test_both_drivers_spend_the_same_time(scheme: str, own: Options, options: Options) -> None:
    if scheme in ("gossip", "gradient_tracking"):
        options = QSGD
    job = job_of(
        (scheme, {**own, **options}), cv=0.3, latency_s=0.1, bandwidth_bytes_per_s=1e3, sharing="none"
    )
    assert_the_same(job)


@pytest.mark.parametrize("options", [{"period": 4, "delay": 1, **QSGD}, {"period": 2, **TENTH}], ids=str)
def test_a_run_is_replayed_with_it(options: Options) -> None:
    job = make_job("diloco", options, task="digits-mlp", cv=0.3, max_iterations=8, encoding=RATES)
    programs = [job.program(rank) for rank in range(job.workers)]
    finals = replay(job, programs, simulated(job).events)
    assert all(torch.equal(a, b) for a, b in zip(finals, run_events(job).finals, strict=True))


GAINS = """\
name: gains
workload: {timing_only: true, batch_size: 32, payload: 44.8 MB}
cluster:
  workers: 4
  compute: {time: 50 ms, encoding: {qsgd: RATE, top_k: RATE}}
  network: {latency: 0.1 ms, bandwidth: 100 Mbit/s}
schemes:
  - all_reduce
  - all_reduce: {compression: {bf16: true}, label: halves}
  - all_reduce: {compression: {qsgd: {bits: 2}}, label: two bits}
  - all_reduce: {compression: {top_k: {share: 0.01}}, label: top-k}
stop: {max_iterations: 4}
"""


def test_gains_that_were_reported_with_a_slow_encoder() -> None:
    """ResNet-18 at 100 Mbit/s among 4 workers: 2.65 and 6.2 times, where bytes alone say 13.7 and 20."""

    def gains(rate: str) -> list[float]:
        plain, _, *others = (
            run.wall_clock_s for run in simulate(parse(GAINS.replace("RATE", rate), "gains"))
        )
        return [plain / each for each in others]

    assert gains("1000 TB/s") == pytest.approx([13.7, 20.5], rel=0.01)
    assert gains("82 MB/s") == pytest.approx([2.65, 6.2], rel=0.08)  # one rate for both


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("engine", ["lockstep", "event"])
@pytest.mark.parametrize("rate", ["qsgd: 1 GB/s", "top_k: 1 GB/s"])
def test_encoding_without_a_rate_is_named_by_every_command(rate: str, engine: Any) -> None:
    scenario = parse(GAINS.replace("qsgd: RATE, top_k: RATE", rate))
    runs = list(simulate(scenario, engine=engine))
    without = "two bits" if "top_k" in rate else "top-k"
    assert [run.label for run in runs if UNTIMED_ENCODING in (run.exchanges or ())] == [without]
    said = untimed([UNTIMED_ENCODING])
    steps = {cost.label: cost.leaves_out for cost in map(partial(step_cost, scenario), scenario.schemes)}
    rows = {row["label"]: row["leaves_out"] for row in summarise("gains", runs)["summary"]}
    for phrases in (steps, rows):
        assert [label for label, each in phrases.items() if set(said) & set(each)] == [without]
