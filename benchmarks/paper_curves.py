"""Curves of the papers that are known best, as their own figures have them: loss against steps and the clock.

    python -m benchmarks.paper_curves [PAPER...] [--out out/papers]

The runs are those of ``benchmarks.papers``, scored more often. What is there already is not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.claim import PaperStudy
from benchmarks.claims import PAPERS
from benchmarks.papers import ROOT, results_of
from docs.make.page import save_picture
from paceline.reports.figures.metric_curves import bands, make_log
from paceline.sim.records.folder import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN: Final = {
    "slowmo": {"mnist-5k": 10},
    "stochastic-gradient-push": {"iid": 5, "slow node": 5},
    "exponential-graph": {"iid": 5, "by label": 5},
}
"""Studies of each page, and every how many steps they are scored."""
_POINTS: Final = 60
_AXES: Final = {"step": "steps per worker", "time_s": "simulated clock (s)"}


def draw_papers_curves(studies: Mapping[str, Results]) -> Figure:
    """A row for each study: the median training loss over seeds, and where the middle four fifths lie."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 0.5 + 3.0 * len(studies)), layout="constrained")
    panels = figure.subplots(len(studies), len(_AXES), squeeze=False, sharey="row")
    for row, (study, results) in zip(panels, studies.items(), strict=True):
        ends: list[float] = []
        for axes, (by, name) in zip(row, _AXES.items(), strict=True):
            ends.clear()
            for place, label in enumerate(results.metrics["label"].unique()):
                mine = results.metrics[results.metrics["label"] == label].assign(
                    x=lambda each, by=by: each[by]
                )
                band = bands(mine.sort_values(["seed", "x"]), "train_loss")
                band = band.iloc[sorted({*range(0, len(band), 1 + len(band) // _POINTS), len(band) - 1})]
                axes.fill_between(
                    band["x"], band["low"], band["high"], color=f"C{place}", alpha=0.15, linewidth=0
                )
                axes.plot(band["x"], band["median"], color=f"C{place}", label=label)
                ends.append(band["x"].iloc[-1])
            axes.set(xlabel=name, xlim=(0, max(ends)))
            make_log(axes, "y")
        if max(ends) > 4 * min(ends):
            make_log(row[1], "x")
            row[1].set_xlim(min(ends) / 30, max(ends))
        row[0].set(ylabel="training loss", title=study)
        row[1].legend(frameon=False, fontsize=8)
    return figure


def _scored_often(study: PaperStudy, steps: int) -> PaperStudy:
    changes = (*study.changes, f"evaluate.every={steps} steps")
    return replace(study, name=f"{study.name}, curves", changes=changes)


def main() -> None:
    """Simulate what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"of {', '.join(DRAWN)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("out/papers"), help="folder of the results")
    chosen = parser.parse_args()
    for name in chosen.papers or DRAWN:
        results = {
            study.name: results_of(name, _scored_often(study, DRAWN[name][study.name]), chosen.out)
            for study in PAPERS[name].studies
            if study.name in DRAWN[name]
        }
        picture = ROOT / "docs" / "papers" / "images" / f"{name}-curves.svg"
        save_picture(picture, draw_papers_curves(results))
        print(f"renewed {picture}")


if __name__ == "__main__":
    main()
