"""Money in what the commands show: terminal, page, table, sweep, list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import paceline
from paceline.reports.page import build
from paceline.reports.sweep_tables import sweep_cells
from paceline.sim.scenario.schema import Scenario, resolve_scenario
from tests.paceline.test_command_line import run

QUICK = {
    "name": "money",
    "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.05}, "payload": "20 MB"},
    "cluster": {
        "compute": {"time": "50 ms"},
        "network": {
            "sites": {"us": 2, "eu": 1},
            "within": {"latency": "0 s"},
            "between": {"latency": "40 ms", "bandwidth": "1 Gbit/s"},
        },
    },
    "schemes": [{"local_sgd": {"period": 4}}, "all_reduce"],
    "stop": {"max_iterations": 12},
}
PRICE = "price={worker_hour: {us: $36, eu: $72}, egress: {us-eu: $1, eu-us: $3}}"


@pytest.fixture(scope="module")
def priced() -> Scenario:
    return resolve_scenario(QUICK, None, [PRICE])


@pytest.mark.parametrize("engine", ["event", "lockstep"])
def test_a_run_by_hand(priced: Scenario, engine: Any) -> None:
    """One average in four steps: both drivers count the same bytes, and hours of three workers at $144."""
    study = paceline.simulate(priced, engine=engine)
    local = study.totals["runs"][0]
    between = local["bytes_between"]
    assert sum(sum(row.values()) for row in between.values()) == local["bytes_sent"]
    assert local["bytes_on_links"] == {"us->eu": between["us"]["eu"], "eu->us": between["eu"]["us"]}
    expected = 144 * local["wall_clock_s"] / 3600 + (between["us"]["eu"] + 3 * between["eu"]["us"]) / 1e9
    assert local["cost"] == pytest.approx(expected)
    assert study.totals["summary"][0]["cost"]["median"] == pytest.approx(expected / 12)


def test_prices_change_nothing_else(priced: Scenario) -> None:
    with_price = json.loads(json.dumps(paceline.simulate(priced).totals))
    plain = json.loads(json.dumps(paceline.simulate(resolve_scenario(QUICK)).totals))
    del with_price["price"], with_price["verdict"]["cheapest"]
    for each in (*with_price["runs"], *with_price["summary"]):
        del each["cost"]
        each.pop("cost_of_step", None)
        each.pop("cost_to_target", None)
    assert with_price == plain


def test_the_terminal_shows_prices_and_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "money.yaml"
    scenario.write_text(json.dumps(QUICK))
    code, shown, _ = run(monkeypatch, capsys, "simulate", str(scenario), "--why", "--set", PRICE)
    assert code == 0
    prices = "Prices: $144 an hour for all workers, and $1 to $3 for a GB between sites."
    assert prices in " ".join(shown.split())
    assert "and cost" in shown


@pytest.mark.slow
def test_page_and_tables_have_prices_costs_and_bytes(priced: Scenario, tmp_path: Path) -> None:
    study = paceline.simulate(priced)
    study.save(tmp_path / "out")
    build([tmp_path / "out"], tmp_path / "page.html", tmp_path / "files")
    page = (tmp_path / "page.html").read_text().replace("\u00a0", " ")
    for text in ("Cost of a step", "us to eu", "Prices: $144 an hour"):
        assert text in page
    table = pd.read_csv(tmp_path / "files" / "table.csv")
    assert dict(zip(table["label"], table["cost_median"], strict=True)) == pytest.approx(
        dict(study.summary["cost"])
    )
    assert "cost of a step" in (tmp_path / "files" / "table.tex").read_text()


def test_a_sweep_has_costs_in_its_table(priced: Scenario) -> None:
    sweep = paceline.sweep(priced, {"cluster.network.between.bandwidth": ["1 Gbit/s", "10 Gbit/s"]})
    for cells in sweep_cells(sweep.totals):
        assert all(", $0.0" in cell for cell in cells[1:3])


def test_list_names_tables_and_regions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, shown, _ = run(monkeypatch, capsys, "list")
    assert "  aws: us-east-1 us-east-2" in shown
    _, shown, _ = run(monkeypatch, capsys, "list", "--json")
    assert json.loads(shown)["prices"]["azure"][0]["source"].startswith("https://")
