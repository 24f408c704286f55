"""Every kind: told by its text, a cluster of a scenario, and refused in one message where it is damaged."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.extras.importers import IMPORTERS
from paceline.extras.importers.cluster import cluster_of, write_cluster
from paceline.extras.importers.readings import ForeignFile
from paceline.sim.errors import InputError
from paceline.sim.foreign import foreign_kind
from paceline.sim.scenario.ready import ready_clusters, ready_scenarios
from paceline.sim.scenario.schema import load
from tests.paceline.extras.importers.maps.samples import ANSWERS, SAMPLES, read

TEXTS = [
    pytest.param(kind, text, id=f"{kind}-{n}")
    for kind, texts in SAMPLES.items()
    for n, text in enumerate(texts)
]
SCENARIO = """\
name: imported
workload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}, payload: 20 MB}
cluster: {file: cluster.yaml, compute: {time: 50 ms}}
schemes: [all_reduce]
stop: {max_iterations: 20}
"""


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_kind_is_told_by_its_text(kind: str, text: str) -> None:
    assert foreign_kind(text) == kind
    assert foreign_kind(text.replace("\n", "\r\n")) == kind


def test_ours_are_no_foreign_files() -> None:
    ours = [*ready_scenarios().values(), *ready_clusters().values()]
    assert len(ours) > 20
    assert [path.name for path in ours if foreign_kind(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_scenario_takes_the_cluster(kind: str, text: str, tmp_path: Path) -> None:
    readings = read(text.replace("\n", "\r\n"), ANSWERS)
    assert readings.notes
    workers = 4 if readings.gpus else None  # its number of hosts is open
    cluster, notes = cluster_of({"file": readings}, replace(ANSWERS, workers=workers))
    (tmp_path / "cluster.yaml").write_text(
        write_cluster(cluster, [*readings.notes, *notes]), encoding="utf-8"
    )
    (tmp_path / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    scenario = load(tmp_path / "scenario.yaml")
    assert scenario.cluster.workers == cluster["workers"] >= 2


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_damaged_file_is_refused_in_one_message(kind: str, text: str) -> None:
    draw = random.Random(text)
    damaged = [text[: draw.randrange(1, len(text) - 2)] for _ in range(60)]
    for _ in range(120):
        letters = list(text)
        for _ in range(draw.choice((1, 2, 5))):
            at = draw.randrange(len(letters))
            letters[at : at + draw.randrange(1, 4)] = draw.choice(
                ("", "\0", '"', "<", "[", "]", "|", ",", "-1", "9e999", "\n")
            )
        damaged.append("".join(letters))
    refused = []
    for each in damaged:
        try:
            IMPORTERS[kind](ForeignFile("file", each, answers=ANSWERS))
        except InputError as error:
            refused.append(str(error))
    assert len(refused) >= 15
    assert [each for each in refused if not each.startswith("file") or "\n" in each or len(each) > 400] == []
