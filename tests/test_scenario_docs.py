import re

from sim import scenario_docs
from sim.scenario import Scenario, parse
from sim.schemes import SCHEMES
from sim.workloads import TASKS


def test_the_page_is_up_to_date() -> None:
    page = scenario_docs.PAGE.read_text(encoding="utf-8")
    assert page == scenario_docs.renewed(page), "run: python -m sim.scenario_docs"


def test_the_tables_name_every_key_and_option() -> None:
    page = scenario_docs.PAGE.read_text(encoding="utf-8")
    keys = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.M))
    assert set(Scenario.model_fields) <= keys
    assert {f"workload.{key}" for task in TASKS.values() for key in task.options.model_fields} <= keys
    assert {
        f"schemes[].{name}.{key}" for name, scheme in SCHEMES.items() for key in scheme.options.model_fields
    } <= keys
    assert "cluster.compute.jitter.lognormal.cv" in keys


def test_the_example_on_the_page_is_a_scenario() -> None:
    page = scenario_docs.PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    found = parse(example)
    assert found.cluster.workers == 8
    assert [entry.label for entry in found.schemes] == ["all_reduce", "rarely", "gossip"]
