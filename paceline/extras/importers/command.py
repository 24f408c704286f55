"""``paceline import``: files of other tools become a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from paceline.commands.console import AsJson, print_json, print_result, say
from paceline.sim.config.limits import MAX_WORKERS
from paceline.sim.errors import InputError, did_you_mean, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.extras.importers.readings import Answers, Readings

_PLACED: Final = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_]+)=(.+)")
_NEEDED: Final = {
    "workers": "workers: 4", "compute": "compute: {time: 50 ms}", "network": "network: {latency: 1 ms}"
}  # fmt: skip
"""Keys that a cluster must have, with examples."""
_Text = str | None


def import_files(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="files of other tools; us-eu=FILE: measured from us to eu"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="cluster.yaml", help="absent: print it")
    ] = None,
    kind: Annotated[
        _Text, typer.Option(metavar="KIND", help="format of the files (default: detected)")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MAX_WORKERS, help="absent: by the files")
    ] = None,
    latency_is: Annotated[
        Literal["round-trip", "one-way"] | None,
        typer.Option(metavar="round-trip|one-way", help="latencies in files that do not say"),
    ] = None,
    latency_unit: Annotated[_Text, typer.Option(metavar="UNIT", help="of bare latencies: ms")] = None,
    bandwidth_unit: Annotated[_Text, typer.Option(metavar="UNIT", help="of bare rates: Mbit/s")] = None,
    latency: Annotated[_Text, typer.Option(metavar="TIME", help="one-way, where no file says it")] = None,
    bandwidth: Annotated[_Text, typer.Option(metavar="RATE", help="where no file says it")] = None,
    rows: Annotated[
        Literal["send", "receive"] | None,
        typer.Option(metavar="send|receive", help="rows of a table that does not say"),
    ] = None,
    event: Annotated[_Text, typer.Option(metavar="NAME", help="of a trace, that is a step")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a cluster from measurements of other tools. Writes a scenario's 'cluster:' section."""
    from paceline.extras.importers.cluster import FIRST_LINE, cluster_of, write_cluster
    from paceline.extras.importers.readings import Answers
    from paceline.sim.config.files import check_out_file, write_atomically
    from paceline.sim.config.units import parse_bandwidth, parse_duration
    from paceline.sim.config.yaml_file import validate_document
    from paceline.sim.network.network_settings import NetworkSettings

    if out is not None:
        check_out_file(out, [FIRST_LINE.encode()])
    _quantity("--latency-unit", latency_unit and f"1 {latency_unit}", parse_duration)
    _quantity("--bandwidth-unit", bandwidth_unit and f"1 {bandwidth_unit}", parse_bandwidth)
    latency_s = _quantity("--latency", latency, parse_duration)
    rate = _quantity("--bandwidth", bandwidth, parse_bandwidth)
    answers = Answers(latency_is, latency_unit, bandwidth_unit, latency_s, rate, rows, event, workers)
    defaults = {"latency": latency, "bandwidth": bandwidth}
    notes = [f"{key}: {text}, where no file says it" for key, text in defaults.items() if text]
    readings: dict[str, Readings] = {}
    for given in files:
        heading, readings[given] = _read(given, kind, answers)
        notes += [f"{heading}:", *(f"  {note}" for note in readings[given].notes)]
    cluster, remarks = cluster_of(readings, answers)
    if "network" in cluster:
        validate_document(NetworkSettings, cluster["network"], f"{' and '.join(files)}: no network")
    text = write_cluster(cluster, notes := notes + remarks)
    needed = {key: example for key, example in _NEEDED.items() if key not in cluster}
    if as_json:
        print_json({"cluster": cluster, "notes": notes, "needed": list(needed)})
    elif out is None:
        print_result(text)
    if out is not None:
        write_atomically(out, text)
        say("\n".join([f"wrote {out}", *(f"  {note}" for note in notes)]))
    keys = ", ".join([f"file: {out or 'cluster.yaml'}", *needed.values()])
    say(f"next: write 'cluster: {{{keys}}}' in a scenario, and run 'paceline check SCENARIO'")


def _quantity(option: str, text: str | None, parse: Callable[[object], float]) -> float | None:
    try:
        return None if text is None else parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def _read(given: str, kind: str | None, answers: Answers) -> tuple[str, Readings]:
    """Name and kind, and readings of a file as given on the command line."""
    from paceline.extras.importers import IMPORTERS
    from paceline.extras.importers.readings import ForeignFile
    from paceline.sim.config.yaml_file import read_bytes
    from paceline.sim.foreign import KINDS, MAX_FOREIGN_BYTES, decode, foreign_kind, unpack

    if kind is not None and kind not in KINDS:
        raise InputError(f"--kind {quote(kind)}: there is no such kind; {did_you_mean(kind, KINDS)}")
    placed = None if Path(given).exists() else _PLACED.fullmatch(given)
    if placed is None and "=" in given and not Path(given).exists():
        raise InputError(f"{given}: write ends in letters, digits and '_', as us_east-eu=FILE")
    name, ends = (placed[3], (placed[1], placed[2])) if placed else (given, ("", ""))
    content, whole = unpack(read_bytes(Path(name), MAX_FOREIGN_BYTES))
    if len(content) >= MAX_FOREIGN_BYTES:
        raise InputError(f"{name}: is larger than {MAX_FOREIGN_BYTES >> 20} MiB, which is too much")
    if not whole:
        raise InputError(f"{name}: is a zip archive, or packed by gzip and cut or damaged; unpack it")
    text = decode(content)
    which = kind or foreign_kind(text)
    if which is None:
        kinds = ", ".join(f"{each.what} ({key})" for key, each in KINDS.items())
        raise InputError(f"{name}: is not known as {kinds}; name one of these with --kind")
    return f"{name}, {KINDS[which].what}", IMPORTERS[which](ForeignFile(name, text, ends, answers))
