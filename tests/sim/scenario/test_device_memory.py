"""What a device has to hold, by hand; what does not fit is refused with the sum."""

from __future__ import annotations

import pytest

from paceline.sim.errors import InputError
from paceline.sim.records.summary import MemoryRecord
from paceline.sim.scenario.device_memory import device_memory
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
        f"give it more {advice}, or the model over the workers (the scheme sharded)"
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


# ZeRO: 7.5e9 parameters in 16 bits, 64 workers, Adam: figure 1 of Rajbhandari et al., SC 2020 [S].
ZERO = "payload: 15 GB, precision: bf16"


@pytest.mark.parametrize(
    ("scheme", "gigabytes"),
    [
        ("{sharded: {shard: optimizer, unit: 2 MB}}", 31.4),
        ("{sharded: {shard: gradients, unit: 2 MB}}", 16.6),
        ("{sharded: {unit: 2 MB}}", 1.9),
    ],
)
def test_shards_take_what_the_paper_of_zero_says(scheme: str, gigabytes: float) -> None:
    scenario = parse(
        SCENARIO.replace("workers: 4", "workers: 64").format(scheme=scheme, model=ZERO, more="", host="")
    )
    assert memory_of(scenario)["total_bytes"] / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_whole_models_in_16_bits_take_sixteen_bytes_a_parameter_and_what_is_in_flight() -> None:
    parts = memory_of(scenario_of(model=ZERO))["parts"]
    assert sum(parts.values()) - parts["in flight"] == pytest.approx(120e9)
    assert parts["master copy"] == 30e9
    assert parts["gradients"] == parts["parameters"] == 15e9


@pytest.mark.parametrize(
    ("options", "parameters", "in_flight"),
    [
        # of 10 GB a quarter, and units: one computed, one behind, those ahead; two gradients
        ("unit: 1 GB", 2.5 + 3, 2),
        ("unit: 1 GB, prefetch: 3", 2.5 + 5, 2),
        ("unit: 3 GB", 2.5 + 3 * 10 / 3, 2 * 10 / 3),
        ("unit: 1 GB, shard: gradients", 10, 2),
    ],
)
def test_units_that_are_gathered_count(options: str, parameters: float, in_flight: float) -> None:
    parts = memory_of(scenario_of(f"{{sharded: {{{options}}}}}"))["parts"]
    assert parts["parameters"] == pytest.approx(parameters * 1e9)
    assert parts["in flight"] == pytest.approx(in_flight * 1e9)


def test_layers_of_a_profile_are_the_units() -> None:
    parts = memory_of(scenario_of("sharded", "layer_profile: gpt2, precision: bf16"))["parts"]
    sizes = [layer.parameters for layer in PRESETS["gpt2"]()]
    assert parts["parameters"] == pytest.approx(2 * (sum(sizes) / 4 + 3 * max(sizes)))
    wide = memory_of(scenario_of("{sharded: {gradients: float32}}", "layer_profile: gpt2, precision: bf16"))
    assert wide["parts"]["in flight"] == 2 * parts["in flight"]


def test_what_needs_16_bits_or_a_model_is_refused() -> None:
    with pytest.raises(InputError, match="leave 'gradients' out, or write 'precision: bf16' in workload"):
        scenario_of("{sharded: {unit: 1 GB, gradients: float32}}")
    task = "task: quadratic, batch_size: 2, precision: bf16"
    trains = SCENARIO.replace("timing_only: true, ", "")
    with pytest.raises(InputError, match="add a payload or a layer_profile"):
        parse(trains.format(scheme="all_reduce", model=task, more="", host=""))
