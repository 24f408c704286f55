"""What records take from a resolved scenario's text, which may be damaged or hostile."""

from __future__ import annotations

import pytest

from paceline.sim.records.scenario_facts import all_reduce_of, read_facts
from paceline.sim.scenario.schema import dump, parse

TEXT = """\
name: facts
workload: {task: quadratic, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 3, compute: {time: 1 ms}, network: {latency: 20 ms, transport: nccl}}
evaluate: {on: workers}
schemes: [all_reduce]
stop: {target: {metric: train_loss, value: 0.5}, max_iterations: 10}
"""


def test_workers_target_and_transport_are_read() -> None:
    known = read_facts(dump(parse(TEXT)))
    assert known.target == {"metric": "train_loss", "value": 0.5}
    assert known.transport == {
        "name": "nccl",
        "hosts": "tuned",
        "all_reduce": "its own choice",
        "not_validated": ["messages this small", "latency 20 ms (measured: 50 us to 10 ms)"],
    }


@pytest.mark.parametrize(
    ("chosen", "known", "of_a"),
    [
        ("{a: {all_reduce: ring}, b: {all_reduce: double_tree}, c: {shares: exchange}}",
         "double_tree or ring", "ring"),
        ("{c: {shares: exchange}}", "auto", "auto"),
        ("hierarchical", "hierarchical", "hierarchical"),  # of an older version
        ("null", "auto", "auto"),
    ],
)  # fmt: skip
def test_the_all_reduces_of_all_schemes_or_of_one(chosen: str, known: str, of_a: str) -> None:
    collectives = parse(f"{TEXT}collectives: {{chosen: {chosen}}}\n").collectives.model_dump()
    assert all_reduce_of(collectives) == known
    assert all_reduce_of(collectives, "a") == of_a
    assert all_reduce_of({**collectives, "all_reduce": "ring", "chosen": None}, "a") == "ring"


@pytest.mark.parametrize("text", ["", "name: s", "stop: {max_time: 1 h}", "stop: {target: 3}"])
def test_a_scenario_without_a_target(text: str) -> None:
    assert read_facts(text).target is None


def test_a_proxy_is_named_by_what_it_stands_for() -> None:
    def proxy(workload: str) -> str | None:
        return read_facts(f"workload: {workload}").proxy

    assert proxy("{task: digits-mlp}") is None
    assert proxy("{timing_only: true, payload: 1 GB}") == (
        "Nothing was trained: only time was simulated. What a step teaches differs by scheme."
    )
    of_bytes = proxy("{task: digits-mlp, payload: 1 GB}")
    assert of_bytes is not None
    assert "as if the model had 1 GB" in of_bytes
    of_layers = proxy("{task: text-transformer, layer_profile: {preset: llama-2-7b, rows: []}}")
    assert of_layers is not None
    assert "exchanges were timed as those of llama-2-7b, while losses and steps are the proxy's" in of_layers
