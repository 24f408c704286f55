"""Prices of workers and of bytes between sites, and the cost of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from typing_extensions import TypedDict

from ...errors import InputError, quote
from ..intervals import Interval, or_inf
from ..rows import RunRow
from ..run import Pace, Run

OTHERS: Final = "default"
"""Name of all sites, or pairs of sites, without a price of their own."""
_AMOUNT: Final = re.compile(r"(\$?) ?([0-9]{1,12}(?:\.[0-9]{1,12})?)((?: EUR| \$)?)")


class PriceRecord(TypedDict):
    """Prices of a scenario.

    ``currency``: ``$`` or ``EUR``; ``per_hour``: of all workers together; ``egress``: per 10^9 bytes, by pair
    of sites (``us-eu``) as the scenario names it; ``table``: the ready table, if any.
    """

    currency: str
    per_hour: float
    egress: dict[str, float]
    table: str | None


class CostInterval(Interval):
    """A median cost with its interval."""

    currency: str


def parse_money(value: object) -> tuple[float, str]:
    """Amount and currency of ``$2.50``, ``2.50 $`` or ``2.5 EUR``; ``InputError`` for anything else."""
    match = _AMOUNT.fullmatch(str(value))
    if match is None or bool(match[1]) == bool(match[3]):
        raise InputError(f"{quote(str(value))} is no price; write for example $2.50 or 2.5 EUR")
    return float(match[2]), match[1] or match[3].strip()


def format_money(amount: float, currency: str) -> str:
    """An amount with at most three digits.

    >>> format_money(1234.5, "$"), format_money(0.01234, "$"), format_money(2.5, "EUR")
    ('$1,234', '$0.0123', '2.5 EUR')
    """
    places = max(0, 2 - math.floor(math.log10(amount))) if amount > 0 else 0
    text = f"{amount:,.{places}f}".rstrip("0").rstrip(".") if places else f"{amount:,.0f}"
    return f"${text}" if currency == "$" else f"{text} {currency}"


def cost(
    price: PriceRecord, seconds: float, sent: Mapping[str, Mapping[str, int]], share: float = 1.0
) -> float:
    """Cost of all workers for some seconds, waiting or not, and of a share of bytes from each site to each.

    A pair without a price of its own has that of the way back, else the default's, else none.
    """
    total = price["per_hour"] * seconds / 3600
    return total + sum(rate * share * num_bytes / 1e9 for rate, num_bytes in _priced(price, sent))


def billed_bytes(price: PriceRecord, sent: Mapping[str, Mapping[str, int]]) -> int:
    """Bytes from each site to each that have a price."""
    return sum(num_bytes for rate, num_bytes in _priced(price, sent) if rate)


def _priced(price: PriceRecord, sent: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[float, int]]:
    """Price of 10^9 bytes, and bytes, between each two sites."""
    egress = price["egress"]
    for a, row in sent.items():
        for b, num_bytes in row.items():
            if a != b:
                rates = (egress[name] for name in (f"{a}-{b}", f"{b}-{a}", OTHERS) if name in egress)
                yield next(rates, 0.0), num_bytes


def add_costs(row: RunRow, run: Run, price: PriceRecord) -> None:
    """Add costs of a run, a step, and to the target, by when each pair of sites has its part of the bytes."""
    row["cost"] = cost(price, run.wall_clock_s, run.between)
    row["cost_of_step"] = cost_of_step(run, price)
    row["cost_to_target"] = None if run.met is None else cost_to_end(run, price)


def cost_to_end(run: Run, price: PriceRecord) -> float:
    """Cost of a run to its target, or of all of it where that was not met."""
    if (met := run.met) is None:
        return cost(price, run.wall_clock_s, run.between)
    return cost(price, met.time_s, run.between, met.bytes_sent / max(run.bytes_sent, 1))


def cost_of_step(run: Run, price: PriceRecord) -> float | None:
    """Cost of a step of a completed run, of its time and bytes by the pace and so without an idle end."""
    pace = run.pace or Pace(run.wall_clock_s, (run.iterations,), ())
    if run.status != "completed" or not run.step_s:
        return None
    return cost(price, pace.time_s, pace.between or run.between) / pace.mean_steps


def race_cost(run: RunRow, by_step: bool) -> float:
    """Cost to the target, or of a step; infinite for a run that did not get there."""
    return or_inf(run.get("cost_of_step") if by_step else run["cost_to_target"])
