"""Dotted keys of a scenario and their values, in few words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


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


def show_value(value: Any) -> str:
    """A value as a scenario writes it: ``[{probability: 0.05, slowdown: 4}]``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', "")
