"""``paceline import``: files of other tools become a cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from paceline.commands.console import AsJson, check_out_file, print_json, say
from paceline.sim.errors import InputError, did_you_mean, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.sim.importers.readings import Answers, Readings

_PLACED: Final = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_]+)=(.+)")


def import_files(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="files of other tools; us-eu=FILE: measured from us to eu"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="cluster.yaml", help="absent: print it")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="absent: by the content")] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="of the whole cluster; absent: the files'"),
    ] = None,
    latency_is: Annotated[
        Literal["round-trip", "one-way"] | None,
        typer.Option("--latency-is", help="latencies of files that do not say which they are"),
    ] = None,
    latency_unit: Annotated[
        str | None, typer.Option("--latency-unit", metavar="UNIT", help="of numbers without one: ms")
    ] = None,
    bandwidth_unit: Annotated[
        str | None, typer.Option("--bandwidth-unit", metavar="UNIT", help="of numbers without one: Mbit/s")
    ] = None,
    latency: Annotated[
        str | None, typer.Option("--latency", metavar="TIME", help="one-way, where no file says it")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", metavar="RATE", help="where no file says it")
    ] = None,
    rows: Annotated[
        Literal["send", "receive"] | None,
        typer.Option("--rows", help="whether the rows of a table send, or receive, where it does not say"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the 'cluster:' part of a scenario from what has been measured with other tools."""
    from paceline.sim.config.files import write_atomically
    from paceline.sim.config.units import parse_bandwidth, parse_duration
    from paceline.sim.config.yaml_file import validate_document
    from paceline.sim.foreign import KINDS
    from paceline.sim.importers.cluster import FIRST_LINE, cluster_of, write_cluster
    from paceline.sim.importers.readings import Answers, Readings
    from paceline.sim.network.settings import NetworkSettings

    if kind is not None and kind not in KINDS:
        raise InputError(f"--kind {quote(kind)}: there is no such kind; {did_you_mean(kind, KINDS)}")
    if out is not None:
        check_out_file(out, [], (FIRST_LINE.encode(),))
    answers = Answers(
        latency_is,
        _unit("--latency-unit", latency_unit, parse_duration),
        _unit("--bandwidth-unit", bandwidth_unit, parse_bandwidth),
        _quantity("--latency", latency, parse_duration),
        _quantity("--bandwidth", bandwidth, parse_bandwidth),
        rows,
    )
    readings, notes = dict[str, Readings](), list[str]()
    for given in files:
        name, which, readings[given] = _read(given, kind, answers)
        notes += [f"{name}, {KINDS[which].what}:", *(f"  {note}" for note in readings[given].notes)]
    cluster, remarks = cluster_of(readings, answers, workers)
    if "network" in cluster:
        validate_document(NetworkSettings, cluster["network"], "these files make no network")
    notes += remarks
    text, needed = write_cluster(cluster, notes), _needed(cluster)
    if as_json:
        print_json({"cluster": cluster, "notes": notes, "needed": needed})
    elif out is None:
        sys.stdout.write(text)
    if out is not None:
        write_atomically(out, text)
        say(f"wrote {out}\n" + "\n".join(f"  {note}" for note in notes))
    beside = "".join(f", {key}" for key in needed.values())
    say(
        f"next: in a scenario 'cluster: {{file: {out or 'cluster.yaml'}{beside}}}', then 'paceline check SCENARIO'"
    )


def _needed(cluster: dict[str, Any]) -> dict[str, str]:
    """What a scenario's cluster needs and no file says, each with an example."""
    examples = {
        "workers": "workers: 4",
        "compute": "compute: {time: 50 ms}",
        "network": "network: {latency: 1 ms}",
    }
    return {key: example for key, example in examples.items() if key not in cluster}


def _read(given: str, kind: str | None, answers: Answers) -> tuple[str, str, Readings]:
    """Name, kind and readings of a file as given on the command line."""
    from paceline.sim.config.yaml_file import read_bytes
    from paceline.sim.foreign import KINDS, MAX_FOREIGN_BYTES, decode, foreign_kind
    from paceline.sim.importers import IMPORTERS
    from paceline.sim.importers.readings import ForeignFile

    placed = None if Path(given).exists() else _PLACED.fullmatch(given)
    name, ends = (placed[3], (placed[1], placed[2])) if placed else (given, None)
    text = decode(read_bytes(Path(name), MAX_FOREIGN_BYTES))
    which = kind or foreign_kind(text)
    if which is None:
        kinds = ", ".join(each.what for each in KINDS.values())
        raise InputError(f"{name}: is none of what can be imported: {kinds}; --kind names one")
    return name, which, IMPORTERS[which](ForeignFile(name, text, ends, answers))


def _quantity(option: str, text: str | None, parse: Callable[[object], float]) -> float | None:
    try:
        return None if text is None else parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def _unit(option: str, text: str | None, parse: Callable[[object], float]) -> str | None:
    if text is not None:
        _quantity(option, f"1 {text}", parse)
    return text
