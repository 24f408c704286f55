"""Laws of reading and writing: any valid scenario loads again and is equal, any broken one is refused."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config.yaml_file import write
from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import dump, parse
from tests.sim.scenario.test_schema import FLAT

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


@settings(max_examples=30)
@given(written())
def test_the_resolved_scenario_loads_again_and_is_equal(value: dict[str, Any]) -> None:
    scenario = parse(write(value))
    text = dump(scenario)
    again = parse(text)
    assert again == scenario
    assert dump(again) == text


@settings(max_examples=60)
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
    scenario = parse(FLAT).model_copy(update={"gradients": "looped"})
    assert parse(dump(scenario)).gradients == "looped"
