"""Decentralised learning with random features: the page docs/papers/random-features.md and its picture.

python -m benchmarks.random_features
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from benchmarks.feature_networks import (
    AGENTS,
    DELAY,
    EACH,
    FEATURES,
    PLATEAU_EXAMPLES,
    SEEDS,
    TOPOLOGIES,
    WITHIN,
    Threshold,
    distance_from_pooled,
    largest_degree,
    memory_bytes,
    plateau,
    run_networks,
    slopes,
    step_times,
    threshold_slope,
    thresholds,
)
from benchmarks.papers import shown
from docs.make.page import renewed
from paceline.sim.config.files import save_atomically, write_atomically
from paceline.sim.devices import one_thread
from paceline.sim.records.intervals import of_median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE: Final = Path(__file__).parent.parent / "docs" / "papers" / "random-features.md"
PICTURE: Final = PAGE.parent.parent / "images" / "random-features.png"
MARK: Final = "<!-- What follows is made by: python -m benchmarks.random_features -->\n"
MEMORY_EXAMPLES: Final = 20_000
"""In all, where an agent's memory is measured."""
_DOTS_PER_INCH: Final = 120


def draw(outcomes: pd.DataFrame, needed: Sequence[Threshold], features: pd.DataFrame) -> Figure:
    """Speed-ups, thresholds, errors by the total of examples, and the plateau."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    with sns.axes_style("whitegrid"):
        figure, axes = plt.subplots(2, 3, figsize=(13, 8), layout="constrained")
    colours = dict(zip(TOPOLOGIES, sns.color_palette("colorblind", len(TOPOLOGIES)), strict=True))
    marks: dict[str, Any] = {"hue": "topology", "palette": colours, "marker": "o"}
    for ax, agents in zip(axes[0], AGENTS, strict=True):
        some = outcomes[outcomes["agents"] == agents]
        sns.lineplot(
            some, x="each", y="speed_up", estimator="median", errorbar=("pi", 100), ax=ax,
            legend=agents == AGENTS[0], **marks,
        )  # fmt: skip
        ax.axhline(agents, color="0.4", linestyle="--", linewidth=1)
        ax.set(
            xscale="log", xlabel="examples of an agent", ylabel="speed-up over one machine",
            title=f"{agents} agents (dashed: linear)",
        )  # fmt: skip
    _draw_thresholds(axes[1][0], needed, colours)
    some = outcomes[outcomes["agents"] == AGENTS[0]]
    sns.lineplot(
        some, x="total", y="worst", estimator="median", errorbar=("pi", 100), ax=axes[1][1], legend=False,
        **marks,
    )  # fmt: skip
    totals = np.array(sorted(some["total"].unique()), float)
    first = some.loc[some["total"] == totals[0], "alone"].median()
    axes[1][1].plot(totals, first * (totals / totals[0]) ** -0.5, color="0.4", linestyle="--", linewidth=1)
    axes[1][1].set(
        xscale="log", yscale="log", xlabel="examples in all", ylabel="worst agent's error",
        title=f"{AGENTS[0]} agents (dashed: slope -1/2)",
    )  # fmt: skip
    sns.lineplot(
        features, x="features", y="error", estimator="median", errorbar=("pi", 100), marker="o",
        color="0.2", ax=axes[1][2],
    )  # fmt: skip
    axes[1][2].axvline(math.sqrt(PLATEAU_EXAMPLES), color="0.4", linestyle="--", linewidth=1)
    axes[1][2].set(
        xscale="log", yscale="log", xlabel="random features", ylabel="error of one machine",
        title=f"{PLATEAU_EXAMPLES:,} examples (dashed: their root)",
    )  # fmt: skip
    return figure


def threshold_labels(needed: Sequence[Threshold]) -> dict[tuple[str, float, float], str]:
    """(graph, inverse gap, examples) -> the numbers of agents at that place of the picture."""
    labels: dict[tuple[str, float, float], list[str]] = {}
    for row in needed:
        met = math.isfinite(row.needed)
        place = (row.topology, round(row.inverse_gap, 3), row.needed if met else EACH[-1])
        labels.setdefault(place, []).append(f"{row.agents}" if met else f"{row.agents}: more")
    return {place: ", ".join(agents) for place, agents in labels.items()}


def _draw_thresholds(ax: Axes, needed: Sequence[Threshold], colours: dict[str, Any]) -> None:
    import seaborn as sns

    known = pd.DataFrame([vars(row) for row in needed if math.isfinite(row.needed)])
    sns.scatterplot(
        known, x="inverse_gap", y="needed", hue="topology", palette=colours, s=60, ax=ax, legend=False
    )
    for (topology, gap, examples), text in threshold_labels(needed).items():
        ax.annotate(text, (gap, examples), textcoords="offset points", xytext=(5, 5), color=colours[topology])
    ax.margins(0.15)  # room for the labels
    ax.set(
        xscale="log", yscale="log", xlabel="inverse spectral gap", ylabel="examples an agent needs",
        title="threshold, by agents",
    )  # fmt: skip


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "| --- " + "| ---: " * (len(head) - 1) + "|", *lines, ""])


def page(outcomes: pd.DataFrame, needed: Sequence[Threshold], features: pd.DataFrame) -> str:
    """The generated part of the page."""
    columns = (EACH[0], EACH[len(EACH) // 2], EACH[-1])
    speeds = [
        (
            f"{topology}, {agents} agents",
            *(shown(of_median(some.loc[some["each"] == each, "speed_up"].tolist())) for each in columns),
            f"{agents * EACH[-1] / (EACH[-1] + largest_degree(topology, agents) + DELAY):.1f}",
        )
        for topology in TOPOLOGIES
        for agents in AGENTS
        for some in [outcomes[(outcomes["agents"] == agents) & (outcomes["topology"] == topology)]]
    ]
    wanted = [
        (
            f"{row.topology}, {row.agents} agents",
            f"{row.inverse_gap:.1f}",
            f"more than {EACH[-1]}" if math.isinf(row.needed)
            else f"at most {EACH[0]}" if row.needed <= EACH[0]
            else f"{row.needed:.0f}",
        )
        for row in needed
    ]  # fmt: skip
    rates = [(name, shown(each)) for name, each in slopes(outcomes, AGENTS[0]).items()]
    by_features = features.groupby("features")["error"]
    plateaus = [(f"{m}", shown(of_median(some.tolist()))) for m, some in by_features]
    memory = [(f"{agents}", memory_bytes(agents, MEMORY_EXAMPLES)) for agents in (1, 5, 25, 100)]
    alone = sum(memory[0][1].values())
    memories = [
        (name, f"{held['examples']:,}", f"{held['models']:,}", f"{alone / sum(held.values()):.1f}")
        for name, held in memory
    ]
    times = step_times(25, 100)
    costs = [(name, f"{1e6 * a:.2f} µs", f"{1e6 * b:.2f} µs") for name, (a, b) in times.items()]
    last = f"at {EACH[-1]} by the costs alone"
    return "\n".join([
        f"\nMedians over {len(SEEDS)} seeds, with their 95 % intervals; {FEATURES} features.\n",
        "![speed-up, thresholds, errors and plateau](../images/random-features.png)\n",
        "## Speed-up over one machine\n",
        _table(("graph", *(f"{m} examples each" for m in columns), last), speeds),
        "## Examples that an agent needs\n",
        f"Until the worst agent's error is at most {WITHIN} times that of one machine after as many steps.\n",
        _table(("graph", "inverse spectral gap", "examples"), wanted),
        f"They grow as the inverse gap to the power {threshold_slope(needed):.1f} (cycles and grids).\n",
        "## Error against the total number of examples\n",
        f"The slope of log error over log examples, {AGENTS[0]} agents.\n",
        _table(("of", "slope"), rates),
        "## Error against the number of features\n",
        f"One machine, {PLATEAU_EXAMPLES:,} examples, {math.ceil(math.sqrt(PLATEAU_EXAMPLES))} steps.\n",
        _table(("features", "error"), plateaus),
        "## Memory of an agent\n",
        f"Bytes of the tensors of a step on a cycle, {MEMORY_EXAMPLES:,} examples in all.\n",
        _table(("agents", "examples", "models and gradient", "one machine's over it"), memories),
        "## Time of a step\n",
        "25 agents with 100 examples, a multiplication 1 ns.\n",
        _table(("graph", "by the paper's costs", "simulated"), costs),
        f"25 agents with complete averaging are at most {distance_from_pooled():.1e} from gradient descent "
        "on all examples, after each of 50 steps.\n",
    ])  # fmt: skip


def main() -> None:
    """Measure, and renew the page and its picture."""
    with one_thread():
        outcomes = pd.DataFrame(
            {**vars(each), "excess": each.excess, "speed_up": each.speed_up, "total": each.agents * each.each}
            for each in run_networks()
        )
        needed, features = thresholds(outcomes), plateau()
        text = page(outcomes, needed, features)
    figure = draw(outcomes, needed, features)

    def save(new: Path) -> None:
        metadata = {"Software": None}
        figure.savefig(new, dpi=_DOTS_PER_INCH, metadata=metadata)

    save_atomically(PICTURE, save)
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, text))
    print(f"renewed {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main()
