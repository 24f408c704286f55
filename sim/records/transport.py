"""What carried the bytes of a scenario's runs, and what of that no measurement covers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import yaml
from typing_extensions import TypedDict

from ..config.units import parse_bytes, parse_seconds

VALIDATED_LATENCY_S: Final = 0.010
VALIDATED_CHUNK_BYTES: Final = 4 * 2**20
"""The longest one-way latency, and the smallest share of a model per worker, that were measured over NCCL
(docs/outside.md)."""


class TransportRecord(TypedDict):
    """What carries the bytes, in the model or for real.

    Attributes:
        name: ``ideal``, ``gloo`` or ``nccl``; None: a version before there were transports.
        all_reduce: the algorithm of a whole model among all workers.
        not_validated: what of the scenario no measurement of this transport covers, as phrases.
    """

    name: str | None
    all_reduce: str
    not_validated: list[str]


def transport_of(scenario_yaml: str) -> TransportRecord | None:
    """What carries the bytes in a resolved scenario; None where it does not say.

    Over NCCL only messages that fill its buffers and latencies up to ``VALIDATED_LATENCY_S`` were measured.
    """
    try:
        scenario = yaml.safe_load(scenario_yaml)
        cluster, collectives = scenario["cluster"], scenario["collectives"]
        name, workers = cluster["network"]["transport"], int(cluster["workers"])
        all_reduce = collectives.get("chosen") or collectives["all_reduce"]
        if all_reduce == "auto":  # of a real run, whose library chooses
            all_reduce = "gloo_ring" if name == "gloo" else "its own choice"
        payload = scenario["workload"].get("payload")
        missing = []
        if name == "nccl":
            if payload is None or parse_bytes(payload) < workers * VALIDATED_CHUNK_BYTES:
                missing.append("messages this small")
            if max(_latencies_s(cluster["network"]), default=0.0) > VALIDATED_LATENCY_S:
                missing.append("latencies this long")
        return TransportRecord(name=name, all_reduce=all_reduce, not_validated=missing)
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError):
        return None


def _latencies_s(settings: object) -> Iterator[float]:
    """All latencies that stand in a network's settings."""
    if isinstance(settings, list):
        for each in settings:
            yield from _latencies_s(each)
    elif isinstance(settings, dict):
        for key, value in settings.items():
            if key == "latency":
                yield from (
                    parse_seconds(v) for v in (value.values() if isinstance(value, dict) else [value])
                )
            else:
                yield from _latencies_s(value)
