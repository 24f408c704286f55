"""Dotted keys of a scenario and their values, in few words; and words of other tools that are no keys."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

_HALF_TRIP: Final = "latencies are one-way: write half of the round trip as 'latency'"
_ACCUMULATE: Final = "write 'workload: {accumulate: 4}': batches per step, of which the last one averages"
_IN_16_BITS: Final = (
    "averages in 16 bits are 'compression: {fp16: true}' or 'bf16' of a scheme; computing in 16 bits"
)
_IN_8_BITS: Final = "write 'compression: {qsgd: {bits: 8}}': codes of 8 bits"
_LOST: Final = "packets lost at random are 'cluster: {network: {tcp: {loss: 0.001}}}'"
_COUNTS: Final = "write 'cluster: {workers: 8}'; with several GPUs a host also 'network: {host: {gpus: 4}}'"
_WORDS: Final = {
    **dict.fromkeys(("nosync", "gradientaccumulation", "gradientaccumulationsteps"), _ACCUMULATE),
    **dict.fromkeys(("accumulationsteps", "gradaccum", "microbatches"), _ACCUMULATE),
    **dict.fromkeys(("rtt", "roundtrip", "roundtriptime"), _HALF_TRIP),
    "ping": f"{_HALF_TRIP}; 'paceline import' reads the output of ping",
    **dict.fromkeys(("loss", "packetloss", "lossrate"), _LOST),
    **dict.fromkeys(("fp16", "bf16", "half", "amp"), f"{_IN_16_BITS} is a shorter compute.time"),
    **dict.fromkeys(("int8", "fp8", "8bit"), _IN_8_BITS),
    "join": "nothing to write: batches run on across epochs, so no worker has fewer; a worker that leaves is "
    "'cluster: {stragglers: [{workers: [3], at: 100 steps, crash: true}]}'",
    "bucketcapmb": "write 'all_reduce: {overlap: true, bucket: 25 MiB}'",
    "mtu": "packets are not followed: write as 'bandwidth' what payloads get, as iperf3 says it",
    **dict.fromkeys(("worldsize", "nodes", "nnodes", "nprocpernode", "gpus"), _COUNTS),
}
"""Without case and separators -> what to write instead."""


def answer_word(word: str) -> str:
    """What to write instead of a word of other tools; "" for any other.

    >>> answer_word("packet_loss")
    "packets lost at random are 'cluster: {network: {tcp: {loss: 0.001}}}'"
    """
    return _WORDS.get(re.sub(r"[\s_-]+", "", word.lower()), "")


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
