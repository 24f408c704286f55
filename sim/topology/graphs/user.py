"""User-defined topologies, named ``package.module:function``."""

from __future__ import annotations

from ...config.user_code import call as user_code
from ...errors import InputError, quote
from ..matrix import from_networkx
from .files import ranked
from .static import Graphs, NoOptions, static


def from_function(path: str, workers: int, options: NoOptions, seed: int) -> Graphs:
    """Build the graph of ``function(workers)``; ``InputError`` unless networkx's, of that many nodes."""
    import networkx as nx

    read = user_code.instance_of(nx.Graph)
    arguments = {"workers": workers}
    graph = user_code.call(path, arguments, read, "a networkx graph")
    if graph.number_of_nodes() != workers:
        place = user_code.format_place(user_code.load_object(path))
        raise InputError(
            f"{quote(path)} returned a graph of {graph.number_of_nodes()} nodes, not {workers}{place}"
        )
    return static(from_networkx(ranked(graph, user_code.format_call(path, arguments))))
