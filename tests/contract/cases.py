"""What every driver promises: one list of cases, run on each of them.

A case is a coroutine function ``body(worker, log)``. What it *says* has to be the same on every driver; the
times that it notes are exact on the event driver, over a network that takes no time, and lower bounds on real
processes. A gradient lasts two units. Cases that need no rank and no clock run on the lockstep driver too.
"""

from __future__ import annotations

from tests.contract.failures import FAILURES
from tests.contract.patterns_by_value import PATTERNS_BY_VALUE
from tests.contract.patterns_in_time import PATTERNS_IN_TIME
from tests.contract.point_to_point import POINT_TO_POINT

GOOD = [*PATTERNS_BY_VALUE, *PATTERNS_IN_TIME, *POINT_TO_POINT]
CASES = {case.name: case for case in (*GOOD, *FAILURES)}
