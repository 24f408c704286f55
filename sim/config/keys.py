"""Dotted keys of a scenario and their values, in few words; and words of other tools that are no keys."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

_OTHER_WORDS: Final = {
    "nosync gradientaccumulation gradientaccumulationsteps accumulationsteps microbatches": (
        "write 'workload: {accumulate: 4}': batches per step, of which the last one averages"
    ),
    "rtt roundtrip roundtriptime ping": "latencies are one-way: write half of the round trip as 'latency' "
    "('paceline import' reads the output of ping)",
    "loss packetloss lossrate": "packets lost at random are 'cluster: {network: {tcp: {loss: 0.001}}}'",
    "fp16 bf16 half amp": "averages in 16 bits are 'compression: {fp16: true}' or 'bf16' of a scheme; "
    "computing in 16 bits is a shorter compute.time",
    "int8 fp8 8bit": "write 'compression: {qsgd: {bits: 8}}': codes of 8 bits",
    "join": "nothing to write: batches run on across epochs, so no worker has fewer; a worker that leaves is "
    "'cluster: {stragglers: [{workers: [3], at: 100 steps, crash: true}]}'",
    "bucketcapmb": "write 'all_reduce: {overlap: true, bucket: 25 MiB}'",
    "reshardafterforward": "write 'sharded: {reshard: false}' where a unit is kept after its forward pass",
    "shardingstrategy zerostage": "write 'sharded: {shard: full}', 'gradients' or 'optimizer' for stage 3, 2 "
    "or 1; 'inside: hosts' for hybrid shards",
    "paramdtype reducedtype mixedprecision": "write 'workload: {precision: bf16, payload: 14 GB}', and as "
    "'gradients' of sharded 'float32' where these are reduced in single precision",
    "clip clipgradnorm gradclip maxgradnorm": "write 'workload: {optimizer: {clip: 1.0}}'",
    "ncclalgo": "write nccl_ring or nccl_tree as 'all_reduce' of 'collectives', and nccl as 'transport' of "
    "the network",
    "globalbatchsize totalbatchsize": "'workload: {batch_size: 32}' is of a worker and a gradient: divide by "
    "workers and 'accumulate'",
    "maxsteps numsteps totalsteps maxiters": "write 'stop: {max_iterations: 1000}'",
    "mtu": "packets are not followed: write as 'bandwidth' what payloads get, as iperf3 says it",
    "worldsize nodes nnodes nprocpernode gpus": "write 'cluster: {workers: 8}'; with several GPUs a host "
    "also 'network: {host: {gpus: 4}}'",
}
"""Words without case and separators -> what to write instead."""


def answer_word(word: str) -> str:
    """What to write instead of a word of other tools; "" for any other.

    >>> answer_word("packet_loss")
    "packets lost at random are 'cluster: {network: {tcp: {loss: 0.001}}}'"
    """
    bare = re.sub(r"[\s_-]+", "", word.lower())
    return next((answer for words, answer in _OTHER_WORDS.items() if bare in words.split()), "")


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
