"""What ``paceline check`` found, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from paceline.sim.config.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_ROUTES: Final = 20
"""So many kinds of routes are shown; ``--json`` has them all."""


def render(found: Mapping[str, Any]) -> RenderableType:
    """The cluster, its routes, the cost of a step of each scheme, and how long the simulation will take."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(_cluster(found)), "", _routes(found), "", _schemes(found), "", Text(_effort(found)))


def _cluster(found: Mapping[str, Any]) -> str:
    sites = ", ".join(f"{name} {count}" for name, count in found["sites"].items())
    fastest, slowest = found["compute_s"]["fastest"], found["compute_s"]["slowest"]
    compute = format_seconds(fastest)
    if slowest > fastest:
        compute += f" to {format_seconds(slowest)}"
    where = f" ({sites})" if len(found["sites"]) > 1 else ""
    return (
        f"{found['scenario']}: {found['workers']} workers{where}; a gradient takes {compute} on average; "
        f"a model is {format_bytes(found['model_bytes'])}"
    )


def _routes(found: Mapping[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    several = len(found["sites"]) > 1
    for name in (*(["from", "to"] if several else []), "pairs", "latency", "bandwidth", "links, for example"):
        table.add_column(name, justify="right" if name in ("pairs", "latency", "bandwidth") else "left")
    varies = {link["name"] for link in found["links"] if link["varies"]}
    for route in found["routes"][:MAX_ROUTES]:
        rate = "unlimited" if route["bytes_per_s"] is None else format_rate(route["bytes_per_s"])
        example = route["example"]
        links = ", ".join(f"{name} (varies)" if name in varies else name for name in example["links"])
        cells = [
            *([route["from"], route["to"]] if several else []),
            str(route["pairs"]),
            format_seconds(route["latency_s"]),
            rate,
            f"{example['source']} to {example['destination']}: {links or 'none that limits'}",
        ]
        table.add_row(*(Text(cell) for cell in cells))
    more = len(found["routes"]) - MAX_ROUTES
    if more > 0:
        table.caption = f"and {more} kinds more (--json has them)"
    return table


def _schemes(found: Mapping[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    random = any(row.get("random_step_s") is not None for row in found["schemes"])
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("scheme", overflow="fold", min_width=14)
    columns = ["a step", "compute", "latency", "bandwidth", "sent"]
    for name in [*columns, *(["with what\nis random"] if random else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["schemes"]:
        if row["problem"] is not None:
            table.add_row(Text(row["label"]), Text(f"not known: {row['problem']}"))
            continue
        parts = [row[key] for key in ("step_s", "compute_s", "latency_s", "bandwidth_s")]
        cells = [*(format_seconds(max(part, 0.0)) for part in parts), format_bytes(row["bytes_per_step"])]
        if random:
            cells.append("" if row["random_step_s"] is None else format_seconds(row["random_step_s"]))
        table.add_row(*(Text(cell) for cell in [row["label"], *cells]))
    return table


def _effort(found: Mapping[str, Any]) -> str:
    known = [row for row in found["schemes"] if row["problem"] is None]
    each_s = sum(row["simulation_s_per_100_steps"] for row in known)
    runs = f"{found['repeats']} repeats" if found["repeats"] > 1 else "all of it"
    return (
        f"Simulating takes {format_seconds(each_s)} for 100 steps of every scheme on this machine, and "
        f"{format_seconds(found['simulation_s_at_most'])} at most for {runs}."
    )
