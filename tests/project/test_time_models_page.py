"""Every snippet of docs/time-models.md is a part of a scenario that loads and runs."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import Scenario, dump, load, parse

PAGE = (Path(__file__).parents[2] / "docs" / "time-models.md").read_text(encoding="utf-8")
REST = {
    "compute": "compute: {time: 1 ms}",
    "network": "network: {latency: 1 ms, bandwidth: 1 Gbit/s}",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page shows."""
    for text in [*blocks("csv"), *blocks("python")]:
        name = text.splitlines()[0].removeprefix("# ")
        with (tmp_path / name).open("a") as file:
            file.write(text)
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_node("s", kind="switch")
    for host in "abcd":
        graph.add_edge(host, "s", latency="1 ms", bandwidth="1 Gbit/s")
    nx.write_graphml_xml(graph, tmp_path / "campus.graphml")
    monkeypatch.delitem(sys.modules, "mycluster", raising=False)  # of another test
    return tmp_path


def scenario(snippet: str, folder: Path) -> Scenario:
    keys = re.findall(r"^(\w+):", snippet, flags=re.MULTILINE)
    parts = [snippet, *(text + "\n" for key, text in REST.items() if key not in keys)]
    given = any(name in snippet for name in ("sites:", "graph:"))
    cluster = "".join(parts) if given else "workers: 4\n" + "".join(parts)
    path = folder / "s.yaml"
    path.write_text(
        "name: snippet\n"
        "workload: {task: quadratic, dimension: 4, batch_size: 2, optimizer: {lr: 0.1}}\n"
        f"cluster:\n{textwrap.indent(cluster, '  ')}"
        "schemes: [all_reduce]\nstop: {max_iterations: 3}\ngradients: looped\n"
    )
    return load(path)


@pytest.mark.parametrize("snippet", blocks("yaml"), ids=lambda text: text.split("\n")[0][:60])
def test_every_snippet_runs(snippet: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from paceline.sim.experiments.prepare import resolve

    monkeypatch.setattr(
        "paceline.sim.experiments.prepare.typical_times_s", lambda runs, timer: [0.01] * len(runs)
    )
    found = resolve(scenario(snippet, folder), torch.device("cpu"))
    assert parse(dump(found)) == found
    run = simulate_job(prepare(found, found.schemes[0], found.seed))
    assert (run.status, run.iterations) == ("completed", 3)


def test_there_are_snippets() -> None:
    assert len(blocks("yaml")) >= 12
    assert len(blocks("csv")) == 3
    assert len(blocks("python")) == 2
