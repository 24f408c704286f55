"""Topologies: each worker's neighbours at every step, and the mixing weights.

``plan(entry, workers, weights, seed).at(step)`` is the mixing pattern of a step.
"""

from .entry import TOPOLOGIES, MixingOptions, Topology, TopologyEntry, topology_named
from .plan import AUTO, GIVEN, Plan, plan

__all__ = [
    "AUTO",
    "GIVEN",
    "TOPOLOGIES",
    "MixingOptions",
    "Plan",
    "Topology",
    "TopologyEntry",
    "plan",
    "topology_named",
]
