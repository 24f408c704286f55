"""Whose values are encoded for averages: chosen by the price of a step, written down, the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.realrun.launch.cells import requested_job, run_requests
from paceline.sim.experiments.costs.check import check
from paceline.sim.experiments.costs.encoding_units import encodes
from paceline.sim.experiments.prepare import prepare, resolve, resolved_in, with_units
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.scenario_facts import all_reduce_of, sums_inside_of
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, dump, over_transport, parse

CPU = torch.device("cpu")
QSGD = "{all_reduce: {compression: {qsgd: {bits: 8}}, label: codes}}"
TOP_K = "{all_reduce: {compression: {top_k: {share: 0.01}}, label: codes}}"
DILOCO = "{diloco: {period: 2, delay: 1, compression: {qsgd: {bits: 8}}, label: codes}}"
SCENARIO = """\
name: units
workload: {{timing_only: true, payload: 10 MB}}
cluster:
  compute: {{time: 100 ms}}
  network:
    transport: {transport}
    sites: {sites}
    within: {{latency: 50 us, bandwidth: 10 Gbit/s}}
    between: {{latency: 10 ms, bandwidth: {between}}}
collectives: {{inside: {inside}}}
schemes: [{scheme}, {{all_reduce: {{label: plain}}}}]
stop: {{max_iterations: 12}}
"""


def asked(
    scheme: str = QSGD,
    transport: str = "ideal",
    between: str = "100 Mbit/s",
    inside: str = "auto",
    sites: str = "{a: 3, b: 3}",
) -> Scenario:
    return parse(
        SCENARIO.format(scheme=scheme, transport=transport, between=between, inside=inside, sites=sites)
    )


def _sums_inside(scenario: Scenario, entry: SchemeEntry) -> str | None:
    return prepare(scenario, entry, 0).collectives.sums_inside


def took_s(scenario: Scenario) -> float:
    return next(iter(simulate(scenario))).wall_clock_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "between", "transport"),
    [  # every pair of them once
        (QSGD, "100 Mbit/s", "ideal"), (QSGD, "1 Gbit/s", "gloo"), (QSGD, "100 Gbit/s", "nccl"),
        (TOP_K, "100 Mbit/s", "gloo"), (TOP_K, "1 Gbit/s", "nccl"), (TOP_K, "100 Gbit/s", "ideal"),
        (DILOCO, "100 Mbit/s", "nccl"), (DILOCO, "1 Gbit/s", "ideal"), (DILOCO, "100 Gbit/s", "gloo"),
    ],
)  # fmt: skip
def test_auto_takes_what_is_faster(scheme: str, between: str, transport: str) -> None:
    given = {"scheme": scheme, "between": between, "transport": transport}
    resolved = resolve(asked(**given), CPU)
    each_s = {inside: took_s(resolve(asked(**given, inside=inside), CPU)) for inside in ("workers", "sites")}
    assert took_s(resolved) <= 1.001 * min(each_s.values())
    assert isinstance(resolved.collectives.chosen, dict)
    assert resolved.collectives.chosen["codes"]["inside"] == min(each_s, key=lambda each: each_s[each])
    assert "inside" not in resolved.collectives.chosen["plain"]


@pytest.mark.parametrize("transport", ["ideal", "gloo"])
def test_the_choice_is_written_down(transport: str) -> None:
    scenario = asked(transport=transport)
    resolved = resolve(scenario, CPU)
    collectives = resolved.collectives.model_dump()
    assert [sums_inside_of(collectives, label) for label in ("codes", "plain")] == ["site", None]
    assert all_reduce_of(collectives, "plain") == {"ideal": "hierarchical", "gloo": "gloo_ring"}[transport]
    assert resolved_in(dump(resolved), scenario) == resolved
    assert [_sums_inside(resolved, entry) for entry in resolved.schemes] == [
        "sites",
        None,
    ]


@pytest.mark.usefixtures("little_work")
def test_the_choice_counts_for_check_and_simulate() -> None:
    scenario = asked()
    row = check(scenario, CPU)["schemes"][0]
    assert row["encodes"] == "the sum of each site's workers"
    run = next(iter(simulate(resolve(scenario, CPU))))
    assert run.bytes_sent / 12 / 6 == pytest.approx(row["bytes_per_step"], rel=1e-9)
    assert run.step_s == pytest.approx(row["step_s"], rel=0.02)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "the sum of each site's workers"),
        ({"between": "100 Gbit/s"}, "each worker's own values"),
        ({"inside": "workers"}, None),
        ({"inside": "sites", "between": "100 Gbit/s"}, "the sum of each site's workers"),
        ({"sites": "{a: 2, b: 4}"}, "each worker's own values, as sites have 2 to 4 workers"),
        ({"sites": "{a: 1, b: 1}"}, None),
        ({"scheme": "{all_reduce: {compression: {bf16: true}, label: codes}}"}, None),
        ({"scheme": "{gossip: {topology: ring, compression: {qsgd: {bits: 8}}, label: codes}}"}, None),
    ],
)
def test_check_says_whose_values_are_encoded(given: dict[str, Any], says: str | None) -> None:
    resolved = resolve(asked(**given), CPU)
    assert encodes(resolved, resolved.schemes[0]) == says


def test_real_runs_encode_as_the_simulation_of_the_scenario_does() -> None:
    """Also over gloo, by whose price it might be the other form: the models are the same."""
    chosen = with_units(asked())
    carried = over_transport(chosen, "gloo")
    assert carried.collectives.chosen == {"codes": {"inside": "sites"}}
    for scenario in (resolve(asked(), CPU), chosen, carried, parse(dump(carried))):
        assert [_sums_inside(scenario, each) for each in scenario.schemes] == [
            "sites",
            None,
        ]
    jobs = [requested_job(request, 0) for request in run_requests(chosen)]
    assert [job.collectives.sums_inside for job in jobs] == ["sites", None]


def test_nothing_is_chosen_for_real_runs_where_it_makes_no_difference() -> None:
    for scenario in (asked(sites="{a: 1, b: 1}"), asked(scheme="{all_reduce: {label: codes}}")):
        assert with_units(scenario) is scenario
