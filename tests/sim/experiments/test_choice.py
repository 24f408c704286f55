"""What ``collectives: auto`` stands for: the best of its candidates, when each is simulated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.algorithm_registry import algorithms
from paceline.sim.collectives.pipelines import nccl_choice
from paceline.sim.drivers.job import Job
from paceline.sim.experiments import choice
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.prepare import clock_only, prepare, resolve, resolve_each
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.transport import TRANSPORTS
from paceline.sim.scenario.schema import Scenario, dump, parse

CPU = torch.device("cpu")
TOLERANCE = 1.02
SCENARIO = """\
name: chosen
workload: {{timing_only: true, payload: {payload}}}
cluster:
  {workers}
  compute: {{time: {compute}}}
  network: {{{network}}}
schemes: [{scheme}]
stop: {{max_iterations: 10}}
collectives: {{all_reduce: {all_reduce}}}
"""
FLAT = "latency: {latency} s, bandwidth: {bandwidth} bit/s"
FORMS = {
    "flat": ("workers: 5", FLAT),
    "pair": ("workers: 2", FLAT),
    "hosts of GPUs": ("workers: 6", "host: {{gpus: 2, latency: 10 us, bandwidth: 100 Gbit/s}}, " + FLAT),
    "sites": (
        "",
        "sites: {{a: 2, b: 3}}, within: {{latency: 0.1 ms, bandwidth: 10 Gbit/s}}, between: {{" + FLAT + "}}",
    ),
}
TWO_SITES = "sites: {{a: 3, b: 3}}, within: {{latency: 0.1 ms, bandwidth: 10 Gbit/s}}, "
FORMS["equal sites"] = ("", TWO_SITES + "between: {{" + FLAT + "}}")
TOP_K = "{all_reduce: {compression: {top_k: {share: 0.05}}}}"
CODES = (
    TOP_K,
    "{all_reduce: {compression: {qsgd: {bits: 8}}}}",
    "{diloco: {period: 4, delay: 1, compression: {qsgd: {bits: 4}}}}",
)
SCHEMES = (
    "all_reduce",
    "{local_sgd: {period: 4}}",
    "{diloco: {period: 4}}",
    TOP_K,
    "{all_reduce: {compression: {bf16: true}}}",
    "{all_reduce: {part_reduce: true}}",
)


def scenario(
    form: str = "flat",
    hosts: str = "tuned",
    latency: float = 0.1,
    bandwidth: float = 1e8,
    scheme: str = "all_reduce",
    payload: str = "1 MB",
    compute: str = "10 ms",
    all_reduce: str = "auto",
) -> Scenario:
    workers, network = FORMS[form]
    network = network.format(latency=latency, bandwidth=bandwidth) + f", hosts: {hosts}"
    return parse(
        SCENARIO.format(
            payload=payload, workers=workers, compute=compute, network=network, scheme=scheme,
            all_reduce=all_reduce,
        )
    )  # fmt: skip


def step_s(resolved: Scenario) -> float:
    """A step of a simulated run, once windows have opened."""
    job = clock_only(prepare(resolved, resolved.schemes[0], resolved.seed))
    begin, end = (steps * job.scheme.cycle(job.options, job.units) for steps in (6, 16))
    begin_s, end_s = (simulate_job(replace(job, max_iterations=steps)).wall_clock_s for steps in (begin, end))
    return (end_s - begin_s) / (end - begin)


def chosen(scenario: Scenario) -> dict[str, str]:
    names = resolve(scenario, CPU).collectives.chosen
    assert isinstance(names, dict)
    (of_scheme,) = names.values()
    return of_scheme


def others(asked: dict[str, Any], resolved: Scenario) -> Iterator[Scenario]:
    """The same scenario with each candidate in the place of what was chosen."""
    taken = resolved.collectives.chosen
    assert isinstance(taken, dict)
    (label, names), *_ = taken.items()
    if "all_reduce" in names:
        for name in TRANSPORTS["ideal"].choices:
            if name != "hierarchical" or asked["form"] in ("sites", "equal sites", "hosts of GPUs"):
                yield resolve(scenario(**asked, all_reduce=name), CPU)
    unit = "hosts" if asked["form"] == "hosts of GPUs" else "sites"
    for inside in ("workers", unit) if "inside" in names else ():
        forced = resolved.collectives.model_copy(update={"inside": inside, "chosen": None})
        yield resolve(resolved.model_copy(update={"collectives": forced}), CPU)
    for what in ("shares", "broadcast"):
        for name in algorithms(what, "ideal") if what in names else ():
            update = {"chosen": {label: {**names, what: name}}}
            yield resolved.model_copy(update={"collectives": resolved.collectives.model_copy(update=update)})


def keeps_the_laws(asked: dict[str, Any], more: float, less: float) -> None:
    resolved = resolve(scenario(**asked), CPU)
    took_s = step_s(resolved)
    for other in others(asked, resolved):
        assert took_s <= TOLERANCE * step_s(other), (resolved.collectives.chosen, other.collectives)
    wider = {**asked, "bandwidth": asked["bandwidth"] * more, "latency": asked["latency"] * less}
    assert step_s(resolve(scenario(**wider), CPU)) <= TOLERANCE * took_s


def drawn(forms: tuple[str, ...] = tuple(FORMS), payloads: tuple[str, ...] = ("10 kB", "300 kB")) -> Any:
    return st.fixed_dictionaries(
        {
            "form": st.sampled_from(forms),
            "hosts": st.sampled_from(["tuned", "stock", "tuned, queue: fifo", "stock, queue: fifo"]),
            "latency": st.floats(1e-4, 0.15),
            "bandwidth": st.floats(3e6, 1e10),
            "scheme": st.sampled_from(SCHEMES),
            "payload": st.sampled_from(payloads),
            "compute": st.sampled_from(["10 ms", "1 s"]),
        }
    )


better = st.sampled_from([(1.05, 1.0), (2.0, 1.0), (8.0, 1.0), (1.0, 0.95), (1.0, 0.5), (2.0, 0.5)])


@settings(max_examples=3, derandomize=True)
@given(drawn(), better)
def test_auto_is_the_best_and_a_better_network_costs_no_time(
    asked: dict[str, Any], change: tuple[float, float]
) -> None:
    keeps_the_laws(asked, *change)


@pytest.mark.slow
@settings(max_examples=2, derandomize=True)
@given(drawn(forms=("hosts of GPUs", "equal sites")), st.sampled_from(CODES), better)
def test_auto_is_the_best_where_hosts_or_sites_may_encode(
    asked: dict[str, Any], scheme: str, change: tuple[float, float]
) -> None:
    keeps_the_laws({**asked, "scheme": scheme}, *change)


@pytest.mark.slow
@settings(max_examples=4, derandomize=True)
@given(drawn(forms=("hosts of GPUs", "equal sites")), st.sampled_from(CODES), better)
def test_auto_is_the_best_where_hosts_or_sites_may_encode_in_a_long_draw(
    asked: dict[str, Any], scheme: str, change: tuple[float, float]
) -> None:
    keeps_the_laws({**asked, "scheme": scheme}, *change)


@pytest.mark.slow
@settings(max_examples=6, derandomize=True)
@given(drawn(payloads=("10 kB", "300 kB", "1 MB")), better)
def test_auto_is_the_best_and_a_better_network_costs_no_time_in_a_long_draw(
    asked: dict[str, Any], change: tuple[float, float]
) -> None:
    keeps_the_laws(asked, *change)


def test_stock_hosts_far_apart_take_the_ring() -> None:
    """It keeps its connections busy; of the others each message finds a window that has rested."""
    assert chosen(scenario(hosts="stock")) == {"all_reduce": "ring"}
    assert chosen(scenario(hosts="tuned")) == {"all_reduce": "double_tree"}
    auto_s, tree_s = (
        step_s(resolve(scenario(hosts="stock", all_reduce=name), CPU)) for name in ("auto", "double_tree")
    )
    assert 3 * auto_s < tree_s


def test_more_bandwidth_does_not_double_a_step_of_stock_hosts() -> None:
    steps = [
        step_s(resolve(scenario("flat", "stock", 0.1, rate, TOP_K), CPU)) for rate in (1.9e8, 2e8, 4e8, 8e8)
    ]
    assert all(b <= TOLERANCE * a for a, b in itertools.pairwise(steps))


def test_less_latency_does_not_lengthen_a_step_whose_members_join_apart() -> None:
    """An all-gather follows a reduce-scatter, which not all members leave at once."""
    for scheme in ("{all_reduce: {compression: {bf16: true}}}", "{all_reduce: {part_reduce: true}}", TOP_K):
        steps = [
            step_s(resolve(scenario("sites", "tuned", latency, 1e9, scheme, "10 MB"), CPU))
            for latency in (0.022, 0.020, 0.018, 0.010)
        ]
        assert all(b <= TOLERANCE * a for a, b in itertools.pairwise(steps)), scheme


def test_the_choice_is_that_of_a_scheme_written_down_once() -> None:
    asked = scenario("flat", "stock")
    resolved = resolve(asked, CPU)
    assert resolved.collectives.chosen == {"all_reduce": {"all_reduce": "ring"}}
    assert parse(dump(resolved)) == resolved
    job = prepare(resolved, resolved.schemes[0], 7)
    assert job.choice.name_of_all_reduce((0, 1, 2, 3, 4), 12) == "ring"
    assert resolve(resolved, CPU) == resolved


def test_a_name_of_an_older_version_is_read_and_chosen_anew() -> None:
    resolved = resolve(scenario("flat", "stock"), CPU)
    collectives = resolved.collectives.model_copy(update={"chosen": "double_tree"})
    older = parse(dump(resolved.model_copy(update={"collectives": collectives})))
    assert older.collectives.chosen == "double_tree"
    assert prepare(older, older.schemes[0], 7).collectives.chosen.names == {}
    assert resolve(older, CPU) == resolved


@pytest.mark.usefixtures("little_work")
def test_what_is_chosen_is_what_check_prices() -> None:
    asked = scenario("flat", "stock")
    resolved = resolve(asked, CPU)
    assert step_cost(resolved, resolved.schemes[0]).step_s == pytest.approx(step_s(resolved), rel=1e-3)


def test_libraries_have_rules_of_their_own() -> None:
    for hosts in ("tuned", "stock"):
        gloo = resolve(scenario("flat", f"{hosts}, transport: gloo"), CPU)
        assert gloo.collectives.chosen == "gloo_ring"
        nccl = resolve(scenario("flat", f"{hosts}, transport: nccl"), CPU)
        assert nccl.collectives.chosen == nccl_choice((5,), 1_000_000)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    scheme=st.sampled_from(SCHEMES),
    hosts=st.sampled_from(["tuned", "stock", "tuned, sharing: none"]),
    speeds=st.lists(
        st.tuples(st.sampled_from([1e-4, 0.01, 0.3]), st.sampled_from([1e6, 1e8, 1e10])),
        min_size=2,
        max_size=4,
    ),
)
def test_each_choice_among_many_is_that_alone(
    scheme: str, hosts: str, speeds: list[tuple[float, float]]
) -> None:
    asked = [scenario("flat", hosts, *each, scheme=scheme, payload="300 kB") for each in speeds]
    assert resolve_each(asked, CPU) == [resolve(each, CPU) for each in asked]


def test_a_scheme_without_collectives_has_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    real = choice._run_s

    def count(jobs: Sequence[Job], steps: int) -> list[tuple[float, int]]:
        tried.append(steps)
        return real(jobs, steps)

    monkeypatch.setattr(choice, "_run_s", count)
    assert resolve(scenario(scheme="{gossip: {topology: ring}}"), CPU).collectives.chosen is None
    assert tried == []
