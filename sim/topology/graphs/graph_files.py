"""Graphs in files: JSON, GraphML, and edge lists.

The JSON holds ``{"workers": n, "edges": [[u, v], ...]}`` and optionally ``"directed": true`` (u sends to v),
``"weights": [w, ...]`` (per edge, the receiver's weight of the sender's value; own weights are the rest to 1)
and ``"provenance": {...}``, for human readers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import from_json

from ...config.files import distinct, write_atomically
from ...config.limits import MAX_GRAPH
from ...config.problems import explain, format_value, mistake, one_line
from ...config.settings import Settings, read_beside
from ...config.yaml_file import read_text
from ...errors import InputError
from ..entry import Graphs, Topology, static
from ..matrix import Matrix, adjacency, edges_of, is_symmetric, keeping_rest, ranked

MAX_TOPOLOGY_BYTES: Final = 64 * 2**20
MAX_SCENARIO_EDGES: Final = 20_000
"""Most edges that a scenario takes from a file: its resolved form, whose size is limited, holds them."""
MAX_RANK: Final = 10_000_000
"""Ranks in an edge list are below this."""

MAX_WEIGHT: Final = 1000.0
"""Largest absolute weight of an edge: the fastest averaging has some below 0, and none far from 1."""

_RANK: Final = re.compile(r"-?[0-9]{1,20}")
"""Stricter than ``int``, which accepts 1_0 and other scripts' digits."""
_PAIRS: Final = re.compile(r"([0-9]{1,9}-[0-9]{1,9}( [0-9]{1,9}-[0-9]{1,9})*)?")

RankNumber = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]


class GraphFile(Settings):
    """The JSON form of a graph."""

    workers: int = Field(ge=2, le=MAX_GRAPH, description="number of workers n")
    directed: bool = Field(default=False, description="u sends to v, and v need not send to u")
    edges: tuple[tuple[RankNumber, RankNumber], ...] = Field(description="pairs of ranks")
    weights: tuple[Weight, ...] | None = Field(default=None, description="one for each edge")
    provenance: dict[str, Any] = Field(default={}, description="where the graph came from")


class KeptGraph(Settings):
    """A graph that was read from a file, in the compact form in which resolved scenarios hold it."""

    workers: int = Field(ge=2, le=MAX_GRAPH, description="number of workers n")
    directed: bool = Field(default=False, description="the first of a pair sends to the second only")
    edges: str = Field(description="pairs of ranks: 0-1 1-2")
    weights: tuple[Weight, ...] | None = Field(default=None, description="one for each edge")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not _PAIRS.fullmatch(self.edges):
            raise mistake(
                f"must be pairs of ranks such as '0-1 1-2', not {format_value(self.edges)}", "edges"
            )
        ends = self.ends
        if ends.size and ends.max() >= self.workers:
            raise mistake(f"there is no worker {ends.max()}; ranks go to {self.workers - 1}", "edges")
        if self.weights is not None and len(self.weights) != len(ends):
            text = f"{len(self.weights)} weights for {len(ends)} edges; give one for each, or none"
            raise mistake(text, "weights")
        return self

    @property
    def ends(self) -> NDArray[np.int64]:
        """Both ranks of every edge [edges, 2]."""
        return np.array(self.edges.replace("-", " ").split(), dtype=np.int64).reshape(-1, 2)

    @property
    def matrix(self) -> Matrix:
        """The adjacency [n, n], or the mixing matrix where there are weights."""
        from scipy.sparse import csr_array

        receivers, sources = self.ends[:, 1], self.ends[:, 0]
        if not self.directed:
            receivers, sources = np.r_[receivers, sources], np.r_[sources, receivers]
        if self.weights is None:
            return adjacency(self.workers, receivers, sources)
        shares = np.tile(self.weights, 1 if self.directed else 2)
        return keeping_rest(csr_array((shares, (receivers, sources)), shape=(self.workers, self.workers)))


class FileOptions(Settings):
    """Options of ``file``."""

    path: str = Field(description="a .json, .graphml or edge-list file, relative to the scenario's folder")
    graph: KeptGraph = Field(description="what was read from it; with this, it is not read again")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Read the file once: the resolved scenario has its contents."""
        if not isinstance(data, Mapping) or "path" not in data or "graph" in data:
            return data
        if not isinstance(data["path"], str) or not data["path"]:
            raise mistake(f"must be the name of a file, not {format_value(data['path'])}")
        kept = read_beside(info, data["path"], _read)
        if info.context and len(kept.ends) > MAX_SCENARIO_EDGES:
            text = (
                f"{data['path']}: has {len(kept.ends)} edges, the limit in a scenario is {MAX_SCENARIO_EDGES}"
            )
            raise mistake(f"{text}; write package.module:function instead")
        return {**data, "graph": kept}


def from_file(workers: int, options: FileOptions, seed: int) -> Graphs:
    """The graph in a file, written ``{file: graph.json}``: JSON, GraphML (.graphml) or an edge list.

    Source: the file.

    Raises: ``InputError`` where it is a graph of another number of workers.
    """
    kept = options.graph
    if kept.workers != workers:
        raise InputError(
            f"{options.path} holds a graph of {kept.workers} workers, not {workers}; make them agree"
        )
    matrix = kept.matrix
    return static(matrix) if kept.weights is None else Graphs(lambda step: matrix, weighted=True)


def write_graph(path: Path, graph: Matrix, provenance: Mapping[str, Any] | None = None) -> None:
    """Write a graph, adjacency [n, n], as JSON, whole or not at all, with free facts about it.

    Raises ``InputError`` if the file cannot be written.
    """
    directed = not is_symmetric(graph)
    content: dict[str, Any] = {"workers": graph.shape[0]}
    if directed:
        content["directed"] = True
    content["edges"] = edges_of(graph, directed).tolist()
    if provenance:
        content["provenance"] = dict(provenance)
    write_atomically(path, json.dumps(content, allow_nan=False) + "\n")


def _read(path: Path) -> KeptGraph:
    """The graph in a file; ``InputError``, with the place, where it cannot be read or holds no graph."""
    text = read_text(path, MAX_TOPOLOGY_BYTES, suffixes=(path.suffix,), foreign=True)
    match path.suffix.lower():
        case ".json":
            return _of_json(path, text)
        case ".graphml":
            return _of_graphml(path, text)
        case _:
            return _of_edge_list(path, text)


def _kept(path: Path, workers: int, directed: bool, edges: Iterable[tuple[int, int]]) -> KeptGraph:
    if workers < 2:
        raise InputError(f"{path}: holds no edges; write for example '0 1'")
    return KeptGraph(
        workers=workers, directed=directed, edges=_pairs(sorted((u, v) for u, v in edges if u != v))
    )


def _pairs(edges: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{u}-{v}" for u, v in edges)


def _of_json(path: Path, text: str) -> KeptGraph:
    try:
        data = from_json(text)  # the model reports non-finite numbers
        json.loads(text, object_pairs_hook=distinct)
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    try:
        # Strict models take lists for tuples only in JSON mode.
        held = GraphFile.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error, GraphFile, data)[0]}") from None
    seen: dict[tuple[int, int], int] = {}
    for number, (u, v) in enumerate(held.edges):
        if max(u, v) >= held.workers:
            why = f"there is no worker {max(u, v)}; ranks go to {held.workers - 1}"
            raise InputError(f"{path}: edges.{number}: {why}")
        if u == v:
            raise InputError(f"{path}: edges.{number}: joins worker {u} with itself; leave it out")
        first_at = seen.setdefault((u, v) if held.directed else (min(u, v), max(u, v)), number)
        if first_at != number:
            raise InputError(f"{path}: edges.{number}: is edges.{first_at} again; leave it out")
    if held.weights is not None and len(held.weights) != len(held.edges):
        why = f"{len(held.weights)} weights for {len(held.edges)} edges; give one for each, or none"
        raise InputError(f"{path}: weights: {why}")
    return KeptGraph(
        workers=held.workers, directed=held.directed, edges=_pairs(held.edges), weights=held.weights
    )


def _of_graphml(path: Path, text: str) -> KeptGraph:
    import networkx as nx

    try:
        parsed = nx.parse_graphml(text)
    except Exception as error:  # networkx and its XML parser raise many kinds
        raise InputError(f"{path}: not valid GraphML: {one_line(str(error), 200)}") from None
    graph = ranked(parsed, path)
    rank = {node: number for number, node in enumerate(graph.nodes)}
    return _kept(path, len(rank), graph.is_directed(), ((rank[u], rank[v]) for u, v in graph.edges()))


def _of_edge_list(path: Path, text: str) -> KeptGraph:
    """Parse lines ``u v``, ignoring the rest of a line and anything after '#'.

    The highest rank gives the number of workers.
    """
    edges: set[tuple[int, int]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) < 2 or not all(map(_RANK.fullmatch, words[:2])):
            raise InputError(f"{path}:{number}: is not two ranks; write for example '0 1'")
        u, v = map(int, words[:2])
        if not (0 <= u < MAX_RANK and 0 <= v < MAX_RANK):
            why = f"{u if not 0 <= u < MAX_RANK else v} is no rank; ranks go from 0 to {MAX_RANK - 1}"
            raise InputError(f"{path}:{number}: {why}")
        edges.add((min(u, v), max(u, v)))
    return _kept(path, 1 + max((v for _, v in edges), default=-1), False, edges)


IN_FILE: Final = Topology("file", from_file, FileOptions, "as in the file", "as in the file", True)
