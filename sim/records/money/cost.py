"""Prices of workers and of bytes between sites, and the cost of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NotRequired

from typing_extensions import TypedDict

from ...errors import InputError, quote

DEFAULT: Final = "default"
"""Key of the price of all sites, or pairs of sites, that have none of their own."""
_HOUR_S: Final = 3600.0
_GB: Final = 1e9
_AMOUNT: Final = re.compile(r"(\$|EUR|€)?\s*([0-9]{1,12}(?:\.[0-9]{0,12})?)\s*(\$|USD|EUR|€)?")


class PriceRecord(TypedDict):
    """Prices of a scenario.

    ``currency``: ``$`` or ``EUR``; ``per_hour``: of all workers together; ``egress``: per 10^9 bytes, by pair
    of sites (``us-eu``) as the scenario names it; ``table``: the ready table, if one was named.
    """

    currency: str
    per_hour: float
    egress: dict[str, float]
    table: NotRequired[str]


class Cheapest(TypedDict):
    """The scheme that costs least, where it is not the first by the clock, and a sentence about both."""

    label: str
    text: str


def parse_money(value: object) -> tuple[float, str]:
    """Amount and currency of ``$2.50`` or ``2.5 EUR``; ``InputError`` for anything else.

    >>> parse_money("$2.50"), parse_money("0.02 EUR")
    ((2.5, '$'), (0.02, 'EUR'))
    """
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    signs = (
        [{"€": "EUR", "USD": "$"}.get(sign, sign) for sign in match.groups()[::2] if sign] if match else []
    )
    if match is None or len(signs) != 1:
        raise InputError(f"{quote(str(value))} is no price; write for example $2.50 or 2.5 EUR")
    return float(match[2]), signs[0]


def format_money(amount: float, currency: str) -> str:
    """An amount with three digits.

    >>> format_money(1234.5, "$"), format_money(0.01234, "$"), format_money(2.5, "EUR")
    ('$1,234', '$0.0123', '2.50 EUR')
    """
    text = f"{amount:,.{max(0, 2 - math.floor(math.log10(amount)))}f}" if amount > 0 else "0"
    return f"${text}" if currency == "$" else f"{text} {currency}"


def cost(price: PriceRecord, seconds: float, sent: Mapping[str, Mapping[str, float]]) -> float:
    """Cost of all workers for some seconds, waiting or not, and of the bytes from each site to each."""
    total = price["per_hour"] * seconds / _HOUR_S
    for source, row in sent.items():
        for destination, num_bytes in row.items():
            if source != destination:
                total += egress_per_gb(price, source, destination) * num_bytes / _GB
    return total


def egress_per_gb(price: PriceRecord, source: str, destination: str) -> float:
    """Price of 10^9 bytes from a site to another: its own, else that of the way back, else the default's."""
    egress, names = price["egress"], (f"{source}-{destination}", f"{destination}-{source}", DEFAULT)
    return next((egress[name] for name in names if name in egress), 0.0)


def read_price(document: Any) -> PriceRecord:
    """Prices in a resolved scenario's document; ``TypeError`` where it has none."""
    price, cluster = document["price"], document["cluster"]
    sites = cluster["network"].get("sites") or {DEFAULT: cluster["workers"]}
    hours = {name: parse_money(text) for name, text in price["worker_hour"].items()}
    egress = {name: parse_money(text) for name, text in price["egress"].items()}
    (currency,) = {currency for _, currency in (*hours.values(), *egress.values())}
    other = hours.get(DEFAULT, (0.0, currency))
    per_hour = sum(number * hours.get(site, other)[0] for site, number in sites.items())
    record = PriceRecord(currency=currency, per_hour=per_hour, egress={k: v for k, (v, _) in egress.items()})
    return {**record, "table": price["table"]} if "table" in price else record
