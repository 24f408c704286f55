"""Prices of a scenario, and ready tables of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ..config.problems import Mistake, mistake, place_errors
from ..config.settings import Settings
from ..errors import did_you_mean, quote
from ..network.forms import find_wrong_pairs
from ..records.money.cost import OTHERS, parse_money
from .parts import count_gpus
from .ready import price_tables

_MONEY: Final = {"type": "string", "examples": ["$2.50", "0.02 EUR"]}
_PLACES: Final = {
    "anyOf": [_MONEY, {"type": "object", "additionalProperties": _MONEY}],
    "examples": ["$2.50", {"us": "$2.50", "default": "$3.20"}],
}


def _check_money(value: object) -> str:
    with place_errors():
        amount, currency = parse_money(value)
    return f"${amount:.12g}" if currency == "$" else f"{amount:.12g} {currency}"


Money = Annotated[str, BeforeValidator(_check_money)]
ByPlace = Annotated[
    dict[str, Money],
    BeforeValidator(lambda value: value if isinstance(value, Mapping) else {OTHERS: value}),
    WithJsonSchema(_PLACES),
]


class Price(Settings):
    """Prices, all in one currency, $ or EUR."""

    worker_hour: ByPlace = Field(
        default={},
        description="price of a worker for an hour: one, or one per site with a `default` (0 if absent)",
    )
    egress: ByPlace = Field(
        default={},
        description="price of 10^9 bytes between sites: one, or one per pair, as `between.latency` "
        "is written (default: 0)",
    )
    table: str | None = Field(
        default=None,
        description="ready table of the prices left out above, for sites named after its regions "
        "(`paceline list`)",
    )
    machine: Literal["general", "gpu"] = Field(default="general", description="machines of the table")

    @model_validator(mode="after")
    def _check(self) -> Self:
        currencies = {parse_money(each)[1] for each in (*self.worker_hour.values(), *self.egress.values())}
        if not currencies:
            raise mistake("needs worker_hour or egress, or a table and sites named after its regions")
        if len(currencies) > 1:
            raise mistake("mixes $ and EUR; write one currency")
        return self

    def wrong_places(self, sites: Mapping[str, int]) -> Iterator[Mistake]:
        """Mistakes in the names of sites and of their pairs; missing ones, too."""
        hours, egress = self.worker_hour, self.egress
        yield from find_wrong_pairs(sites, ("price", "egress"), egress) if egress else ()
        for name in hours.keys() - sites.keys() - {OTHERS}:
            yield Mistake(("price", "worker_hour", name), f"no such site; {did_you_mean(name, sites)}")
        silent = [name for name in sites if name not in hours and OTHERS not in hours]
        if silent and (hours or self.table):
            text = f"says nothing of {', '.join(silent)}; add a 'default'"
            yield Mistake(("price", "worker_hour"), text)


def fill_in(data: Any) -> Any:
    """Scenario not validated yet, with the prices of a table for those left out; of all GPUs of a worker."""
    tables = price_tables()
    match data:
        case {"price": {"table": str(name)}} if name not in tables:
            raise mistake(f"unknown table {quote(name)}; {did_you_mean(name, tables)}", "price", "table")
        case {
            "price": {"table": str(name)} as price,
            "cluster": {"network": {"sites": Mapping() as sites}} as cluster,
        }:
            own = {"worker_hour": price.get("worker_hour", {}), "egress": price.get("egress", {})}
        case _:
            return data
    machine, gpus = str(price.get("machine", "general")), count_gpus(cluster.get("island"))
    known = {(row["what"], row["from"], row["to"]): float(row["price"]) for row in tables[name]}
    regions = {region for _, region, _ in known}
    ways = ((a, b, "*" if b in regions else "internet") for a in sites for b in sites if a != b)
    rates = {(a, b): known.get(("egress", a, b), known.get(("egress", a, to), 0)) for a, b, to in ways}
    filled = {
        "worker_hour": {a: f"${gpus * known[machine, a, '']:g}" for a in sites if (machine, a, "") in known},
        "egress": {f"{a}-{b}": f"${rate:g}" for (a, b), rate in rates.items()},
    }  # one price for all leaves nothing to fill in
    whole = {key: {**filled[key], **v} if isinstance(v, Mapping) else v for key, v in own.items()}
    return {**data, "price": {**price, **whole}}
