"""How far a proxy's ratio of examples carries, as a sentence.

The numbers are made by ``python -m benchmarks.carry_over`` (docs/proxies.md): factors by which the ratio of
two schemes' steps moved between tasks of the same partition and level of the loss, whatever their batches.
"""

from __future__ import annotations

from typing import Final

MOVED: Final = 1.21
"""In the median."""
MOVED_RARELY: Final = 1.61
"""Exceeded by one move in ten."""
COMPARED: Final = "five tasks of 650 to 84,160 parameters"


def describe_carry_over(limit: float | None, here: float | None) -> str:
    """Whether an order outlives such moves; empty where it is too close to tell, or nobody else arrived.

    Args:
        limit: ratio of the first's examples to the second's, up to which the first stays ahead.
        here: this ratio of the proxy.
    """
    if not limit or not here or here >= limit:
        return ""
    margin = limit / here
    survives = f"{MOVED} and not {MOVED_RARELY}" if margin > MOVED else "neither"
    if margin > MOVED_RARELY:
        survives = "both"
    return (
        f" Between {COMPARED} such a ratio moved by {MOVED} in the median and by more than {MOVED_RARELY} in "
        f"one case of ten: this order would survive {survives}; nothing larger was tested."
    )
