"""Durations from a function of the user's."""

from __future__ import annotations

import math
from typing import Any

from .. import seeds
from ..config import user_code
from ..errors import InputError


def own_duration_s(path: str, seed: int, worker: int, index: int) -> float:
    """Seconds that gradient ``index`` of ``worker`` takes.

    Args:
        path: ``package.module:name`` of a function of (worker, index, random), where ``random`` is a
            ``numpy.random.Generator`` that is the same whenever the same gradient is asked for.
        seed, worker, index: which gradient, of which run.

    Raises:
        InputError: there is no such function, it raises, or it returns no duration.
    """
    function: Any = user_code.load(path)
    if not callable(function):
        raise InputError(f"'{path}' is no function of (worker, index, random)")
    random = seeds.generator(seed, worker, "own compute", index)
    try:
        found = float(function(worker, index, random))
    except user_code.RAISED as error:
        raise InputError(
            f"'{path}' raised {user_code.said(error)} for worker {worker}, gradient {index}; it has to take "
            "(worker, index, random) and to return seconds"
        ) from error
    if not 0 <= found < math.inf:
        raise InputError(
            f"'{path}' returned {found} for worker {worker}, gradient {index}; seconds are a finite number, "
            "not below 0"
        )
    return found
