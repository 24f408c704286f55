"""Topologies: who averages with whom at every step, and with which weights.

``plan(entry, workers, weights, seed).at(step)`` is the mixing pattern of a step.
"""

from .entry import TopologyEntry
from .graphs.files import write_graph
from .plan import AUTO, GIVEN, Plan, patterns, plan
from .registry import TOPOLOGIES, Topology, topology_named

__all__ = [
    "AUTO",
    "GIVEN",
    "TOPOLOGIES",
    "Plan",
    "Topology",
    "TopologyEntry",
    "patterns",
    "plan",
    "topology_named",
    "write_graph",
]
