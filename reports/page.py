"""One self-contained HTML page from result folders: no script, nothing loaded from anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape

from reports import words
from reports.bars import cost_of_a_run, cost_of_a_step
from reports.curves import curves
from reports.study import Part, Study, studies
from reports.table import column_unit, shares, status, time_to_target
from reports.timeline import timeline
from sim.errors import InputError
from sim.summary import Row

_HERE: Final = Path(__file__).parent
_LANES: Final = 16
_MARK: Final = b'<meta name="generator" content="Paceline">'
_SOURCES: Final = {"simulated": "predicted", "measured": "measured"}


def build(folders: Sequence[Path], out: Path) -> None:
    """Write the report of some result folders as one page; an older report is replaced, nothing else.

    A folder of simulated runs and one of measured runs of the same scenario stand side by side.

    Args:
        folders: as ``sim.result_folder`` writes them.
        out: the page.

    Raises:
        InputError: a folder cannot be read, or ``out`` is something else or cannot be written.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder: name a file, such as {out / 'report.html'}")
    if out.exists() and not _is_report(out):
        raise InputError(f"{out} is there already, and it is no report: choose another name")
    text = render(folders)
    new = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        new.unlink(missing_ok=True)


def render(folders: Sequence[Path]) -> str:
    """The page's text; the same folders give the same text.

    Raises:
        InputError: there is no folder, or one cannot be read.
    """
    if not folders:
        raise InputError("name at least one result folder")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(words=words, status=status, time_to_target=time_to_target, percents=shares)
    environment.filters.update(tight=tight, breakable=breakable)
    style = Markup((_HERE / "style.css").read_text(encoding="utf-8"))
    views = [_view(study) for study in studies(folders)]
    return environment.get_template("page.html").render(style=style, studies=views).lstrip()


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MARK in file.read(1000)
    except OSError as error:
        raise InputError(f"cannot look into {path}: {error.strerror}") from error


def tight(text: str) -> str:
    """The text with no line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=%|[a-zµ]{1,3}\b)", "\u00a0", text)


def breakable(label: str) -> Markup:
    """A label, escaped, that may be broken after underscores and equals signs."""
    return Markup(re.sub("([_=])", r"\1<wbr>", str(escape(label))))


def _view(study: Study) -> dict[str, Any]:
    """What the template shows of one study."""
    summary, measured = study.main.results.summary, study.measured
    metric = second_metric(study)
    trained = _has(study, "train_loss")
    drawn: dict[str, str] = {}
    if trained:
        drawn["loss_time"] = curves(study, "train_loss", "time_s")
        drawn["loss_step"] = curves(study, "train_loss", "step")
    if metric is not None:
        drawn["metric_time"] = curves(study, metric, "time_s")
    if _has(study, "consensus_distance"):
        drawn["consensus_step"] = curves(study, "consensus_distance", "step")
    if any(row["iterations"] for row in study.main.rows):
        drawn["step_cost"] = cost_of_a_step(study)
        drawn["run_cost"] = cost_of_a_run(study)
    return {
        "study": study,
        "summary": summary,
        "main": study.main,
        "measured": measured,
        "verdict": words.verdict(summary, study.main.source),
        "measured_verdict": measured and words.verdict(measured.results.summary, "measured"),
        "confidence": words.confidence(summary, study.main.source),
        "why": words.why(summary, study.main.source),
        "failures": words.failures(summary, study.main.source),
        "proxy": proxy(study.scenario),
        "trained": trained,
        "metric": metric,
        "figures": {name: Markup(svg) for name, svg in drawn.items()},
        "timelines": [
            (_SOURCES[part.source] if measured else "", Markup(timeline(study, part, _LANES)))
            for part in study.parts
            if len(part.results.events)
        ],
        "lanes": _LANES,
        "repeats": max((row["runs"] for row in study.main.rows), default=0),
        "unit": column_unit(study.main.rows),
        "comparison": comparison(study.main, measured) if measured else [],
        "agreement": measured and agreement(study.main, measured),
    }


def second_metric(study: Study) -> str | None:
    """What to draw beside the training loss: the target's metric, the accuracy, or the first other one."""
    target = study.main.results.summary["target"]
    own = [name for run in study.main.results.summary["runs"] for name in run["final"]]
    wished = [target["metric"]] if target else []
    candidates = [*wished, "test_accuracy", *own]
    return next((name for name in candidates if name != "train_loss" and _has(study, name)), None)


def proxy(scenario: dict[str, Any]) -> str | None:
    """What the trained model stood for, if for another one; else None."""
    workload = scenario.get("workload")
    if not isinstance(workload, dict):
        return None
    if workload.get("timing_only"):
        return "Nothing was trained: only time was simulated."
    payload = workload.get("payload")
    if payload is None:
        return None
    return (
        "A small proxy was trained in place of the real model: exchanges were timed as if the model had "
        f"{payload}, while losses and steps are the proxy's."
    )


def comparison(predicted: Part, measured: Part) -> list[dict[str, Any]]:
    """Predicted beside measured, per scheme in the order measured; errors in per cent of the measurement."""
    pairs = [
        (guess, real) for real in measured.rows for guess in predicted.rows if guess["label"] == real["label"]
    ]
    unit = column_unit([row for pair in pairs for row in pair])
    steps = [step for pair in pairs for row in pair if (step := _step_s(row))]
    step_unit = words.time_unit(steps)
    return [
        {
            "label": real["label"],
            "cells": [
                (
                    time_to_target(predicted.results.summary, guess, unit)[0],
                    time_to_target(measured.results.summary, real, unit)[0],
                    _error(guess["time_to_target_s"]["median"], real["time_to_target_s"]["median"]),
                ),
                (
                    _or_dash(_step_s(guess), step_unit),
                    _or_dash(_step_s(real), step_unit),
                    _error(_step_s(guess), _step_s(real)),
                ),
            ],
        }
        for guess, real in pairs
    ]


def agreement(predicted: Part, measured: Part) -> str | None:
    """How far predicted times were from measured ones, and whether the winner was predicted."""
    pairs = [
        (guess, real)
        for row in measured.rows
        for other in predicted.rows
        if row["label"] == other["label"]
        and (real := row["time_to_target_s"]["median"])
        and (guess := other["time_to_target_s"]["median"])
    ]
    if not pairs:
        return None
    errors = [abs(guess - real) / real for guess, real in pairs]
    mean = 100 * sum(errors) / len(errors)
    text = f"Predicted times to target are off by {mean:.1f} % on average, {100 * max(errors):.1f} % at most"
    if measured.rows[0]["time_to_target_s"]["median"] is None:
        return f"{text}."
    first, guess_first = measured.rows[0]["label"], predicted.rows[0]["label"]
    if first == guess_first:
        return f"{text}; {first} was first in both."
    return f"{text}; {guess_first} was predicted to be first, and {first} was."


def _or_dash(value_s: float | None, unit: tuple[str, float]) -> str:
    return "-" if value_s is None else words.duration(value_s, unit)


def _error(predicted: float | None, measured: float | None) -> str:
    return f"{100 * (predicted - measured) / measured:+.1f} %" if predicted is not None and measured else "-"


def _step_s(row: Row) -> float | None:
    return row["wall_clock_s"] / row["iterations"] if row["iterations"] else None


def _has(study: Study, metric: str) -> bool:
    metrics = study.main.results.metrics
    return metric in metrics and bool(metrics[metric].notna().any())
