"""Words of other tools are answered with what to write here."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

import paceline
from paceline.sim.config.problems import answer_word

SCENARIO: dict[str, Any] = {
    "name": "words",
    "workload": {"task": "digits-mlp", "batch_size": 32, "optimizer": {"lr": 0.1}},
    "cluster": {
        "workers": 8,
        "compute": {"time": "50 ms"},
        "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    },
    "schemes": [{"all_reduce": {}}],
    "stop": {"max_iterations": 3},
}
SCHEME = ("schemes", 0, "all_reduce")
PLACES: list[tuple[str, tuple[str | int, ...]]] = [
    *((word, SCHEME) for word in ("no_sync", "join", "fp16", "bf16", "int8", "amp", "bucket_cap_mb")),
    *(
        (word, ("workload",))
        for word in ("no_sync", "gradient_accumulation_steps", "fp16", "accumulation_steps")
    ),
    *((word, ("cluster", "network")) for word in ("rtt", "ping", "loss", "packet_loss", "round-trip", "mtu")),
    *((word, ("cluster",)) for word in ("nodes", "world_size", "gpus", "loss", "rtt", "nproc_per_node")),
    ("fp16", ("cluster", "compute")),
    ("global_batch_size", ("workload",)),
    ("clip_grad_norm", ("workload", "optimizer")),
    ("max_steps", ("stop",)),
    ("reshard_after_forward", SCHEME),
    ("sharding_strategy", SCHEME),
    ("param_dtype", ("workload",)),
    ("activation_checkpointing", ("workload",)),
    ("NCCL_ALGO", ("cluster", "network")),
]


def changed(at: tuple[str | int, ...], key: str, value: Any) -> dict[str, Any]:
    scenario: Any = copy.deepcopy(SCENARIO)
    inner = scenario
    for part in at:
        inner = inner[part]
    inner[key] = value
    return dict(scenario)


def message_of(scenario: dict[str, Any]) -> str:
    with pytest.raises(paceline.InputError) as error:
        paceline.simulate(scenario, progress=False)
    return str(error.value)


@pytest.mark.parametrize(("word", "at"), PLACES)
def test_a_word_is_answered_where_it_is_likely(word: str, at: tuple[str | int, ...]) -> None:
    message = message_of(changed(at, word, 4))
    assert f"{word}: unknown key; {answer_word(word)}" in message
    assert answer_word(word)


def test_values_and_schemes_are_answered_too() -> None:
    assert "codes of 8 bits" in message_of(changed(SCHEME, "compression", "int8"))
    assert "codes of 8 bits" in message_of(changed(SCHEME, "compression", {"fp8": True}))
    assert "accumulate: 4" in message_of(changed((), "schemes", ["no_sync"]))
    assert "sharded: {inside: hosts}" in message_of(changed((), "schemes", ["hsdp"]))
    assert "write 'sharded'" in message_of(changed((), "schemes", ["zero3"]))


def test_known_keys_are_not_answered() -> None:
    paceline.simulate(changed(SCHEME, "compression", {"fp16": True}), progress=False, jobs=1)
    network = {**SCENARIO["cluster"]["network"], "tcp": {"loss": 0.001}}
    paceline.simulate(changed(("cluster",), "network", network), progress=False, jobs=1)


@pytest.mark.parametrize("word", dict.fromkeys(word for word, _ in PLACES))
def test_what_to_write_can_be_written(word: str) -> None:
    scenario: Any = copy.deepcopy(SCENARIO)
    for text in re.findall(r"'([a-z_]+: \{.*?\})'(?:[ ;:,]|$)", answer_word(word)):
        ((key, value),) = yaml.safe_load(text).items()
        if key == "sharded":
            scenario["schemes"] = [{key: value}]
            continue
        target = {"compression": scenario["schemes"][0]["all_reduce"], "network": scenario["cluster"]}
        _merge(target.get(key, scenario) if key != "all_reduce" else scenario["schemes"][0], {key: value})
    scenario["stop"]["max_iterations"] = min(scenario["stop"]["max_iterations"], 4)  # the least is 1
    paceline.simulate(scenario, progress=False, jobs=1)


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
