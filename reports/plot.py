"""The loss figure of a report by itself, for Python and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.sim.errors import InputError

from .figures.curves import draw_curves
from .files import finish_figure
from .folders import read_sources

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOSS = "train_loss"


def plot_loss(folder: Path) -> Figure:
    """Draw the training loss of a result folder's runs against the clock, on white.

    Raises ``InputError`` if the folder cannot be read, or no loss is known.
    """
    (study,) = read_sources([folder])
    metrics = study.main.results.metrics
    if _LOSS not in metrics or not metrics[_LOSS].notna().any():
        raise InputError(f"no loss is known of {study.title}: nothing was trained; its report has the times")
    figure = finish_figure(draw_curves(study, _LOSS, "time_s"))
    figure.set_facecolor("white")
    return figure
