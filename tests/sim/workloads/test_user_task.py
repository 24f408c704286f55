"""Own tasks: several inputs, sources of examples, batches with replacement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads import find_task
from paceline.sim.workloads.partition import Batches, Partition, shards
from tests.sim.scenario.test_schema import FLAT
from tests.sim.workloads.test_workloads import own
from tests.support.factory import make_job, simulated


@pytest.mark.parametrize("way", ["tuple", "mapping", "labels", "iterable"])
@pytest.mark.parametrize("method", ["batched", "looped"])
def test_several_inputs_are_those_of_a_model_that_cuts_them_out_itself(way: str, method: str) -> None:
    given: dict[str, Any] = {"task": own("masked"), "method": method, "workers": 3, "batch_size": 4}
    packed = simulated(make_job("all_reduce", task_options={"way": "packed"}, **given))
    several = simulated(make_job("all_reduce", task_options={"way": way}, **given))
    assert several.digest == packed.digest
    assert [each.metrics for each in several.evaluations] == [each.metrics for each in packed.evaluations]


def test_a_loader_is_refused_for_its_dataset() -> None:
    with pytest.raises(InputError, match="its data\\['train'\\] is a DataLoader; give its dataset, of which"):
        find_task(own("masked")).facts(find_task(own("masked")).options.model_validate({"way": "loader"}), 0)


@pytest.mark.parametrize(
    ("kind", "way"),
    [("by_source", "packed"), ("by_source", "tuple"), ("dirichlet", "packed"), ("by_label", "packed")],
)
def test_an_own_task_says_where_its_examples_are_from(kind: str, way: str) -> None:
    """Its two classes go before its sources."""
    text = FLAT.replace("digits-mlp", f"{own('masked')}\n  partition: {kind}")
    scenario = parse(
        text.replace("workers: 4", "workers: 7").replace(f"partition: {kind}", f"partition: {{kind: {kind}}}")
    )
    options = find_task(own("masked")).options.model_validate({"way": way})
    workload = scenario.workload.model_copy(update={"options": options})
    job = prepare(scenario.model_copy(update={"workload": workload}), scenario.schemes[0], 0)
    assert job.problem is not None
    held = [{int(number) % 7 for number in shard} for shard in job.problem.batches.shards]
    assert (held == [{source} for source in range(7)]) == (kind == "by_source")


def test_sources_stand_for_classes_where_there_are_none() -> None:
    sources = np.arange(70) % 7
    parts = shards(Partition(kind="by_label"), 70, None, 7, 0, sources)
    assert [set(sources[part]) for part in parts] == [{source} for source in range(7)]


def test_examples_are_drawn_again_with_replacement() -> None:
    """Those of a worker's own shard, each as often in the long run; without, once in each epoch."""
    held = [np.arange(50), np.arange(50, 90)]
    for replacement in (False, True):
        batches = Batches(held, 10, 3, replacement)
        epoch = np.concatenate([batches.examples(1, index) for index in range(4)])
        assert (len(set(epoch)) < 40) == replacement
        assert set(epoch) <= set(held[1])
        many = np.concatenate([batches.examples(1, index) for index in range(4000)])
        counts = np.bincount(many - 50, minlength=40)
        assert abs(counts.std() - (31.2 if replacement else 0)) < 10  # sqrt(40000 / 40 (1 - 1/40))
        again = Batches(held, 10, 3, replacement)
        assert (again.of_workers([1, 0], [2, 2])[0] == batches.examples(1, 2)).all()


def test_a_scenario_draws_with_replacement_or_by_a_sampler() -> None:
    text = FLAT.replace("batch_size: 32", "batch_size: 32\n  replacement: true")
    scenario = parse(text)
    job = prepare(scenario, scenario.schemes[0], 0)
    assert job.problem is not None
    assert job.problem.batches.replacement
    with pytest.raises(
        InputError, match=r"workload\.replacement: a sampler draws with replacement by itself"
    ):
        parse(text.replace("replacement: true", "replacement: true\n  sampler: srg"))
