"""Folders put together: what one scenario predicted, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml

from paceline.sim.records.folder import Results, read_results
from paceline.sim.records.run import Source
from paceline.sim.records.summary import RunRow, SchemeSummary

from . import words

_SCHEMES: Final = (
    "all_reduce", "local_sgd", "gossip", "ad_psgd", "diloco", "sgp", "easgd", "fedavg",
    "slowmo", "adaptive_local_sgd", "eamsgd", "downpour", "choco_sgd", "gradient_tracking", "leader_sgd",
    "post_local_sgd",
)  # fmt: skip
"""A scheme's place gives its colour, the same in every report: eight hues in two tones."""


@dataclass(frozen=True)
class Style:
    """How a scheme is drawn.

    Attributes:
        colour: CSS; refers to a variable of the page's style sheet, so that it follows the theme.
        dashes: of its curve; () for a solid one.
    """

    colour: str
    dashes: tuple[float, ...]


@dataclass(frozen=True)
class SourceRuns:
    """The runs of one source in one folder.

    Attributes:
        results: the folder; ``metrics`` and ``events`` hold this source only.
        rows: of this source, best first.
    """

    source: Source
    results: Results
    rows: list[SchemeSummary]

    @property
    def runs(self) -> list[RunRow]:
        """The runs of this source."""
        return [run for run in self.results.summary["runs"] if run["source"] == self.source]


@dataclass(frozen=True)
class ReportSources:
    """One scenario: a part that is told about, and perhaps measurements beside a prediction.

    Attributes:
        key: unique on the page; ids begin with it.
        title: the scenario's name, with the folder's where two studies share it.
        parts: one part, or the simulated and the measured one in this order.
        styles: label -> how it is drawn.
        scenario: the resolved scenario, parsed; {} if it is no mapping.
    """

    key: str
    title: str
    parts: tuple[SourceRuns, ...]
    styles: dict[str, Style]
    scenario: dict[str, Any]

    @property
    def main(self) -> SourceRuns:
        """The part that the page is about."""
        return self.parts[0]

    @property
    def measured(self) -> SourceRuns | None:
        """The measurements to be compared with a prediction, if there are both."""
        return self.parts[1] if len(self.parts) == 2 else None


def studies(folders: Sequence[Path]) -> list[ReportSources]:
    """Read folders, and put a prediction and a measurement of the same scenario together.

    Raises:
        InputError: a folder cannot be read.
    """
    found: list[tuple[str, list[SourceRuns]]] = []
    for folder in folders:
        results = read_results(folder)
        for part in _parts(results):
            waiting = (
                parts
                for _, parts in found
                if len(parts) == 1
                and parts[0].source != part.source
                and parts[0].results.summary["scenario"] == results.summary["scenario"]
            )
            partner = next(waiting, None)
            if partner is not None:
                partner.append(part)
                partner.sort(key=lambda p: p.source, reverse=True)
            else:
                found.append((folder.name, [part]))
    names = [parts[0].results.summary["scenario"] for _, parts in found]
    return [
        _study(f"study-{i}", name if names.count(name) == 1 else f"{name} ({folder})", tuple(parts))
        for i, (name, (folder, parts)) in enumerate(zip(names, found, strict=True), 1)
    ]


def _parts(results: Results) -> list[SourceRuns]:
    sources: list[Source] = list(dict.fromkeys(run["source"] for run in results.summary["runs"]))
    return [
        SourceRuns(
            source,
            Results(
                summary=results.summary,
                metrics=_only(results.metrics, source),
                events=_only(results.events, source),
                scenario=results.scenario,
            ),
            words.ranked(results.summary, source),
        )
        for source in sources or ["simulated"]
    ]


def _only(frame: pd.DataFrame, source: Source) -> pd.DataFrame:
    return frame[frame["source"] == source]


def _study(key: str, title: str, parts: tuple[SourceRuns, ...]) -> ReportSources:
    try:
        scenario = yaml.safe_load(parts[0].results.scenario)
    except yaml.YAMLError:
        scenario = {}
    rows = [row for part in parts for row in part.results.summary["summary"]]
    styles = _styles(rows, len(parts) == 2)
    return ReportSources(key, title, parts, styles, scenario if isinstance(scenario, dict) else {})


def _styles(rows: Sequence[SchemeSummary], solid: bool) -> dict[str, Style]:
    """Colour by scheme; labels of one scheme differ in lightness, and in dashes unless ``solid``."""
    schemes = [*_SCHEMES, *dict.fromkeys(row["scheme"] for row in rows if row["scheme"] not in _SCHEMES)]
    labels: dict[str, list[str]] = {}
    for row in rows:
        mine = labels.setdefault(row["scheme"], [])
        if row["label"] not in mine:
            mine.append(row["label"])
    dashes: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.2), (6, 1.2, 1.2, 1.2))
    tones = ("", "var(--paper) 35%", "var(--ink) 65%", "var(--paper) 55%", "var(--ink) 25%")
    styles = {}
    for scheme, mine in labels.items():
        colour = f"var(--s{schemes.index(scheme) % 16})"
        for i, label in enumerate(mine):
            tone = tones[i % len(tones)]
            mixed = f"color-mix(in oklab, {colour}, {tone})" if tone else colour
            styles[label] = Style(mixed, () if solid else dashes[i % len(dashes)])
    return styles
