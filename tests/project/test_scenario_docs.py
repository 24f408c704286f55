import json
import re

from docs.make import scenario
from paceline.sim.scenario.ready import SCHEMA
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.schemes import SCHEMES
from paceline.sim.workloads import TASKS


def test_the_page_is_up_to_date() -> None:
    page = scenario.PAGE.read_text(encoding="utf-8")
    assert page == scenario.renewed(page), "run: python -m docs.make.scenario"


def test_the_schema_is_up_to_date_and_says_what_each_scheme_does() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema == scenario.json_schema(), "run: python -m docs.make.scenario"
    forms = [form for form in schema["$defs"]["SchemeEntry"]["anyOf"] if "required" in form]
    does = {form["required"][0]: form["description"] for form in forms}
    assert does == {name: scheme.does for name, scheme in SCHEMES.items()}


def test_the_tables_name_every_key_and_option() -> None:
    page = scenario.PAGE.read_text(encoding="utf-8")
    keys = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.M))
    assert set(Scenario.model_fields) <= keys
    assert {f"workload.{key}" for task in TASKS.values() for key in task.options.model_fields} <= keys
    assert {
        f"schemes[].{name}.{key}" for name, scheme in SCHEMES.items() for key in scheme.options.model_fields
    } <= keys
    assert "cluster.compute.jitter.lognormal.cv" in keys


def test_the_example_on_the_page_is_a_scenario() -> None:
    page = scenario.PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    found = parse(example)
    assert found.cluster.workers == 8
    assert [entry.label for entry in found.schemes] == ["all_reduce", "rarely", "gossip"]
