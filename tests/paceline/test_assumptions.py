"""Every command that prints a time says what it rests on, and what no measurement covers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from paceline.commands.app import COMMANDS, app
from paceline.reports.assumptions import assumed, assumed_in
from paceline.sim.records.scenario_facts import Outside, TransportRecord, read_facts
from paceline.sim.scenario.schema import dump, parse
from tests.paceline.extras.explore.test_command import content_of

pytestmark = pytest.mark.usefixtures("little_work")

SCENARIO: Final = """
name: one
workload:
  timing_only: true
  layer_profile:
    transformer: {layers: 2, width: 256, feed_forward: 1024, vocabulary: 8000, length: 16}
  batch_size: 1
cluster:
  workers: 2
  compute: {time: 100 ms}
  network: {latency: 35 ms, bandwidth: 1 Gbit/s, transport: nccl, hosts: stock}
schemes: [all_reduce, local_sgd: {period: 4}]
stop: {max_iterations: 8}
"""
LAW: Final = "The transport is NCCL, hosts are stock"
BEYOND: Final = "Not validated over NCCL: latency 35 ms (measured: 50 us to 10 ms)."
KNOWN: Final = TransportRecord(
    name="nccl",
    hosts="stock",
    all_reduce="nccl_ring",
    not_validated=["latency 35 ms (measured: 50 us to 10 ms)"],
)
OF_SCENARIO: Final[dict[str, list[str]]] = {
    "check": [], "throughput": [], "simulate": ["--why"], "recommend": [],
    "sweep": ["--grid", "cluster.compute.time=100 ms, 200 ms"],
    "topology search": [],
}  # fmt: skip
"""Commands that predict from a scenario, and their options."""
PAGES: Final = {"report", "explore"}
OVER_PROCESSES: Final[dict[str, list[str]]] = {
    "realrun": ["--processes"], "validate": ["--tolerance", "1e6"],
}  # fmt: skip
NO_TIME: Final = {
    "probe": "measures, and names the hosts",
    "lab check": "measures this machine",
    "netem": "prints commands with the scenario's own numbers",
    "replay": "compares models",
}
"""Commands that take a scenario or its results, and print no time that follows from them."""


def commands() -> Iterator[str]:
    """Commands that take a scenario or a result folder, those of groups too."""
    for name, command in COMMANDS.items():
        for inner, each in getattr(command, "commands", {"": command}).items():
            if {"scenario", "folder", "folders"} & {parameter.name for parameter in each.params}:
                yield f"{name} {inner}".strip()


def test_each_command_states_it_or_prints_no_time() -> None:
    known = [*OF_SCENARIO, *PAGES, *OVER_PROCESSES, *NO_TIME]
    assert sorted(known) == sorted(commands())


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (path := tmp_path / "one.yaml").write_text(SCENARIO)
    return path


def run(*arguments: object) -> tuple[str, str]:
    """What a command prints: as one line, and as it is."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, (done.output, done.exception)
    return " ".join(done.output.split()), done.stdout


def of(command: str, scenario: Path) -> list[object]:
    if command == "topology search":
        return [
            *command.split(),
            "--objective",
            "wall-clock",
            "--scenario",
            scenario,
            "--degree",
            2,
            "--moves",
            1,
        ]
    return [command, scenario, *OF_SCENARIO[command]]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "topology search" else name
        for name in OF_SCENARIO
    ],
)
def test_predictions_state_it(command: str, scenario: Path) -> None:
    if command == "topology search":
        scenario.write_text(SCENARIO.replace("workers: 2", "workers: 4").replace("stock", "tuned"))
    text, _ = run(*of(command, scenario))
    assert (LAW.replace("stock", "tuned") if command == "topology search" else LAW) in text
    assert BEYOND in text
    if command != "topology search":
        assert "its all-reduce is nccl ring" in text
    answer: dict[str, Any] = json.loads(run(*of(command, scenario), "--json")[1])
    settings = answer["settings"] if command == "sweep" else [answer]
    assert [each["transport"]["name"] for each in settings] == ["nccl"] * len(settings)
    stated = [{key: each["transport"].get(key) for key in KNOWN} for each in settings]
    assert command == "topology search" or stated == [KNOWN] * len(settings)


@pytest.mark.slow
def test_pages_state_it(scenario: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "out"

    def shown() -> str:
        return " ".join(page.read_text(encoding="utf-8").replace("\u00a0", " ").split())

    for command in ("simulate", "sweep"):
        run(*of(command, scenario), "--out", out / command)
        run("report", out / command, "--out", page)
        assert LAW in shown()
        assert BEYOND in shown()
        page.unlink()
    run("explore", scenario, "--set", "cluster.network.hosts=tuned", "--out", page)  # which has a closed form
    assert LAW.replace("stock", "tuned") in shown()
    assert BEYOND in shown()
    stated = content_of(page)["transport"]
    assert stated.pop("outside")["grade"] == "plate"
    assert stated == {**KNOWN, "hosts": "tuned"}


@pytest.mark.slow
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize("command", OVER_PROCESSES)
def test_real_runs_state_it(command: str, scenario: Path, tmp_path: Path) -> None:
    scenario.write_text(SCENARIO.replace("35 ms", "2 ms"))
    text, _ = run(command, scenario, *OVER_PROCESSES[command], "--out", tmp_path / "out")
    assert "The transport is gloo, hosts are stock; its all-reduce is gloo ring." in text
    (file,) = (tmp_path / "out").glob("validation.json" if command == "validate" else "summary.json")
    known = {"name": "gloo", "hosts": "stock", "all_reduce": "gloo_ring", "not_validated": []}
    stated = json.loads(file.read_text())["transport"]
    assert stated.pop("outside")["grade"] == "plate"  # of the scenario's inputs
    assert stated == known


def known_of(*changes: str) -> TransportRecord:
    known = read_facts(dump(parse(SCENARIO, changes=list(changes)))).transport
    assert known is not None
    return known


def test_each_library_names_what_no_measurement_covers() -> None:
    far, near = "cluster.network.latency=60 ms", "cluster.network.latency=2 ms"
    fast, slow = "cluster.network.bandwidth=10 Gbit/s", "cluster.network.bandwidth=1 Gbit/s"
    gloo, ideal = "cluster.network.transport=gloo", "cluster.network.transport=ideal"
    assert known_of(near)["not_validated"] == []
    assert known_of(near, "cluster.workers=64")["not_validated"] == ["workers 64 (measured: 2 to 32)"]
    assert known_of(gloo, far, fast)["not_validated"] == [
        "latency 60 ms (measured: 50 us to 50 ms)",
        "bandwidth 10 Gbit/s (measured: 100 Mbit/s to 5 Gbit/s)",
    ]
    assert known_of(gloo)["not_validated"] == []
    apart = "cluster.network={sites: {us: 1, eu: 1}, within: {latency: 1 s, bandwidth: 1 Tbit/s}, between: "
    apart += "{latency: {default: 1 ms}, bandwidth: 1 Gbit/s}, transport: gloo}"  # nobody is inside a site
    assert known_of(apart)["not_validated"] == []
    assert known_of(ideal, far, fast, slow)["not_validated"] == []
    assert "The transport is ideal, no library's" in " ".join(assumed(known_of(ideal)))
    several = assumed({**known_of(ideal), "all_reduce": "fastest_for_each or ring"})
    assert several[0].endswith("its all-reduce is the fastest for each size and group or ring.")


def test_a_large_model_s_messages_are_not_small() -> None:
    for profile in ("llama-2-7b", "resnet-50"):
        assert "messages this small" not in known_of(f"workload.layer_profile={profile}")["not_validated"]
    rows = "{rows: [{name: a, parameters: 1000, forward_flops: 1.0}]}"
    assert "messages this small" in known_of(f"workload.layer_profile={rows}")["not_validated"]


def test_settings_of_a_sweep_are_put_together() -> None:
    latencies = (1, 20, 30, 40, 80)
    settings = [{"transport": known_of(f"cluster.network.latency={x} ms")} for x in latencies]
    law, *beyond, more = assumed_in({"settings": settings})
    assert law.startswith(LAW)
    assert re.findall("latency [0-9]+ ms", " ".join(beyond)) == [f"latency {x} ms" for x in latencies[1:4]]
    assert more == "1 more: --json has them by setting."


OUTSIDE: Final = Outside(
    grade="plate",
    inputs="a name plate",
    next="a rate by iperf3",
    rows=61,
    mean_pct=14.3,
    fast=0.82,
    low=0.9,
    high=1.5,
)


def test_an_error_outside_is_said_with_the_quickest_step() -> None:
    known = TransportRecord(**{**KNOWN, "outside": OUTSIDE})
    (*_, sentence) = assumed(known, {}, {"all_reduce": 0.2, "gossip": 0.1, "failed": None})
    assert sentence == (
        "Inputs like these (a name plate) were 14 % off outside (61 rows, 82 % of them too fast): a step of "
        "gossip takes 90 ms to 150 ms, four times in five; a rate by iperf3 narrows that."
    )
    assert assumed(known) == assumed(KNOWN) == assumed(KNOWN, {}, {"gossip": 0.1})


@pytest.mark.parametrize("name", OF_SCENARIO)
def test_commands_say_the_error_of_inputs_like_these(name: str, scenario: Path) -> None:
    argv = [*name.split(), str(scenario), *OF_SCENARIO[name]]
    says = "Inputs like these" in " ".join(CliRunner().invoke(app, argv).output.split())
    assert says == (name in {"check", "throughput", "simulate", "recommend"})
