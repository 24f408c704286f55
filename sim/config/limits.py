"""The most that a scenario may ask for: beyond it is a slip, and would take memory or time without end.

What a scenario within these limits needs is compared with the memory that there is when it is prepared.
"""

from __future__ import annotations

from typing import Final

MAX_WORKERS: Final = 100_000
MAX_GRAPH: Final = 10_000_000
"""Workers in a topology apart from any run."""
MAX_GRAPH_HOSTS: Final = 2000
"""Of a network given as a graph, in which every pair of hosts has a route of its own."""
MAX_SITES: Final = 500
MAX_MESSAGES: Final = 20_000_000
"""Of one collective."""
MAX_BATCH: Final = 1_000_000
"""Examples in a worker's batch."""
MAX_EXAMPLES: Final = 100_000_000
MAX_PARAMETERS: Final = 1_000_000_000
MAX_WIDTH: Final = 1_000_000
"""Numbers between two layers of a model."""
MAX_LAYERS: Final = 1000
MAX_PROFILE_PARAMETERS: Final = 10**15
"""Of a layer that is not trained here."""
MAX_PROFILE_FLOPS: Final = 1e24
"""Operations of one layer for one example."""
MAX_REPEATS: Final = 10_000
MAX_SCHEMES: Final = 100
MAX_STRAGGLERS: Final = 2000
"""Entries, of which each holds for any number of workers: every draw goes through all of them."""
MAX_VALUES_TUNED: Final = 100
"""Values of one key in a grid."""
MAX_CV: Final = 100.0
"""Standard deviation over mean: beyond it a mean of draws says nothing."""
MAX_NAME: Final = 200
"""Letters of a scenario's name, which is that of a job, too."""
MAX_LABEL: Final = 10_000
"""Letters of a scheme's label."""
MAX_FACTOR: Final = 1e6
"""By which a duration is multiplied."""
MAX_TIME_S: Final = 1e12
"""Seconds, some 30,000 years: beyond it a clock would lose the digits that count."""
MIN_TIME_S: Final = 1e-15
"""Seconds: a shorter time that is not 0 is a slip, and would be lost beside any other."""
MIN_RATE: Final = 0.125
"""Bytes per second, one bit."""
MAX_RATE: Final = 1e18
"""Bytes per second."""
MIN_FLOPS_PER_S: Final = 1.0
MAX_FLOPS_PER_S: Final = 1e24
MAX_MODEL_BYTES: Final = 1e18
"""Of one model on the wire."""
MAX_POSITIVE: Final = 1e30
"""Learning rates and the like: far beyond any that trains, and within single precision."""
MIN_POSITIVE: Final = 1e-30
"""Learning rates and the like: less is nothing in single precision, whose products of two end there."""
MAX_STEPS: Final = 1_000_000_000
MAX_SEED: Final = 2**62
"""Seeds of the repeats follow it, in 64 bits."""
MAX_OPTION: Final = 1_000_000_000
"""Whole numbers among options whose field has no limit of its own."""
