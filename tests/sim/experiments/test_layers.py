"""Models that stand for larger ones by their layers: what they send, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.errors import InputError
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import dump, load, parse

TWO_LAYERS = "layer,parameters,forward_flops\nfirst,250000,1e9\nlast,750000,3e9\n"
SCENARIO = """\
name: layers
workload: {timing_only: true, layer_profile: two.csv, batch_size: 2}
cluster:
  workers: 2
  compute: {speed: 24 Gflop/s}
  network: {latency: 0 s, bandwidth: 80 Mbit/s}
collectives: {all_reduce: ring}
schemes: [all_reduce, {all_reduce: {overlap: true}}]
stop: {max_iterations: 3}
"""


def runs(folder: Path, text: str = SCENARIO) -> list[Run]:
    (folder / "two.csv").write_text(TWO_LAYERS)
    (folder / "layers.yaml").write_text(text)
    return list(simulate(load(folder / "layers.yaml")))


def test_layers_are_sent_as_they_are_ready(tmp_path: Path) -> None:
    """A gradient takes 24 Gflop / 24 Gflop/s; 4 MB take 0.4 s, the last layer's 3 MB leave after 7/12 s."""
    plain, overlapped = runs(tmp_path)
    assert plain.wall_clock_s == pytest.approx(3 * 1.4)
    assert overlapped.wall_clock_s == pytest.approx(3 * 1.1)
    assert plain.bytes_sent == overlapped.bytes_sent == 3 * 2 * 4e6


def test_layers_that_are_computed_again_take_a_third_more(tmp_path: Path) -> None:
    """Forward 1 + 3, backward 9 + 3 parts of 4/3 s: the last layer's 3 MB leave after 10/16 of them."""
    text = SCENARIO.replace("two.csv", "{file: two.csv, recompute: true}")
    plain, overlapped = runs(tmp_path, text)
    assert plain.wall_clock_s == pytest.approx(3 * (4 / 3 + 0.4))
    assert overlapped.wall_clock_s == pytest.approx(3 * (4 / 3 + 0.1))


def test_a_bucket_waits_for_its_layers(tmp_path: Path) -> None:
    text = SCENARIO.replace("overlap: true", "overlap: true, bucket: 4 MB")
    assert runs(tmp_path, text)[1].wall_clock_s == pytest.approx(3 * 1.4)


def test_a_payload_says_what_the_layers_weigh(tmp_path: Path) -> None:
    text = SCENARIO.replace("layer_profile: two.csv", "layer_profile: two.csv, payload: 2 MB")
    assert runs(tmp_path, text)[0].wall_clock_s == pytest.approx(3 * 1.2)


def test_a_small_model_learns_with_the_layers_of_a_large_one(tmp_path: Path) -> None:
    workload = "{task: digits-mlp, optimizer: {lr: 0.1}, layer_profile: two.csv, batch_size: 2}"
    text = SCENARIO.replace("{timing_only: true, layer_profile: two.csv, batch_size: 2}", workload)
    plain, overlapped = runs(tmp_path, text)
    assert plain.wall_clock_s == pytest.approx(3 * 1.4, rel=1e-3)
    assert overlapped.wall_clock_s == pytest.approx(3 * 1.1, rel=1e-3)
    assert plain.digest == overlapped.digest


def test_a_resolved_scenario_has_the_layers(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text(TWO_LAYERS)
    (tmp_path / "layers.yaml").write_text(SCENARIO)
    scenario = load(tmp_path / "layers.yaml")
    (tmp_path / "two.csv").unlink()
    assert parse(dump(scenario)) == scenario


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layer_profile: two.csv", "layer_profile: vgg_a", "did you mean 'vgg-a'"),
        ("layer_profile: two.csv", "layer_profile: none.csv", "none.csv"),
        ("layer_profile: two.csv, ", "payload: 1 MB, ", "needs workload.layer_profile"),
        ("24 Gflop/s", "24 GB/s", "is a data rate, not a computing speed"),
        ("24 Gflop/s", "24 GFlops", "24 GFlops"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        runs(tmp_path, SCENARIO.replace(old, new))


SHAPE = "{transformer: {layers: 1, width: 4, feed_forward: 8, vocabulary: 10, length: 2}}"


def test_a_shape_stands_for_its_parameters(tmp_path: Path) -> None:
    """4 x 16 + 2 x 32 weights, 28 biases, three normalisations of 8, and the table's 40."""
    text = SCENARIO.replace("layer_profile: two.csv", f"layer_profile: {SHAPE}")
    (tmp_path / "layers.yaml").write_text(text)
    scenario = load(tmp_path / "layers.yaml")
    assert parse(dump(scenario)) == scenario
    parameters = 4 * 16 + 2 * 32 + 28 + 3 * 8 + 40
    assert scenario.workload.layer_profile is not None
    assert scenario.workload.layer_profile.num_parameters == parameters
    assert runs(tmp_path, text)[0].bytes_sent == 3 * 2 * 4 * parameters


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width: 4", "width: 4, heads: 3", "transformer.heads: 3 heads do not divide a width of 4"),
        ("width: 4", "width: 4, heads: 4, key_heads: 3", "key_heads: must divide heads, which is 4"),
        ("width: 4", "wide: 4", "did you mean 'width'"),
        ("layers: 1", "layers: 0", "transformer.layers"),
        (
            "{transformer",
            "{preset: gpt2, transformer",
            "give the name of a known model, a transformer's shape",
        ),
    ],
)
def test_a_wrong_shape_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        runs(tmp_path, SCENARIO.replace("two.csv", SHAPE.replace(old, new)))


TIMED: str = "layer,parameters,forward [ms],backward [ms]\nfirst,250000,100,200\nlast,750000,200,500\n"


def timed(folder: Path, table: str = TIMED, compute: str = "{time: 1 s}") -> list[Run]:
    (folder / "timed.csv").write_text(table)
    text = SCENARIO.replace("two.csv", "timed.csv").replace("{speed: 24 Gflop/s}", compute)
    (folder / "timed.yaml").write_text(text)
    scenario = load(folder / "timed.yaml")
    assert parse(dump(scenario)) == scenario
    return list(simulate(scenario))


def test_timed_layers_are_sent_when_they_were_ready(tmp_path: Path) -> None:
    """The last layer's 3 MB leave after 0.8 s and take 0.3 s; the first one's 1 MB join them after 1 s."""
    plain, overlapped = timed(tmp_path)
    assert plain.wall_clock_s == pytest.approx(3 * 1.4)
    assert overlapped.wall_clock_s == pytest.approx(3 * 1.2)


@pytest.mark.parametrize(
    ("table", "compute", "message"),
    [
        (TIMED, "{speed: 1 Tflop/s}", "have times; write compute.time"),
        (TIMED.replace("backward [ms]", "back [ms]"), "{time: 1 s}", "has no column 'backward'"),
        (TIMED.replace("200,500", "200,-5"), "{time: 1 s}", "timed.csv:3: backward"),
        (TIMED.replace(" [ms]", ""), "{time: 1 s}", "timed.csv:2: forward"),
    ],
)
def test_timed_layers_that_cannot_be_are_named(
    tmp_path: Path, table: str, compute: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        timed(tmp_path, table, compute)


@pytest.mark.parametrize(
    "row",
    [
        "{name: a, parameters: 1}",
        "{name: a, parameters: 1, forward: 1 ms}",
        "{name: a, parameters: 1, forward_flops: 1, forward: 1 ms, backward: 1 ms}",
        "{name: a, parameters: 1, forward: 1 ms, backward: 1 ms}",
    ],
)
def test_layers_have_operations_or_times(row: str) -> None:
    rows = f"{{rows: [{row}, {{name: b, parameters: 1, forward_flops: 1}}]}}"
    with pytest.raises(InputError, match=r"forward_flops, or forward and backward|others operations"):
        parse(SCENARIO.replace("two.csv", rows).replace("{speed: 24 Gflop/s}", "{time: 1 s}"))


@pytest.mark.parametrize(
    "row",
    [
        "first,1.5,1e9",
        "first,-1,1e9",
        "first,1,nan",
        "first,1,1e300",
        "first,0,1e9",
        ",1,1",
        "first,\u0661,1e9",
    ],
)
def test_files_of_layers_are_read_with_care(tmp_path: Path, row: str) -> None:
    (tmp_path / "two.csv").write_text(f"layer,parameters,forward_flops\n{row}\n")
    (tmp_path / "layers.yaml").write_text(SCENARIO)
    with pytest.raises(InputError, match=r"layers|two\.csv"):
        load(tmp_path / "layers.yaml")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            "layer,parameters [M],forward_flops\na,25,1e9",
            "two.csv:2: parameters: must be a number, not '25 M'",
        ),
        ("layer,parameters,forward_flops [GFLOP]\na,25,4", "forward_flops: must be a number, not '4 GFLOP'"),
        ("layer,parameters,forward_flops\na,1e6,4", "parameters: must be a whole number"),
    ],
)
def test_units_of_layers_are_not_lost(tmp_path: Path, table: str, says: str) -> None:
    (tmp_path / "two.csv").write_text(table + "\n")
    (tmp_path / "layers.yaml").write_text(SCENARIO)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "layers.yaml")
    assert says in str(caught.value)


def test_times_already_hold_what_was_computed_again(tmp_path: Path) -> None:
    (tmp_path / "timed.csv").write_text(TIMED)
    (tmp_path / "timed.yaml").write_text(SCENARIO.replace("two.csv", "{file: timed.csv, recompute: true}"))
    with pytest.raises(InputError, match="recompute: goes with operations; the times of these layers hold"):
        load(tmp_path / "timed.yaml")
