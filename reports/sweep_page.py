"""The page of a sweep: who is first at which setting, and from which value on another scheme is."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from paceline.sim.config.files import claim, save_atomically
from paceline.sim.config.problems import short_keys, show_value
from paceline.sim.errors import InputError

from . import assumptions, words
from .figures.drawing import Picture, own_style
from .figures.sweep_maps import draw_points, draw_shares, draw_times, draw_winners, is_grid
from .folders import Style, styles_of
from .page import check_page, render_template
from .paper_files import finish_figure, render_latex, write_tables
from .sweep_tables import (
    beside_crossovers,
    crossover_texts,
    even_at,
    labels_of,
    lead_names,
    settled_in,
    sweep_cells,
    words_of_draws,
)
from .tables import decides, deciding_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def build(
    answer: Mapping[str, Any], out: Path, files: Path | None = None, runs: pa.Table | None = None
) -> None:
    """Write the page of a sweep to ``out``, and its tables and figures into the folder ``files``.

    ``answer``: content of ``sweep.json``; ``runs``: of ``tabulate_runs``. Raises ``InputError`` if ``out`` is
    something else, in use or not writable.
    """
    check_page(out)
    with claim(out):
        styles = _styles(answer)
        drawn = {
            "shares": draw_shares(answer, styles),
            "winners": draw_winners(answer, styles) or draw_points(answer, styles),
            "times": draw_times(answer, styles),
        }
        pictures = {name: picture for name, picture in drawn.items() if picture is not None}
        text = _render(answer, pictures)

        def save(new: Path) -> None:
            new.write_text(text, encoding="utf-8")
            if files is not None:
                write_tables(files, _numbers(answer), _tex(answer), list(pictures.values()), runs)

        save_atomically(out, save)


def plot_times(answer: Mapping[str, Any]) -> Figure:
    """Draw each scheme's time against a key, on white; ``InputError``: there is nothing to draw."""
    picture = draw_times(answer, _styles(answer))
    if picture is None:
        raise InputError("no key of the grid has several numbers, or no scheme a time: no curve to draw")
    return finish_figure(picture)


def write_winners(answer: Mapping[str, Any], path: Path) -> bool:
    """Write the map of ``paceline sweep --json``'s content, if it has one; its ending gives the format."""
    picture = draw_winners(answer, _styles(answer))
    if picture is None:
        return False
    drawn, ending = io.BytesIO(), path.suffix[1:]
    with own_style({"svg.fonttype": "none", "svg.hashsalt": "paceline"}):
        metadata = {"Date": None} if ending == "svg" else None
        finish_figure(picture).savefig(drawn, format=ending, metadata=metadata)
    save_atomically(path, lambda new: new.write_bytes(drawn.getvalue()))
    return True


def _render(answer: Mapping[str, Any], pictures: Mapping[str, Picture]) -> str:
    settings = answer["settings"]
    intervals = any(each["verdict"]["interval"] for each in settings)
    decided = " or ".join(dict.fromkeys(decides(each["by_step"]) for each in settings)).capitalize()
    return render_template(
        "sweep.html", title=answer["scenario"], settings=settings, verdict=_verdict(answer),
        figures={name: Markup(picture.svg) for name, picture in pictures.items()},
        styles=list(_styles(answer).items()), crossovers=crossover_texts(answer),
        intervals=intervals, grid=is_grid(answer), even_at=even_at(answer), lead_names=lead_names(answer),
        between=beside_crossovers(answer),
        assumed=assumptions.assumed_in(answer),
        decides=decided, keys=short_keys(_keys(answer)), labels=labels_of(answer), rows=sweep_cells(answer),
        **words_of_draws(answer),
    )  # fmt: skip


_MOST_COLUMNS: Final = 8
"""Settings that a page's width takes as columns."""


def _verdict(answer: Mapping[str, Any]) -> str:
    """How often each scheme is first, and where that is settled; of draws, what decides."""
    if "draws" in answer:
        return str(answer["draws"]["text"])
    verdicts = [each["verdict"] for each in answer["settings"]]
    firsts = Counter(verdict["first"] or "nobody" for verdict in verdicts)
    named = ", ".join(f"{label} in {count}" for label, count in firsts.most_common())
    return f"Ahead: {named} of {len(verdicts)} settings; {settled_in(answer)}"


def _styles(answer: Mapping[str, Any]) -> dict[str, Style]:
    rows = [row for each in answer["settings"] for row in each["summary"]]
    return styles_of(rows, list(dict.fromkeys(row["scheme"] for row in rows)))


def _keys(answer: Mapping[str, Any]) -> list[str]:
    return list(answer["settings"][0]["set"])


def _numbers(answer: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for setting in answer["settings"]:
        for row in setting["summary"]:
            intervals = ("time_to_target_s", "step_s", "ratio_to_best", "cost")
            parts = {
                f"{key}_{end}": value for key in intervals if key in row for end, value in row[key].items()
            }
            counts = {key: row[key] for key in ("runs", "reached", "diverged", "bytes_sent")}
            rows.append({**setting["set"], "scheme": row["label"], **parts, **counts})
    return pd.DataFrame(rows)


def _tex(answer: Mapping[str, Any]) -> str:
    """A row for each scheme and a column for each setting; of more than ``_MOST_COLUMNS``, the other way."""
    settings, keys = answer["settings"], short_keys(_keys(answer))
    if len(settings) > _MOST_COLUMNS:
        columns = [*keys, *labels_of(answer), *lead_names(answer)]
        return render_latex(pd.DataFrame(sweep_cells(answer), columns=columns))
    times_s = [words.deciding(row, each["by_step"])["median"] for each in settings for row in each["summary"]]
    known_s = [time_s for time_s in times_s if time_s is not None]
    unit = words.time_unit([median(known_s)] if known_s else [])
    table = pd.DataFrame({"scheme": labels_of(answer)})
    for each in settings:
        named = zip(keys, map(show_value, each["set"].values()), strict=True)
        cells = dict.fromkeys(table["scheme"], "-")
        for row in each["summary"]:
            time, ends = deciding_time(each["by_step"], row, unit)
            cells[row["label"]] = time.removesuffix(f" {unit[0]}") + (f" ({ends})" if ends else "")
        if (first := each["verdict"]["first"]) is not None:
            cells[first] += "★" if each["settled"] else "☆"
        table[f"{', '.join(map(' '.join, named))} ({unit[0]})"] = list(cells.values())
    decided = " or ".join(dict.fromkeys(decides(each["by_step"]) for each in settings))
    notes = f"{decided}, medians of repeats (intervals); star: first; ?: ahead, not settled; >: not by then"
    return (
        f"{render_latex(table)}% {notes}\n% {'; '.join([settled_in(answer), *beside_crossovers(answer)])}\n"
    )
