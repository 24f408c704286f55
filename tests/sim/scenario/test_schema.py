"""Every error is checked word for word: file, line, key, what is wrong, the nearest valid choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.make.scenario import json_schema
from paceline.sim.config import yaml_file
from paceline.sim.errors import InputError
from paceline.sim.scenario.entries import SchemeEntry, WorkloadEntry
from paceline.sim.scenario.ready import ready_scenarios
from paceline.sim.scenario.schema import Scenario, dump, load, load_each, parse
from paceline.sim.schemes import SCHEMES
from paceline.sim.workloads import TASKS

ROOT = Path(__file__).parents[3]

FLAT = """\
name: small
workload:
  task: digits-mlp
  batch_size: 32
  optimizer: {lr: 0.1}
cluster:
  workers: 4
  compute: {time: 10 ms}
  network: {latency: 5 ms, bandwidth: 100 Mbit/s}
schemes:
  - all_reduce
  - local_sgd: {period: 8}
stop: {max_iterations: 100}
"""
SITES = """\
name: sites
workload:
  task: digits-mlp
  batch_size: 32
  optimizer: {lr: 0.1}
cluster:
  compute: {time: 10 ms}
  network:
    sites: {us: 2, eu: 1, asia: 1}
    within: {latency: 1 ms}
    between: {latency: {us-eu: 40 ms, default: 90 ms}}
schemes: [all_reduce]
stop: {max_iterations: 100}
"""


def refusal(text: str, *changes: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "f.yaml", changes)
    return str(caught.value)


def test_a_file_is_read_once_for_all_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FLAT)
    changes = [[f"cluster.workers={workers}"] for workers in (2, 3, 4)]
    alone = [load(path, each) for each in changes]
    original, read = yaml_file.parse, list[str]()

    def parse_and_count(text: str, source: str) -> yaml_file.Document:
        read.append(source)
        return original(text, source)

    monkeypatch.setattr(yaml_file, "parse", parse_and_count)
    assert list(load_each(path, changes)) == alone
    assert read.count(str(path)) == 1
    with pytest.raises(InputError, match=r"cluster\.workers"):
        list(load_each(path, [*changes, ["cluster.workers=0"]]))


# --- what a good file gives -------------------------------------------------------------------------


def test_defaults_are_filled_in() -> None:
    found = parse(FLAT)
    assert (found.seed, found.repeats, found.events, found.gradients) == (0, 1, "auto", "auto")
    assert found.collectives.all_reduce == "auto"
    assert found.cluster.network.transport == "ideal"
    assert (found.evaluate.every, found.evaluate.on) == (10, "published")
    assert (found.workload.partition.kind, found.workload.payload, found.workload.timing_only) == (
        "iid",
        None,
        False,
    )
    assert found.workload.optimizer.model_dump() == {
        "lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0
    }  # fmt: skip
    network = found.cluster.network
    assert (network.latency, network.bandwidth, network.sharing) == (0.005, 12.5e6, "max_min")
    assert (network.overhead, network.announcement) == (0.0, 0.0)
    assert (found.cluster.stragglers, found.cluster.compute.jitter) == ((), None)
    assert (found.stop.target, found.stop.max_time, found.stop.max_iterations) == (None, None, 100)


def test_task_options_stand_beside_the_common_keys() -> None:
    found = parse(FLAT.replace("batch_size: 32", "batch_size: 32\n  hidden: 7"))
    assert found.workload.options == TASKS["digits-mlp"].options.model_validate({"hidden": 7})
    assert hash(found.workload) == hash(parse(dump(found)).workload)


def test_schemes_carry_options_label_and_optimizer() -> None:
    text = FLAT.replace("period: 8", "period: 8, label: rarely, optimizer: {lr: 1, momentum: 0.5}")
    bare, full = parse(text).schemes
    assert (bare.name, bare.label, bare.optimizer) == ("all_reduce", "all_reduce", None)
    assert bare.options == SCHEMES["all_reduce"].options()
    assert (full.name, full.label) == ("local_sgd", "rarely")
    assert full.options == SCHEMES["local_sgd"].options.model_validate({"period": 8})
    assert full.optimizer is not None
    assert (full.optimizer.lr, full.optimizer.momentum) == (1.0, 0.5)


def test_schemes_of_one_name_are_told_apart_by_what_differs() -> None:
    text = FLAT.replace("- all_reduce\n", "- local_sgd: {period: 16}\n  - gossip: {topology: ring}\n")
    assert [entry.label for entry in parse(text).schemes] == [
        "local_sgd period=16",
        "gossip",
        "local_sgd period=8",
    ]


def test_topologies_with_options_are_told_apart() -> None:
    lattice = "- gossip: {topology: {ring_lattice: {degree: 2}}}\n"
    text = FLAT.replace("- all_reduce\n", f"- gossip: {{topology: ring}}\n  {lattice}")
    assert [entry.label for entry in parse(text).schemes] == [
        "gossip topology=ring",
        "gossip topology.ring_lattice.degree=2",
        "local_sgd",
    ]
    assert parse(dump(parse(text))) == parse(text)


def test_schemes_that_differ_in_the_optimizer_only() -> None:
    text = FLAT.replace("- all_reduce\n", "- local_sgd: {period: 8, optimizer: {lr: 0.5}}\n")
    first, second = (entry.label for entry in parse(text).schemes)
    assert "lr=0.5" in first
    assert second == "local_sgd"


def test_the_sites_give_the_number_of_workers() -> None:
    assert parse(SITES).cluster.workers == 4
    assert parse(SITES.replace("cluster:\n", "cluster:\n  workers: 4\n")).cluster.workers == 4


def test_the_target_is_on_what_is_evaluated_unless_it_says_itself() -> None:
    target = "max_time: 1 h, target: {metric: test_accuracy, value: 0.9}"
    text = FLAT.replace("max_iterations: 100", target) + "evaluate: {on: worst}\n"
    found = parse(text)
    assert found.stop.target is not None
    assert (found.stop.target.on, found.evaluate.on) == ("worst", "worst")
    found = parse(text.replace("value: 0.9", "value: 0.9, on: workers"))
    assert found.stop.target is not None
    assert (found.stop.target.on, found.evaluate.on) == ("workers", "worst")


def test_targets_at_the_ends_of_their_range_and_negative_losses_of_your_own() -> None:
    for metric, value in (("test_accuracy", 0.0), ("test_accuracy", 1.0), ("train_loss", 0.0)):
        target = f"max_time: 1 h, target: {{metric: {metric}, value: {value}}}"
        assert parse(FLAT.replace("max_iterations: 100", target)).stop.target is not None
    users = FLAT.replace("digits-mlp", "tests.support.own_tasks:classify")  # its loss could be any function
    target = "max_time: 1 h, target: {metric: train_loss, value: -2}"
    assert parse(users.replace("max_iterations: 100", target)).stop.target is not None
    over = "max_time: 1 h, target: {metric: test_accuracy, value: 95}"
    assert refusal(users.replace("max_iterations: 100", over)).endswith("write for example 0.95")


def test_timing_only_needs_a_payload_and_no_task() -> None:
    head, _, tail = FLAT.partition("workload:\n")
    text = head + "workload: {timing_only: true, payload: 1 MB}\n" + tail[tail.index("cluster:") :]
    found = parse(text)
    assert found.workload.timing_only
    assert found.workload.payload == 1e6
    assert parse(dump(found)) == found
    assert refusal(text.replace(", payload: 1 MB", "")) == (
        "f.yaml:2: workload.timing_only: needs a payload or a layer_profile; "
        "add for example 'payload: 100 MB' or 'layer_profile: resnet-50'"
    )
    assert refusal(
        text.replace("max_iterations: 100", "max_time: 1 s, target: {metric: train_loss, value: 1}")
    ) == ("f.yaml:10: stop.target: nothing is trained (timing_only); use max_time or max_iterations")


def test_events_of_the_first_steps() -> None:
    assert parse(FLAT + "events: first 20 steps").first_steps == 20
    assert parse(FLAT + "events: first 1 step").events == "first 1 steps"
    assert parse(FLAT + "events: none").first_steps is None


# --- what a bad file gets ---------------------------------------------------------------------------


def _cases() -> list[tuple[str, ...]]:
    lines = (ROOT / "tests" / "support" / "scenario_errors.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.replace("\\n", "\n").split(" | ") for line in lines if line and not line.startswith("#")]
    assert len(rows) > 90
    assert all(len(row) == 4 for row in rows)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize(("base", "old", "new", "message"), _cases())
def test_errors_name_file_line_key_and_choice(base: str, old: str, new: str, message: str) -> None:
    good = {"FLAT": FLAT, "SITES": SITES}[base]
    assert old in good
    said = refusal(good.replace(old, new, 1) if old else new)
    replaced = message.replace("{tasks}", ", ".join(sorted(TASKS))).replace("{here}", str(Path.cwd()))
    assert said == replaced


def test_ambiguous_pair_of_sites() -> None:
    text = SITES.replace("{us: 2, eu: 1, asia: 1}", "{us: 2, us-eu: 1, eu-asia: 1, asia: 1}")
    assert refusal(text.replace("us-eu: 40 ms", "us-eu-asia: 40 ms")) == (
        "f.yaml:11: cluster.network.between.latency.us-eu-asia: "
        "may mean 'us' to 'eu-asia' or 'us-eu' to 'asia'; rename a site"
    )


def test_a_worker_count_that_the_topology_cannot_have() -> None:
    text = FLAT.replace("workers: 4", "workers: 3").replace("- all_reduce", "- ad_psgd: {topology: ring}")
    said = refusal(text)
    assert said.startswith("f.yaml:11: schemes.0.ad_psgd: ")
    assert said.endswith("use path, or ring with 4 workers")


def test_a_clock_that_may_stand_still() -> None:
    text = FLAT.replace("10 ms", "0 ms")
    assert parse(text).cluster.compute.time == 0
    assert refusal(text.replace("{max_iterations: 100}", "{max_time: 1 s}")) == (
        "f.yaml:8: cluster.compute.time: "
        "0 s needs stop.max_iterations too, or the clock may stand still for ever"
    )


def test_several_problems_come_in_the_order_of_lines_and_at_most_five() -> None:
    text = FLAT.replace("batch_size: 32", "batch_size: 0\n  hiden: 3").replace(
        "lr: 0.1", "lr: 0, momentum: 2"
    )
    text = text.replace("10 ms", "10").replace("5 ms", "5").replace("period: 8", "period: 0")
    assert refusal(text).splitlines() == [
        "f.yaml:4: workload.batch_size: must be at least 1, not 0",
        "f.yaml:5: workload.hiden: unknown key; did you mean 'hidden'?",
        "f.yaml:6: workload.optimizer.lr: must be more than 0, not 0",
        "f.yaml:6: workload.optimizer.momentum: must be less than 1, not 2",
        "f.yaml:9: cluster.compute.time: '10' has no unit; write for example '10 ms'",
    ]


def test_entries_that_are_wrong_are_not_missing_too() -> None:
    only = FLAT.replace("  - all_reduce\n  - local_sgd: {period: 8}", "  - al_reduce")
    unknown = "unknown scheme 'al_reduce'; did you mean 'all_reduce'?"
    assert refusal(only) == f"f.yaml:11: schemes.0.al_reduce: {unknown}"
    sites = SITES.replace("{us: 2, eu: 1, asia: 1}", "{us: two}")
    assert "has 0 entries" not in refusal(sites)


def test_a_misspelt_section_is_named_with_the_missing_one() -> None:
    assert refusal(FLAT.replace("stop:", "stopp:")).splitlines() == [
        "f.yaml:1: stop: is missing",
        "f.yaml:13: stopp: unknown key; did you mean 'stop'?",
    ]


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text(FLAT.replace("period: 8", "period: 0"))
    with pytest.raises(InputError) as caught:
        load(tmp_path / "x.yaml")
    assert str(caught.value) == f"{tmp_path}/x.yaml:12: schemes.1.local_sgd.period: must be at least 1, not 0"


# --- schema and examples ----------------------------------------------------------------------------


def test_the_schema_knows_every_scheme_and_task_option() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Scenario.model_fields)
    forms = schema["$defs"]["SchemeEntry"]["anyOf"]
    assert {name for form in forms[1:] for name in form.get("properties", {})} == set(SCHEMES)
    (local,) = [
        form["properties"]["local_sgd"] for form in forms[1:] if "local_sgd" in form.get("properties", {})
    ]
    assert set(local["properties"]) >= {"period", "label", "optimizer"}
    assert "local_sgd" not in forms[0]["enum"]
    assert "all_reduce" in forms[0]["enum"]
    workload = schema["$defs"]["WorkloadEntry"]
    assert set(workload["properties"]["task"]["anyOf"][0]["enum"]) == set(TASKS)
    branches = {
        branch["if"]["properties"]["task"]["const"]: branch["then"] for branch in workload["allOf"][1:]
    }
    assert set(workload["allOf"][0]["else"]["required"]) == {"task", "batch_size", "optimizer"}
    assert set(branches) == set(TASKS)
    assert "hidden" in branches["digits-mlp"]["properties"]
    needed = schema["$defs"]["Cluster"]["anyOf"]
    assert needed == [{"required": ["compute", "network"]}, {"required": ["file"]}]


def test_no_option_hides_a_common_key() -> None:
    workload = set(WorkloadEntry.model_fields)
    entry = set(SchemeEntry.model_fields)
    assert [name for name, task in TASKS.items() if set(task.options.model_fields) & workload] == []
    assert [name for name, scheme in SCHEMES.items() if set(scheme.options.model_fields) & entry] == []


EXAMPLES = sorted(ready_scenarios().values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_scenario_loads_and_says_what_it_asks(path: Path) -> None:
    found = load(path)
    assert parse(dump(found)) == found
    assert path.read_text(encoding="utf-8").startswith("# ")


LONG = "x" * 10_000


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("digits-mlp", "unknown task '{}'; choose from: "),
        ("all_reduce", "unknown scheme '{}'; choose from: "),
        ("10 ms", "cluster.compute.time: '{}' is not a number with a unit; "),
    ],
)
def test_a_message_shows_the_first_letters_of_a_long_value(text: str, what: str) -> None:
    message = refusal(FLAT.replace(text, LONG))
    assert what.format("x" * 79 + "…") in message
    assert len(message) < 400


def test_a_message_shows_the_first_letters_of_a_long_label() -> None:
    label = "x" * 200
    rows = f"schemes: [{{all_reduce: {{label: {label}}}}}, {{all_reduce: {{label: {label}}}}}]\nstop"
    message = refusal(FLAT[: FLAT.index("schemes")] + FLAT[FLAT.index("stop") :].replace("stop", rows, 1))
    assert f"its label '{'x' * 79}…' is that of schemes.0 too; give it another 'label'" in message


def test_a_message_shows_the_first_letters_of_a_long_key() -> None:
    assert len(refusal(FLAT, f"{LONG}=1")) < 400
    assert len(refusal(FLAT, f"workload.{LONG}=1")) < 400
    assert len(refusal(FLAT.replace("workers", LONG))) < 400


def test_shards_are_not_clipped() -> None:
    """Which would need the norm of the whole gradient, an exchange more."""
    text = FLAT.replace("optimizer: {lr: 0.1}", "optimizer: {lr: 0.1, clip: 1.0}")
    assert text != FLAT
    assert parse(text).workload.optimizer.clip == 1.0
    with pytest.raises(InputError, match=r"schemes\.0\.all_reduce: steps in shards, and clip needs"):
        parse(text.replace("all_reduce", "all_reduce: {part_reduce: true}", 1))
