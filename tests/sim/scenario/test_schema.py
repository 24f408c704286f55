"""Every error is checked word for word: file, line, key, what is wrong, the nearest valid choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config.yaml_file import write
from paceline.sim.errors import InputError
from paceline.sim.scenario.entries import SchemeEntry, WorkloadEntry
from paceline.sim.scenario.schema import Scenario, dump, json_schema, load, parse
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


# --- what a good file gives -------------------------------------------------------------------------


def test_defaults_are_filled_in() -> None:
    found = parse(FLAT)
    assert (found.seed, found.repeats, found.events, found.gradients) == (0, 1, "auto", "auto")
    assert found.collectives.all_reduce == "auto"
    assert found.cluster.network.transport == "ideal"
    assert (found.evaluate.every, found.evaluate.on) == (10, "mean")
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


# --- overrides --------------------------------------------------------------------------------------


def test_overrides_change_make_and_unset() -> None:
    found = parse(
        FLAT + "repeats: 3\n",
        "f",
        [
            "schemes.1.local_sgd.period=16",
            "schemes.0.all_reduce.overlap=true",
            "workload.optimizer={lr: 1e-2}",
            "evaluate.every=5 steps",
            "stop.max_time=1 min",
            "stop.max_iterations=",
            "repeats=2",
            "repeats=4",
        ],
    )
    assert [entry.options.model_dump(exclude_defaults=True) for entry in found.schemes] == [
        {"overlap": True}, {"period": 16},
    ]  # fmt: skip
    assert found.workload.optimizer.lr == 0.01
    assert (found.evaluate.every, found.stop.max_time, found.stop.max_iterations) == (5, 60.0, None)
    assert found.repeats == 4


WRONG_CHANGES = {
    "foo": "write dotted.key=value, for example stop.max_time='10 min'",
    "=3": "write dotted.key=value, for example stop.max_time='10 min'",
    "a..b=3": "write dotted.key=value, for example stop.max_time='10 min'",
    "schemes.9.x=3": "schemes.9: this list has entries 0 to 1",
    "schemes.-1.x=3": "schemes.-1: this list has entries 0 to 1",
    "schemes.x=3": "schemes.x: this list has entries 0 to 1",
    "cluster.stragglers.0.slowdown=3": "cluster.stragglers.0: this list has no entries",
    "schemes.0.gossip.topology=ring": (
        "schemes.0.gossip: schemes.0 is the text 'all_reduce' and has no keys; choose from: all_reduce"
    ),
    "name.x=3": "name.x: name is the text 'small' and has no keys; choose from: small",
    "workload.batch_size.x=3": "workload.batch_size.x: workload.batch_size is 32 and has no keys",
    "stop.max_tim=1 h": "stop.max_tim: unknown key; did you mean 'max_time'?",
    "stop.max_time=1": "stop.max_time: '1' has no unit; write for example '1 ms'",
    "evaluate.evry=5 steps": "evaluate.evry: unknown key; did you mean 'every'?",
    "schemes.1.local_sgd.period=0": "schemes.1.local_sgd.period: must be at least 1, not 0",
    "schemes.1.local_sgd={perod: 3}": (
        "schemes.1.local_sgd.perod: unknown key; did you mean 'period'?\n"
        "--set schemes.1.local_sgd={perod: 3}: schemes.1.local_sgd.period: is missing"
    ),
    "workload.optimizer.lr=[": (
        "not valid YAML: expected the node content, but found '<stream end>' (column 2)"
    ),
    "workload.optimizer={lr: 1, lr: 2}": "lr: given twice; it stands on line 1 too",
}


@pytest.mark.parametrize(("change", "message"), WRONG_CHANGES.items())
def test_wrong_overrides_name_themselves(change: str, message: str) -> None:
    text = FLAT.replace("  workers: 4", "  workers: 4\n  stragglers: []")
    assert refusal(text, change) == f"--set {change}: {message}"


# --- laws -------------------------------------------------------------------------------------------

TIMES = st.floats(1e-9, 1e6).map(lambda value: f"{value!r} s")
RATES = st.floats(1.0, 1e12).map(lambda value: f"{value!r} B/s")
LATENCIES = st.sampled_from(["0 s", "35 ms", "0.1 ms"]) | TIMES
OPTIMIZERS = st.fixed_dictionaries(
    {"lr": st.floats(1e-9, 1e9)},
    optional={"momentum": st.floats(0.01, 0.99), "nesterov": st.just(False), "weight_decay": st.floats(0, 1)},
)


def _optional(keys: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def written(draw: st.DrawFn) -> dict[str, Any]:
    """A valid scenario, as a user may write it."""
    workers = 2 * draw(st.integers(1, 8))
    network: dict[str, Any]
    jitter = st.sampled_from(["lognormal", "gamma", "shifted_exponential"]).flatmap(
        lambda kind: st.fixed_dictionaries({kind: st.fixed_dictionaries({"cv": st.floats(1e-6, 1)})})
    ) | st.just({"pareto": {"shape": 2.5}})
    if draw(st.booleans()):
        network = {"latency": draw(LATENCIES), **draw(_optional({"bandwidth": RATES}))}
    else:
        network = {
            "sites": {"us-east": workers - 1, "eu": 1},
            "within": {"latency": draw(LATENCIES)},
            "between": {
                "latency": draw(
                    st.one_of(
                        LATENCIES,
                        st.fixed_dictionaries({"default": LATENCIES}),
                        st.fixed_dictionaries({"us-east-eu": LATENCIES}, optional={"eu-us-east": LATENCIES}),
                    )
                ),
                **draw(_optional({"bandwidth": RATES, "per_flow": RATES})),
            },
            "uplink": draw(_optional({"eu": RATES})),
        }
    if draw(st.booleans()):
        hosts = [f"h{rank}" for rank in range(workers)]
        links = [{"source": "s", "target": host, "latency": draw(LATENCIES)} for host in hosts]
        links[0]["bandwidth"] = "1 GB/s"
        network = {"graph": {"hosts": hosts, "links": links}}
        markov = {"slow": "1 s", "fast": "3 min", "factor": 0.1}
        steps = {"steps": [{"at": "0 s", "bandwidth": "1 kB/s"}], "period": "1 s"}
        kinds: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{"markov": markov}, {"trace": steps}])
        network |= draw(_optional({"variation": kinds.map(lambda kind: [{"links": "s->*", **kind}])}))
    network |= draw(
        _optional(
            {
                "sharing": st.sampled_from(["max_min"] if "variation" in network else ["max_min", "none"]),
                "jitter": jitter,
                "overhead": LATENCIES,
                "announcement": st.just(1),
            }
        )
    )
    times = [
        st.fixed_dictionaries({"time": TIMES}, optional={"jitter": jitter}),
        st.fixed_dictionaries({"trace": st.fixed_dictionaries({"durations": st.lists(TIMES, min_size=1)})}),
        st.sampled_from(["measured", {"measured": True}, {"measured": {"batch_sizes": [1, 9]}}]),
        st.just({"measured": {"batch_sizes": [1, 9], "times": ["1 ms", "3 ms"], "device": "a GPU"}}),
    ]
    stragglers = st.lists(
        st.fixed_dictionaries({"slowdown": st.floats(1, 9), "workers": st.just([workers - 1])})
        | st.fixed_dictionaries({"slowdown": st.integers(1, 9), "probability": st.floats(0, 1)})
        | st.just({"at": "3 steps", "duration": "2 steps", "pause": "1 min"})
        | st.just({"markov": {"slow": "3 steps", "fast": "9 steps"}, "slowdown": 2}),
        max_size=2,
    )
    common = {"optimizer": OPTIMIZERS}
    schemes = [
        "all_reduce",
        {"local_sgd": {"period": draw(st.integers(1, 99)), **draw(_optional(common))}},
        {"local_sgd": {"period": draw(st.integers(100, 199)), **draw(_optional(common))}},
        {"gossip": {"topology": "ring", "label": draw(st.sampled_from(["yes", "1e5", "a: b", "é", "0x1"]))}},
    ]
    tasks: list[dict[str, Any]] = [{"task": "digits-mlp", "hidden": 3}, {"task": "quadratic", "noise": 0.3}]
    task = draw(st.sampled_from([{"task": "digits-mlp"}, *tasks]))
    return {
        "name": "generated",
        "workload": {
            **task,
            "batch_size": draw(st.integers(1, 100)),
            "optimizer": draw(OPTIMIZERS),
            **draw(_optional({"payload": st.integers(1, 10**12).map(lambda n: f"{n} B")})),
        },
        "cluster": {
            "workers": workers,
            "compute": draw(st.one_of(times)),
            "network": network,
            **draw(_optional({"stragglers": stragglers})),
        },
        "schemes": schemes,
        "stop": {
            "max_time": draw(TIMES),
            **draw(
                _optional(
                    {
                        "max_iterations": st.integers(1, 10**9),
                        "target": st.fixed_dictionaries(
                            {"metric": st.just("train_loss"), "value": st.floats(0, 9)}
                        ),
                    }
                )
            ),
        },
        **draw(
            _optional(
                {
                    "seed": st.integers(0, 2**62),
                    "repeats": st.integers(1, 9),
                    "events": st.sampled_from(["all", "none", "auto", "first 7 steps"]),
                    "gradients": st.sampled_from(["auto", "batched", "looped"]),
                    "evaluate": _optional(
                        {
                            "every": st.integers(1, 99).map(lambda n: f"{n} steps"),
                            "on": st.sampled_from(["mean", "workers", "worst"]),
                        }
                    ),
                }
            )
        ),
    }


@settings(deadline=None, max_examples=50)
@given(written())
def test_the_resolved_scenario_loads_again_and_is_equal(value: dict[str, Any]) -> None:
    found = parse(write(value))
    text = dump(found)
    again = parse(text)
    assert again == found
    assert dump(again) == text


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_broken_scenario_is_refused_in_one_line_for_each_problem(data: st.DataObject) -> None:
    """Whatever stands in place of any value, the answer is a scenario or an InputError with places."""
    value = data.draw(written())
    junk = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.floats(),
        st.text(max_size=5),
        st.just("5 ms"),
        st.just([]),
        st.just([{}]),
        st.just({}),
        st.just({"x": [1]}),
        st.just("local_sgd"),
        st.just("sites"),
    )
    where: Any = value
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            where[key] = data.draw(junk)
            break
        where = inner
    try:
        parse(write(value), "f")
    except InputError as error:
        for line in str(error).splitlines():
            assert line.startswith("f:")
            assert len(line) < 700
            assert "pydantic" not in line


def test_changed_copies_are_written_as_well() -> None:
    found = parse(FLAT).model_copy(update={"gradients": "looped"})
    assert parse(dump(found)).gradients == "looped"


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
    assert "workers" not in schema["$defs"]["Cluster"]["required"]


def test_no_option_hides_a_common_key() -> None:
    workload = set(WorkloadEntry.model_fields)
    entry = set(SchemeEntry.model_fields)
    assert [name for name, task in TASKS.items() if set(task.options.model_fields) & workload] == []
    assert [name for name, scheme in SCHEMES.items() if set(scheme.options.model_fields) & entry] == []


EXAMPLES = sorted((ROOT / "scenarios").rglob("*.yaml"))


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
    rows = f"schemes: [{{all_reduce: {{label: {LONG}}}}}, {{all_reduce: {{label: {LONG}}}}}]\nstop"
    message = refusal(FLAT[: FLAT.index("schemes")] + FLAT[FLAT.index("stop") :].replace("stop", rows, 1))
    assert f"its label '{'x' * 79}…' is that of schemes.0 too; give it another 'label'" in message


def test_a_message_shows_the_first_letters_of_a_long_key() -> None:
    assert len(refusal(FLAT, f"{LONG}=1")) < 400
    assert len(refusal(FLAT, f"workload.{LONG}=1")) < 400
    assert len(refusal(FLAT.replace("workers", LONG))) < 400
