"""The fastest and the cheapest for a number of tokens, by hand on two sites."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.commands.app import app
from paceline.extras.recommend.plan import plan
from paceline.sim.scenario.schema import parse

pytestmark = pytest.mark.usefixtures("little_work")
PARAMETERS = 124_439_808
TOKENS = 1e9
PLANNED = """
name: planned
workload: {timing_only: true, layer_profile: gpt2, batch_size: 8}
cluster:
  compute: {speed: 10 Tflop/s}
  network:
    sites: {a: 1, b: 1}
    within: {latency: 0 s}
    between: {latency: 0 s, bandwidth: 1 GB/s}
schemes: [diloco: {period: 10}, all_reduce, sharded: {}]
price: {worker_hour: 2 $, egress: 0.5 $}
stop: {max_iterations: 10}
"""


def test_hours_and_costs_are_those_of_all_tokens() -> None:
    """Two workers at $2 an hour; each sends a model, or a tenth of it a step, over a link at $0.5 a GB."""
    answer = plan(parse(PLANNED.replace(", sharded: {}", "")), TOKENS, math.inf, math.inf)
    diloco, reduced = answer["schemes"]
    assert [diloco["label"], reduced["label"]] == ["diloco", "all_reduce"]
    steps = TOKENS / (2 * 8 * 1024)
    assert reduced["hours"] - diloco["hours"] == pytest.approx(steps * 0.9 * 4 * PARAMETERS / 1e9 / 3600)
    for row, exchanges in ((diloco, 0.1), (reduced, 1.0)):
        egress = steps * exchanges * 2 * 4 * PARAMETERS / 1e9 * 0.5
        assert row["cost"] == pytest.approx(4 * row["hours"] + egress, rel=1e-6)
    assert (answer["fastest"], answer["cheapest"]) == ("diloco", "diloco")
    assert answer["text"][-2] == "Recommended: diloco."
    assert answer["text"][-1].startswith("To run diloco, torchft ")
    assert "[model], Optimizer(model.parameters(), ...), SGD(" in answer["text"][-1]  # nothing is trained
    assert "sync_every=10" in answer["to_run"]["diloco"][0]["write"]


def test_what_exceeds_a_limit_is_marked_and_no_advice() -> None:
    free = plan(parse(PLANNED), TOKENS, math.inf, math.inf)["schemes"]
    hours, costs = ([row[key] for row in free] for key in ("hours", "cost"))
    answer = plan(parse(PLANNED), TOKENS, hours[0], costs[0])  # just enough for the first
    assert [(row["late"], row["over_budget"]) for row in answer["schemes"]] == [
        (False, False), *((True, cost > costs[0]) for cost in costs[1:])
    ]  # fmt: skip
    assert answer["text"][0].startswith("diloco: ")
    assert answer["text"][1].count("too late") == answer["text"][1].count("over budget") == 1
    none = plan(parse(PLANNED), TOKENS, 0.99 * hours[0], math.inf)
    assert (none["fastest"], none["cheapest"]) == (None, None)
    assert none["text"][-1] == "Nothing ends in time and within the budget."


def test_the_fastest_and_the_cheapest_are_named_where_they_differ() -> None:
    """With two sites' bytes at a high price, a scheme of few bytes and slow codes costs least."""
    coded = "local_sgd: {period: 10, round: 5 s, compression: {qsgd: {bits: 8}}, label: coded}"
    dear = PLANNED.replace("all_reduce, sharded: {}", coded)
    answer = plan(parse(dear), TOKENS, math.inf, math.inf)
    assert (answer["fastest"], answer["cheapest"]) == ("diloco", "coded")
    assert "Fastest: diloco. Cheapest: coded." in answer["text"]
    assert list(answer["to_run"]) == ["diloco", "coded"]
    unpriced = plan(
        parse(dear.replace("price: {worker_hour: 2 $, egress: 0.5 $}", "")), TOKENS, 1e9, math.inf
    )
    assert "Recommended: diloco." in unpriced["text"]
    assert "$" not in " ".join(unpriced["text"])


def test_the_command_says_the_same(tmp_path: Path) -> None:
    (scenario := tmp_path / "planned.yaml").write_text(PLANNED)
    words = ["recommend", str(scenario), "--tokens", "1e9", "--hours", "500", "--budget", "20000 $"]
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    printed = CliRunner().invoke(app, words).stdout
    assert printed.splitlines()[: len(answer["text"])] == answer["text"]
    assert "nothing is trained here" in printed
