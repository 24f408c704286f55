"""The page of a sweep, with its figures: who is first where, and from which value on another scheme is."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from paceline.sim.config.files import claim, save_atomically
from paceline.sim.config.problems import short_keys, show_value
from paceline.sim.config.units import Format, parse_number, read_numbers
from paceline.sim.errors import InputError
from paceline.sim.records.verdict import format_factor

from . import assumptions, words
from .figures.drawing import FAINT, INK, PAPER, WIDTH_IN, Picture, cut, figure, own_style, picture
from .figures.metric_curves import make_log
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
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
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


_SETTLED: Final = 0.6
"""Opacity of a square of the map; letters on it stay readable."""
_OPEN: Final = 0.2
_PANELS: Final = 9
"""Most panels of curves: values of the other keys beyond are in the table alone."""
_ACROSS: Final = 3
_TICKS: Final = 6
_DENSE: Final = 12
"""Number of values above which ticks are not theirs, but evenly apart."""
_FAR: Final = 5
"""Ratio of a key's values from which on its axis is logarithmic."""
_LABEL: Final = 20
_CLASSES: Final = 12
"""Most bars of shares along an input,"""
_ROUGHLY: Final = 8
"""and least draws in one."""


def varied_keys(answer: Mapping[str, Any]) -> list[str]:
    """The keys of a sweep with several values."""
    sets = [row["set"] for row in answer["settings"]]
    return [key for key in sets[0] if any(each[key] != sets[0][key] for each in sets)]


def is_grid(answer: Mapping[str, Any]) -> bool:
    """Whether a sweep holds all combinations of its keys' values."""
    values = [len(_values(answer, [key])) for key in answer["settings"][0]["set"]]
    return math.prod(values) == len(answer["settings"])


def draw_winners(answer: Mapping[str, Any], styles: Mapping[str, Style]) -> Picture | None:
    """Draw a square for each setting: the colour is the first scheme's, the number the second's factor.

    Pale squares are not settled. The last key goes to the right, the one before it downwards. None unless one
    or two keys of a grid have several values; see ``draw_points``.
    """
    keys = varied_keys(answer)
    if not 1 <= len(keys) <= 2 or not is_grid(answer):
        return None
    from matplotlib.patches import Rectangle

    across, down = keys[-1:], keys[:-1]
    columns, rows = _values(answer, across), _values(answer, down)
    data = []
    with figure(2.0 + 0.9 * len(columns), 0.9 + 0.5 * len(rows)) as drawn:
        ax = drawn.subplots()
        for row in answer["settings"]:
            verdict = row["verdict"]
            x, y = columns.index(_at(row, across)), rows.index(_at(row, down))
            ax.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1,
                    facecolor=styles[verdict["first"]].stand_in if verdict["first"] else PAPER,
                    alpha=_SETTLED if row["settled"] else _OPEN, edgecolor=PAPER,
                )
            )  # fmt: skip
            ax.text(x, y, _words(verdict), ha="center", va="center", fontsize=9, color=INK)
            data.append({**row["set"], "first": verdict["first"], "factor": verdict["factor"]})
        ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        for axis, values in ((ax.xaxis, columns), (ax.yaxis, rows)):
            names = ("".join(map(show_value, each)) for each in values)
            axis.set_ticks(range(len(values)), [cut(name, _LABEL) for name in names])
        ax.tick_params(length=0)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        *name_down, name_across = short_keys(keys)
        ax.set(xlabel=name_across, ylabel="".join(name_down))
    firsts = {row["verdict"]["first"] for row in answer["settings"]}
    shown = {label: style for label, style in styles.items() if label in firsts}
    return picture(drawn, "winners", pd.DataFrame(data), shown)


def draw_times(answer: Mapping[str, Any], styles: Mapping[str, Style]) -> Picture | None:
    """Draw each scheme's median time with its interval against the last key with numbers.

    A panel for each combination of the other keys. None where no key of a grid has several numbers, or no
    time is above 0.
    """
    keys = _numeric_keys(answer)
    if not keys or not is_grid(answer):
        return None
    key = keys[-1]
    data = _times(answer, key)
    if not (data["median"] > 0).any():
        return None
    panels = list(data.groupby("at", sort=False))[:_PANELS]
    wide = min(len(panels), _ACROSS)
    high = math.ceil(len(panels) / wide)
    unit, second = words.time_unit([float(data["median"].median())])
    with figure(WIDTH_IN if wide == 1 else 2 * WIDTH_IN, 3.0 * high) as drawn:
        axes = list(drawn.subplots(high, wide, sharex=True, sharey=True, squeeze=False).flat)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax, (at, own) in zip(axes, panels, strict=False):
            for label, mine in own.sort_values("x").groupby("label", sort=False):
                style, x = styles[str(label)], mine["x"].to_numpy()
                low, high_ = (mine[end].fillna(mine["median"]) / second for end in ("low", "high"))
                ax.fill_between(x, low, high_, color=style.stand_in, alpha=0.16, linewidth=0)
                ax.plot(
                    x, mine["median"] / second, color=style.stand_in, linewidth=2, marker="o", markersize=4,
                    dashes=style.dashes,
                )  # fmt: skip
            ax.set_title(cut(str(at), 2 * _LABEL), fontsize=9)
        make_log(axes[0], "y")
        _set_axis(axes[0], "x", data["x"], _written(answer, key))
        drawn.supxlabel(short_keys(list(answer["settings"][0]["set"]))[_place(answer, key)], fontsize=10)
        axes[wide * (high // 2)].set_ylabel(
            f"{decides(answer['settings'][0]['by_step'])} ({unit}), log scale", fontsize=10
        )
    return picture(drawn, "times", data, styles)


def draw_points(answer: Mapping[str, Any], styles: Mapping[str, Style]) -> Picture | None:
    """Draw who is first over the last two keys with numbers, where settings are no grid; else None.

    Over one key: against the factor of the second. Pale points are not settled, grey ones have no first.
    """
    keys = _numeric_keys(answer)[-2:]
    if "draws" in answer:
        keys = [each["key"] for each in answer["draws"]["inputs"][1::-1]]
    if is_grid(answer) or not keys:
        return None
    data = []
    for row in answer["settings"]:
        verdict = row["verdict"]
        y = _number(row["set"][keys[0]]) if len(keys) == 2 else verdict["factor"]
        first, alpha = verdict["first"], 1.0 if verdict["settled"] or verdict["first"] is None else _OPEN
        data.append({"x": _number(row["set"][keys[-1]]), "y": y, "first": first or "nobody", "alpha": alpha})
    frame = pd.DataFrame(data).dropna()
    names = short_keys(list(answer["settings"][0]["set"]))
    with figure(WIDTH_IN, 2.9) as drawn:
        ax = drawn.subplots()
        for alpha, first in sorted(set(zip(frame["alpha"], frame["first"], strict=True))):
            mine = frame[(frame["alpha"] == alpha) & (frame["first"] == first)]
            colour = styles[first].stand_in if first in styles else FAINT
            ax.scatter(mine["x"], mine["y"], s=40, color=colour, alpha=alpha, linewidths=0)
        _set_axis(ax, "x", frame["x"], _written(answer, keys[-1]))
        if len(keys) == 2:
            _set_axis(ax, "y", frame["y"], _written(answer, keys[0]))
        ylabel = names[_place(answer, keys[0])] if len(keys) == 2 else "factor of the second"
        ax.set(xlabel=names[_place(answer, keys[-1])], ylabel=ylabel)
    return picture(drawn, "winners", frame, styles)


def draw_shares(answer: Mapping[str, Any], styles: Mapping[str, Style]) -> Picture | None:
    """Draw how often each scheme is first along the most important input of draws, if that has numbers.

    A bar stands for equally many draws. Dashes: the threshold.
    """
    inputs = answer.get("draws", {}).get("inputs")
    if not inputs:
        return None
    most = inputs[0]
    x = pd.Series([_number(row["set"][most["key"]]) for row in answer["settings"]])
    first = [row["verdict"]["first"] or "nobody" for row in answer["settings"]]
    classes = x.rank(method="first", pct=True).mul(min(_CLASSES, 1 + len(x) // _ROUGHLY)).apply(np.ceil)
    shares = pd.crosstab(classes, np.array(first), normalize="index")
    edges = np.array([*x.groupby(classes).min(), x.max()])
    with figure(WIDTH_IN, 2.9) as drawn:
        ax = drawn.subplots()
        bottom = np.zeros(len(shares))
        for label, share in shares.items():
            bars = ax.bar(edges[:-1], 100 * share, np.diff(edges), bottom, align="edge")
            colour = styles[str(label)].stand_in if label in styles else FAINT
            for bar in bars:
                bar.set(facecolor=colour, edgecolor=PAPER)
            bottom += 100 * share
        _set_axis(ax, "x", x, _written(answer, most["key"]))
        if most["key"] == answer["draws"]["decides"]:
            ax.axvline(most["at"], color=INK, linestyle="--", linewidth=1.2)
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, 100), xlabel=most["name"], ylabel="first, % of the draws")
    return picture(drawn, "shares", shares.reset_index(drop=True), styles)


def _numeric_keys(answer: Mapping[str, Any]) -> list[str]:
    sets = [row["set"] for row in answer["settings"]]
    return [key for key in varied_keys(answer) if read_numbers([own[key] for own in sets])]


def _number(value: Any) -> float:
    known = parse_number(value)
    return math.nan if known is None else known[0]


def _written(answer: Mapping[str, Any], key: str) -> Format:
    known = parse_number(answer["settings"][0]["set"][key])
    return str if known is None else known[1]


def _set_axis(ax: Axes, which: Literal["x", "y"], values: pd.Series[float], written: Format) -> None:
    """Ticks with units at some of the values, on a logarithmic axis where these are far apart."""
    known = sorted(set(values))
    if known[0] > 0 and known[-1] > _FAR * known[0]:
        ax.set(**{f"{which}scale": "log"})
    ticks = known[:: math.ceil(len(known) / _TICKS)]
    digits: tuple[int, ...] = ()
    if len(known) > _DENSE:
        space = np.geomspace if known[0] > 0 and known[-1] > _FAR * known[0] else np.linspace
        ticks, digits = space(known[0], known[-1], _TICKS - 2).tolist(), (2,)
    axis: Axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_ticks(ticks, [written(tick, *digits) for tick in ticks])
    axis.set_ticks([], minor=True)


def _times(answer: Mapping[str, Any], key: str) -> pd.DataFrame:
    """Columns at (values of the other keys), value, x, label, median, low and high in seconds."""
    rows = []
    for each in answer["settings"]:
        own = each["set"]
        named = zip(short_keys(list(own)), own, own.values(), strict=True)
        at = ", ".join(f"{name} {show_value(value)}" for name, other, value in named if other != key)
        x = _number(own[key])
        for row in each["summary"]:
            time = words.deciding(row, each["by_step"])
            rows.append({"at": at, "value": own[key], "x": x, "label": row["label"], **time})
    return pd.DataFrame(rows).astype({"median": float, "low": float, "high": float})


def _place(answer: Mapping[str, Any], key: str) -> int:
    return list(answer["settings"][0]["set"]).index(key)


def _at(setting: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    """Values of a setting's keys."""
    return [setting["set"][key] for key in keys]


def _values(answer: Mapping[str, Any], keys: Sequence[str]) -> list[list[Any]]:
    """All that settings have at these keys; one empty list where there is no key."""
    every = [_at(row, keys) for row in answer["settings"]]
    return [each for place, each in enumerate(every) if every.index(each) == place]


def _words(verdict: Mapping[str, Any]) -> str:
    """Text of a square: a factor, or why there is none."""
    if verdict["first"] is None:
        return "nobody"
    return "alone" if verdict["factor"] is None else format_factor(verdict["factor"])
