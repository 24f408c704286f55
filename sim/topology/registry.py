"""The registry of topologies: name -> builder, options, what it accepts. Nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sim.dotted import is_dotted
from sim.errors import InputError, nearest
from sim.settings import Settings
from sim.topology import files, finite_time, graphs, matcha, random_graphs, sequences
from sim.topology.graphs import Graphs
from sim.topology.user import from_function


@dataclass(frozen=True)
class Topology:
    """What is known of a topology; its row in ``docs/topologies.md``.

    Attributes:
        name: as in scenarios.
        build: (workers, options, seed) -> the graphs; raises ``InputError`` where there are none.
        options: the settings model of ``options``.
        workers: which numbers of workers it accepts, in words.
        degree: how many others a worker hears in a step, in words.
        directed: whether i may hear j without j hearing i.
    """

    name: str
    build: Callable[[int, Any, int], Graphs]
    options: type[Settings]
    workers: str
    degree: str
    directed: bool = False


TOPOLOGIES: Final[Mapping[str, Topology]] = {
    t.name: t
    for t in (
        Topology("ring", graphs.ring, graphs.NoOptions, "any", "2"),
        Topology("path", graphs.path, graphs.NoOptions, "any", "1 or 2"),
        Topology("star", graphs.star, graphs.NoOptions, "any", "1, centre n - 1"),
        Topology("complete", graphs.complete, graphs.NoOptions, "any", "n - 1"),
        Topology("grid", graphs.grid, graphs.Rows, "rows x columns, both at least 2", "2 to 4"),
        Topology("torus", graphs.torus, graphs.Rows, "rows x columns, both at least 3", "4"),
        Topology("hypercube", graphs.hypercube, graphs.NoOptions, "powers of 2", "log2 n"),
        Topology(
            "ring_lattice", graphs.ring_lattice, graphs.Degree, "more than the degree; even for an odd one",
            "`degree`",
        ),
        Topology(
            "static_exponential", graphs.static_exponential, graphs.NoOptions, "any", "ceil(log2 n)",
            directed=True,
        ),
        Topology(
            "hierarchical", graphs.hierarchical, graphs.Hierarchy, "the sum of the sites",
            "site - 1, first of a site up to 2 more",
        ),
        Topology(
            "one_peer_exponential", sequences.one_peer_exponential, graphs.NoOptions, "any", "1",
            directed=True,
        ),
        Topology(
            "p_peer_exponential", sequences.p_peer_exponential, sequences.Peers, "more than `peers`",
            "up to `peers`", directed=True,
        ),
        Topology("random_matching", sequences.random_matching, graphs.NoOptions, "any", "1 (or 0)"),
        Topology(
            "random_regular", random_graphs.random_regular, graphs.Degree,
            "more than the degree; even for an odd one", "`degree`",
        ),
        Topology("erdos_renyi", random_graphs.erdos_renyi, random_graphs.Probability, "any", "varies"),
        Topology("random_geometric", random_graphs.random_geometric, random_graphs.Radius, "any", "varies"),
        Topology(
            "small_world", random_graphs.small_world, random_graphs.SmallWorld, "more than the degree",
            "`degree` on average",
        ),
        Topology("base", finite_time.base, finite_time.Peers, "any", "up to `peers`"),
        Topology("simple_base", finite_time.simple_base, finite_time.Peers, "any", "up to `peers`"),
        Topology(
            "hyper_hypercube", finite_time.hyper_hypercube, finite_time.Peers,
            "no prime factor above `peers` + 1", "up to `peers`",
        ),
        Topology(
            "one_peer_hypercube", finite_time.one_peer_hypercube, graphs.NoOptions, "powers of 2", "1"
        ),
        Topology(
            "de_bruijn", finite_time.de_bruijn, finite_time.Base, "powers of `base`", "up to `base`",
            directed=True,
        ),
        Topology(
            "matcha", matcha.matcha, matcha.MatchaOptions, "those of `graph`, up to 500",
            "`budget` x that of `graph` on average",
        ),
    )
}  # fmt: skip


FILE: Final = Topology("file", files.from_file, files.FileOptions, "as in the file", "as in the file", True)


def topology_named(name: str) -> Topology:
    """Look a topology up; ``file`` is one whose graph is in a file, ``package.module:function`` a user's.

    Raises:
        InputError: no such topology; names the nearest.
    """
    if name == FILE.name:
        return FILE
    if is_dotted(name):
        return Topology(name, partial(from_function, name), graphs.NoOptions, "as its author says", "", True)
    if name.endswith(files.SUFFIXES):
        raise InputError(f"unknown topology '{name}'; for a graph in a file write {{file: {name}}}")
    if name not in TOPOLOGIES:
        raise InputError(f"unknown topology '{name}'; {nearest(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]
