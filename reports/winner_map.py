"""A map of a sweep: the winner at each setting, and its lead."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from paceline.sim.config.files import save_atomically
from paceline.sim.records.verdict import format_factor

from .figures.drawing import own_style
from .tables import short_keys

_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""The palette of Okabe and Ito, distinguishable to the colour-blind."""
_DARK: Final = _COLOURS[0], _COLOURS[2], _COLOURS[5]
"""Colours on which black letters are hard to read."""
_NOBODY: Final = "#ffffff"
_PALE: Final = 0.35
"""Opacity of a setting without a settled order."""


def varied_keys(answer: Mapping[str, Any]) -> list[str]:
    """The keys of a sweep with several values."""
    sets = [row["set"] for row in answer["settings"]]
    return [key for key in sets[0] if any(each[key] != sets[0][key] for each in sets)]


def write_winner_map(answer: Mapping[str, Any], path: Path) -> bool:
    """Draw a square for each setting: the colour is the winner's, the number the second's factor behind it.

    Pale squares are not settled. The last key goes to the right, the one before it downwards. ``answer``:
    output of ``paceline sweep --json``; the ending of ``path`` gives the format. Returns whether there is a
    picture: of one or two keys with several values. Raises ``InputError`` if it cannot be written.
    """
    keys = varied_keys(answer)
    if not 1 <= len(keys) <= 2:
        return False
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    across, down = keys[-1], keys[0] if len(keys) == 2 else None
    columns, rows = _values(answer, across), _values(answer, down) if down else [None]
    firsts = dict.fromkeys(row["verdict"]["first"] for row in answer["settings"])
    colours = dict(zip((label for label in firsts if label is not None), cycle(_COLOURS), strict=False))
    with own_style({"svg.fonttype": "none", "svg.hashsalt": "paceline", "text.parse_math": False}):
        figure = Figure(figsize=(3.4 + 0.95 * len(columns), 1.3 + 0.6 * len(rows)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        for row in answer["settings"]:
            x = columns.index(row["set"][across])
            y = rows.index(row["set"][down]) if down else 0
            verdict = row["verdict"]
            colour = colours.get(verdict["first"], _NOBODY)
            opacity = 1.0 if verdict["settled"] else _PALE
            square = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, alpha=opacity, edgecolor="white")
            axes.add_patch(square)
            ink = "white" if colour in _DARK and verdict["settled"] else "black"
            axes.text(x, y, _words(verdict), ha="center", va="center", fontsize=9, color=ink)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xticks(range(len(columns)), [_short(value) for value in columns])
        axes.set_yticks(range(len(rows)), [_short(value) if down else "" for value in rows])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        names = short_keys(keys)
        axes.set(xlabel=names[-1], ylabel=names[0] if down else "")
        key = [Patch(facecolor=colour, label=_short(label)) for label, colour in colours.items()]
        if any(not row["verdict"]["settled"] for row in answer["settings"]):
            key.append(Patch(facecolor="#666666", alpha=_PALE, label="pale: not settled"))
        figure.legend(
            handles=key, loc="outside right upper", frameon=False, fontsize=9, alignment="left",
            title="who is first; how many times\nas long the second takes", title_fontsize=9,
        )  # fmt: skip
        drawn = io.BytesIO()
        ending = path.suffix.removeprefix(".")
        figure.savefig(drawn, format=ending, metadata={"Date": None} if ending == "svg" else None)
    save_atomically(path, lambda new: new.write_bytes(drawn.getvalue()))
    return True


def _values(answer: Mapping[str, Any], key: str) -> Sequence[Any]:
    values: list[Any] = []
    for row in answer["settings"]:
        if row["set"][key] not in values:
            values.append(row["set"][key])
    return values


def _words(verdict: Mapping[str, Any]) -> str:
    """Text of a square: a factor, or why there is none."""
    if verdict["first"] is None:
        return "nobody"
    return "alone" if verdict["factor"] is None else format_factor(verdict["factor"])


def _short(value: Any) -> str:
    return textwrap.shorten(textwrap.fill(str(value), 16), 60, placeholder=" ...")
