"""What ``paceline check`` prints: the cluster, its routes, a step of each scheme, memory, and the effort."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from paceline.sim.config.units import format_bytes, format_rate, format_seconds

from . import words
from .tables import add_text_row, assumed_of, beside_steps, plain_table, schemes_table

MAX_ROUTES: Final = 20
"""Kinds of routes shown; ``--json`` has them all."""
FEW: Final = 3
"""Places that are named in a row."""
TIGHT: Final = 0.5
"""Share of a device's memory from which its parts are shown."""


def render_check(answer: Mapping[str, Any], *, why: bool = False) -> RenderableType:
    """The answer of ``check``; with ``why`` each route, all memory in parts, and why runs take that long."""
    parts = [Text(_cluster(answer)), _routes(answer, why), _schemes(answer), *_memory(answer, why)]
    sentences = [*beside_steps(answer["schemes"]), *_heartbeats(answer["schemes"])]
    beside = [Text(each) for each in (sentences if why else filter(None, [" ".join(sentences)]))]
    doubts = [Text(f"Is this meant? {each}.") for each in answer["doubts"]]
    ends = [*doubts, *beside, Text(_effort(answer, why))]
    return Group(*(each for part in parts for each in (part, "")), *ends)


def _heartbeats(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Bandwidth at which heartbeats starve beside each scheme's averages, and that of the tightest link."""
    sentences = []
    for row in rows:
        if (tight := row.get("heartbeat")) is not None:
            needed, has = format_rate(tight["needed_bytes_per_s"]), format_rate(tight["bytes_per_s"])
            short = ": too little" if tight["bytes_per_s"] < tight["needed_bytes_per_s"] else ""
            sentences.append(
                f"{row['label']}: below {needed} heartbeats or averages exceed their time-outs, and no "
                f"average commits; {tight['link']} has {has}{short}."
            )
    return sentences


def _cluster(answer: Mapping[str, Any]) -> str:
    sites = ", ".join(f"{name} {count}" for name, count in answer["sites"].items())
    fastest, slowest = answer["compute_s"]["fastest"], answer["compute_s"]["slowest"]
    compute = format_seconds(fastest)
    if slowest > fastest:
        compute += f" to {format_seconds(slowest)}"
    where = f" ({sites})" if len(answer["sites"]) > 1 else ""
    if answer["gpus_per_host"] > 1:
        where += f" in hosts of {answer['gpus_per_host']} GPUs"
    carried = " ".join([*assumed_of(answer), *answer["remarks"]])
    count = answer["parameters"]
    model = "a model" if count is None else f"a model of {count:,} parameters"
    return (
        f"{answer['scenario']}: {answer['workers']} workers{where}; a gradient takes {compute} on average; "
        f"{model} is {format_bytes(answer['model_bytes'])}\n{carried}"
        f"{' ' + answer['proxy'] if answer['proxy'] else ''}"
    )


def _routes(answer: Mapping[str, Any], why: bool) -> RenderableType:
    """Kinds of routes with their links; without ``why`` those of equal rates in one row, without links."""
    varying = {link["name"] for link in answer["links"] if link["varies"]}
    kinds: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    several = len(answer["sites"]) > 1
    for number, route in enumerate(answer["routes"]):
        example, inside = route["example"], several and route["from"] == route["to"]
        where = f"{example['source']} to {example['destination']}"
        if several:
            where = route["from"] if inside else " - ".join(sorted((route["from"], route["to"])))
        varies = not varying.isdisjoint(example["links"])
        key = inside, route["bytes_per_s"], varies, number if why else None
        kinds.setdefault(key, {}).setdefault(where, []).append(route)
    table = plain_table()
    table.add_column("inside, and between" if several else "for example", overflow="fold")
    for name in ("pairs", "latency", "bandwidth"):
        table.add_column(name, justify="right")
    if why:
        table.add_column("links, for example")
    for (inside, bytes_per_s, varies, _), of_places in [*kinds.items()][:MAX_ROUTES]:
        routes = list(chain.from_iterable(of_places.values()))
        ends = [format_seconds(end(route["latency_s"] for route in routes)) for end in (min, max)]
        places = ", ".join(of_places)
        if len(of_places) > FEW:
            places = f"{len(of_places)} {'sites' if inside else 'pairs of sites' if several else 'kinds'}"
        rate = "unlimited" if bytes_per_s is None else format_rate(bytes_per_s)
        cells = [str(sum(route["pairs"] for route in routes)), " to ".join(dict.fromkeys(ends))]
        example = routes[0]["example"]
        links = (
            f"{example['source']} to {example['destination']}: {', '.join(example['links']) or 'no limit'}"
        )
        add_text_row(table, places, *cells, rate + " (varies)" * varies, *([links] if why else []))
    if (more := len(kinds) - MAX_ROUTES) > 0:
        table.caption = f"and {more} kinds more (--json has them)"
    return table


def _schemes(answer: Mapping[str, Any]) -> RenderableType:
    parts = {
        "a step": "step_s",
        "compute": "compute_s",
        "rounds": "round_s",
        "latency": "latency_s",
        "bandwidth": "bandwidth_s",
        "random": "random_s",
    }
    rows = answer["schemes"]
    parts = {name: key for name, key in parts.items() if any(row.get(key) is not None for row in rows)}
    sizes = {"sent": "bytes_per_step", "over a card": "card_bytes_per_step"}
    sizes = {name: key for name, key in sizes.items() if any(row.get(key) is not None for row in rows)}
    table = schemes_table(*parts, *sizes)
    for row in answer["schemes"]:
        if row["problem"] is not None:
            add_text_row(table, row["label"], f"not known: {row['problem']}")
            continue
        cells = [format_seconds(max(row[key] or 0.0, 0.0)) for key in parts.values()]
        add_text_row(table, row["label"], *cells, *(format_bytes(row[key]) for key in sizes.values()))
    return table


def _memory(answer: Mapping[str, Any], why: bool) -> Iterator[RenderableType]:
    """Memory of each device of a worker: as a sum where it is tight, else the least and the most of it."""
    known = [row for row in answer["schemes"] if row["memory"] is not None]
    tight = [
        row
        for row in known
        if why or row["memory"]["total_bytes"] > TIGHT * (row["memory"]["limit_bytes"] or math.inf)
    ]
    if tight:
        table = schemes_table()
        table.add_column("memory of each device of a worker", overflow="fold")
        for row in tight:
            add_text_row(table, row["label"], words.memory(row["memory"]))
        table.caption = words.not_counted(tight[0]["memory"])
        yield table
    elif known:
        ends = [end(known, key=lambda row: row["memory"]["total_bytes"]) for end in (min, max)]
        held = [f"{format_bytes(row['memory']['total_bytes'])} ({row['label']})" for row in ends]
        limit = known[0]["memory"]["limit_bytes"]
        of_limit = "" if limit is None else f", of {format_bytes(limit)}"
        yield Text(f"Memory of a device: {' to '.join(dict.fromkeys(held))}{of_limit}; --why has its parts.")


def _effort(answer: Mapping[str, Any], why: bool) -> str:
    """Processor time of the simulation; with ``why`` of its steps, and what is not in lockstep."""
    known = [row for row in answer["schemes"] if "simulation_s_at_most" in row]
    runs = f"{answer['repeats']} repeats" if answer["repeats"] > 1 else "all of it"
    runs += f" and {answer['trials']} trials of each scheme" if answer["trials"] else ""
    shared = f", which {answer['cores']} cores share" if answer["cores"] > 1 else ""
    parts = [f"Estimates of processor time{shared}: {format_seconds(answer['preparation_s'])} to begin"]
    if why:
        each_s = sum(row["simulation_s_per_100_steps"] for row in known)
        parts.append(f"{format_seconds(each_s)} for 100 steps of every scheme here")
    expected_s, at_most_s = answer["simulation_s_expected"], answer["simulation_s_at_most"]
    if expected_s is not None:
        parts.append(f"{format_seconds(expected_s)} for {runs}")
    if expected_s not in (None, at_most_s):
        ends = [f"{round(end(row['steps_expected'] for row in known)):,}" for end in (min, max)]
        parts[-1] += f" if they end as trials say, after {' to '.join(dict.fromkeys(ends))} steps"
    if expected_s != at_most_s:
        parts.append(f"{format_seconds(at_most_s)} at most for {runs}")
    by_events = [f"{row['label']} ({row['engine_reason']})" for row in known if row["engine"] == "event"]
    by_message = f" Message by message, not in lockstep: {'; '.join(by_events)}." if why and by_events else ""
    return f"{', '.join(parts)}.{by_message}"
