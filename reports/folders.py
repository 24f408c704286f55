"""Result folders grouped by scenario: predictions, and measurements beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from paceline.sim.config import yaml_file
from paceline.sim.errors import InputError
from paceline.sim.records.folder import Results, Studies, read_studies
from paceline.sim.records.rows import RunRow
from paceline.sim.records.run import Source
from paceline.sim.records.summary import SchemeSummary

from . import words

_MOST: Final = 100
"""Scenarios on one page: each takes seconds and some 40 MB."""
_COLOURS: Final = 16
"""Colours of schemes in the style sheet, ``--s0`` and following: eight hues in two tones."""


Repeat = Callable[[Studies], Sequence[Path]] | None


@dataclass(frozen=True)
class Style:
    """The style of a scheme in figures: a colour in CSS, which follows the page's theme, and dashes.

    ``stand_in``: the colour in which figures are drawn, until CSS replaces it.
    """

    colour: str
    dashes: tuple[float, ...]
    stand_in: str


@dataclass(frozen=True)
class SourceRuns:
    """The runs of one source in one folder, also in its ``metrics`` and ``events``; rows are best first."""

    source: Source
    results: Results
    rows: list[SchemeSummary]

    @property
    def runs(self) -> list[RunRow]:
        """The runs of this source."""
        return [run for run in self.results.summary["runs"] if run["source"] == self.source]


@dataclass(frozen=True)
class ReportSources:
    """One scenario: the runs of the page, perhaps with measurements beside a prediction.

    Attributes:
        key: unique on the page; prefix of ids.
        title: the scenario's name, followed by the folder's where two scenarios on the page share it.
        parts: one part, or the simulated and the measured one in this order.
        styles: label -> its style.
        scenario: the resolved scenario, parsed.
    """

    key: str
    title: str
    parts: tuple[SourceRuns, ...]
    styles: dict[str, Style]
    scenario: dict[str, Any]

    @property
    def main(self) -> SourceRuns:
        """The main part of the page."""
        return self.parts[0]

    @property
    def missing(self) -> str:
        """Missing runs of the scenario, as a sentence; "" where all are there."""
        return "; ".join(dict.fromkeys(filter(None, (part.results.missing for part in self.parts))))

    @property
    def measured(self) -> SourceRuns | None:
        """The measurements to be compared with a prediction, if there are both."""
        return self.parts[1] if len(self.parts) == 2 else None


def read_sources(folders: Sequence[Path], repeat: Repeat = None) -> list[ReportSources]:
    """Read folders, join repeats (``read_studies``), and pair predictions and measurements of a scenario.

    Schemes have one colour on the page, in order of appearance. ``InputError``: unreadable, too many or none.
    """
    if not folders:
        raise InputError("name at least one result folder")
    studies = read_studies(folders, _MOST)
    again = repeat(studies) if repeat is not None else ()
    groups: list[tuple[str, list[SourceRuns]]] = []
    for folder, results in [*read_studies(again, _MOST), *studies]:
        for part in _parts(results):
            waiting = (
                parts
                for _, parts in groups
                if len(parts) == 1
                and parts[0].source != part.source
                and parts[0].results.summary["scenario"] == results.summary["scenario"]
            )
            partner = next(waiting, None)
            if partner is not None:
                partner.append(part)
                partner.sort(key=lambda p: p.source, reverse=True)
            else:
                groups.append((folder.name, [part]))
    names = [parts[0].results.summary["scenario"] for _, parts in groups]
    schemes = list(dict.fromkeys(row["scheme"] for _, parts in groups for row in _rows(parts)))
    return [
        _sources(
            f"study-{i}", name if names.count(name) == 1 else f"{name} ({folder})", tuple(parts), schemes
        )
        for i, (name, (folder, parts)) in enumerate(zip(names, groups, strict=True), 1)
    ]


def _rows(parts: Sequence[SourceRuns]) -> list[SchemeSummary]:
    return [row for part in parts for row in part.results.summary["summary"]]


def _parts(results: Results) -> list[SourceRuns]:
    sources: list[Source] = list(dict.fromkeys(run["source"] for run in results.summary["runs"]))
    return [
        SourceRuns(
            source,
            replace(results, metrics=_only(results.metrics, source), events=_only(results.events, source)),
            words.ranked(results.summary, source),
        )
        for source in sources or ["simulated"]
    ]


def _only(frame: pd.DataFrame, source: Source) -> pd.DataFrame:
    return frame[frame["source"] == source]


def _sources(key: str, title: str, parts: tuple[SourceRuns, ...], schemes: Sequence[str]) -> ReportSources:
    document = yaml_file.parse(parts[0].results.scenario, "scenario").value
    scenario = json.loads(json.dumps(document))  # lists instead of tuples
    styles = styles_of(_rows(parts), schemes, solid=len(parts) == 2)
    return ReportSources(key, title, parts, styles, scenario)


def styles_of(rows: Sequence[SchemeSummary], schemes: Sequence[str], solid: bool = False) -> dict[str, Style]:
    """Label -> style: the colour follows a scheme's place in ``schemes``.

    Labels of one scheme differ in lightness, and in dashes unless ``solid``.
    """
    labels: dict[str, dict[str, None]] = {}
    for row in rows:
        labels.setdefault(row["scheme"], {})[row["label"]] = None
    dashes: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.2), (6, 1.2, 1.2, 1.2))
    tones = ("", "var(--paper) 35%", "var(--ink) 65%", "var(--paper) 55%", "var(--ink) 25%")
    styles: dict[str, Style] = {}
    for scheme, mine in labels.items():
        colour = f"var(--s{schemes.index(scheme) % _COLOURS})"
        for i, label in enumerate(mine):
            tone = tones[i % len(tones)]
            mixed = f"color-mix(in srgb, {colour}, {tone})" if tone else colour
            styles[label] = Style(
                mixed, () if solid else dashes[i % len(dashes)], stand_in=f"#02f0{len(styles):02x}"
            )
    return styles
