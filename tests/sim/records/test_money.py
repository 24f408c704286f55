"""The cost of a run: by hand, and by laws over drawn prices and runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.reports.words import beside_verdict
from paceline.sim.errors import InputError
from paceline.sim.records.money.cost import PriceRecord, cost, format_money, parse_money
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise, summarise_resolved
from paceline.sim.scenario.schema import dump, resolve_scenario
from tests.support.made_runs import made_run

TARGET: Any = {"metric": "test_accuracy", "value": 0.95}
DOLLARS = PriceRecord(currency="$", per_hour=7.2, egress={"us-eu": 0.5, "default": 2.0}, table=None)

amounts = st.floats(0, 1e4)
whole = st.integers(0, 10**13)
sites = ("us", "eu", "asia")
traffic = st.fixed_dictionaries({a: st.fixed_dictionaries(dict.fromkeys(sites, whole)) for a in sites})


def prices(hour: float, egress: dict[str, float]) -> PriceRecord:
    return PriceRecord(currency="$", per_hour=hour, egress=egress, table=None)


def sent(run: Run) -> Run:
    """The run with all its bytes from us to eu."""
    return replace(run, between={"us": {"us": 0, "eu": run.bytes_sent}, "eu": {}})


def test_hours_and_bytes_by_hand() -> None:
    # 500 s at 7.2 an hour are 1.0; 3 GB from us to eu 1.5, 1 GB back the same way 0.5, 2 GB to asia 4.0.
    bytes_sent = {"us": {"us": 10**12, "eu": 3 * 10**9, "asia": 2 * 10**9}, "eu": {"us": 10**9}}
    assert cost(DOLLARS, 500.0, bytes_sent) == pytest.approx(1.0 + 1.5 + 0.5 + 4.0)
    assert cost(DOLLARS, 500.0, bytes_sent, 0.5) == pytest.approx(1.0 + 3.0)


@given(hour=amounts, pair=amounts, seconds=st.floats(0, 1e6), between=traffic, factor=st.floats(0, 100))
def test_a_cost_is_linear_in_prices(
    hour: float, pair: float, seconds: float, between: dict[str, dict[str, int]], factor: float
) -> None:
    once = cost(prices(hour, {"us-eu": pair, "default": 1.0}), seconds, between)
    more = cost(prices(factor * hour, {"us-eu": factor * pair, "default": factor}), seconds, between)
    assert more == pytest.approx(factor * once)


@given(hour=amounts, seconds=st.floats(0, 1e6), between=traffic)
def test_without_egress_only_hours_cost(
    hour: float, seconds: float, between: dict[str, dict[str, int]]
) -> None:
    assert cost(prices(hour, {}), seconds, between) == pytest.approx(hour * seconds / 3600)


@given(between=traffic, more=st.floats(0, 1e4), seconds=st.floats(0, 1e6))
def test_longer_and_more_never_costs_less(
    between: dict[str, dict[str, int]], more: float, seconds: float
) -> None:
    least = cost(DOLLARS, seconds, between)
    assert cost(DOLLARS, seconds + more, between) >= least
    inside = {a: {b: 0 if a == b else count for b, count in row.items()} for a, row in between.items()}
    assert cost(DOLLARS, seconds, inside) == least  # nothing is paid within a site


def test_a_summary_has_the_cost_to_the_target_and_of_the_run() -> None:
    # The target is met after 1 h and 1 of 4 GB; the run lasts another hour, waiting included.
    run = sent(made_run(reached_s=3600.0, wall_s=7200.0, num_bytes=4 * 10**9))
    first, met, last = run.evaluations
    run = replace(run, evaluations=(first, replace(met, bytes_sent=10**9), last))
    summary = summarise("s", [run], TARGET, price=DOLLARS)
    (row,), (scheme,) = summary["runs"], summary["summary"]
    assert row["cost"] == pytest.approx(14.4 + 2.0)
    assert row["cost_to_target"] == pytest.approx(7.2 + 0.5)
    assert scheme["cost"] == {
        "median": row["cost_to_target"], "low": None, "high": None, "currency": "$"
    }  # fmt: skip


def test_a_run_that_missed_the_target_has_no_cost_to_it() -> None:
    summary = summarise("s", [sent(made_run(reached_s=None, num_bytes=10**9))], TARGET, price=DOLLARS)
    assert summary["runs"][0]["cost_to_target"] is None
    assert summary["summary"][0]["cost"]["median"] is None


def test_the_cheapest_is_named_where_it_is_not_the_first() -> None:
    runs = [
        sent(made_run(label, seed, reached_s=reached_s, num_bytes=num_bytes))
        for label, reached_s, num_bytes in (("fast", 36.0, 10**9), ("frugal", 360.0, 0))
        for seed in range(5)
    ]
    verdict = summarise("s", runs, TARGET, price=DOLLARS)["verdict"]
    assert (verdict["first"], verdict["cheapest"]) == ("fast", "fast")  # 0.072 + 0.5 against 0.72
    dear = PriceRecord(currency="$", per_hour=0.72, egress={"us-eu": 0.5}, table=None)
    summary = summarise("s", runs, TARGET, price=dear)
    assert summary["verdict"]["cheapest"] == "frugal"
    assert "frugal costs least: $0.072 to the target, where fast costs $0.507." in beside_verdict(
        summary, "simulated"
    )


def test_without_a_target_a_step_costs_the_run_over_its_steps() -> None:
    summary = summarise("s", [sent(made_run(reached_s=None, wall_s=3600.0, num_bytes=10**9))], price=DOLLARS)
    assert summary["summary"][0]["cost"]["median"] == pytest.approx((7.2 + 0.5) / 100)


def test_without_prices_nothing_is_said_of_money() -> None:
    text = repr(summarise("s", [sent(made_run())], TARGET))
    assert not any(word in text for word in ("cost", "price", "cheapest"))


def test_prices_are_read_from_a_resolved_scenario() -> None:
    scenario = resolve_scenario("two-sites", None, ["price={worker_hour: {us: 2 EUR, default: 3 EUR}}"])
    price = summarise_resolved(dump(scenario), "s", [made_run()])["price"]
    assert price == {"currency": "EUR", "per_hour": 4 * 2.0 + 4 * 3.0, "egress": {}, "table": None}
    flat = resolve_scenario("two-workers", None, ["price={worker_hour: $1.5}"])
    assert summarise_resolved(dump(flat), "s", [made_run()])["price"]["per_hour"] == 3.0


@given(st.floats(1e-9, 1e12), st.sampled_from(["$", "EUR"]))
def test_money_is_written_with_three_digits(amount: float, currency: str) -> None:
    text = format_money(amount, currency)
    number = text.replace(",", "").strip("$ EUR")
    assert "e" not in number
    assert float(number) == pytest.approx(amount, rel=0.006, abs=0.6 * (amount >= 100))


@pytest.mark.parametrize("text", ["", "2.50", "2.50 USD", "-$2", "$2 EUR", "$ ", "EUR", "$1e3", 3, None])
def test_no_price(text: object) -> None:
    with pytest.raises(InputError, match=r"is no price; write for example \$2\.50 or 2\.5 EUR"):
        parse_money(text)
