"""A user's own topology, named ``package.module:function``."""

from __future__ import annotations

from typing import Any

import networkx as nx

from ...config import user_code
from ...errors import InputError
from ..matrix import from_networkx
from .files import ranked
from .static import Graphs, NoOptions, static


def from_function(path: str, workers: int, options: NoOptions, seed: int) -> Graphs:
    """The graph that ``function(workers)`` returns.

    Raises:
        InputError: there is no such function, it raises, or returns something else than a networkx graph of
            that many nodes.
    """
    function = user_code.load_object(path)
    wanted = "a topology is a function of the number of workers that returns a networkx graph"
    if not callable(function):
        raise InputError(f"{path} is a value of type {type(function).__name__}; {wanted}")
    try:
        graph: Any = function(workers)
    except user_code.RAISED as error:
        raise InputError(f"{path}({workers}) raised {user_code.format_error(error)}") from error
    if not isinstance(graph, nx.Graph):
        raise InputError(f"{path}({workers}) returned a value of type {type(graph).__name__}; {wanted}")
    if graph.number_of_nodes() != workers:
        raise InputError(
            f"{path}({workers}) returned a graph of {graph.number_of_nodes()} nodes; make it {workers}"
        )
    return static(from_networkx(ranked(graph, path)))
