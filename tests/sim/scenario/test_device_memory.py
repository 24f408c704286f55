"""What a device has to hold, by hand; what does not fit is refused with the sum."""

from __future__ import annotations

import pytest

from paceline.sim.errors import InputError
from paceline.sim.records.summary import MemoryRecord
from paceline.sim.scenario.entries import device_memory
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.workloads import find_task
from paceline.sim.workloads.layers.presets import PRESETS

SCENARIO = """\
name: memory
workload: {{timing_only: true, {model}, optimizer: {{adamw: {{lr: 0.001}}}}}}
cluster:
  workers: 4
  compute: {{time: 1 s}}
  {more}
  network: {{latency: 1 ms, bandwidth: 1 Gbit/s{host}}}
schemes: [{scheme}]
stop: {{max_iterations: 1}}
"""


def scenario_of(
    scheme: str = "all_reduce", model: str = "payload: 10 GB", more: str = "", host: str = ""
) -> Scenario:
    return parse(SCENARIO.format(scheme=scheme, model=model, more=more, host=host))


def memory_of(scenario: Scenario) -> MemoryRecord:
    memory = device_memory(scenario.workload, scenario.cluster, scenario.schemes[0], scenario.seed)
    assert memory is not None
    return memory


def test_the_parts_by_hand() -> None:
    memory = memory_of(scenario_of("{diloco: {period: 10, fragments: 5}}"))
    assert memory["parts"] == {
        "parameters": 10e9, "gradients": 10e9, "optimiser": 20e9, "anchors": 10e9, "outer momentum": 10e9,
        "in flight": 16e9,
    }  # fmt: skip
    assert memory["total_bytes"] == 76e9
    assert memory["left_out"] == ["what the library keeps for itself", "activations"]
    assert memory["limit_bytes"] is None


def test_an_island_shards_everything_and_gathers_a_layer() -> None:
    more = "island: {gpus: 8}"
    memory = memory_of(scenario_of(model="layer_profile: gpt2, batch_size: 16", more=more))
    layers = PRESETS["gpt2"]()
    parameters = sum(layer.parameters for layer in layers)
    outputs = sum(layer.outputs for layer in layers)
    assert memory["parts"] == {
        "parameters": parameters / 2, "gradients": parameters / 2, "optimiser": parameters,
        "in flight": parameters,
        "the layer that is gathered": 2 * 4 * max(layer.parameters for layer in layers),
        "outputs of layers": 16 * outputs / 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "host", "advice"),
    [
        ("memory: 60 GB", "", "(cluster.memory), or shard a worker over more GPUs (cluster.island)"),
        (
            "",
            ", host: {memory: 60 GB}",
            "(cluster.network.host.memory), or shard a worker over more GPUs (cluster.island)",
        ),
        (
            "memory: 60 GB",
            ", host: {gpus: 2}",
            "(cluster.memory), or shard a worker over more GPUs (cluster.island, in the place of "
            "cluster.network.host: workers are then whole islands)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_sum(more: str, host: str, advice: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_of("{diloco: {period: 10, fragments: 5}}", more=more, host=host)
    assert str(caught.value) == (
        "scenario:8: schemes.0.diloco: a worker's device would hold 76 GB = parameters 10 GB + gradients "
        "10 GB + optimiser 20 GB + anchors 10 GB + outer momentum 10 GB + in flight 16 GB, and has 60 GB; "
        f"give it more {advice}"
    )


def test_what_fits_is_taken() -> None:
    assert memory_of(scenario_of(more="memory: 64 GB"))["limit_bytes"] == 64e9
    host = ", host: {gpus: 2, memory: 80 GB}"
    assert memory_of(scenario_of(more="memory: 1 GB", host=host))["limit_bytes"] == 80e9


def test_a_trained_model_counts_its_own_parameters() -> None:
    text = SCENARIO.format(scheme="all_reduce", model="payload: 1 GB", more="", host="")
    trained = text.replace(
        "timing_only: true, payload: 1 GB, optimizer: {adamw: {lr: 0.001}}",
        "task: digits-mlp, batch_size: 8, optimizer: {lr: 0.1}",
    )
    scenario = parse(trained)
    parameters = find_task("digits-mlp").facts(scenario.workload.options, 0).num_parameters
    assert memory_of(scenario)["parts"] == {
        "parameters": 4 * parameters,
        "gradients": 4 * parameters,
        "in flight": 8 * parameters,
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("island: {gpus: 8, utilisation: 0.4}", "island.utilisation: needs compute.speed"),
        ("island: {gpus: 0}", "island.gpus"),
    ],
)
def test_islands_that_cannot_be_are_refused(more: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_of(more=more)
    assert message in str(caught.value)


def test_an_island_of_workers_of_one_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"cluster\.island: is a worker of several GPUs"):
        scenario_of(more="island: {gpus: 8}", host=", host: {gpus: 2}")
