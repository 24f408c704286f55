"""Whether repeated averaging brings the workers together at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import networkx as nx
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from ..errors import InputError
from .matrix import Matrix
from .spectra import product_norm, second_modulus

_PROVEN: Final = ("laplacian", "fdla")
"""Rules that may give negative weights and contract on every connected graph."""
_ROUNDING: Final = 1e-14


def refuse_stuck(name: str, rule: str, matrices: Sequence[Matrix], endless: bool) -> None:
    """Refuse mixing matrices whose powers do not converge to one common value.

    Matrices without negative weights contract exactly where all workers reach each other and the lengths of
    the walks have no common divisor, which one positive own weight rules out (Perron and Frobenius).

    Args:
        name, rule: for the message.
        matrices: those of one period.
        endless: they are but the first of an endless random sequence, which is not judged by them.

    Raises:
        InputError: they do not contract, and why.
    """
    if endless:
        return
    union = _union(matrices)
    count, part = connected_components(union, directed=True, connection="strong")
    if count > 1:
        apart = int(np.flatnonzero(part != part[0])[0])
        raise InputError(
            f"the graph of topology {name} is not connected: workers 0 and {apart} never hear of each other "
            f"({count} parts); add edges, or use another topology"
        )
    positive = all(w.data.min() >= 0.0 for w in matrices)
    if positive and all(w.diagonal().min() > 0.0 for w in matrices):
        return
    if rule.removeprefix("lazy_") in _PROVEN:
        return
    if positive and len(matrices) == 1:
        if matrices[0].diagonal().max() > 0.0 or nx.is_aperiodic(_digraph(matrices[0])):
            return
        hint = "give everybody a weight of its own" if rule == "given" else f"use lazy_{rule}"
        raise InputError(
            f"{rule} weights on topology {name} do not contract: workers only swap their values, since "
            f"nobody keeps a share; {hint}"
        )
    modulus = second_modulus(matrices[0]) if len(matrices) == 1 else product_norm(list(matrices))
    if modulus >= 1.0 - _ROUNDING:
        raise InputError(
            f"the weights of topology {name} do not contract: the second-largest eigenvalue modulus is "
            f"{modulus:.6g}, not below 1; make the weights smaller"
        )


def _union(matrices: Sequence[Matrix]) -> Matrix:
    total = abs(matrices[0])
    for w in matrices[1:]:
        total = total + abs(w)
    return csr_array(total)


def _digraph(matrix: Matrix) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    rows, columns = matrix.nonzero()
    graph.add_edges_from(zip(columns.tolist(), rows.tolist(), strict=True))
    return graph
