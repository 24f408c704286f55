"""Registry of topologies: name -> builder, options, accepted numbers of workers."""

from __future__ import annotations

from . import matcha
from .entry import TOPOLOGIES, Topology
from .graphs import finite_time, random, sequences, static

TOPOLOGIES.update(
    (t.name, t)
    for t in (
        Topology("ring", static.ring, static.NoOptions, "any", "2"),
        Topology("path", static.path, static.NoOptions, "any", "1 or 2"),
        Topology("star", static.star, static.NoOptions, "any", "1, centre n - 1"),
        Topology("complete", static.complete, static.NoOptions, "any", "n - 1"),
        Topology("grid", static.grid, static.Rows, "rows x columns, both at least 2", "2 to 4"),
        Topology("torus", static.torus, static.Rows, "rows x columns, both at least 3", "4"),
        Topology("hypercube", static.hypercube, static.NoOptions, "powers of 2", "log2 n"),
        Topology(
            "ring_lattice", static.ring_lattice, static.Degree, "more than the degree; even for an odd one",
            "`degree`",
        ),
        Topology(
            "static_exponential", static.static_exponential, static.NoOptions, "any", "ceil(log2 n)",
            directed=True,
        ),
        Topology(
            "hierarchical", static.hierarchical, static.Hierarchy, "the sum of the sites",
            "site - 1, first of a site up to 2 more",
        ),
        Topology(
            "one_peer_exponential", sequences.one_peer_exponential, static.NoOptions, "any", "1",
            directed=True,
        ),
        Topology(
            "p_peer_exponential", sequences.p_peer_exponential, sequences.NumPeers, "more than `peers`",
            "up to `peers`", directed=True,
        ),
        Topology("random_matching", sequences.random_matching, static.NoOptions, "any", "1 (or 0)"),
        Topology(
            "random_regular", random.random_regular, static.Degree,
            "more than the degree; even for an odd one", "`degree`",
        ),
        Topology("erdos_renyi", random.erdos_renyi, random.Probability, "any", "varies"),
        Topology("random_geometric", random.random_geometric, random.Radius, "any", "varies"),
        Topology(
            "small_world", random.small_world, random.SmallWorld, "more than the degree",
            "`degree` on average",
        ),
        Topology("base", finite_time.base, finite_time.MaxPeers, "any", "up to `peers`"),
        Topology("simple_base", finite_time.simple_base, finite_time.MaxPeers, "any", "up to `peers`"),
        Topology(
            "hyper_hypercube", finite_time.hyper_hypercube, finite_time.MaxPeers,
            "no prime factor above `peers` + 1", "up to `peers`",
        ),
        Topology(
            "one_peer_hypercube", finite_time.one_peer_hypercube, static.NoOptions, "powers of 2", "1"
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
)  # fmt: skip
