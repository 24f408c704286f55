"""``price`` in scenarios: places, currencies, tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.sim.errors import InputError
from paceline.sim.records.money.cost import parse_money
from paceline.sim.scenario.ready import price_tables
from paceline.sim.scenario.schema import Scenario, dump, parse, resolve_scenario


def with_price(text: str, *changes: str, of: str = "two-sites") -> Scenario:
    return resolve_scenario(of, None, [f"price={text}", *changes])


def price_of(scenario: Scenario) -> dict[str, Any]:
    assert scenario.price is not None
    return scenario.price.model_dump(mode="json")


@pytest.mark.parametrize(
    ("price", "message"),
    [
        ("{worker_hour: 3}", "price.worker_hour: '3' is no price; write for example $2.50"),
        ("{worker_hour: $3, egress: 2 EUR}", "price: mixes $ and EUR; write one currency"),
        ("{}", "price: needs worker_hour or egress, or a table"),
        ("{worker_hour: {eu: $1, mars: $2}}", "price.worker_hour.mars: no such site; "),
        ("{worker_hour: {eu: $1}}", "price.worker_hour: says nothing of us; add a 'default'"),
        ("{egress: {us-mars: $1}}", "price.egress.us-mars: no two sites have this name"),
        ("{table: awz}", "price.table: unknown table 'awz'; did you mean 'aws'?"),
        ("{table: aws}", "price.worker_hour: says nothing of us, eu; add a 'default'"),
        ("{table: aws, machine: huge}", "price.machine: unknown choice 'huge'"),
    ],
)
def test_mistakes_name_key_and_choice(price: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        with_price(price)


def test_a_pair_of_one_site_has_no_price() -> None:
    with pytest.raises(InputError, match=r"price\.table: unknown table 'awz'"):
        with_price("{table: awz}", of="two-workers")
    with pytest.raises(InputError, match=r"price\.egress: there is one site"):
        with_price("{egress: {a-b: $1}}", of="two-workers")


def test_a_table_fills_in_what_is_left_out() -> None:
    sites = "cluster.network.sites={us-east-1: 4, sa-east-1: 3, office: 1}"
    filled = with_price("{table: aws, worker_hour: {sa-east-1: $0.5, office: $0}}", sites)
    assert price_of(filled) == {
        "worker_hour": {"us-east-1": "$0.35904", "sa-east-1": "$0.5", "office": "$0"},
        "egress": {
            "us-east-1-sa-east-1": "$0.02", "us-east-1-office": "$0.09",
            "sa-east-1-us-east-1": "$0.138", "sa-east-1-office": "$0.15",
            "office-us-east-1": "$0", "office-sa-east-1": "$0",
        },
        "table": "aws", "machine": "general",
    }  # fmt: skip
    assert parse(dump(filled)) == filled


def test_one_price_leaves_nothing_to_the_table() -> None:
    sites = "cluster.network.sites={us-east-1: 4, us-east-2: 4}"
    price = price_of(with_price("{table: aws, worker_hour: $9}", sites))
    assert price["worker_hour"] == {"default": "$9"}
    assert price["egress"] == {"us-east-1-us-east-2": "$0.01", "us-east-2-us-east-1": "$0.01"}


def test_a_table_prices_all_gpus_of_an_island() -> None:
    sites = "cluster.network.sites={eastus: 2, westus3: 2}"
    latency = "cluster.network.between.latency=30 ms"
    scenario = with_price("{table: azure, machine: gpu}", sites, latency, of="llm/four-sites")
    assert price_of(scenario)["worker_hour"] == {"eastus": "$446.72", "westus3": "$446.72"}  # 64 of $6.98


def test_every_row_of_a_table_has_a_price_and_a_source() -> None:
    assert set(price_tables()) == {"aws", "azure", "google"}
    for rows in price_tables().values():
        keys = [(row["what"], row["from"], row["to"]) for row in rows]
        assert len(set(keys)) == len(keys)
        left = {row["from"] for row in rows if row["what"] == "egress" and row["to"] == "internet"}
        assert left >= {row["from"] for row in rows}
        for row in rows:
            assert parse_money(f"${row['price']}")[0] > 0
            assert row["source"].startswith("https://github.com/")
            assert re.fullmatch(r"2026-\d\d-\d\d", row["read"])
