"""Bytes of small models that stand for a payload: those of the payload, however its shards are filled up."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.common.inside import Units

SCENARIO = """\
name: s
workload: {{task: quadratic, dimension: {d}, batch_size: 2, optimizer: {{lr: 0.01}}, payload: 4 MB}}
cluster:
  compute: {{time: 10 ms}}
  network:
    sites: {{a: {g}, b: {g}, c: {g}}}
    within: {{latency: 1 ms, bandwidth: 1 Gbit/s}}
    between: {{latency: 10 ms, bandwidth: 100 Mbit/s}}
schemes: [{scheme}]
stop: {{max_iterations: 8}}
evaluate: {{every: 8 steps}}
"""
COMPRESSIONS = ("", ", compression: {bf16: true}", ", compression: {qsgd: {bits: 8}}")
SCHEMES = (
    "diloco: {{period: 2, inside: sites{0}}}",
    "diloco: {{period: 4, fragments: 2{0}}}",
    "gossip: {{topology: ring, inside: sites{0}}}",
    "gossip: {{topology: ring, inside: sites, momentum: mixed{0}}}",
    "gossip: {{topology: ring{0}}}",
    "all_reduce: {{part_reduce: true}}",
    "all_reduce: {{compression: {{qsgd: {{bits: 4}}}}}}",
    "local_sgd: {{period: 2{0}}}",
    "fedavg: {{period: 2, participation: 0.5}}",
    "slowmo: {{period: 4{0}}}",
    "gossip: {{topology: ring, inside: sites, global_period: 3}}",
)


def run(scheme: str, g: int, d: int) -> Run:
    scenario = resolve(parse(SCENARIO.format(d=d, g=g, scheme=scheme)), torch.device("cpu"))
    return next(iter(simulate(scenario)))


@cache
def sent(scheme: str, g: int, d: int) -> int:
    return run(scheme, g, d).bytes_sent


def check(scheme: str, compression: str, g: int, d: int) -> None:
    """As many bytes as with a model that every number of shards here divides."""
    text = scheme.format(compression)
    assert sent(text, g, d) == pytest.approx(sent(text, g, 720), rel=2e-3)


@pytest.mark.slow
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
@given(st.sampled_from(SCHEMES), st.sampled_from(COMPRESSIONS), st.integers(2, 5), st.integers(8, 60))
def test_small_models_send_the_payload(scheme: str, compression: str, g: int, d: int) -> None:
    check(scheme, compression, g, d)


@pytest.mark.slow
@settings(max_examples=20, phases=[Phase.generate])
@given(st.sampled_from(SCHEMES), st.sampled_from(COMPRESSIONS), st.integers(2, 6), st.integers(8, 80))
def test_small_models_send_the_payload_at_length(scheme: str, compression: str, g: int, d: int) -> None:
    check(scheme, compression, g, d)


@pytest.mark.parametrize(
    ("scheme", "compression"),
    list(zip((each for each in SCHEMES if "inside" in each), cycle(COMPRESSIONS), strict=False)),
)
def test_seven_parameters_in_sites_of_two_send_the_payload(scheme: str, compression: str) -> None:
    check(scheme, compression, 2, 7)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [each for each in SCHEMES if "inside" in each])
def test_what_a_shard_stands_for_changes_no_model(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = scheme.format("")
    digest = run(text, 2, 7).digest
    begin = Units.__init__

    def alone(units: Units, worker: Worker, *places: Any) -> None:
        begin(units, worker, *places)
        units.members = 1  # so that shards are values of their own

    monkeypatch.setattr(Units, "__init__", alone)
    padded = run(text, 2, 7)
    assert padded.digest == digest
    assert padded.bytes_sent > 1.02 * sent(text, 2, 720)
