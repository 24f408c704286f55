"""Dotted keys of a scenario in few words."""

from __future__ import annotations

from collections.abc import Sequence


def short_keys(keys: Sequence[str]) -> list[str]:
    """Shortest unique ends of dotted keys.

    >>> short_keys(["cluster.network.within.latency", "cluster.network.between.latency", "cluster.workers"])
    ['within.latency', 'between.latency', 'workers']
    """
    parts = [key.split(".") for key in keys]
    ends = []
    for own in parts:
        length = next(
            (n for n in range(1, len(own)) if sum(other[-n:] == own[-n:] for other in parts) == 1), len(own)
        )
        ends.append(".".join(own[-length:]))
    return ends
