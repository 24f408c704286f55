"""Every scheme in its forms, and the bytes that each sends."""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]

WORKERS, STEPS, SIZE = 6, 60, 4800
EIGHT_BITS: Options = {"compression": {"qsgd": {"bits": 8, "bucket": 16}}}

A_TENTH: Options = {"compression": {"top_k": {"share": 0.1}}}

# Every scheme in its forms, and how many models a worker sends in a step. A ring's all-reduce is 2 (n - 1)/n
# models, a broadcast (n - 1)/n, a visit to a centre one there and one back but for its host.
RING, TREE = 2 * (WORKERS - 1) / WORKERS, (WORKERS - 1) / WORKERS
SHARE = 8 / 32 + 1 / 16
"""Of its bytes that a compressed value has: 8 bits for 32, and a norm for each bucket."""

FORMS: dict[str, list[tuple[Options, float]]] = {
    "all_reduce": [
        ({}, RING),
        ({"overlap": True}, RING),
        ({"overlap": True, "send_order": "ready_first"}, RING),
        ({"overlap": True, "next_forward": True}, RING),
        ({"part_reduce": True}, RING),
        (EIGHT_BITS, RING * SHARE),
    ],
    "local_sgd": [
        ({"period": 4}, RING / 4),
        ({"period": 4, "momentum": "mixed"}, 2 * RING / 4),
        ({"period": 4, "warmup": 20}, RING * (20 + 10) / STEPS),
        ({"period": 4, **EIGHT_BITS}, RING / 4 * SHARE),
    ],
    "adaptive_local_sgd": [({"initial_period": 4, "calibration": STEPS}, RING / 4)],
    "post_local_sgd": [({"switch_at": 20, "period": 4}, RING * (20 + 10) / STEPS)],
    "gossip": [
        ({"topology": "ring"}, 2),
        ({"topology": "ring", "order": "combine_while_adapting"}, 2),
        ({"topology": "ring", "momentum": "mixed"}, 4),
        ({"topology": "ring", "order": "combine_while_adapting", "momentum": "mixed"}, 4),
        ({"topology": "ring", "global_period": 4}, (3 * 2 + RING) / 4),
        ({"topology": "one_peer_exponential"}, 1),
        ({"topology": "random_matching"}, 1),
        ({"topology": "ring", **EIGHT_BITS}, 2 * SHARE),
    ],
    "sgp": [
        ({"topology": "star"}, TREE * 2),
        ({"topology": "star", "biased": True}, TREE * 2),
        ({"topology": "one_peer_exponential", "overlap": 1}, 1),
        ({"topology": "one_peer_exponential", "overlap": 2}, 1),
        ({"topology": "one_peer_exponential", "asynchronous": True}, 1),
    ],
    "ad_psgd": [({}, 1)],
    "leader_sgd": [
        ({"period": 4}, TREE / 4),
        ({"period": 4, "asynchronous": True}, TREE / 4),
        ({"period": 2, "groups": 2, "global_period": 4}, (2 / 3) / 2 + TREE / 4),
    ],
    "easgd": [({"period": 4}, RING / 4), ({"period": 4, "asynchronous": True}, RING / 4)],
    "eamsgd": [({"period": 4}, RING / 4), ({"period": 4, "asynchronous": True}, RING / 4)],
    "downpour": [({"period": 4}, RING / 4)],
    "diloco": [
        ({"period": 4}, RING / 4),
        ({"period": 4, "fragments": 2}, RING / 4),
        ({"period": 4, "fragments": 2, "delay": 1, "alpha": 0.5}, RING / 4),
        ({"period": 4, **EIGHT_BITS}, RING / 4 * SHARE),
        ({"period": 4, **A_TENTH}, (WORKERS - 1) / 4 * 2 / 10),
    ],
    "slowmo": [({"period": 4}, RING / 4), ({"period": 4, "momentum": "mixed"}, 2 * RING / 4)],
    "gradient_tracking": [({"topology": "ring"}, 4), ({"topology": "one_peer_exponential"}, 2)],
    "choco_sgd": [
        ({"topology": "ring", "gamma": 0.5}, 2),
        ({"topology": "ring", "gamma": 0.1, **A_TENTH}, 0.4),
    ],
    "halos": [
        ({"period": 4, "exchange": 4}, RING / 4),
        ({"period": 4, "exchange": 4, **EIGHT_BITS}, RING / 4 * (SHARE + 1) / 2),
        ({"period": 4, "exchange": 4, **A_TENTH}, RING / 4 * (2 / 10 + 1) / 2),
    ],
    "fedavg": [
        ({"period": 4}, RING / 4),
        ({"period": 4, "participation": 0.5}, (2 * (3 - 1) / 6 + TREE) / 4),
    ],
}
