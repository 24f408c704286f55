"""``paceline topology``: what it prints, what it draws, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.sim.topology import plan
from paceline.sim.topology.graphs.graph_files import write_graph
from paceline.sim.topology.matrix import support
from tests.paceline.test_command_line import run

Patch = pytest.MonkeyPatch
Captured = pytest.CaptureFixture[str]


def shown(monkeypatch: Patch, capsys: Captured, *arguments: Any) -> dict[str, Any]:
    status, out, _ = run(monkeypatch, capsys, "topology", *arguments, "--json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_show_has_the_promised_names(monkeypatch: Patch, capsys: Captured) -> None:
    found = shown(monkeypatch, capsys, "show", "ring", "--workers", 16)
    assert (found["workers"], found["degree"], found["weights"], found["period"]) == (16, 2, "uniform", 1)
    assert found["second_eigenvalue_modulus"] == pytest.approx(0.949253, abs=5e-7)
    assert found["spectral_gap"] == pytest.approx(1 - 0.949253, abs=5e-7)
    assert found["edges"] == sorted([[i, i + 1] for i in range(15)] + [[0, 15]])
    assert found["steps_to_epsilon"] == 133  # ln 0.001 / ln 0.949253 = 132.6
    assert len(found["spectrum"]) == 16
    assert found["decay"][0] == 1.0
    assert found["decay"] == sorted(found["decay"], reverse=True)


def test_show_of_a_sequence_and_of_options(monkeypatch: Patch, capsys: Captured) -> None:
    found = shown(monkeypatch, capsys, "show", "one_peer_exponential", "--workers", 16)
    assert (found["period"], found["degree"], found["exact_after"], found["rate_per_step"]) == (4, 1, 4, 0)
    assert found["directed"]
    assert found["transient_iterations"] is None  # the rate of 0 is that of whole periods
    assert [1, 2] in found["edges"]
    found = shown(
        monkeypatch, capsys, "show", "{ring_lattice: {degree: 4}}", "--workers", 16, "--weights", "laplacian"
    )
    assert found["second_eigenvalue_modulus"] == pytest.approx(0.786624, abs=5e-7)
    assert found["least_weight"] == pytest.approx(-0.156, abs=5e-4)
    assert found["topology"] == {"ring_lattice": {"degree": 4}}
    found = shown(monkeypatch, capsys, "show", "random_matching", "--workers", 10, "--seed", 3)
    assert found["period"] is None
    assert found["rate_per_step"] == pytest.approx((0.5 - 0.5 / 9) ** 0.5)
    assert found["spectrum"] is None
    found = shown(monkeypatch, capsys, "show", "{de_bruijn: {base: 3}}", "--workers", 27)
    assert (found["exact_after"], found["rate_per_step"]) == (3, 0)


def test_show_of_a_file(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    write_graph(tmp_path / "g.json", support(plan("hypercube", 8).matrix(0)))
    found = shown(monkeypatch, capsys, "show", tmp_path / "g.json", "--workers", 8)
    assert found["second_eigenvalue_modulus"] == pytest.approx(0.5)


@pytest.mark.slow
def test_show_writes_figures(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    for number, name in enumerate(["torus", "static_exponential", "base", "matcha", "complete"]):
        out = tmp_path / str(number)
        status, printed, said = run(
            monkeypatch, capsys, "topology", "show", name, "--workers", 12, "--out", out
        )
        assert status == 0
        assert name in printed
        assert f"wrote {out}" in said
        drawn = {"decay.png", "graph.png"} | ({"spectrum.png"} if name != "matcha" else set())
        assert {path.name for path in out.iterdir()} == drawn | {"topology.json"}
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in out.glob("*.png"))
        assert json.loads((out / "topology.json").read_text())["name"].startswith(name)
    status, _, said = run(
        monkeypatch, capsys, "topology", "show", "ring", "--workers", 4, "--out", tmp_path / "0"
    )
    assert status == 2
    assert "is there already" in said
    assert (
        run(
            monkeypatch,
            capsys,
            "topology",
            "show",
            "ring",
            "--workers",
            4,
            "--out",
            tmp_path / "0",
            "--force",
        )[0]
        == 0
    )


def test_compare_puts_the_fastest_first(monkeypatch: Patch, capsys: Captured) -> None:
    names = ["ring", "hypercube", "random_matching", "one_peer_exponential", "complete"]
    found = shown(monkeypatch, capsys, "compare", *names, "--workers", 16)
    assert [each["name"] for each in found["topologies"]] == [
        "one_peer_exponential", "complete", "hypercube", "random_matching", "ring"
    ]  # fmt: skip
    status, printed, _ = run(monkeypatch, capsys, "topology", "compare", *names, "--workers", 16)
    assert status == 0
    assert "0.949253" in printed.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "rign", "--workers", "8"], "paceline: unknown topology 'rign'; did you mean 'ring'?\n"),
        (
            ["show", "hypercube", "--workers", "12"],
            "paceline: hypercube needs a power of two of workers, not 12; use 8 or 16\n",
        ),
        (
            ["show", "ring_lattice: {degre: 4}", "--workers", "8"],
            "paceline: ring_lattice.degre: unknown key; did you mean 'degree'?\n",
        ),
        (
            ["compare", "ring", "static_exponential", "--workers", "8", "--weights", "metropolis"],
            "paceline: metropolis weights need an undirected graph; use uniform or column_stochastic\n",
        ),
        (["show", "x.json", "--workers", "8"], "paceline: x.json: there is no such file\n"),
        (["show", "ring", "--workers", "0"], "paceline: topology ring needs at least 2 workers, not 0\n"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], message: str, monkeypatch: Patch, capsys: Captured
) -> None:
    status, out, said = run(monkeypatch, capsys, "topology", *arguments)
    assert (status, out, said) == (2, "", message)


def test_a_file_name_is_no_markup(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    file = tmp_path / "[red]x.json"
    write_graph(file, support(plan("ring", 4).matrix(0)))
    for command in ("show", "compare"):
        status, printed, _ = run(monkeypatch, capsys, "topology", command, file, "--workers", 4)
        assert status == 0
        assert "file [red]x.json" in printed


def test_dollars_in_a_file_name_are_no_mathematics(
    tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    file = tmp_path / "$\\frac$.json"
    write_graph(file, support(plan("ring", 4).matrix(0)))
    out = tmp_path / "out"
    assert run(monkeypatch, capsys, "topology", "show", file, "--workers", 4, "--out", out)[0] == 0
    assert (out / "decay.png").is_file()
