"""One self-contained HTML page from result folders: no script, nothing loaded from anywhere.

``paceline.reports.paper_files`` writes its tables and figures as files beside it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal

import jinja2
import numpy as np
from markupsafe import Markup, escape

from paceline.sim.config.files import check_out_file, claim, save_atomically
from paceline.sim.config.tracking import track
from paceline.sim.config.user_code.call import format_error
from paceline.sim.errors import InputError, shorten
from paceline.sim.records.comparison import SchemeErrors, mean_and_max, scheme_errors
from paceline.sim.records.folder import runs_of
from paceline.sim.records.intervals import FEWEST, Interval, median_ratio
from paceline.sim.records.rates import seconds_to_levels
from paceline.sim.records.scenario_facts import CURVES, SCORED_MODELS, describe_proxy
from paceline.sim.records.summarise import score_at
from paceline.sim.records.summary import Equal, is_by_step, verdict_of
from paceline.sim.records.verdict import format_factor

from . import assumptions, words
from .card import card
from .figures.activities import draw_timeline
from .figures.bars import draw_cost, draw_waterfall, gap
from .figures.cluster_map import draw_cluster_map
from .figures.drawing import Picture
from .figures.levels import draw_break_even, draw_levels, runs_scored
from .figures.metric_curves import By, draw_curves
from .folders import Repeat, ReportSources, SourceRuns, read_sources
from .paper_files import STYLE_FILE, write_files
from .tables import (
    amount_names,
    amounts,
    beside_steps,
    brackets,
    column_unit,
    decides,
    deciding_time,
    shares,
    status,
    warnings,
)

_HERE: Final = Path(__file__).parent
_DEADLINES: Final = (0.25, 0.5, 1.0)
"""Shares of the equal time."""
_LINES_OF_TRAFFIC: Final = 20
"""Most pairs of sites, or links, in the table of bytes."""
_WORKERS_SHOWN: Final = 16
"""Most rows of a timeline, one per worker."""
_MARK: Final = b'<meta name="generator" content="Paceline">'
"""Identifies a report, so that nothing else is replaced."""
_SOURCES: Final = {"simulated": "predicted", "measured": "measured"}


def build(folders: Sequence[Path], out: Path, files: Path | None = None, repeat: Repeat = None) -> list[str]:
    """Write the report of some result folders as one page; replace an older report, nothing else.

    Simulated and measured runs of the same scenario stand side by side. ``files``: folder for tables and
    figures; None: the page alone. Returns the page's sentence about missing runs for each scenario that has
    some.

    Raises ``InputError`` if a folder cannot be read, or ``out`` is something else, in use or not writable.
    """
    check_page(out)
    with claim(out):
        try:
            studies = read_sources(folders, repeat)
            views = [_view(study) for study in studies]
            text = _render(studies, views)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            named = shorten(", ".join(folder.name for folder in folders))
            raise InputError(
                f"{named}: its runs and tables do not fit together ({format_error(error)}); make these "
                "results again; if nobody has changed them, please report it"
            ) from error

        def save(new: Path) -> None:
            new.write_text(text, encoding="utf-8")
            if files is not None:  # the page is renamed last: a full disk changes neither
                pictures = [each for view in views for each in view["pictures"]]
                write_files(files, studies, pictures)

        save_atomically(out, save)
    return [f"{study.title} is not complete: {study.missing}" for study in studies if study.missing]


def render(folders: Sequence[Path]) -> str:
    """Render the page, the same bytes for the same folders; ``InputError`` if one cannot be read."""
    studies = read_sources(folders)
    return _render(studies, [_view(study) for study in studies])


def _render(studies: Sequence[ReportSources], views: Sequence[dict[str, Any]]) -> str:
    return render_template(
        "page.html", studies=views, overview=overview(studies),
        words=words, factor=format_factor, amounts=amounts, fewest=FEWEST, status=status,
        deciding_time=deciding_time, is_by_step=is_by_step, percents=shares,
    )  # fmt: skip


def render_template(name: str, *folders: Path, **content: Any) -> str:
    """Render a template of this folder, or of others, with the style sheet and the glossary."""
    return (
        _environment(*folders)
        .get_template(name)
        .render(
            style=Markup(STYLE_FILE.read_text(encoding="utf-8")),
            terms=[*csv.DictReader((_HERE / "glossary.csv").read_text(encoding="utf-8").splitlines())],
            **content,
        )
        .lstrip()
    )


@cache
def _environment(*folders: Path) -> jinja2.Environment:
    """Templates of this folder and of others, each compiled once."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_HERE, *folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(tight=tight, breakable=breakable)
    return environment


def check_page(out: Path) -> None:
    """Raise ``InputError`` unless the page may be written to ``out``."""
    check_out_file(out, [_MARK], "report")


def tight(text: str) -> str:
    """``text`` without line breaks between a number and its unit."""
    return re.sub(r"(?<=\d) (?=%|[a-zµ]{1,3}\b)", "\u00a0", text)


def breakable(label: str) -> Markup:
    """An escaped label that may be broken after underscores and equals signs."""
    return Markup(re.sub("([_=])", r"\1<wbr>", str(escape(label))))


def _view(study: ReportSources) -> dict[str, Any]:
    summary, measured, source = study.main.results.summary, study.measured, study.main.source
    metric = second_metric(study)
    drawn = _figures(study, metric)
    timelines = [
        (_SOURCES[part.source] if measured else "", draw_timeline(study, part, _WORKERS_SHOWN))
        for part in study.parts
        if len(part.results.events)
    ]
    return {
        "study": study,
        "legend": [(row["label"], study.styles[row["label"]]) for row in study.main.rows],
        "verdict": words.verdict(summary, source),
        "card": card(summary, source)[1:],
        "remarks": [
            *words.beside_verdict(summary, source),
            *by_other_models(study),
            words.medians(summary, source),
            words.paired(summary, source),
            " ".join(beside_steps(study.main.rows)) if is_by_step(summary) else "",
            words.confidence(summary, source),
        ],
        "measured_verdict": measured and words.verdict(measured.results.summary, "measured"),
        "why": words.why(summary, source),
        "failures": words.failures(summary, source) + warnings(summary, source),
        "proxy": describe_proxy(study.scenario),
        "transport": assumptions.transport(summary) + words.prices(summary),
        "trained": _has(study, "train_loss") and describe_proxy(study.scenario) != CURVES,
        "metric": metric,
        "figures": {name: Markup(picture.svg) for name, picture in drawn.items()},
        "by_rates": any("settled_by_rates" in picture.data for picture in drawn.values()),
        "timelines": [(kind, Markup(picture.svg)) for kind, picture in timelines],
        "pictures": [*drawn.values(), *(picture for _, picture in timelines)],
        "equal": equal_scores(study.main),
        "tuning": words.tuning(summary) + words.gradients(summary, source),
        "brackets": brackets(summary, study.scenario.get("evaluate", {}).get("keep")),
        "workers_shown": _WORKERS_SHOWN,
        "repeats": max((row["runs"] for row in study.main.rows), default=0),
        "by_step": is_by_step(summary),
        "unit": column_unit(study.main.rows, is_by_step(summary)),
        "settled": verdict_of(summary, source)["settled"],
        "decides": decides(is_by_step(summary)).capitalize(),
        "amounts": [name.capitalize() for name in amount_names(study.main.rows, is_by_step(summary))],
        "about": about(study),
        "traffic": traffic(study),
        "comparison": side_by_side(study.main, measured) if measured else [],
        "agreement": measured and agreement(study.main, measured),
        "validated": words.validated(study.main.results.validation) if measured else [],
    }


def _figures(study: ReportSources, metric: str | None) -> dict[str, Picture]:
    """The figures of the page but for the timelines, by name."""
    trained = _has(study, "train_loss")
    sent = bool((study.main.results.metrics["bytes_sent"] > 0).any())
    charts: dict[str, Callable[[], Picture | None]] = {}
    if (between := gap(study.main)) is not None:
        charts["waterfall"] = partial(draw_waterfall, study, between)
    axes: tuple[tuple[str, By], ...] = (("time", "time_s"), ("bytes", "bytes_sent"), ("step", "step"))
    for name, by in axes:
        if sent or by != "bytes_sent":
            if trained:
                charts[f"loss_{name}"] = partial(draw_curves, study, "train_loss", by)
            if metric is not None and (metric, name) != ("consensus_distance", "step"):  # drawn below
                charts[f"metric_{name}"] = partial(draw_curves, study, metric, by)
    if _has(study, "consensus_distance"):
        charts["consensus_step"] = partial(draw_curves, study, "consensus_distance", "step")
    if any(row["iterations"] for row in study.main.rows):
        charts["step_cost"] = partial(draw_cost, study, per_step=True)
        charts["run_cost"] = partial(draw_cost, study, per_step=False)
    for name, draw in (("levels", draw_levels), ("break_even", draw_break_even), ("map", draw_cluster_map)):
        charts[name] = partial(draw, study)
    drawn = {name: charts[name]() for name in track("figure", [*charts])}
    return {name: picture for name, picture in drawn.items() if picture is not None}


def overview(studies: Sequence[ReportSources]) -> list[tuple[str, list[str]]]:
    """Each scheme's time to target, or per step, in each of several scenarios; a settled first has a star."""
    labels = dict.fromkeys(row["label"] for study in studies for row in study.main.rows)
    lines = []
    for label in labels:
        cells = []
        for study in studies:
            mine = [row for row in study.main.rows if row["label"] == label]
            summary = study.main.results.summary
            text = deciding_time(is_by_step(summary), mine[0])[0] if mine else ""
            settled = verdict_of(summary, study.main.source)["settled"]
            first = bool(mine) and settled and mine[0] is study.main.rows[0] and text[:1].isdigit()
            cells.append(f"{text} ★" if first else text)
        lines.append((label, cells))
    return lines


def about(study: ReportSources) -> list[dict[str, Any]]:
    """Each scheme's purpose, memory, bounds and assumptions; empty if nothing is known."""
    lines = []
    for row in study.main.rows:
        bounds, memory = row.get("bounds"), row.get("memory")
        lines.append(
            {
                "label": row["label"],
                "does": row.get("does", ""),
                "bound": "" if bounds is None else words.bound(bounds),
                "bar": [] if bounds is None else [(cost, bounds[cost]) for cost in words.COSTS],
                "memory": memory and f"{words.memory(memory)}; {words.not_counted(memory)}",
                "assumes": "; ".join(assumptions.assumptions(study.main.results, row, study.scenario)),
            }
        )
    return lines if any(line["does"] or line["bar"] or line["assumes"] for line in lines) else []


def equal_scores(part: SourceRuns) -> dict[str, Any] | None:
    """Scores at deadlines up to equal time and at equal bytes, by row; None where nothing was scored."""
    equal = part.results.summary.get("equal")
    if equal is None or not part.rows:
        return None
    runs = runs_of(replace(part.results, events=part.results.events[:0]))
    times_s = [equal["time_s"] * share for share in _DEADLINES]
    terms: list[tuple[str, Equal, Literal["time_s", "bytes_sent"]]] = [
        (f"after {words.duration(time_s)}", {**equal, "time_s": time_s}, "time_s") for time_s in times_s
    ]
    if equal["bytes"] is not None:
        terms.append((f"after {words.size(equal['bytes'])} sent", equal, "bytes_sent"))
    lines = []
    for row in part.rows:
        mine = [run for run in runs if (run.source, run.label) == (part.source, row["label"])]
        lines.append((row["label"], [_score(score_at(mine, at, by)) for _, at, by in terms]))
    return {"metric": words.plain(equal["metric"]), "columns": [text for text, *_ in terms], "lines": lines}


def _score(interval: Interval | None) -> tuple[str, str]:
    if interval is None or interval["median"] is None:
        return "-", ""
    low, high = interval["low"], interval["high"]
    between = f"{words.digits(low)} to {words.digits(high)}" if low is not None and high is not None else ""
    return words.digits(interval["median"]), between


def by_other_models(study: ReportSources) -> list[str]:
    """The ratio of examples by other scored models, where all runs of the first two met the target by it."""
    summary, frame = study.main.results.summary, study.main.results.metrics
    verdict, target, equal = verdict_of(summary, study.main.source), summary["target"], summary["equal"]
    if target is None or equal is None or "break_even" not in verdict:
        return []
    sign, sentences = -1.0 if equal["falling"] else 1.0, []
    level, base = np.array([sign * target["value"]]), target["metric"].partition("_on_")[0]
    for name in {str(name) for name in frame} - {target["metric"]}:
        metric, _, on = name.partition("_on_")
        met = {
            key: float(seconds_to_levels(run["step"].to_numpy(), sign * run[name].to_numpy(), level)[0])
            for key, run in (runs_scored(frame, name) if metric == base else {}).items()
        }
        steps = [{seed: x for (of, seed), x in met.items() if of == verdict[w]} for w in ("first", "second")]
        ratio = median_ratio(*steps)
        if ratio and all(map(math.isfinite, (x for each in steps for x in each.values()))):
            model = SCORED_MODELS[on or study.scenario["evaluate"]["on"]]
            sentences.append(f"By the {model}, the ratio of examples is {words.digits(ratio)}.")
    return sentences


def traffic(study: ReportSources) -> list[tuple[str, list[str]]]:
    """Bytes from site to site, or else on links, of each scheme: means of whole runs; the busiest first."""
    labels = [row["label"] for row in study.main.rows]
    sums: dict[str, dict[str, float]] = {}
    for run in study.main.runs:
        between = run.get("bytes_between") or {}
        lines = {f"{a} to {b}": count for a, row in between.items() for b, count in row.items() if a != b}
        for name, count in (lines or run.get("bytes_on_links", {})).items():
            mine = sums.setdefault(name, dict.fromkeys(labels, 0.0))
            mine[run["label"]] += count
    runs = {row["label"]: row["runs"] for row in study.main.rows}
    busiest = sorted(sums.items(), key=lambda line: -sum(line[1].values()))[:_LINES_OF_TRAFFIC]
    return [(name, [words.size(mine[label] / runs[label]) for label in labels]) for name, mine in busiest]


def second_metric(study: ReportSources) -> str | None:
    """Metric to draw beside the training loss: the target's, the accuracy, or the first other one."""
    target = study.main.results.summary["target"]
    own = [name for run in study.main.results.summary["runs"] for name in run["final"]]
    wished = [target["metric"]] if target else []
    candidates = [*wished, "test_accuracy", *own]
    return next((name for name in candidates if name != "train_loss" and _has(study, name)), None)


def side_by_side(predicted: SourceRuns, measured: SourceRuns) -> list[dict[str, Any]]:
    """Predicted beside measured times, one line per scheme.

    Each has its label, and (predicted, measured, error) of two medians: of the time to target and of a step.
    """
    both = scheme_errors(predicted.rows, measured.rows)
    rows = [row for each in both for row in (each.predicted, each.measured)]
    unit = column_unit(rows)
    step_unit = words.time_unit([step_s for row in rows if (step_s := row["step_s"]["median"])])

    def line(each: SchemeErrors) -> dict[str, Any]:
        sides = ((predicted, each.predicted), (measured, each.measured))
        times = [
            "-" if is_by_step(part.results.summary) else deciding_time(False, row, unit)[0]
            for part, row in sides
        ]
        steps = [row["step_s"]["median"] for _, row in sides]
        return {
            "label": each.measured["label"],
            "cells": [
                (*times, _percent(each.time_pct)),
                (
                    *("-" if s is None else words.duration(s, step_unit) for s in steps),
                    _percent(each.step_pct),
                ),
            ],
        }

    return [line(each) for each in both]


def _percent(error_pct: float | None) -> str:
    return "-" if error_pct is None else f"{error_pct:+z.1f} %"


def agreement(predicted: SourceRuns, measured: SourceRuns) -> str | None:
    """Sentence on the error of predicted times, and whether the winner was predicted."""
    both = scheme_errors(predicted.rows, measured.rows)
    errors = mean_and_max(each.time_pct for each in both if each.time_pct is not None)
    if errors is None:
        return None
    text = f"Predicted times to target are off by {errors[0]:.1f} % on average, {errors[1]:.1f} % at most"
    if measured.rows[0]["time_to_target_s"]["median"] is None:
        return f"{text}."
    first, predicted_first = measured.rows[0]["label"], predicted.rows[0]["label"]
    if first == predicted_first:
        return f"{text}; {first} was first in both."
    return f"{text}; {predicted_first} was predicted to be first, and {first} was."


def _has(study: ReportSources, metric: str) -> bool:
    metrics = study.main.results.metrics
    return metric in metrics and bool(metrics[metric].notna().any())
