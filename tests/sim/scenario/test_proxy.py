"""The task that stands for a language model in a scenario without one."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from paceline.sim.errors import InputError
from paceline.sim.records.scenario_facts import describe_proxy
from paceline.sim.scenario.entries import PROXY_EXAMPLES, RATES, STEPS, with_proxy
from paceline.sim.scenario.schema import Scenario, dump, parse

LANGUAGE_MODEL = """\
name: m
workload: {layer_profile: gpt2, batch_size: 60, optimizer: {adamw: {lr: 0.0003, beta2: 0.95}}}
cluster: {workers: 8, compute: {time: 1 s}, network: {latency: 1 ms, bandwidth: 1 Gbit/s}}
schemes: [all_reduce, {diloco: {period: 100}}]
"""


def scenario(old: str = "", new: str = "") -> Scenario:
    return parse(LANGUAGE_MODEL.replace(old, new, 1))


def test_a_language_model_without_a_task_has_a_small_one_trained() -> None:
    found = scenario()
    workload = found.workload
    assert workload.task == "text-mlp"
    assert workload.batch_size == 60
    assert workload.drawn_examples([60] * 8) == (PROXY_EXAMPLES // 8,) * 8
    assert workload.optimizer.adamw is not None
    assert workload.optimizer.adamw.beta2 == 0.95
    assert found.stop.max_iterations == STEPS
    assert found.tune is not None
    assert found.tune.grid == {"optimizer.lr": RATES}
    assert found.tune.trials == 3
    assert found.repeats == 5


def test_the_resolved_scenario_says_it_and_loads_again() -> None:
    found = scenario()
    assert parse(dump(found)) == found
    assert f"proxy_batch: {PROXY_EXAMPLES}" in dump(found)


def test_every_command_says_what_was_trained() -> None:
    assert describe_proxy(yaml.safe_load(dump(scenario()))) == (
        "A small proxy (text-mlp, 256 examples a step) was trained in place of the real model: exchanges "
        "were timed as those of gpt2, while losses and steps are the proxy's."
    )


@pytest.mark.parametrize(("period", "steps"), [(20, STEPS), (500, STEPS), (1000, 16_000)])
def test_there_are_sixteen_rounds_of_the_longest_period(period: int, steps: int) -> None:
    assert scenario("period: 100", f"period: {period}").stop.max_iterations == steps


def test_what_is_written_stays() -> None:
    found = scenario("name: m\n", "name: m\nrepeats: 2\nstop: {max_iterations: 50}\n")
    assert found.repeats == 2
    assert found.stop.target is None
    assert found.stop.max_iterations == 50


def test_the_schedule_is_that_of_the_short_run() -> None:
    found = scenario("0.95}", "0.95}, schedule: {warmup: 2000 steps, cosine: {until: 100000 steps}}")
    schedule = found.workload.optimizer.schedule
    assert schedule is not None
    assert schedule.model_dump(mode="json")["warmup"] == "100 steps"


def test_another_optimiser_needs_rates() -> None:
    sgd = ("adamw: {lr: 0.0003, beta2: 0.95}", "lr: 0.1")
    with pytest.raises(InputError, match=r"rates for AdamW alone; add for example 'tune: {optimizer.lr"):
        scenario(*sgd)
    text = LANGUAGE_MODEL.replace(*sgd) + "tune: {optimizer.lr: [0.1, 0.2, 0.4], trials: 3}\n"
    assert parse(text).workload.task == "text-mlp"


@pytest.mark.parametrize(
    "other", [{"layer_profile": "resnet-50"}, {"timing_only": True}, {"curves": "c.csv"}]
)
def test_other_models_and_clocks_alone_have_none(other: dict[str, Any]) -> None:
    data = {"workload": {"layer_profile": "gpt2", "optimizer": {"adamw": {"lr": 1}}, **other}}
    assert with_proxy(data) == data


def test_a_batch_of_a_proxy_needs_the_model_that_it_stands_for() -> None:
    text = "name: m\nworkload: {task: digits-mlp, proxy_batch: 8, batch_size: 4, optimizer: {lr: 1}}\n"
    with pytest.raises(InputError, match="proxy_batch: needs the model that the task stands for"):
        parse(text + LANGUAGE_MODEL.split("\n", 2)[2] + "stop: {max_iterations: 3}\n")


def test_many_workers_draw_one_example_each() -> None:
    assert scenario().workload.drawn_examples([60] * 1000) == (1,) * 1000


def test_a_forgotten_optimiser_is_named() -> None:
    with pytest.raises(InputError, match=r"workload\.optimizer: is missing"):
        scenario(", optimizer: {adamw: {lr: 0.0003, beta2: 0.95}}", "")
