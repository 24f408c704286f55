"""Search for graphs on which averaging is fast.

Source of the idea: Jameel, Jawed and Schmidt-Thieme, PAKDD 2020: local search guided by the spectrum, and
Laplacian weights on the result. The annealing, the bounds that reject moves and the search for time are ours.
"""

from .bound import alon_boppana, modulus_bound
from .find import MADE_BY, Request, SearchResult, check, default_budget, describe, save, search
from .objective import StepTime
from .search_graph import EdgeArray

__all__ = [
    "MADE_BY",
    "EdgeArray",
    "Request",
    "SearchResult",
    "StepTime",
    "alon_boppana",
    "check",
    "default_budget",
    "describe",
    "modulus_bound",
    "save",
    "search",
]
