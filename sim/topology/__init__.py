"""Topologies: each worker's neighbours at every step, and the mixing weights.

``plan(entry, workers, weights, seed).at(step)`` is the mixing pattern of a step.
"""

from .entry import TOPOLOGIES, MixingOptions, TopologyEntry, topology_named
from .plan import AUTO, GIVEN, Plan, plan
from .registered import Topology

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
