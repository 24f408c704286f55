"""Ready scenarios go by their names, and files come first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.sim.errors import InputError
from paceline.sim.network.build import build_network
from paceline.sim.network.network import rate_of
from paceline.sim.scenario.ready import (
    copy_ready,
    describe_scenario,
    find_scenario,
    ready_clusters,
    ready_documents,
    ready_scenarios,
)
from paceline.sim.scenario.schema import load

SCENARIOS = Path(__file__).parents[3] / "scenarios"
SCHEMA = "paceline-schema.json"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_file_has_its_name_and_a_sentence() -> None:
    ready, clusters = ready_scenarios(), ready_clusters()
    files = [path.resolve() for path in [*ready.values(), *clusters.values()]]
    assert sorted(files) == sorted(SCENARIOS.rglob("*.yaml"))
    assert next(iter(ready)) == "campus"
    assert all(describe_scenario(path).endswith((".", "?")) for path in files)


def test_a_copy_goes_into_a_folder_that_is_there() -> None:
    with pytest.raises(InputError, match=r"cannot write no/my\.yaml: there is no folder no"):
        copy_ready("two-sites", Path("no/my.yaml"))


def test_a_name_is_as_good_as_a_file() -> None:
    assert load("lab/two-sites") == load(SCENARIOS / "lab" / "two-sites.yaml")
    assert load("leaf-spine").cluster.workers == 6  # its graph lies beside it


def test_a_file_comes_before_a_name(tmp_path: Path) -> None:
    copy_ready("two-workers", Path("campus"))
    assert load("campus").name == "two-workers"
    Path("one-rack").mkdir()  # such as results of it
    assert load("one-rack").name == "one-rack"
    assert find_scenario(tmp_path / "campus") == tmp_path / "campus"


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list() -> None:
    with pytest.raises(InputError) as error:
        load("four-region")
    assert str(error.value).startswith(
        "four-region: there is no such file, and no ready scenario has this name; "
        "did you mean 'four-regions'? ready are: campus, four-regions, "
    )
    with pytest.raises(InputError, match=r"has this name; choose from: campus, four-regions, "):
        load("xyz")


def test_the_users_own_file_without_its_suffix_is_the_nearest() -> None:
    copy_ready("two-workers", Path("my-cluster.yaml"))
    with pytest.raises(InputError, match=r"did you mean 'my-cluster\.yaml'\?"):
        load("my-cluster")
    Path("mine").mkdir()
    copy_ready("two-workers", Path("mine/cluster.yaml"))
    with pytest.raises(InputError, match=r"did you mean 'mine/cluster\.yaml'\?"):
        load("mine/custer.yaml")


def test_a_ready_name_written_with_a_suffix_is_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^campus\.yaml: there is no such file.* did you mean 'campus'\?"):
        load("campus.yaml")


def test_what_cannot_be_a_name_is_a_missing_file() -> None:
    for path in ("./four regions.yaml", "/four-regions", "../lab/two-sites"):
        with pytest.raises(InputError, match="there is no such file"):
            load(path)


def test_a_copy_brings_the_files_that_it_names() -> None:
    Path("mine").mkdir()
    target, graph, schema = (Path("mine") / name for name in ("rack.yaml", "leaf-spine.graphml", SCHEMA))
    assert copy_ready("leaf-spine", target) == [target, graph, schema]
    assert target.read_text().splitlines()[0] == f"# yaml-language-server: $schema={schema.name}"
    assert load(target).cluster == load("leaf-spine").cluster
    schema.write_text("{}")  # of another release
    assert copy_ready("leaf-spine", Path("mine/same.yaml"))[1:] == [graph, schema]
    assert json.loads(schema.read_text())["$schema"].startswith("https://json-schema.org")
    graph.write_text("another one")
    with pytest.raises(InputError, match=r"leaf-spine\.graphml is there already"):
        copy_ready("leaf-spine", Path("mine/other.yaml"))
    assert not Path("mine/other.yaml").exists()


def test_documents_are_copied_alone() -> None:
    names = list(ready_documents())
    assert {"first-steps", "tutorials/compare", "schemes/d2"} < set(names)
    assert not set(names) & set(ready_scenarios())
    for name, path in ready_documents().items():
        assert copy_ready(name, Path("copy")) == [Path("copy")]
        assert Path("copy").read_bytes() == path.read_bytes()
        Path("copy").unlink()


CLUSTERS = {
    "aws-ten-regions": ("us-west-2", "us-east-1", 10, 0.0335, 1150e6, 0.0335, 790e6),  # row receives
    "dt-fm-four-regions": ("virginia", "ohio", 64, 0.011, 1.12e9, 0.011, 1.12e9),
    "dt-fm-eight-regions": ("oregon", "tokyo", 64, 0.096, 523e6, 0.096, 523e6),
}
"""Two regions, workers, and latency and rate there and back: as in the sources."""


@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_a_ready_cluster_goes_by_its_name(name: str, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    keys = f"cluster: {{file: {name}, compute: {{time: 50 ms}}}}\n"
    task = (
        "name: regions\nworkload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}, payload: 20 MB}\n"
    )
    scenario.write_text(f"{task}{keys}schemes: [all_reduce]\nstop: {{max_iterations: 20}}\n")
    cluster = load(scenario).cluster
    network = build_network(cluster.network, cluster.workers)
    a, b, workers, *expected = CLUSTERS[name]
    first = [network.site_of.index(network.sites.index(site)) for site in (a, b)]
    routes = network.route(*first), network.route(*first[::-1])
    measured = [value for route in routes for value in (route.latency_s, 8 * rate_of(network, route))]
    assert cluster.workers == workers
    assert measured == pytest.approx(expected)


def test_ready_clusters_are_those_tested() -> None:
    assert set(ready_clusters()) == set(CLUSTERS)
