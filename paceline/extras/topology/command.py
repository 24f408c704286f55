"""``paceline topology``: graphs and mixing weights apart from any run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from paceline.commands.console import AsJson, Force, plain_app, print_answer, print_json, print_result, say
from paceline.sim.config.limits import MAX_SEED
from paceline.sim.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from paceline.sim.records.scenario_facts import TransportRecord
    from paceline.sim.topology import TopologyEntry
    from paceline.sim.topology.search.objective import StepTime

topology_app = plain_app("Who averages with whom.")

Weights = Annotated[str, typer.Option("--weights", metavar="RULE", help="mixing weights, as in scenarios")]
Workers = Annotated[int, typer.Option("--workers", metavar="N", help="number of workers")]
Seed = Annotated[int, typer.Option("--seed", metavar="S", min=0, max=MAX_SEED, help="of random graphs")]
_NAME: Final = "a name, a file, package.module:function, or '{ring_lattice: {degree: 4}}'"


@topology_app.command()
def show(
    topology: Annotated[str, typer.Argument(metavar="NAME", help=_NAME)],
    workers: Workers,
    weights: Weights = "auto",
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="write figures, the record and the graph here")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show one topology: its degree, weights, eigenvalues and how fast it averages."""
    from paceline.extras.topology import topology_page as graph_pages

    record = graph_pages.describe(_entry(topology), workers, weights, seed)
    if out is not None:
        graph_pages.write_topology(record, out, force)
        say(f"wrote {out}")
    print_answer(record, as_json, graph_pages.record_table)


@topology_app.command()
def compare(
    topologies: Annotated[list[str], typer.Argument(metavar="NAME", help=_NAME)],
    workers: Workers,
    weights: Weights = "auto",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare topologies at one number of workers, the fastest per step first."""
    from paceline.extras.topology import topology_page as graph_pages

    records = [graph_pages.describe(_entry(name), workers, weights, seed) for name in topologies]
    unknown = 2.0  # above all rates, so that these come last
    records.sort(
        key=lambda r: (unknown if r["rate_per_step"] is None else r["rate_per_step"], r["mean_degree"])
    )
    answer = {"workers": workers, "topologies": records}
    print_answer(answer, as_json, graph_pages.comparison_table)


@topology_app.command("search")
def search(
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="absent: those of the scenario")
    ] = None,
    degree: Annotated[
        int | None, typer.Option("--degree", metavar="K", help="neighbours of every worker")
    ] = None,
    edges: Annotated[
        int | None, typer.Option("--edges", metavar="M", help="instead: edges in all, wherever they are")
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", metavar="laplacian|metropolis", help="rule of the mixing weights")
    ] = "laplacian",
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="spectral|wall-clock",
            help="what an e-fold of consensus takes: steps, or time on the scenario's cluster",
        ),
    ] = "spectral",
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="the cluster, for wall-clock")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", min=0, max=MAX_SEED, help="of every random choice")
    ] = 0,
    moves: Annotated[
        int | None,
        typer.Option("--moves", metavar="N", help="candidates in one walk; absent: about a minute in all"),
    ] = None,
    restarts: Annotated[
        int | None, typer.Option("--restarts", metavar="N", help="walks; absent: by the size")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="graph.json", help="a file that scenarios can name")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for a graph on which averaging is fast, with a fixed degree or number of edges."""
    from paceline.reports.assumptions import assumed
    from paceline.sim.config.files import check_out_file
    from paceline.sim.topology.search import find

    if objective not in ("spectral", "wall-clock"):
        raise InputError(f"--objective {objective}: {did_you_mean(objective, ['spectral', 'wall-clock'])}")
    step_time, known, workers = _cluster(objective, scenario, workers)
    if out is not None and out.suffix != ".json":
        instead = out.with_suffix(".json") if out.name else "graph.json"
        raise InputError(f"--out {out}: the file is JSON; call it {instead}")
    if out is not None:
        check_out_file(out, [find.MADE_BY.encode()], sources=[] if scenario is None else [scenario])
    usual_moves, usual_restarts = find.default_budget(workers)
    request = find.Request(
        workers, degree, edges, weights, seed,
        moves=usual_moves if moves is None else moves,
        restarts=usual_restarts if restarts is None else restarts,
    )  # fmt: skip
    result = find.search(request, step_time)
    document = find.describe(result, step_time) | {"transport": known}
    if out is not None:
        find.save(result, out, objective)
        say(f"wrote {out}; scenarios say topology: {{file: {out}}}, weights: {weights}")
    if as_json:
        print_json(document)
    else:
        _print(document)
        print_result("".join(f"{each}\n" for each in assumed(known, {"averaging": ("mix",)})))


def _cluster(
    objective: str, scenario: Path | None, workers: int | None
) -> tuple[StepTime | None, TransportRecord | None, int]:
    """The step time on the scenario's cluster and its transport, if they count, and the number of workers."""
    if scenario is None:
        if objective == "wall-clock":
            raise InputError("--objective wall-clock needs a cluster: add --scenario FILE")
        if workers is None:
            raise InputError("--workers N is missing (or give --scenario FILE)")
        return None, None, workers
    from paceline.sim.records.scenario_facts import read_facts
    from paceline.sim.scenario.schema import dump, load

    loaded = load(scenario)
    there = loaded.cluster.workers
    if workers is not None and workers != there:
        raise InputError(f"--workers {workers}: the cluster of {scenario} has {there}; leave it out")
    if objective == "spectral":
        return None, None, there
    from paceline.extras.topology.averaging_time import AveragingStepTime

    return AveragingStepTime(loaded), read_facts(dump(loaded)).transport, there


def _print(document: dict[str, Any]) -> None:
    rows = [(f"graph found ({document['weights']})", document)]
    if document["ring_lattice"] is not None:
        rows.append(("ring lattice", document["ring_lattice"]))
    out = [f"{'':30}{'modulus':>10}{'steps/e':>10}{'s/step':>10}{'s/e':>10}"]
    for name, each in rows:
        cells = [
            each[key]
            for key in ("second_eigenvalue_modulus", "steps_per_e_fold", "step_time_s", "time_per_e_fold_s")
        ]
        out.append(
            f"{name:30}" + "".join(f"{'-' if cell is None else format(cell, '.4f'):>10}" for cell in cells)
        )
    if document["lower_bound"] is not None:
        out.append(f"{'no such graph is below':30}{document['lower_bound']:>10.4f}")
        out.append(f"{'large graphs (Alon-Boppana)':30}{document['alon_boppana']:>10.4f}")
    print_result("\n".join(out) + "\n")


def _entry(written: str) -> TopologyEntry:
    """A topology of the command line: YAML as in scenarios, or the name of a file."""
    from paceline.sim.config import yaml_file
    from paceline.sim.topology import TopologyEntry
    from paceline.sim.topology.entry import SUFFIXES

    if Path(written).suffix in SUFFIXES:
        return TopologyEntry.of({"file": written})
    return TopologyEntry.of(yaml_file.parse(written, "NAME").value)
