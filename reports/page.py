"""One self-contained HTML page from result folders: no script, nothing loaded from anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from reports import words
from reports.study import Part, Study, studies
from reports.table import status, time_to_target
from sim.errors import InputError
from sim.summary import Row

_HERE: Final = Path(__file__).parent
_LANES: Final = 16
_SOURCES: Final = {"simulated": "predicted", "measured": "measured"}


def build(folders: Sequence[Path], out: Path) -> None:
    """Write the report of some result folders; an older report is replaced.

    A folder of simulated runs and one of measured runs of the same scenario stand side by side.

    Raises:
        InputError: a folder cannot be read, or ``out`` cannot be written.
    """
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
    environment.globals.update(words=words, status=status, time_to_target=time_to_target)
    found = studies(folders)
    style = Markup((_HERE / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return environment.get_template("page.html").render(style=style, studies=[_view(study) for study in found])


def _view(study: Study) -> dict[str, Any]:
    """What the template shows of one study."""
    # Here, because it imports matplotlib's helpers only when a page is really made.
    from reports import figures

    summary = study.main.results.summary
    metric = second_metric(study)
    trained = _has(study, "train_loss")
    drawn: dict[str, str] = {}
    if trained:
        drawn["loss_time"] = figures.loss_by_time(study)
        drawn["loss_step"] = figures.loss_by_step(study)
    if metric is not None:
        drawn["metric_time"] = figures.metric_by_time(study, metric)
    if any(row["iterations"] for row in study.main.rows):
        drawn["step_cost"] = figures.cost_of_a_step(study)
        drawn["run_cost"] = figures.cost_of_a_run(study)
    return {
        "study": study,
        "summary": summary,
        "main": study.main,
        "measured": study.measured,
        "verdict": words.verdict(summary, study.main.source),
        "confidence": words.confidence(summary, study.main.source),
        "why": words.why(summary, study.main.source),
        "failures": words.failures(summary, study.main.source),
        "proxy": proxy(study.scenario),
        "trained": trained,
        "metric": metric,
        "figures": {name: Markup(svg) for name, svg in drawn.items()},  # noqa: S704 - matplotlib escapes
        "timelines": [
            (_SOURCES[part.source] if study.measured else "", Markup(figures.timeline(study, part, _LANES)))  # noqa: S704
            for part in study.parts
            if len(part.results.events)
        ],
        "lanes": _LANES,
        "repeats": max((row["runs"] for row in study.main.rows), default=0),
        "unit": words.time_unit(
            time for row in study.main.rows if (time := row["time_to_target_s"]["median"] or row["at_least_s"])
        ),
        "comparison": comparison(study.main, study.measured) if study.measured else [],
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
        f"A small proxy was trained in place of the real model: every exchange was timed as if the model had {payload}, "
        "while losses and steps are the proxy's."
    )


def comparison(predicted: Part, measured: Part) -> list[dict[str, Any]]:
    """Predicted beside measured, per scheme in the order measured; errors in per cent of the measurement."""
    found = []
    for row in measured.rows:
        other = next((r for r in predicted.rows if r["label"] == row["label"]), None)
        if other is None:
            continue
        found.append(
            {
                "label": row["label"],
                "cells": [
                    _pair(other["time_to_target_s"]["median"], row["time_to_target_s"]["median"]),
                    _pair(_step_s(other), _step_s(row)),
                ],
            }
        )
    return found


def _pair(predicted: float | None, measured: float | None) -> dict[str, str]:
    unit = words.time_unit(value for value in (predicted, measured) if value is not None)
    error = ""
    if predicted is not None and measured:
        error = f"{100 * (predicted - measured) / measured:+.1f} %"
    return {
        "predicted": words.duration(predicted, unit) if predicted is not None else "-",
        "measured": words.duration(measured, unit) if measured is not None else "-",
        "error": error or "-",
    }


def _step_s(row: Row) -> float | None:
    return row["wall_clock_s"] / row["iterations"] if row["iterations"] else None


def _has(study: Study, metric: str) -> bool:
    metrics = study.main.results.metrics
    return metric in metrics and bool(metrics[metric].notna().any())
