from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.reports.figures.cluster_map import draw_cluster_map
from paceline.reports.folders import read_sources
from tests.support.made_results import write_made_results


def test_a_map_of_sites_and_of_a_graph(tmp_path: Path) -> None:
    study = read_sources([write_made_results(tmp_path) / "simulated"])[0]
    sites = {
        "workers": 3,
        "network": {
            "sites": {"a": 1, "b": 1, "東": 1},
            "between": {
                "latency": {"a-b": "10 ms", "東-a": "30 ms", "default": "20 ms"},
                "bandwidth": "1 Gbit/s",
            },
        },
    }
    cluster_map = draw_cluster_map(replace(study, scenario={"cluster": sites}))
    assert cluster_map is not None
    assert cluster_map.data.to_numpy().tolist() == [
        ["a", "b", 0.01, "1 Gbit/s"], ["a", "東", 0.03, "1 Gbit/s"], ["b", "東", 0.02, "1 Gbit/s"],
    ]  # fmt: skip
    assert "東" in cluster_map.svg  # a letter that the font lacks, without a warning
    links = [{"source": host, "target": "tor", "latency": "1 ms"} for host in ("h0", "h1")]
    graph = {"workers": 2, "network": {"graph": {"hosts": ["h0", "h1"], "links": links}}}
    cluster_map = draw_cluster_map(replace(study, scenario={"cluster": graph}))
    assert cluster_map is not None
    assert len(cluster_map.data) == 2
    assert "worker" in cluster_map.svg
    assert draw_cluster_map(replace(study, scenario={"cluster": {"network": {"latency": "?"}}})) is None
