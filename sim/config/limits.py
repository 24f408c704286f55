"""Limits of a scenario's values: values beyond them are slips, and would take memory or time without end.

The memory that a scenario within these limits needs is compared with free memory when it is prepared.
"""

from __future__ import annotations

from typing import Final

MAX_WORKERS: Final = 100_000
MAX_GRAPH: Final = 10_000_000
"""Workers of a topology outside any run."""
MAX_GRAPH_HOSTS: Final = 2000
"""Hosts of a network given as a graph; every pair of hosts has a route of its own."""
MAX_SITES: Final = 500
MAX_MESSAGES: Final = 20_000_000
"""Messages of one collective."""
MAX_BATCH: Final = 1_000_000
"""Examples in a worker's batch."""
MAX_EXAMPLES: Final = 100_000_000
MAX_PARAMETERS: Final = 1_000_000_000
MAX_WIDTH: Final = 1_000_000
"""Numbers between two layers of a model."""
MAX_LAYERS: Final = 1000
MAX_PROFILE_PARAMETERS: Final = 10**15
"""Parameters of a layer that is not trained here."""
MAX_PROFILE_FLOPS: Final = 1e24
"""Operations of one layer for one example."""
MAX_REPEATS: Final = 10_000
MAX_SCHEMES: Final = 100
MAX_STRAGGLERS: Final = 2000
"""Entries, each for any number of workers: every draw goes through all of them."""
MAX_VALUES_TUNED: Final = 100
"""Values of one key in a grid."""
MAX_CV: Final = 100.0
"""Standard deviation over mean: beyond it a mean of draws says nothing."""
MAX_NAME: Final = 200
"""Letters of a scenario's name, which is that of a job, too."""
MAX_LABEL: Final = 200
"""Letters of a scheme's label."""
MAX_FACTOR: Final = 1e6
"""Largest factor on a duration."""
MAX_TIME_S: Final = 1e12
"""Seconds, some 30,000 years: a longer clock would lose the digits that count."""
MIN_TIME_S: Final = 1e-15
"""Seconds: a shorter time other than 0 is a slip, and would be lost beside any other."""
MIN_RATE: Final = 0.125
"""Bytes per second, one bit."""
MAX_RATE: Final = 1e18
"""Bytes per second."""
MIN_FLOPS_PER_S: Final = 1.0
MAX_FLOPS_PER_S: Final = 1e24
MAX_MODEL_BYTES: Final = 1e18
"""Bytes of one model on the wire."""
MAX_POSITIVE: Final = 1e30
"""Learning rates and the like: far beyond any that trains, and within single precision."""
MIN_POSITIVE: Final = 1e-30
"""Learning rates and the like: less is nothing in single precision, whose products of two end there."""
MAX_STEPS: Final = 1_000_000_000
MAX_SEED: Final = 2**62
"""Seeds of the repeats follow it, in 64 bits."""
MAX_OPTION: Final = 1_000_000_000
"""Whole numbers among options whose field has no limit of its own."""
