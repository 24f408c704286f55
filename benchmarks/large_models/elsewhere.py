"""Tables that were found after everything else here was settled, predicted by the code as it was.

Inputs were written down, with their sources, and committed before anything was computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import mean
from typing import Final

from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads.layers.presets import PRESETS

from .low_communication import (
    PAYLOAD,
    UTILISATIONS,
    Published,
    bandwidth_rows,
    grid_place,
    place_needed,
    trained_with,
)

# --- Charles et al., arXiv 2503.09799, table 6 [S: a text copy of the paper]: a published prediction, by the
# simulator of streaming DiLoCo's table 4. Gbit/s for a utilisation of 50, 80, 90, 95 and 99 %; data parallel,
# then DiLoCo with a period of 1, 10, 50, 100 and 300 steps. The mixture of experts is exchanged whole. ---

PERIODS: Final = (1, 10, 50, 100, 300)
OFF_THE_GRID: Final = 1000.0
"""Printed as "1000.0+"."""
TABLE_6: Final = (
    Published("Chinchilla, 10B", 10e9, 1, 0.8, (
        (104.8, 184.2, 222.3, 222.3, 390.7), (104.8, 184.2, 222.3, 222.3, 390.7),
        (16.0, 49.4, 86.8, 152.6, 222.3), (3.0, 11.0, 23.3, 41.0, 126.5),
        (1.4, 6.2, 13.3, 23.3, 86.8), (0.5, 2.0, 4.3, 9.1, 41.0),
    )),
    Published("Llama 3, 405B", 405e9, 1, 26.0, (
        (126.5, 222.3, 268.3, 323.8, 323.8), (126.5, 222.3, 268.3, 323.8, 323.8),
        (19.3, 72.0, 126.5, 184.2, 268.3), (3.6, 13.3, 28.1, 59.6, 184.2),
        (2.0, 7.5, 16.0, 33.9, 126.5), (0.7, 3.0, 6.2, 13.3, 59.6),
    )),
    Published("DeepSeek-V3, 671B", 671e9, 1, 20.0, (
        (323.8, 569.0, 686.6, 686.6, OFF_THE_GRID), (323.8, 569.0, 686.6, 686.6, OFF_THE_GRID),
        (49.4, 152.6, 268.3, 390.7, 686.6), (7.5, 33.9, 72.0, 126.5, 390.7),
        (4.3, 16.0, 41.0, 72.0, 268.3), (1.7, 6.2, 13.3, 28.1, 126.5),
    )),
)  # fmt: skip

# --- Tang et al. (1-bit Adam), arXiv 2102.02888, table 1 [S: a summary that copies it]: milliseconds in
# which all GPUs all-reduce the gradient of BERT-large in 16 bits, by network and number of nodes. Of several
# runs on the same nodes (examples a GPU, steps of accumulation) all are given. NCCL's ring over all GPUs
# [M, high].

SIXTEEN_BIT_BYTES: Final = 2
ALL_REDUCE_MS: Final = {
    ("Ethernet", 16): (2205.86, 2275.43, 2259.36),
    ("Ethernet", 8): (2173.35,),
    ("Ethernet", 4): (2133.24,),
    ("Ethernet", 2): (1897.21,),
    ("InfiniBand", 8): (316.18, 336.40, 339.52),
    ("InfiniBand", 4): (297.28,),
    ("InfiniBand", 2): (183.74,),
}
ONE_NODE_MS: Final = {"Ethernet": 239.76, "InfiniBand": 28.18}
"""Inside one node: the bandwidth between its GPUs follows from it, and is an input."""
GPUS_OF_A_NODE: Final = {"Ethernet": 4, "InfiniBand": 8}
STATED_GBIT: Final = {"Ethernet": (4.1,), "InfiniBand": (100.0, 32.0)}
"""Between nodes. Ethernet of 40 Gbit/s: 4.1 by iperf [S: the authors' blog, in translation]. InfiniBand is of
100 Gbit/s in the paper [S: the summary], but the blog measures 32 on a network of 40 Gbit/s [S]."""
NODE_LATENCY_S: Final = {"Ethernet": 50e-6, "InfiniBand": 5e-6}
"""Of a message, inside a node too [M, low]."""

# --- Horovod's benchmarks [S: docs/benchmarks.rst of the project and a README of 2017]: share of perfect
# scaling, 4 P100 a server, RoCE of 25 Gbit/s, 64 images a GPU, single precision. ---

HOROVOD: Final = (("vgg-16", 32, 0.79), ("vgg-16", 128, 0.68), ("resnet-101", 128, 0.90))
"""(model, servers, efficiency)."""
P100_IMAGES_PER_S: Final = {"vgg-16": 154.0, "resnet-101": 1656.82 / 16}
"""VGG-16 on one GPU, by TensorFlow's benchmarks [M, medium]; ResNet-101 on 16 GPUs, by Horovod's page [S]."""
IMAGES_A_GPU: Final = 64
SERVER_GPUS: Final = 4
SERVER_BIT_PER_S: Final = 25e9
PCIE_BYTES_PER_S: Final = 10e9
"""Between the GPUs of a server [M, low]."""
ROCE_LATENCY_S: Final = 5e-6
"""[M, low]"""
FUSION_BYTES: Final = 64 * 2**20
"""Gradients that Horovod puts together [M, high]."""

SCENARIO: Final = """\
name: elsewhere
workload: {{timing_only: true, {workload}}}
cluster:
  workers: {workers}
  compute: {{{compute}}}
  network:
    latency: {latency_s!r} s
    bandwidth: {bandwidth!r} bit/s
    transport: ideal
    host: {{gpus: {gpus}, latency: {latency_s!r} s, bandwidth: {inside!r} bit/s}}
collectives: {{all_reduce: {algorithm}}}
schemes: [{scheme}]
stop: {{max_iterations: {steps}}}
events: none
"""


def places_6(model: Published, payload: float = PAYLOAD) -> list[list[tuple[int, int]]]:
    """(published, ours) of table 6 as places on the grid of bandwidths, by method and utilisation."""
    rows = []
    for period, row in zip((0, *PERIODS), model.gbit, strict=True):
        method = "DiLoCo" if period else "data parallel"
        trained = trained_with(method, model.parameters, model.layers, model.step_s, payload, period or 1)
        needed = [trained.needed_bandwidth(utilisation) for utilisation in UTILISATIONS]
        rows.append([(grid_place(gbit), place_needed(each)) for gbit, each in zip(row, needed, strict=True)])
    return rows


def score_6(payload: float = PAYLOAD) -> tuple[int, int, int]:
    """How many cells of table 6 are exact, within one place of the grid, and how far off the worst is."""
    off = [abs(ours - there) for model in TABLE_6 for row in places_6(model, payload) for there, ours in row]
    return off.count(0), off.count(0) + off.count(1), max(off)


def all_reduce_s(network: str, nodes: int, gbit: float, algorithm: str = "ring_stop_and_wait") -> float:
    """Seconds in which all GPUs of some nodes average BERT-large's gradient."""
    gpus = GPUS_OF_A_NODE[network]
    payload = SIXTEEN_BIT_BYTES * sum(layer.parameters for layer in PRESETS["bert-large"]())
    inside = 2 * (gpus - 1) / gpus * payload * 8 / (ONE_NODE_MS[network] / 1000)
    text = SCENARIO.format(
        workload=f"payload: {payload} B", workers=nodes * gpus, compute="time: 1 us",
        latency_s=NODE_LATENCY_S[network], bandwidth=1e9 * gbit, gpus=gpus, inside=inside,
        algorithm=algorithm, scheme="all_reduce", steps=1,
    )  # fmt: skip
    (run,) = simulate(parse(text))
    return run.wall_clock_s - 1e-6


@cache
def fitted_gbit(network: str) -> float:
    """The bandwidth between nodes with which the row of the most nodes comes out."""
    nodes = max(number for name, number in ALL_REDUCE_MS if name == network)
    stated = STATED_GBIT[network][0]
    return 1000 * all_reduce_s(network, nodes, stated) / mean(ALL_REDUCE_MS[network, nodes]) * stated


def efficiency(model: str, servers: int) -> float:
    """The share of perfect scaling that Horovod's GPUs reach: gradients under way during the backward pass.

    A server is one worker: the slowest link of a ring over all GPUs is its card, through which a ring over
    servers sends the same bytes but for one part in as many as there are servers.
    """
    flops = sum(layer.flops for layer in PRESETS[model]())
    steps, compute_s = 2, IMAGES_A_GPU / P100_IMAGES_PER_S[model]
    text = SCENARIO.format(
        workload=f"layer_profile: {model}, batch_size: {IMAGES_A_GPU}", workers=servers,
        compute=f"speed: {P100_IMAGES_PER_S[model] * flops / 1e12!r} Tflop/s", latency_s=ROCE_LATENCY_S,
        bandwidth=SERVER_BIT_PER_S, gpus=1, inside=8 * PCIE_BYTES_PER_S, algorithm="ring_stop_and_wait",
        scheme=f"{{all_reduce: {{overlap: true, bucket: {FUSION_BYTES} B, send_order: ready_first}}}}",
        steps=steps,
    )  # fmt: skip
    (run,) = simulate(parse(text))
    return steps * compute_s / run.wall_clock_s


def _bandwidths() -> Iterator[str]:
    methods = ("data parallel", *(f"DiLoCo, H = {period}" for period in PERIODS))
    return bandwidth_rows(TABLE_6, methods, places_6)


def _scores() -> Iterator[str]:
    yield "| payload | from | exact, of 90 | within one step of the grid | worst, in steps |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for payload, origin in ((PAYLOAD, "table 4 above, as are b and the grid"), (1.0, "nothing fitted")):
        exact, near, worst = score_6(payload)
        yield f"| {payload:g} x 16 bits a parameter | {origin} | {exact} | {near} | {worst} |"


def _all_reduces() -> Iterator[str]:
    yield "| network | link between nodes | nodes | published | ring over all GPUs | error | hierarchical |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for network, stated in STATED_GBIT.items():
        links = [*((gbit, "") for gbit in stated), (fitted_gbit(network), ", fitted")]
        for gbit, how in links:
            rows = {nodes: each for (name, nodes), each in ALL_REDUCE_MS.items() if name == network}
            for nodes, published in rows.items():
                ours, beside = (
                    1000 * all_reduce_s(network, nodes, gbit, name)
                    for name in ("ring_stop_and_wait", "hierarchical")
                )
                mark = " (fitted)" if how and nodes == max(rows) else ""
                yield (
                    f"| {network} | {gbit:.4g} Gbit/s{how} | {nodes} | {mean(published):.0f} ms | "
                    f"{ours:.0f} ms | {100 * (ours / mean(published) - 1):+.1f} %{mark} | {beside:.0f} ms |"
                )


def _efficiencies() -> Iterator[str]:
    yield "| model | servers | GPUs | published | ours | error |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for model, servers, published in HOROVOD:
        ours = efficiency(model, servers)
        yield (
            f"| {model} | {servers} | {SERVER_GPUS * servers} | {100 * published:.0f} % | "
            f"{100 * ours:.1f} % | {100 * (ours / published - 1):+.1f} % |"
        )


def sections() -> str:
    """What the page has on these tables, in Markdown."""
    bandwidths, scores, all_reduces, efficiencies = (
        "\n".join(lines) for lines in (_bandwidths(), _scores(), _all_reduces(), _efficiencies())
    )
    return f"""\
## Checks: tables that were found last

These tables had no part in anything above: inputs and sources (`benchmarks/large_models/elsewhere.py`) were
committed before anything was computed from them. Not blind in the strict sense: BERT-large and Horovod had
been estimated by hand. Read in copies: table 6 in a text of the paper, table 1 of 1-bit Adam in a summary
(rajatbisht.net, paper summaries, 0043), Horovod's page in its repository (`docs/benchmarks.rst`).

### Bandwidth for a utilisation, up to 671B (Charles et al., arXiv 2503.09799, table 6) [S]

A published prediction, by the simulator of table 4 above. The grid, the share of the backward pass and the
payload are those recovered from table 4; sizes and steps (0.8, 26 and 20 s) are the paper's. In brackets
ours where it is another bandwidth.

{bandwidths}

{scores}

So the recovered law holds for models and periods that it was not recovered from, a step of the grid (21 %)
aside.

### All-reduces of BERT-large (Tang et al., 1-bit Adam, arXiv 2102.02888, table 1) [S]

The gradient in 16 bits, on nodes of {GPUS_OF_A_NODE["Ethernet"]} V100 and Ethernet, or of
{GPUS_OF_A_NODE["InfiniBand"]} V100 and InfiniBand. The links inside a node follow from the row of one node.
Between nodes Ethernet of 40 Gbit/s carries 4.1 by iperf [S: the authors' blog of 2020, in translation].
InfiniBand is of 100 Gbit/s in the paper, while the blog has one of 40 Gbit/s that carries 32 [S]: both are
shown. Last come links that are fitted on the row of the most nodes.

{all_reduces}

*Ethernet.* With nothing fitted the ring is 15 to 21 % too slow: iperf's 4.1 Gbit/s are probably one TCP
connection's, and NCCL opens several. With the link fitted on 16 nodes the others are within 5.1 %: the
shape is right, the rate is not.

*InfiniBand.* With 100 Gbit/s every row is missed by 45 to 68 %. With 32 the rows of 8 and 4 nodes are
right, but on 2 nodes a ring is 71 % too slow; the hierarchical all-reduce is within 7 % on all three, which
explains and does not predict.

### Scaling on RoCE of 25 Gbit/s (Horovod's benchmarks) [S]

4 P100 a server, {IMAGES_A_GPU} images a GPU, single precision; buckets of 64 MiB one after another during
the backward pass, a ring. One P100 computes {P100_IMAGES_PER_S["vgg-16"]:g} images of VGG-16 a second
[M, medium] and {P100_IMAGES_PER_S["resnet-101"]:.1f} of ResNet-101 [S: 16 GPUs of Horovod's page].
Inception V3, published as 90 %, is not among the known layers.

{efficiencies}

All are too fast, as for Das et al. from 64 to 128 nodes: a ring sends the same bytes however many servers
there are, and what grows with them (stragglers, collisions of links, Horovod's agreement on what to send)
is not in the scenario.
"""
