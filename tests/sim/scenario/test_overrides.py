"""Values that are set over a file's: what they change, and how wrong ones are refused."""

from __future__ import annotations

import pytest

from paceline.sim.scenario.schema import parse
from tests.sim.scenario.test_schema import FLAT, refusal


def test_overrides_change_make_and_unset() -> None:
    scenario = parse(
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
    assert [entry.options.model_dump(exclude_defaults=True) for entry in scenario.schemes] == [
        {"overlap": True}, {"period": 16},
    ]  # fmt: skip
    assert scenario.workload.optimizer.lr == 0.01
    assert (scenario.evaluate.every, scenario.stop.max_time, scenario.stop.max_iterations) == (5, 60.0, None)
    assert scenario.repeats == 4


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
