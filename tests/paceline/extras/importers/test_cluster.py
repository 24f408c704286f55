"""Readings of several files, put together into a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.extras.importers.cluster import FIRST_LINE, cluster_of, write_cluster
from paceline.extras.importers.readings import Answers, LinkReading, PathReading, Readings
from paceline.sim.config import yaml_file
from paceline.sim.errors import InputError
from paceline.sim.scenario.parts import Cluster

MBIT = 125e3


def of(*paths: PathReading, **other: Any) -> Readings:
    return Readings(paths=paths, **other)


def network_of(files: dict[str, Readings], workers: int | None = None, **answers: Any) -> dict[str, Any]:
    network = cluster_of(files, Answers(**answers, workers=workers))[0]["network"]
    assert isinstance(network, dict)
    return network


def test_flat_where_no_end_has_a_name() -> None:
    files = {"p": of(PathReading(latency_s=0.02)), "i": of(PathReading(per_flow_bytes_per_s=900 * MBIT))}
    assert network_of(files) == {"latency": "20 ms", "bandwidth": "900 Mbit/s"}
    many = of(PathReading(bandwidth_bytes_per_s=950 * MBIT, per_flow_bytes_per_s=100 * MBIT))
    assert network_of(files | {"m": many})["bandwidth"] == "950 Mbit/s"


def test_sites_where_ends_have_names() -> None:
    files = {
        "p": of(PathReading("us", "eu", latency_s=0.04)),
        "one": of(PathReading("us", "eu", per_flow_bytes_per_s=300 * MBIT)),
        "many": of(PathReading("us", "eu", None, None, 900 * MBIT, 90 * MBIT)),
        "back": of(PathReading("eu", "us", None, None, 500 * MBIT, 50 * MBIT)),
    }
    cluster, _ = cluster_of(files, Answers())
    assert cluster == {
        "workers": 2,
        "network": {
            "sites": {"us": 1, "eu": 1},
            "within": {"latency": "0 s"},
            "between": {
                "latency": {"us-eu": "40 ms"},
                "bandwidth": {"us-eu": "900 Mbit/s", "eu-us": "500 Mbit/s"},
                "per_flow": {"us-eu": "300 Mbit/s", "eu-us": "50 Mbit/s"},  # one stream alone says better
            },
        },
    }


def test_within_a_site_and_its_workers() -> None:
    files = {
        "p": of(PathReading("us", "eu", latency_s=0.04)),
        "in": of(PathReading("us", "us", latency_s=0.0001, per_flow_bytes_per_s=9000 * MBIT)),
    }
    network = network_of(files, 8)
    assert network["sites"] == {"us": 4, "eu": 4}
    assert network["within"] == {"latency": "100 us", "bandwidth": "9 Gbit/s"}
    with pytest.raises(
        InputError, match="no file says the latency within a site: import output of ping as us-us"
    ):
        network_of({"p": files["p"]}, 8)
    with pytest.raises(InputError, match="7 workers cannot be shared evenly by 2 sites"):
        network_of(files, 7)


def test_missing_pairs_are_named_or_answered() -> None:
    paths = [PathReading(a, b, latency_s=0.01) for a, b in ("ab", "bc")]
    with pytest.raises(InputError, match=r"latency of a-c; import a-c=FILE; or add --latency"):
        network_of({"f": of(*paths)})
    between = network_of({"f": of(*paths)}, latency_s=0.05)["between"]
    assert between["latency"] == {"a-b": "10 ms", "b-c": "10 ms", "a-c": "50 ms"}
    one_way = of(replace(paths[0], both_ways=False))
    with pytest.raises(InputError, match="latency of b-a"):
        network_of({"f": one_way})
    assert network_of({"f": one_way}, latency_s=0.05)["between"]["latency"] == {
        "a-b": "10 ms",
        "b-a": "50 ms",
    }


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([of(PathReading(latency_s=1.0)), of(PathReading(latency_s=2.0))], "0 and 1 differ on the latency"),
        ([of(PathReading("a", "b", 1.0)), of(PathReading("a", "b", 2.0))], "differ on the latency of a-b"),
        ([of(PathReading("a", "b", 1.0)), of(PathReading(latency_s=2.0))], "1: name the sites .*: us-eu=1"),
        ([of(PathReading(bandwidth_bytes_per_s=1.0))], "no file says the latency"),
        ([of(PathReading("a b", "a-b", 1.0))], "'a b' and 'a-b' differ in no letter or digit"),
        ([Readings(hosts=("a",)), of(PathReading(latency_s=2.0))], "0 and 1 both describe the network"),
        ([Readings(transport="gloo"), Readings(transport="nccl")], "0 and 1 differ on the transport"),
        ([Readings(gradients_s=(1.0,)), Readings(gradients_s=(2.0,))], "0 and 1 differ on the gradients"),
        ([Readings(paths=(PathReading(latency_s=1e-3),), gpus=3)], "the files have hosts of 3 GPUs; take"),
        ([Readings(hosts=("a", "b"))], "--workers 4: the files have 2; leave it out"),
    ],
)  # fmt: skip
def test_contradictions_name_the_files(files: list[Readings], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cluster_of({str(number): each for number, each in enumerate(files)}, Answers(workers=4))


def test_jitter_loss_compute_and_gpus() -> None:
    path = PathReading(latency_s=0.01, jitter_s=0.002, loss=0.01)
    files = {
        "p": of(path),
        "t": Readings(gradients_s=(0.05, 0.06), transport="nccl", overhead_s=1e-5),
        "g": Readings(gpus=4, gpu_latency_s=1e-6, gpu_bandwidth_bytes_per_s=1e9),
    }
    cluster, notes = cluster_of(files, Answers(workers=8))
    assert cluster["workers"] == 8
    assert cluster["compute"] == {"trace": {"durations": ["50 ms", "60 ms"]}}
    network = cluster["network"]
    assert network["jitter"] == {"lognormal": {"cv": 0.2}}
    assert network["tcp"] == {"loss": 0.01}
    assert network["host"] == {"gpus": 4, "latency": "1 us", "bandwidth": "8 Gbit/s"}
    assert (network["transport"], network["overhead"], network.get("averaging")) == ("nccl", "10 us", None)
    files |= {"h": Readings(averaging=0.0)}
    assert cluster_of(files, Answers(workers=8))[0]["network"]["averaging"] == 0.0
    assert any(note.startswith("tcp.loss") for note in notes)
    assert "jitter" not in network_of({"p": of(replace(path, jitter_s=1e-5))})


def test_a_single_host_of_gpus_needs_no_network() -> None:
    cluster, _ = cluster_of({"n": Readings(gpus=4, workers={"": 4})}, Answers())
    assert cluster == {"workers": 4, "network": {"latency": "0 s", "host": {"gpus": 4}}}


seconds = st.floats(1e-7, 10.0)
rates = st.none() | st.floats(1e3, 1e11)
names = st.text("ab -_é1", min_size=1, max_size=5).filter(lambda text: any(c in "ab1" for c in text))


@st.composite
def drawn(draw: st.DrawFn) -> dict[str, Readings]:
    """A file of paths between all sites, or a graph; and one of other measurements."""
    other = Readings(
        gradients_s=tuple(draw(st.lists(seconds, max_size=3))),
        transport=draw(st.sampled_from([None, "gloo", "nccl"])),
        overhead_s=draw(st.none() | seconds),
    )
    if draw(st.booleans()):
        count = draw(st.integers(2, 5))
        hosts = tuple(f"h {number}" for number in range(count))
        links = tuple(LinkReading(host, "switch", draw(seconds), draw(rates)) for host in hosts)
        return {"map": Readings(hosts=hosts, links=links), "other": other}
    key = lambda name: "_".join("".join(c if c in "ab1" else " " for c in name).split())  # noqa: E731
    sites = draw(st.lists(names, min_size=1, max_size=5, unique_by=key))
    pairs = [(a, b) for a in sites for b in sites if a <= b] if len(sites) > 1 else [("", "")]
    jitter = draw(st.none() | st.floats(0, 1))
    paths = []
    for a, b in pairs:
        latency = draw(seconds)
        sd = None if jitter is None else jitter * latency
        paths.append(
            PathReading(a, b, latency, sd, draw(st.floats(1e3, 1e11)), draw(rates), draw(st.floats(0, 0.5)))
        )
    return {"paths": of(*paths), "other": other}


@given(files=drawn(), workers=st.integers(1, 4))
def test_every_cluster_loads_as_it_was_written(files: dict[str, Readings], workers: int) -> None:
    sites = {path.source for path in files["paths"].paths} if "paths" in files else set()
    cluster, notes = cluster_of(files, Answers(workers=workers * len(sites) if "paths" in files else None))
    text = write_cluster(cluster, [*notes, "a note"])
    assert text.startswith(FIRST_LINE)
    read = yaml_file.parse(text, "cluster.yaml").value["cluster"]
    Cluster.model_validate({"compute": {"time": "1 s"}} | read)
    loaded = Cluster.model_validate({"compute": {"time": "1 s"}} | cluster)
    assert loaded == Cluster.model_validate({"compute": {"time": "1 s"}} | read)
    if sites - {""}:
        latencies = loaded.network.of_pairs("latency")
        known = sorted(path.latency_s or 0.0 for path in files["paths"].paths if path.source != path.target)
        assert sorted(latencies.values())[::2] == pytest.approx(known, rel=1e-5)


def test_a_note_stays_in_its_comment() -> None:
    """Names of files and of what is in them may hold anything."""
    text = write_cluster({"workers": 2}, ["a\ncluster: {workers: 99}\n\u202e"])
    assert yaml_file.parse(text, "cluster.yaml").value == {"cluster": {"workers": 2}}
    assert "\u202e" not in text


def test_one_links_jitter_is_not_all_links() -> None:
    lan = of(PathReading("us", "us", 12.5e-6, jitter_s=1.34e-6))
    wan = PathReading("us", "eu", 35e-3, jitter_s=0.16e-3)
    cluster, notes = cluster_of({"l": lan, "w": of(wan)}, Answers())
    assert "jitter" not in cluster["network"]
    (note,) = (each for each in notes if each.startswith("jitter"))
    assert "here left out; measured: us-us 11 % of 12.5 us, us-eu 0.46 % of 35 ms" in note
    far = of(replace(wan, jitter_s=3.5e-3), replace(wan, source="eu", target="as", jitter_s=4.2e-3))
    network = cluster_of({"l": lan, "w": far}, Answers(latency_s=0.05))[0]["network"]
    assert network["jitter"] == {"lognormal": {"cv": 0.11}}  # of the long ones, which are alike


def test_a_rate_of_the_users_is_written_or_said_not_to_be() -> None:
    lan, rate = of(PathReading("us", "us", 1e-4)), Answers(bandwidth_bytes_per_s=1.25e9)
    assert cluster_of({"l": lan}, rate)[0]["network"]["within"]["bandwidth"] == "10 Gbit/s"
    known = of(PathReading(latency_s=1e-3, bandwidth_bytes_per_s=1e9))
    cluster, notes = cluster_of({"k": known}, rate)
    assert cluster["network"]["bandwidth"] == "8 Gbit/s"
    assert notes == ["--bandwidth is not used: the files say all"]


def test_the_gpus_of_a_log_of_one_site_are_that_sites() -> None:
    log = Readings(paths=(PathReading("us", "us", 1e-5),), gpus=8, workers={"us": 64}, transport="nccl")
    files = {"n": log, "p": of(PathReading("us", "eu", latency_s=0.04))}
    assert network_of(files)["sites"] == {"us": 64, "eu": 8}
    assert network_of(files, 96)["sites"] == {"us": 64, "eu": 32}
    other = replace(log, paths=(PathReading("eu", "eu", 1e-5),), workers={"eu": 32})
    assert network_of(files | {"o": other})["sites"] == {"us": 64, "eu": 32}
    with pytest.raises(InputError, match="n and o differ on the workers"):
        network_of(files | {"o": replace(other, workers={"us": 32})})
