"""The README's picture: the demo's training loss against the clock, and the verdict, above it and as JSON.

    make figures

simulates the demo first. ``python -m docs.make.picture DIR`` draws the results that are in DIR already.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from paceline.reports.paper_files import plot_metric
from paceline.sim.config.files import save_atomically, write_atomically
from paceline.sim.records.folder import read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE: Final = Path(__file__).parents[1] / "images" / "four-regions.png"
_DOTS_PER_INCH: Final = 170


def draw_picture(folder: Path) -> Figure:
    """Draw the loss of a result folder's runs, with the verdict as its title.

    Raises:
        InputError: the folder cannot be read, or nothing was trained.
    """
    summary = read_results(folder).summary
    figure = plot_metric(folder, "train_loss")
    text = f"{summary['scenario']}: {summary['verdict']['text']}".replace("; ", ";\n")
    figure.set_size_inches(7, 4.2)
    figure.axes[0].set_title(text, loc="left", fontsize=11, weight="bold")
    return figure


def main() -> None:
    """Renew the picture and the verdict."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out/four-regions")
    figure = draw_picture(folder)

    def save(new: Path) -> None:
        metadata = {"Software": None}
        figure.savefig(new, dpi=_DOTS_PER_INCH, metadata=metadata)

    save_atomically(PICTURE, save)
    verdict = read_results(folder).summary["verdict"]
    write_atomically(PICTURE.with_suffix(".json"), json.dumps(verdict, indent=1) + "\n")


if __name__ == "__main__":
    main()
