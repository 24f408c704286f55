"""Pages of the documentation whose lower part a program makes; what people write stands above a mark."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.sim.config.files import save_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def renewed(page: str, mark: str, generated: str) -> str:
    """``page`` with everything below the line ``mark`` made anew.

    Raises:
        ValueError: the page has lost that line.
    """
    head, there, _ = page.partition(mark)
    if not there:
        raise ValueError(f"the page has lost the line {mark!r}")
    return head + mark + generated


def save_picture(path: Path, figure: Figure) -> None:
    """Write a figure as SVG; the same data give the same bytes."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "paceline", "svg.fonttype": "none"}):
        save_atomically(path, lambda new: figure.savefig(new, metadata={"Date": None}))


def first_paragraph(docstring: str | None) -> str:
    """The first paragraph of a docstring in one line, in Markdown."""
    return " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split()).replace("``", "`")
