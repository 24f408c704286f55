"""The transport in what the command line shows and writes, and in predictions beside measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import paceline
from paceline.extras.report.beside import price_again
from paceline.sim.experiments.simulate import simulate
from paceline.sim.network import profile as profiles
from paceline.sim.records.folder import read_results, read_studies, write_results
from paceline.sim.records.scenario_facts import read_facts
from paceline.sim.scenario.schema import dump, over_transport, parse
from tests.support.made_measurements import exact_fit

SCENARIO = """\
name: one
workload: {timing_only: true, payload: 1 MB}
cluster:
  workers: 4
  compute: {time: 10 ms}
  network: {latency: 5 ms, bandwidth: 1 Gbit/s}
schemes: [all_reduce, ad_psgd]
stop: {max_iterations: 3}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "one.yaml"
    path.write_text(SCENARIO)
    return path


pytestmark = pytest.mark.usefixtures("little_work")
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line: exit status, and what it prints as one line."""

    def command(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["paceline", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            paceline.main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), " ".join((captured.out or captured.err).split())

    return command


@pytest.mark.usefixtures("undrawn")
def test_the_transport_is_named_everywhere(scenario: Path, tmp_path: Path, run: Command) -> None:
    out, page = tmp_path / "out", tmp_path / "report.html"
    over_nccl = ["--set", "cluster.network.transport=nccl"]
    status, text = run("simulate", scenario, *over_nccl, "--why", "--out", out)
    assert status == 0
    assert "The transport is NCCL, hosts are tuned; its all-reduce is nccl ring." in text
    assert "ad_psgd pays for that" in text
    assert "Not validated over NCCL: messages this small." in text
    known = {
        "name": "nccl",
        "hosts": "tuned",
        "all_reduce": "nccl_ring",
        "not_validated": ["messages this small"],
    }
    printed = json.loads(run("simulate", scenario, *over_nccl, "--json")[1])["transport"]
    assert printed == known | {"outside": printed["outside"]}
    assert json.loads((out / "summary.json").read_text())["transport"] == printed
    assert json.loads(run("check", scenario, "--json")[1])["transport"]["all_reduce"] == "double_tree"
    assert "The transport is ideal" in run("check", scenario)[1]
    assert run("report", out, "--out", page)[0] == 0
    assert "The transport is NCCL" in page.read_text()
    assert "all-reduce by nccl_ring" in page.read_text()
    assert "Not validated over NCCL" in page.read_text()


@pytest.mark.parametrize(
    ("host", "version", "said"),
    [
        ("gpus: 2", "null", "nccl tree by the rule of NCCL from 2.6 on with NVLink"),
        (
            "gpus: 2, bandwidth: 16 GB/s",
            "'2.4.8'",
            "nccl ring by the rule of NCCL before 2.6 with PCI Express",
        ),
        ("gpus: 2", "2.10", "write the version in quotes, as '2.18'"),
        ("gpus: 2", "new", "is no version of NCCL; write for example '2.18'"),
    ],
)
def test_what_nccls_choice_between_two_hosts_assumes_is_said_with_the_other(
    scenario: Path, run: Command, host: str, version: str, said: str
) -> None:
    form = f"{{latency: 30 us, bandwidth: 10 Gbit/s, transport: nccl, nccl: {version}, host: {{{host}}}}}"
    changes = ("--set", "workload.payload=100 MB", "--set", f"cluster.network={form}")
    for command in ("check", "simulate"):
        text = run(command, scenario, *changes, "--why")[1]
        assert said in text
        assert "write" in said or re.search(r"a model takes [\d.]+ m?s, by nccl (ring|tree) [\d.]+ m?s", text)
    status, text = run("check", scenario, "--set", "cluster.network.nccl='2.4'")
    assert (status, "write transport: nccl, or leave it out" in text) == (2, True)


def test_long_latencies_over_nccl_are_not_validated() -> None:
    text = dump(over_transport(parse(SCENARIO, changes=["cluster.network.latency=40 ms"]), "nccl"))
    known = read_facts(text.replace("payload: 1 MB", "payload: 100 MB")).transport
    assert known is not None
    assert known["not_validated"] == ["latency 40 ms (measured: 50 us to 10 ms)"]


def test_a_profile_brings_its_transport(scenario: Path, tmp_path: Path, run: Command) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(profiles.dump(exact_fit().profile))
    beside = "cluster.profile=profile.yaml"
    resolved = parse(SCENARIO, str(scenario), [beside])
    assert resolved.cluster.network.transport == "gloo"
    assert parse(dump(resolved)) == resolved
    for text in (("--profile", profile), ("--set", beside)):
        assert json.loads(run("simulate", scenario, *text, "--json")[1])["transport"]["name"] == "gloo"
        for name in ("ideal", "nccl"):
            status, said = run("simulate", scenario, *text, "--set", f"cluster.network.transport={name}")
            assert status == 2
            assert f"'{name}' is not what" in said


@pytest.mark.usefixtures("undrawn")
def test_a_prediction_over_another_transport_is_made_again(tmp_path: Path, run: Command) -> None:
    scenario = parse(SCENARIO)
    predicted, measured = tmp_path / "predicted", tmp_path / "measured"
    write_results(predicted, dump(scenario), scenario.name, list(simulate(scenario)))
    real = over_transport(scenario, "gloo")
    runs = [replace(each, source="measured") for each in simulate(real)]
    write_results(measured, dump(real), real.name, runs)
    lines: list[str] = []
    (again,) = price_again(read_studies([predicted, measured], 2), tmp_path / "scratch", lines.append)
    assert again.name == "predicted-over-gloo"
    assert len(lines) == 1
    results = read_results(again)
    assert results.summary["transport"]["all_reduce"] == "gloo_ring"
    assert [row["wall_clock_s"] for row in results.summary["runs"]] == [each.wall_clock_s for each in runs]
    assert price_again(read_studies([again, measured], 2), tmp_path / "scratch", lines.append) == []
    assert run("report", predicted, measured, "--out", tmp_path / "report.html")[0] == 0
    page = (tmp_path / "report.html").read_text()
    assert "The transport is gloo" in page
    assert "The transport is ideal" in page
