"""Tokens per second, needed bandwidths and a published law: by hand on a tiny cluster."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from paceline.reports.tables import render_throughput
from paceline.sim.errors import InputError
from paceline.sim.experiments.costs import tokens
from paceline.sim.experiments.costs.tokens import (
    HOFFMANN,
    PRECISION,
    Utilisation,
    throughput,
    tokens_per_example,
)
from paceline.sim.experiments.prepare import prepare, with_chosen
from paceline.sim.scenario.schema import Scenario, parse, resolve_scenario
from paceline.sim.workloads.layers.layer_settings import LayerProfile

PARAMETERS = 124_439_808
SCENARIO = """\
name: two-sites
workload: {{timing_only: true, layer_profile: {model}, batch_size: 8}}
cluster:
  compute: {{speed: {speed}}}
  {more}
  network:
    sites: {{a: 1, b: 1}}
    within: {{latency: 0 s}}
    between: {{latency: {latency}, bandwidth: {bandwidth}}}
schemes: [all_reduce, {{diloco: {{period: 10}}}}]
stop: {{max_iterations: 10}}
"""


def scenario_of(
    model: str = "gpt2", latency: str = "0 s", bandwidth: str = "1 GB/s", more: str = "",
    speed: str = "10 Tflop/s",
) -> Scenario:  # fmt: skip
    return parse(SCENARIO.format(model=model, latency=latency, bandwidth=bandwidth, more=more, speed=speed))


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:  # every step is like every other
        patch.setattr("paceline.sim.experiments.costs.step_cost.ENOUGH_WORK", 300)
        patch.setattr("paceline.sim.experiments.costs.tokens.ENOUGH_PART_WORK", 300)
        patch.setattr("paceline.sim.experiments.costs.tokens.UTILISATIONS", (0.5, 0.9))
        return throughput(scenario_of(), tokens=1e9)


@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
def test_accumulated_batches_count_and_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.experiments.costs.tokens.UTILISATIONS", (0.5,))
    single = scenario_of()
    workload = single.workload.model_copy(update={"accumulate": 4})
    one, four = throughput(single), throughput(single.model_copy(update={"workload": workload}))
    assert four["tokens_per_step"] == 4 * one["tokens_per_step"]
    profile = single.workload.layer_profile
    assert profile is not None
    for a, b in zip(one["schemes"], four["schemes"], strict=True):
        assert b["step_s"] - a["step_s"] == pytest.approx(3 * 8 * profile.flops / 10e12, rel=1e-6)


def test_tokens_hours_and_bytes_by_hand(answer: dict[str, Any]) -> None:
    """Two workers swap halves twice, or all once: S bytes each way; computing is flops over speed."""
    scenario = scenario_of()
    profile = scenario.workload.layer_profile
    assert profile is not None
    compute_s = 8 * profile.flops / 10e12
    exchange_s = 4 * PARAMETERS / 1e9
    reduced, diloco = answer["schemes"]
    assert answer["tokens_per_step"] == 2 * 8 * 1024
    assert reduced["step_s"] == pytest.approx(compute_s + exchange_s, rel=1e-6)
    assert diloco["step_s"] == pytest.approx(compute_s + exchange_s / 10, rel=1e-6)
    assert reduced["tokens_per_s"] == pytest.approx(16_384 / (compute_s + exchange_s), rel=1e-6)
    assert reduced["utilisation"] == pytest.approx(compute_s / (compute_s + exchange_s), rel=1e-6)
    assert reduced["hours"] == pytest.approx(1e9 / 16_384 * reduced["step_s"] / 3600)
    assert reduced["bytes_sent"] == pytest.approx(1e9 / 16_384 * 2 * 4 * PARAMETERS, rel=1e-3)
    for row, times in ((reduced, 1), (diloco, 10)):
        for share, needed in zip(answer["utilisations"], row["needed_bytes_per_s"], strict=True):
            # c / (c + S / (t B)) = u  at  B = S u / (t c (1 - u))
            by_hand = 4 * PARAMETERS * share / (times * compute_s * (1 - share))
            assert by_hand * (1 - 1e-6) <= needed <= by_hand * (1 + 1.01 * PRECISION)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    ("network", "links"),
    [
        ("{sites: {a: 1, b: 1}, within: {latency: 0 s}, between: {latency: 1 ms}}", "between sites"),
        ("{sites: {a: 2, b: 1}, within: {latency: 0 s}, between: {latency: 1 ms}}", "inside sites too"),
        (
            "{sites: {a: 2, b: 2}, within: {latency: 0 s}, between: {latency: 1 ms}, host: {gpus: 2}}",
            "inside hosts too",
        ),
        ("{sites: {a: 2}, within: {latency: 1 ms}}", "between hosts"),
        ("{latency: 1 ms}", "between hosts"),
    ],
)
def test_bytes_that_stay_inside_are_named(monkeypatch: pytest.MonkeyPatch, network: str, links: str) -> None:
    monkeypatch.setattr("paceline.sim.experiments.costs.tokens.UTILISATIONS", ())
    text = SCENARIO.format(model="gpt2", latency="0 s", bandwidth="1 GB/s", more="", speed="10 Tflop/s")
    head, rest = text[: text.index("  network:")], text[text.index("schemes:") :]
    workers = "" if "sites" in network else "  workers: 2\n"
    wanted = throughput(parse(f"{head}{workers}  network: {network}\n{rest}"), tokens=1e6)
    assert wanted["sent_over"] == links


@pytest.mark.usefixtures("little_work")
def test_latency_can_make_a_share_impossible() -> None:
    utilisation = Utilisation(scenario_of(latency="10 s"), scenario_of().schemes[0])
    assert utilisation.needed(0.99) is None


@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
def test_algorithms_are_chosen_where_both_sides_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with all chosen anew has the same answers."""
    text = SCENARIO.format(model="gpt2", latency="2 ms", bandwidth="1 GB/s", more="", speed="10 Tflop/s")
    network = "sites={a: 1, b: 1, c: 1, d: 1, e: 1}", "within={latency: 1 ms, bandwidth: 1 GB/s}"
    wanted = parse(text, changes=["schemes=[all_reduce]", *(f"cluster.network.{each}" for each in network)])
    chosen = Counter[int]()
    few, all_anew = (Utilisation(wanted, wanted.schemes[0]) for _ in range(2))

    def count(scenario: Scenario, entries: Any) -> Scenario:
        chosen[id(now)] += 1
        return with_chosen(scenario, entries)

    monkeypatch.setattr(tokens, "with_chosen", count)
    monkeypatch.setattr(all_anew, "_plain", False)
    shares, needed = (0.3, 0.6, 0.8), []
    for now in (few, all_anew):
        needed.append([now.needed(share) for share in shares])
    assert needed[0] == needed[1]
    assert few._known.keys() == all_anew._known.keys()
    assert chosen[id(all_anew)] == len(all_anew._known)
    assert 1 < chosen[id(few)] < len(few._known)


def test_an_island_is_as_fast_as_its_gpus_with_their_utilisation() -> None:
    alone = scenario_of()
    island = scenario_of(more="island: {gpus: 8, utilisation: 0.5}", speed="10 Tflop/s")
    times = [prepare(each, each.schemes[0], 0).compute.duration_s(0, 0) for each in (alone, island)]
    assert times[1] == times[0] / 4


def test_tokens_are_those_of_language_models() -> None:
    assert tokens_per_example(LayerProfile(preset="llama-2-7b")) == 4096
    assert tokens_per_example(LayerProfile(preset="resnet-50")) is None
    with pytest.raises(InputError, match="tokens are those of a language model"):
        throughput(scenario_of("resnet-50"))


def test_the_law_says_that_it_is_one(answer: dict[str, Any]) -> None:
    assert answer["loss_by_scaling_law"] == HOFFMANN.loss(PARAMETERS, 1e9)
    assert HOFFMANN.loss(PARAMETERS, HOFFMANN.tokens_to(PARAMETERS, 3.0)) == pytest.approx(3.0)
    assert "no loss was trained or measured here" in answer["scaling_law"]
    assert not answer["tokens_by_scaling_law"]
    with pytest.raises(InputError, match="never comes below"):
        throughput(scenario_of(), loss=2.0)
    with pytest.raises(InputError, match="give one of them"):
        throughput(scenario_of(), tokens=1e9, loss=3.0)


def test_the_table_names_what_is_not_known(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    schemes = [*answer["schemes"], {"label": "other", "problem": "it needs values"}]
    Console(width=200).print(render_throughput({**answer, "schemes": schemes}))
    printed = capsys.readouterr().out
    assert "sent: by all workers together, between sites" in printed
    assert "2 workers, 124,439,808 parameters, 16,384 tokens a step" in printed
    assert "not known: it needs values" in printed
    assert f"loss {answer['loss_by_scaling_law']:.3f}" in printed


@pytest.mark.usefixtures("little_work")
def test_a_step_an_hour_and_tokens_in_dollars(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: two workers at $2 an hour; each sends all bytes to the other site at $0.5 a GB."""
    monkeypatch.setattr("paceline.sim.experiments.costs.tokens.UTILISATIONS", (0.5,))
    priced = resolve_scenario(scenario_of(), None, ["price={worker_hour: $2, egress: $0.5}"])
    answer = throughput(priced, tokens=1e9)
    for row, exchanges in zip(answer["schemes"], (1.0, 0.1), strict=True):
        step = 4 * row["step_s"] / 3600 + exchanges * 2 * 4 * PARAMETERS / 1e9 * 0.5
        assert row["billed_bytes_per_step"] == pytest.approx(exchanges * 2 * 4 * PARAMETERS, rel=1e-6)
        assert row["costs"]["a step"] == pytest.approx(step, rel=1e-6)
        assert row["costs"]["an hour"] == pytest.approx(step * 3600 / row["step_s"], rel=1e-6)
        assert row["costs"]["10^9 tokens"] == pytest.approx(step * 1e9 / (2 * 8 * 1024), rel=1e-6)
        assert row["costs"]["all tokens"] == pytest.approx(row["costs"]["10^9 tokens"])
    console = Console(width=100)
    with console.capture() as printed:
        console.print(render_throughput(answer))
    assert "Prices: $4 an hour for all workers, and $0.5 for a GB between sites." in printed.get()
    assert "Costs have the time" not in printed.get()
    with console.capture() as printed:
        console.print(render_throughput(answer | {"schemes": [answer["schemes"][0] | {"goodput": 0.3}]}))
    assert "Costs have the time in them that faults and checkpoints take, but no bytes" in printed.get()


def test_without_prices_nothing_costs(answer: dict[str, Any]) -> None:
    assert answer["price"] is None
    assert {row["costs"] for row in answer["schemes"]} == {None}


@pytest.mark.usefixtures("little_work")
def test_the_best_checkpoints_are_those_of_a_scheme_in_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.experiments.costs.tokens.UTILISATIONS", ())
    changes = [
        "cluster.faults=[{sites: [a], mean_time_between: 20 min, back_after: 10 s}]",
        "checkpoint={every: 100 s, write: 12 s, restart: 20 s}",
        "schemes=[all_reduce, {diloco: {period: 10}}, {all_reduce: {on_fault: wait, label: waits}}]",
    ]
    answer = throughput(resolve_scenario(scenario_of(), None, changes))
    reduced, diloco, waits = answer["schemes"]
    assert waits["best_checkpoints"] is None
    best = diloco["best_checkpoints"]
    assert best == reduced["best_checkpoints"]  # of time: it is longer than their steps
    assert best["every_s"] == pytest.approx(math.sqrt(2 * 12 * 1200), rel=0.1)  # Young's first order
    assert max(best["tenfold"], best["tenth"], diloco["goodput"]) < best["goodput"]
    with (console := Console(width=300)).capture() as printed:
        console.print(render_throughput(answer))
    steps, shares = best["every_s"] / diloco["step_s"], (best[key] for key in ("goodput", "tenfold", "tenth"))
    at_best, tenfold, tenth = (f"{100 * each:.1f} %" for each in shares)
    assert (
        f"diloco: the best checkpoint.every is {best['every_s'] / 60:.3g} min ({steps:,.0f} of"
        in printed.get()
    )
    assert (
        f"a goodput of {at_best}; ten times as many checkpoints leave {tenfold}, a tenth of them {tenth}."
        in printed.get()
    )
    assert "waits: the best" not in printed.get()
