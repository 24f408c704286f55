"""Figures as inline SVG with the colours of the page.

Matplotlib draws with stand-in colours, each later replaced by CSS, so that text and curves follow the
reader's light or dark theme. The same data give the same bytes.

matplotlib and seaborn take seconds to import, so they are imported where they are used.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from ..folders import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = "#01f001"
FAINT: Final = "#01f002"
PAPER: Final = "#01f003"
PHASES: Final = {"compute": "#01f004", "communicate": "#01f005", "wait": "#01f006"}
PHASE_KEY: Final = tuple((phase, stand_in, ()) for phase, stand_in in PHASES.items())
WIDTH_IN: Final = 4.6
"""Width of a figure that shares a line with another one."""

CSS: Final = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    PAPER: "var(--paper)",
    **{stand_in: f"var(--{phase})" for phase, stand_in in PHASES.items()},
}
"""CSS of each stand-in colour."""
_ONE_STYLE: Final = threading.RLock()
"""Held while matplotlib's settings, which all threads share, are changed."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure of the page.

    Attributes:
        name: unique on the page.
        data: of the figure.
        key: label, stand-in colour and dashes of each entry of the key above the figure.
        figure, colours: for ``reports.paper_files``: the figure in stand-in colours, and the CSS of those
            that are its own.
    """

    name: str
    data: pd.DataFrame
    key: tuple[tuple[str, str, tuple[float, ...]], ...]
    figure: Figure
    colours: Mapping[str, str]

    @cached_property
    def svg(self) -> str:
        """For the page, which colours it; asked for before ``reports.paper_files`` finishes the figure."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        out = io.StringIO()
        with _page_style():
            FigureCanvasSVG(self.figure)
            self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        return _inline(out.getvalue(), self.name, self.colours)


@contextmanager
def own_style(changes: Mapping[Any, Any]) -> Iterator[None]:
    """matplotlib's defaults with these changes: the user's matplotlibrc would change figures.

    One thread at a time: each puts back what it has found.
    """
    import matplotlib

    with _ONE_STYLE, matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # it is drawn as a box
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(changes)
        yield


@contextmanager
def _page_style() -> Iterator[None]:
    """The page's style, in stand-in colours."""
    import seaborn as sns

    ours = {
        "axes.grid": True,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "paceline",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.edgecolor": FAINT,
        "grid.color": FAINT,
        "grid.linewidth": 0.5,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
    }
    with own_style({**sns.axes_style("ticks"), **ours}):
        yield


@contextmanager
def figure(width_in: float, height_in: float) -> Iterator[Figure]:
    """A figure for the page, drawn in the block."""
    from matplotlib.figure import Figure

    with _page_style():
        yield Figure(figsize=(width_in, height_in), layout="constrained")


def picture(
    figure: Figure,
    name: str,
    data: pd.DataFrame,
    styles: Mapping[str, Style] = MappingProxyType({}),
    key: Sequence[tuple[str, str, tuple[float, ...]]] | None = None,
) -> Picture:
    """A finished figure, in the stand-in colours of ``styles``; see ``Picture``. ``key``: None: of these."""
    own = [(label, style.stand_in, style.dashes) for label, style in styles.items()]
    return Picture(
        re.sub(r"\W", "-", name), data, tuple(own if key is None else key), figure,
        {style.stand_in: style.colour for style in styles.values()},
    )  # fmt: skip


def _inline(svg: str, name: str, colours: Mapping[str, str]) -> str:
    """Adapt matplotlib's SVG file to inline use, with ids of its own."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<(metadata|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"(font: [^\"';]*?px) [^\";]*", r"\1 var(--font)", text)
    head, _, body = text.partition(">")  # the size comes from the page, the shape from the view box
    head = re.sub(r' (width|height)="[^"]*"', "", head).replace("<svg", '<svg aria-hidden="true"')
    text = f"{head}>{body}"
    for stand_in, css in {**CSS, **colours}.items():
        text = text.replace(stand_in, css)
    return text.strip()


def annotate(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """Write ``text`` in small letters beside the point ``at``, ``offset`` points away from it."""
    style = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": INK, **how}
    ax.annotate(text, at, xytext=offset, **style)


def set_up_bars(ax: Axes) -> None:
    """Horizontal bars from the top down, without ticks and lines between them."""
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    ax.invert_yaxis()


def cut(label: str, width: int) -> str:
    """Truncate a label to at most ``width`` characters."""
    return label if len(label) <= width else label[: width - 1] + "…"
