"""A topology in numbers, tables and figures, as paceline topology shows it."""

from __future__ import annotations

import cmath
import json
import math
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from paceline.reports.figures.drawing import own_style
from paceline.reports.tables import add_text_row
from paceline.sim import seeds
from paceline.sim.config.files import save_atomically, trying_to, write_atomically
from paceline.sim.config.limits import MAX_WORKERS
from paceline.sim.errors import InputError
from paceline.sim.topology.entry import TopologyEntry
from paceline.sim.topology.matrix import (
    DENSE,
    Matrix,
    circulant_row,
    edges_of,
    fixed_start,
    in_degrees,
    off_diagonal,
    out_degrees,
    product_norm,
    second_modulus,
    spectrum,
    union,
)
from paceline.sim.topology.plan import Plan, plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILON: Final = 1e-3
"""Share of the disagreement at which averaging counts as done."""
MAX_DRAWN_WORKERS: Final = 200
"""Largest number of workers with positions in the record."""
MAX_LISTED_EDGES: Final = 100_000
"""Largest number of edges listed in the record."""
_DECAY_STEPS: Final = 20, 300
"""The fewest and the most steps of the decay of disagreement."""
_DECAY_STARTS: Final = 8
"""Random starts over which the decay of disagreement is averaged."""
_EXACT: Final = 1e-10
"""A norm below this is rounding: averaging is exact."""
_NORM_ROUNDING: Final = 1e-13
"""Disagreement below this share of its start is rounding."""


def describe(entry: TopologyEntry, workers: int, weights: str, seed: int) -> dict[str, Any]:
    """All known properties of a topology, ready for JSON; ``docs/topologies.md`` explains the keys.

    Arguments are those of ``plan``. Raises ``InputError`` as ``plan``, or for too many workers, and
    ``RunError`` where the eigenvalues of a very large graph do not converge.
    """
    sequence = plan(entry, workers, weights, seed)
    if workers > MAX_WORKERS and not all(circulant_row(w) is not None for w in sequence.first):
        raise InputError(
            f"{entry.name} looks different from different workers, and such a graph is described for at most "
            f"{MAX_WORKERS} workers, not {workers}; use fewer"
        )
    matrices = sequence.first
    others = [off_diagonal(w) for w in matrices]
    received, sent = [in_degrees(w) for w in others], [out_degrees(w) for w in others]
    exact = None if sequence.period is None else exact_after(matrices)
    modulus, rate = _rates(sequence, exact)
    steps = _steps(sequence, exact, rate)
    graph = union(matrices)
    edges = edges_of(graph, directed=not sequence.undirected)
    return {
        "topology": entry.model_dump(mode="json"),
        "name": str(entry),
        "workers": workers,
        "seed": seed,
        "weights": sequence.weights,
        "period": sequence.period,
        "degree": int(max(each.max() for each in [*received, *sent])),
        "mean_degree": float(np.mean(received)),
        "directed": not sequence.undirected,
        "symmetric": sequence.symmetric,
        "row_stochastic": sequence.row_stochastic,
        "column_stochastic": sequence.column_stochastic,
        "least_weight": sequence.least_weight,
        "second_eigenvalue_modulus": modulus,
        "spectral_gap": None if modulus is None else 1.0 - modulus,
        "rate_per_step": rate,
        "exact_after": exact,
        "epsilon": EPSILON,
        "steps_to_epsilon": steps,
        "transient_iterations": None
        if rate is None or (exact or 1) > 1
        else transient_iterations(workers, rate),
        "decay": _decay(sequence, steps),
        "spectrum": _spectrum(sequence),
        "positions": _positions(graph).tolist() if workers <= MAX_DRAWN_WORKERS else None,
        "number_of_edges": len(edges),
        "edges": list(map(tuple, edges.tolist())) if len(edges) <= MAX_LISTED_EDGES else None,
    }


def _rates(sequence: Plan, exact: int | None) -> tuple[float | None, float | None]:
    """The second-largest eigenvalue modulus (of a period: the product's norm on disagreement) and rate."""
    if sequence.period is None:
        return sequence.rate, sequence.rate
    matrices = sequence.first
    if exact is not None:
        return (0.0, 0.0) if len(matrices) > 1 or exact > 1 else (second_modulus(matrices[0]), 0.0)
    modulus = second_modulus(matrices[0]) if len(matrices) == 1 else product_norm(matrices)
    return modulus, modulus ** (1.0 / len(matrices))


def _steps(sequence: Plan, exact: int | None, rate: float | None) -> int | None:
    """Steps until disagreement is at most ``EPSILON`` of its start; None: unknown."""
    if sequence.period is None:
        return None if rate is None else max(1, math.ceil(math.log(EPSILON) / math.log(rate))) if rate else 1
    if exact is not None:
        return exact
    return steps_until(sequence.first, EPSILON)


def _decay(sequence: Plan, steps: int | None) -> list[float]:
    """Share of the disagreement left after 0, 1, 2, ... steps, over all random starts together."""
    fewest, most = _DECAY_STEPS
    n = sequence.workers
    x = seeds.generator(0, seeds.SHARED, "topology decay").standard_normal((n, _DECAY_STARTS))
    x -= x.mean(axis=0)
    start = float(np.linalg.norm(x))
    left = [1.0]
    for step in range(min(max(fewest, steps or 0), most)):
        x = np.asarray(sequence.matrix(step) @ x)
        left.append(float(np.linalg.norm(x - x.mean(axis=0))) / start)
    return left


def _spectrum(sequence: Plan) -> list[tuple[float, float]] | None:
    """Eigenvalues (real, imaginary) of a static graph's mixing matrix, or of a period's product."""
    from scipy.sparse import csr_array

    if sequence.period is None or sequence.workers > DENSE:
        return None
    total = sequence.first[0]
    for w in sequence.first[1:]:
        total = csr_array(w @ total)
    return [(float(value.real), float(value.imag)) for value in spectrum(total)]


def _positions(graph: Matrix) -> NDArray[np.float64]:
    """Drawing position of each worker [n, 2], in the unit square: on a circle where all are alike."""
    import networkx as nx

    n = graph.shape[0]
    drawn: nx.Graph[int] = nx.empty_graph(n)
    drawn.add_edges_from(zip(*(ends.tolist() for ends in graph.nonzero()), strict=True))
    alike = circulant_row(graph) is not None
    layout = nx.circular_layout(drawn) if alike else nx.kamada_kawai_layout(drawn)
    places = np.array([layout[rank] for rank in range(n)])
    if alike:
        return np.asarray((places + 1.0) / 2.0)
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray((places - low) / np.maximum(high - low, 1e-9))


def exact_after(matrices: list[Matrix]) -> int | None:
    """Number of steps of a periodic sequence until all have the mean, to rounding; None: never.

    Searched within one period, or log2 n steps if longer, on random starts: exactness for
    them is exactness for all with probability 1.
    """
    n = matrices[0].shape[0]
    x = np.stack([fixed_start(n), np.roll(fixed_start(n), n // 3)], axis=1)
    begun = np.linalg.norm(x)
    for step in range(max(len(matrices), (n - 1).bit_length())):
        x = np.asarray(matrices[step % len(matrices)] @ x)
        if np.linalg.norm(x - x.mean(axis=0)) <= _NORM_ROUNDING * begun:
            return step + 1
    return None


def steps_until(matrices: list[Matrix], epsilon: float) -> int:
    """Number of steps of a periodic sequence that shrink any disagreement to ``epsilon`` of itself.

    Within the first period this is counted step by step, later bounded by whole periods: T ln(epsilon) /
    ln(norm of the period's product).
    """
    norm = product_norm(matrices)
    if norm <= epsilon or norm < _EXACT:
        return next(
            k for k in range(1, len(matrices) + 1) if product_norm(matrices[:k]) <= max(epsilon, _EXACT)
        )
    return len(matrices) * math.ceil(math.log(epsilon) / math.log(norm) - 1e-12)


def transient_iterations(workers: int, modulus: float) -> dict[str, float]:
    """Steps, up to a constant, until decentralised SGD is as fast as with exact averages: n^3 rho^4 / (1 -
    rho)^2 for equal data on all workers, (1 - rho)^4 for unequal data (after Ying et al., NeurIPS 2021).
    """
    gap = max(1.0 - modulus, np.finfo(np.float64).tiny ** 0.25)
    top = workers**3 * modulus**4
    return {"same_data": top / gap**2, "different_data": top / gap**4}


Record = Mapping[str, Any]

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#666666"
"""From the palette of Okabe and Ito, distinguishable to the colour-blind."""
_FIGURES: Final = frozenset({"decay.png", "graph.png", "spectrum.png"})


def comparison_table(answer: Record) -> Table:
    """One row for each of ``topologies``: others heard in a step, period, rate, and two numbers of steps.

    These are the steps to small disagreement, and to exact averaging.
    """
    out = Table(box=box.SIMPLE_HEAD)
    out.add_column("topology (weights)")
    for name in ("heard", "period", "rate", "steps", "exact"):
        out.add_column(name, justify="right", no_wrap=True)
    for record in answer["topologies"]:
        add_text_row(
            out,
            f"{record['name']} ({record['weights']})",
            _degree(record),
            _period(record),
            _known(record["rate_per_step"], "z.6f"),
            _known(record["steps_to_epsilon"]),
            _known(record["exact_after"]),
        )
    return out


def record_table(record: Record) -> Table:
    """One line for each known property of a topology."""
    out = Table(box=None, show_header=False)
    epsilon = record["epsilon"]
    transient = record["transient_iterations"] or {}
    rows = {
        "topology": record["name"],
        "workers": str(record["workers"]),
        "weights": record["weights"],
        "others heard in a step": _degree(record),
        "period": _period(record),
        "edges": str(record["number_of_edges"]),
        "second eigenvalue modulus": _known(record["second_eigenvalue_modulus"], "z.6f"),
        "spectral gap": _known(record["spectral_gap"], "z.6f"),
        "rate a step": _known(record["rate_per_step"], "z.6f"),
        f"steps to {epsilon:g}": _known(record["steps_to_epsilon"]),
        "exact after": _known(record["exact_after"]),
        "transient iterations, same data": _known(transient.get("same_data"), ".3g"),
        "and different data": _known(transient.get("different_data"), ".3g"),
        "notes": ", ".join(notes(record)) or "-",
    }
    for name, value in rows.items():
        add_text_row(out, name, value)
    return out


def notes(record: Record) -> list[str]:
    """Warnings to read before using the topology."""
    out = []
    if record["directed"]:
        out.append("directed")
    if not record["column_stochastic"]:
        out.append("the mean is not conserved")
    if not record["row_stochastic"]:
        out.append("for push-sum only")
    if record["least_weight"] < 0:
        out.append(f"weights down to {record['least_weight']:.3g}")
    return out


def _degree(record: Record) -> str:
    most, mean = record["degree"], record["mean_degree"]
    return str(most) if math.isclose(most, mean) else f"{mean:.3g} (max {most})"


def _period(record: Record) -> str:
    return "random" if record["period"] is None else str(record["period"])


def _known(value: float | None, form: str = "") -> str:
    return "-" if value is None else f"{value:{form}}"


def draw_graph(record: Record, axes: Axes) -> None:
    """The workers and their neighbours over all steps; arrows point to the receivers."""
    import networkx as nx

    graph: Any = nx.DiGraph() if record["directed"] else nx.Graph()
    places = dict(enumerate(record["positions"]))
    graph.add_nodes_from(places)
    graph.add_edges_from(record["edges"])
    crowd = record["workers"]
    size = int(min(320.0, 6000.0 / crowd))
    width = min(1.2, 40.0 / max(len(record["edges"]) ** 0.5, 1.0) / 5.0)
    draw_edges: Any = nx.draw_networkx_edges
    for bend, edges in _by_bend(record).items():
        draw_edges(
            graph, places, edgelist=edges, ax=axes, node_size=size, edge_color=_GREY, width=width,
            arrows=True, arrowstyle="-|>" if record["directed"] else "-", arrowsize=7,
            connectionstyle=f"arc3,rad={bend}",
        )  # fmt: skip
    nx.draw_networkx_nodes(graph, places, ax=axes, node_size=size, node_color=_BLUE)
    if crowd <= 40:
        nx.draw_networkx_labels(graph, places, ax=axes, font_size=8 if crowd <= 20 else 7, font_color="white")
    many = "in any step, " if record["period"] != 1 else ""
    axes.set_title(f"who hears whom ({many}{record['number_of_edges']} edges)")
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.08)


def _by_bend(record: Record) -> dict[float, list[tuple[int, int]]]:
    """Bend -> edges drawn with it.

    Where all workers are on the circle in the unit square, edges bend towards its middle, the more the
    shorter they are: straight ones would run along the circle, through the workers between.
    """
    places = [complex(2.0 * x - 1.0, 2.0 * y - 1.0) for x, y in record["positions"]]
    if any(abs(abs(place) - 1.0) > 1e-6 for place in places):
        return {0.0: record["edges"]}
    out: dict[float, list[tuple[int, int]]] = {}
    for u, v in record["edges"]:
        turn = cmath.phase(places[v] / places[u])
        adjacent = abs(turn) < 3.0 * math.pi / len(places)
        bend = 0.0 if adjacent else -math.copysign(0.5 * (1.0 - abs(turn) / math.pi), turn)
        out.setdefault(round(bend, 3), []).append((u, v))
    return out


def draw_eigenvalues(record: Record, axes: Axes) -> None:
    """The eigenvalues in the unit circle, and the circle of the second largest modulus."""
    values = record["spectrum"]
    modulus = record["second_eigenvalue_modulus"]
    angle = [2 * math.pi * k / 360 for k in range(361)]
    for radius, style, colour in ((1.0, "-", _GREY), (modulus, "--", _ORANGE)):
        axes.plot(
            [radius * math.cos(a) for a in angle], [radius * math.sin(a) for a in angle],
            style, color=colour, linewidth=1,
        )  # fmt: skip
    axes.plot([v[0] for v in values], [v[1] for v in values], "o", color=_BLUE, markersize=4, alpha=0.8)
    of_what = "the mixing matrix" if record["period"] == 1 else "one period's product"
    axes.set(
        title=f"eigenvalues of {of_what}; dashed: {modulus:.4f}",
        xlabel="real part", ylabel="imaginary part", aspect="equal",
        xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=(-1, -0.5, 0, 0.5, 1), yticks=(-1, -0.5, 0, 0.5, 1),
    )  # fmt: skip


def draw_decay(record: Record, axes: Axes) -> None:
    """Remaining disagreement of random starts after each step, and the rate's line."""
    from matplotlib.ticker import MaxNLocator

    exact = record["exact_after"]
    left = [
        value if exact is None or step < exact else math.nan for step, value in enumerate(record["decay"])
    ]
    axes.semilogy(range(len(left)), left, "o-", color=_BLUE, markersize=3, label="random starts")
    rate = record["rate_per_step"]
    if rate:
        bound = [rate**k for k in range(len(left))]
        axes.semilogy(range(len(left)), bound, "--", color=_ORANGE, linewidth=1, label=f"{rate:.4f} a step")
    if exact is not None:
        axes.axvline(exact, color=_ORANGE, linestyle="--", linewidth=1, label=f"exact after {exact}")
        axes.set_xlim(right=exact + 0.5)
    lowest = min((value for value in left if value > 0.0), default=1.0)
    axes.set_ylim(bottom=10.0 ** (math.ceil(math.log10(lowest)) - 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="decay of disagreement", xlabel="steps", ylabel="left of it, root mean square")
    axes.legend(frameon=False)


def write_topology(record: Record, folder: Path, force: bool) -> None:
    """Write the figures that the record allows, and then ``topology.json``, into a folder; each file whole.

    Raises ``InputError`` if the folder holds something (without ``force``), or cannot be written.
    """
    import seaborn as sns
    from matplotlib.figure import Figure

    there = {path.name for path in folder.glob("[!.]*")}
    if not force and not there <= _FIGURES:  # left by an interrupted command
        raise InputError(f"{folder} is there already: choose another folder, or replace it with --force")
    with trying_to(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in there & _FIGURES:  # perhaps of another topology
            (folder / name).unlink()
    panels: dict[str, Callable[[Record, Axes], None]] = {"decay": draw_decay}
    if record["positions"] is not None and record["edges"] is not None:
        panels["graph"] = draw_graph
    if record["spectrum"] is not None:
        panels["spectrum"] = draw_eigenvalues
    title = f"{record['name']}, {record['workers']} workers, {record['weights']} weights"
    look = {
        **sns.axes_style("ticks"),
        "text.parse_math": False,  # file names may contain dollars
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "figure.titlesize": 11,
    }
    for name, panel in panels.items():
        with own_style(look):
            figure = Figure(figsize=(5.0, 5.0), layout="constrained")
            figure.suptitle(textwrap.fill(title, 60))
            panel(record, figure.subplots())
            save_atomically(folder / f"{name}.png", partial(figure.savefig, dpi=150))
    write_atomically(folder / "topology.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
