"""Options that are well-formed one by one, and cannot be: of schemes, clusters, clocks and tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from tests.hostile.sandbox import Case
from tests.hostile.scenarios import GOOD, in_file, text_of, with_value

_QSGD: Final = "all_reduce: {{compression: {{qsgd: {{{}}}}}}}"
SCHEMES: Final = (
    "all_reduce: {quorum: 5}", "all_reduce: {quorum: 2, overlap: true}", "all_reduce: {deadline: 0 s}",
    "all_reduce: {bucket: 1 MB}", "all_reduce: {first_bucket: 1 MB}",
    "all_reduce: {send_order: needed_first}",
    "all_reduce: {overlap: true, first_bucket: 1 MB}", "all_reduce: {next_forward: true}",
    "all_reduce: {compression: {}}", "all_reduce: {compression: {bf16: true, qsgd: {}}}",
    _QSGD.format("bits: 1"), _QSGD.format("bits: 9"), _QSGD.format("bucket: 0"),
    "all_reduce: {compression: {top_k: {share: 0}}}", "all_reduce: {compression: {top_k: {}}}",
    "all_reduce: {compression: bf16}", "all_reduce: {part_reduce: true, quorum: 2}",
    "easgd: {period: 2, host: 4}", "easgd: {period: 2, host: -1}", "easgd: {}", "easgd: {period: 2, pull: 0}",
    "easgd: {period: 2, spread: -1}", "easgd: {period: 2, asynchronous: maybe}",
    "eamsgd: {period: 2, momentum: 1}", "downpour: {period: 2, host: 4}", "downpour: {period: 0}",
    "fedavg: {period: 2, participation: 0}", "fedavg: {period: 2, participation: .nan}",
    "fedavg: {period: 2, quorum: 99}", "halos: {exchange: 0}", "halos: {local: {every: 0}}",
    "halos: {alpha: 2}", "leader_sgd: {period: 2, groups: 5}", "leader_sgd: {period: 2, groups: hosts}",
    "leader_sgd: {period: 2, loss_window: 0}", "diloco: {alpha: 1.1}", "diloco: {outer: {lr: 0}}",
    "diloco: {outer: adam}", "diloco: {inside: racks}", "diloco: {period: 4, delay: 99}",
    "gossip: {topology: ring, global_period: 1}", "gossip: {topology: ring, weights: nope}",
    "gossip: {topology: static_exponential, weights: metropolis}", "gossip: {topology: [ring]}",
    "gossip: {topology: {ring: {}, path: {}}}",
    "gossip: {topology: {grid: {rows: 3}}}", "gossip: {topology: {random_regular: {degree: 5}}}",
    "gossip: {topology: {random_geometric: {radius: .inf}}}",
    "gossip: {topology: {erdos_renyi: {probability: 2}}}",
    "gossip: {topology: {matcha: {graph: ring, budget: 0}}}", "gossip: {topology: {matcha: {}}}",
    "gossip: {topology: {matcha: {graph: static_exponential}}}", "gossip: {topology: {base: {peers: 0}}}",
    "gossip: {topology: {de_bruijn: {base: 3}}}", "gossip: {topology: {p_peer_exponential: {peers: 4}}}",
    "gossip: {topology: ring, order: sideways}", "ad_psgd: {topology: static_exponential}",
    "ad_psgd: {topology: random_matching}", "choco_sgd: {topology: random_matching}",
    "choco_sgd: {topology: ring, gamma: 0}", "sgp: {topology: ring, overlap: -1}",
    "slowmo: {slow_momentum: 1}",
    "local_sgd: {period: 2, quorum: 5}", "post_local_sgd: {switch_at: 0, period: 2}",
    "adaptive_local_sgd: {calibration: 0}", "local_sgd: {period: 2, optimizer: {}}",
    'local_sgd: {period: 2, label: "a\\nb"}', 'local_sgd: {period: 2, label: "a\\u202eb"}',
    'local_sgd: {period: 2, label: "a "}', 'local_sgd: {period: 2, label: "\\ud800"}', "local_sgd: 2",
    "local_sgd: [period, 2]", "all-reduce", "diLoCo: {}",
)  # fmt: skip
_L: Final = "latency: 1 ms, bandwidth: 1 Gbit/s"
_ALL: Final = _L + ", variation: [{{links: '*', {}}}]"
_FAST_AT_0: Final = "{at: 0 s, bandwidth: 1 Gbit/s}"
_SITES: Final = "sites: {{a: 2, b: 2}}, within: {{latency: 1 ms}}, between: {{latency: {}}}"
_LINKS: Final = "graph: {{hosts: [{}], links: [{}]}}"
NETWORKS: Final = (
    "latency: 1 ms, upload: 1 Mbit/s", _L + ", hosts: tuned, tcp: {loss: 0.1}", _L + ", tcp: {loss: 1}",
    _L + ", tcp: {congestion: vegas}", _L + ", tcp: {send_buffer: 1 B}",
    _L + ", tcp: {receive_buffer: 1e30 B}",
    _L + ", tcp: {connections: 0}", _L + ", queue: lifo", _L + ", transport: mpi", _L + ", host: {gpus: 3}",
    _L + ", host: {gpus: 8}", _ALL.format("markov: {slow: 1 s, fast: 1 s, factor: 1}"),
    _ALL.format("outages: []"), _ALL.format("outages: [{at: 5 s, duration: 5 s}, {at: 7 s, duration: 5 s}]"),
    _ALL.format("outages: [{at: 5 s, duration: 5 s}, {at: 1 s, duration: 1 s}]"),
    _ALL.format("outages: [{at: 0 s, duration: 0 s}]"),
    _ALL.format("outages: [{at: 1 s, duration: 1 s}], markov: {slow: 1 s, fast: 1 s, factor: 0.5}"),
    _ALL.format("trace: {}"), _ALL.format("trace: {steps: [{at: 1 s, bandwidth: 1 Gbit/s}]}"),
    _ALL.format(f"trace: {{steps: [{_FAST_AT_0}, {{at: 2 s, bandwidth: 1 Mbit/s}}], period: 1 s}}"),
    _L + ", sharing: none, variation: [{links: '*', outages: [{at: 1 s, duration: 1 s}]}]",
    _L + ", variation: [{links: 'host9 up', outages: [{at: 1 s, duration: 1 s}]}]",
    _SITES.format("{a-c: 5 ms}"), _SITES.format("{ab: 5 ms}"), _SITES.format("5 ms, per_flow: 0 bit/s"),
    _SITES.format("5 ms") + ", uplink: {c: 1 Gbit/s}", _SITES.format("5 ms") + ", latency: 1 ms",
    _SITES.format("5 ms") + ", host: {gpus: 4}",
    _LINKS.format("a, b, c, d", ""), _LINKS.format("a, b, c, d", "{source: a, target: s, latency: 1 ms}"),
    _LINKS.format("a, '', c, d", ""), _LINKS.format("", ""),
    "latency: 1e-16 s", "latency: 1 ms, bandwidth: 0.5 bit/s",
    "latency: 1 ms, bandwidth: 1e19 B/s", "latency: 1 ms, bandwidth: 1 Gbps", _L + ", announcement: 1001",
)  # fmt: skip
CLUSTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "stragglers": (
        "[{workers: [0], crash: true}]", "[{workers: [0], at: 2 steps, crash: true, slowdown: 2}]",
        "[{workers: [], slowdown: 2}]", "[{workers: [0.5], slowdown: 2}]", "[{workers: 0, slowdown: 2}]",
        "[{probability: 0.5, at: 2 steps, slowdown: 2}]", "[{duration: 3 steps, slowdown: 2}]",
        "[" + ", ".join(["{workers: [0], slowdown: 2}"] * 2001) + "]",
        "[{markov: {slow: 1 steps, fast: 2 steps}, slowdown: 2}]", "[{at: -1 steps, slowdown: 2}]",
    ),
    "compute": (
        "{time: 1e13 s}", "{time: 5 ms, spread: 0}", "{time: 5 ms, speed: 1 Tflop/s}", "{speed: 1 Tflop/s}",
        "{speed: 1 TFLOPS}", "{trace: {durations: [5]}}",
        "{trace: {workers: [[1 ms], [], [1 ms], [1 ms]]}}", "{time: 5 ms, jitter: {}}", "{measured: false}",
        "{measured: {batch_sizes: [8, 4]}}", "{measured: {times: [1 ms]}}", "measurd", "{time: 1/3 s}",
    ),
    "island": ("{gpus: 0}", "{}", "{gpus: 2, utilisation: 0.5}"),
    "memory": ("0 B", "1 B"),
    "hosts": ("{}", "{a: 2, b: 1}", '{"": 4}', '{"a b": 4}', '{"a\\tb": 4}'),
    "backend": ("mpi",),
}  # fmt: skip
"""Key of a cluster -> what cannot stand there."""
TOP: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ('"\\ud800"', '"a\\u2028b"', '"\\x7f"', "'" + "n" * 201 + "'"),
    "tune": ("{label: [a, b]}", "{optimizer: [0.1]}", "{optimizer.lr: [0.1, x]}", "{'optimizer..lr': [1]}"),
    "collectives": ("{all_reduce: nccl}", "{all_reduce: hierarchical}", "{broadcast: ring}"),
    "events": ("first -1 steps", "'all '", "First 5 steps"),
    "repeats": ("{most: 4}", "{half_width: 0.001 %}", "{half_width: 2000 %}"),
}  # fmt: skip
_SHORT: Final = "{latency: 1 ms, bandwidth: 1 Gbit/s, variation: [{links: '*', %s}]}"
ENDLESS: Final = (
    _SHORT % "markov: {slow: 1 ms, fast: 1 ms, factor: 0.5}",
    _SHORT % f"trace: {{steps: [{_FAST_AT_0}, {{at: 1 us, bandwidth: 1 Mbit/s}}], period: 2 us}}",
)
"""Networks that change so often that a gradient of days has no end."""


def cases() -> list[Case]:
    """All of them."""
    return list(_cases())


def _cases() -> Iterator[Case]:
    for number, each in enumerate(SCHEMES):
        text, _ = with_value("schemes", f"[{{{each}}}]" if ":" in each else f"[{each}]")
        yield in_file(f"scheme-option-{number}-{each[:40]}", text, "s.yaml:")
    for number, each in enumerate(NETWORKS):
        scenario = json.loads(json.dumps(GOOD))
        scenario["cluster"]["network"] = f"{{{each}}}"
        yield in_file(f"network-option-{number}-{each[:40]}", text_of(scenario), "s.yaml:")
    for key, written in CLUSTERS.items():
        for number, each in enumerate(written):
            text, _ = with_value(f"cluster.{key}", each)
            yield in_file(f"cluster-option-{key}-{number}-{each[:30]}", text, "s.yaml:")
    for key, written in TOP.items():
        for number, each in enumerate(written):
            text, _ = with_value(key, each)
            yield in_file(f"option-{key}-{number}-{each[:30]}", text, "s.yaml:")
    for number, each in enumerate(ENDLESS):
        scenario = json.loads(json.dumps(GOOD))
        scenario["cluster"] |= {"network": each, "compute": {"time": "1e6 s"}}
        yield in_file(f"network-without-rest-{number}", text_of(scenario), "cluster.network.variation")
