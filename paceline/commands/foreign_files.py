"""``paceline import``: files of other tools become a cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from paceline.commands.console import check_out_file, say
from paceline.sim.errors import InputError

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
        int | None, typer.Option("--workers", metavar="N", min=1, help="of the cluster")
    ] = None,
) -> None:
    """Make the 'cluster:' part of a scenario from what has been measured with other tools."""
    from paceline.sim.config.files import write_atomically
    from paceline.sim.config.yaml_file import read_text
    from paceline.sim.foreign import KINDS, foreign_kind
    from paceline.sim.importers import IMPORTERS
    from paceline.sim.importers.cluster import FIRST_LINE, cluster_of, write_cluster
    from paceline.sim.importers.readings import ForeignFile

    if out is not None:
        check_out_file(out, [], (FIRST_LINE.encode(),))
    readings, notes = [], []
    for given in files:
        placed = _PLACED.fullmatch(given)
        name, ends = (placed[3], (placed[1], placed[2])) if placed else (given, None)
        text = read_text(Path(name), suffixes=())
        which = kind or foreign_kind(text)
        if which is None:
            raise InputError(f"{name}: is no file that can be imported; those are: {', '.join(KINDS)}")
        readings.append(IMPORTERS[which](ForeignFile(name, text, ends)))
        notes += [f"{name} ({KINDS[which].what}): {note}" for note in readings[-1].notes]
    text = write_cluster(cluster_of(readings, workers), notes)
    if out is None:
        sys.stdout.write(text)
        return
    write_atomically(out, text)
    say(f"wrote {out}; in a scenario: cluster: {{file: {out}}}")
