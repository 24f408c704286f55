"""Das et al., arXiv 1602.06709: balance, hybrid parallelism, and speed-ups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.large_models.closed_forms.parallelism import (
    best_groups,
    exchanged_bytes,
    fewest_examples,
    most_nodes,
    operations_per_byte,
)
from benchmarks.large_models.closed_forms.scaling import ComputeNode, speed_up, step_time
from paceline.sim.workloads.layers.layer import fully_connected
from paceline.sim.workloads.layers.presets import PRESETS

# Nodes by their operations per byte [M, medium], and what they allow.
NODES: Final = {"10 Gbit/s Ethernet": 546.0, "FDR InfiniBand": 336.0}
BALANCE: Final = {
    ("overfeat-fast", "10 Gbit/s Ethernet"): (3, 86),
    ("vgg-a", "10 Gbit/s Ethernet"): (1, 256),
    ("overfeat-fast", "FDR InfiniBand"): (2, 128),
    ("vgg-a", "FDR InfiniBand"): (1, 256),
}
HYBRID: Final = ((64, 256, 0.0), (64, 256, 1.0), (128, 512, 0.0), (128, 512, 1.0))


def _flops(model: str) -> float:
    return sum(layer.flops for layer in PRESETS[model]())


# What one node computes in a second: examples per second on one node, as published, times their operations.
CORI_RATE: Final = 27.9 * _flops("vgg-a")
"""27.9 images a second: 2,510 on 128 nodes / 90 [M, medium]."""
AWS_RATE: Final = 397 / 14.2 * _flops("vgg-a")
"""397 images a second on 16 nodes, 14.2 times those of one [M, medium]."""
SPEECH_RATE: Final = 4600 * _flops("cd-dnn")
"""4,600 frames a second [M, medium]."""

CORI: Final = ComputeNode(CORI_RATE, cores=32, bytes_per_s=45e12 / 12_076, latency_s=3.7e-6)
CORI_NEAR: Final = ComputeNode(CORI_RATE, cores=32, bytes_per_s=8e9, latency_s=3.7e-6)
INFINIBAND: Final = ComputeNode(SPEECH_RATE, cores=28, bytes_per_s=11.64e9 / 2, latency_s=1e-6)
AWS: Final = ComputeNode(AWS_RATE, cores=18, bytes_per_s=10e9 / 8, latency_s=50e-6)


@dataclass(frozen=True)
class SpeedUp:
    """A published speed-up: which model, on how many nodes of which cluster, with a batch of how many."""

    model: str
    cluster: str
    node: ComputeNode
    nodes: int
    batch: int
    published: float

    @property
    def predicted(self) -> float:
        """Ours."""
        return speed_up(PRESETS[self.model](), self.node, self.nodes, self.batch)


SPEED_UPS: Final = (
    SpeedUp("vgg-a", "Cori", CORI, 128, 512, 90.0),
    SpeedUp("vgg-a", "Cori", CORI, 64, 256, 53.0),
    SpeedUp("overfeat-fast", "Cori", CORI, 64, 256, 42.0),
    SpeedUp("cd-dnn", "FDR InfiniBand", INFINIBAND, 16, 1024, 6.5),
)  # fmt: skip
NEAR: Final = tuple(
    SpeedUp(each.model, "Cori, neighbours", CORI_NEAR, each.nodes, each.batch, each.published)
    for each in SPEED_UPS
    if each.node is CORI
)
CLOUD: Final = SpeedUp("vgg-a", "AWS, 10 Gbit/s", AWS, 16, 256, 14.2)
CLOUD_LOSS: Final = (0.11, 0.125)


def cloud_loss() -> float:
    """The share of perfect scaling that the run on AWS loses, as predicted."""
    return 1 - CLOUD.predicted / CLOUD.nodes


def cloud_losses() -> dict[str, float]:
    """The loss of the run on AWS, by what loses it; the shares add up to ``cloud_loss``."""
    layers = PRESETS[CLOUD.model]()
    alone_s = step_time(layers, AWS, 1, CLOUD.batch).total_s / CLOUD.nodes
    parts = step_time(layers, AWS, CLOUD.nodes, CLOUD.batch)
    busy_s = alone_s * AWS.cores / (AWS.cores - 1)
    lost_s = {
        "exchanges of fully connected layers, for which computing waits": parts.exchanging_s,
        "the core that carries messages": busy_s - alone_s,
        "cores that idle in the last round": parts.computing_s - busy_s,
        "gradients of convolutions that come too late": parts.waiting_s,
    }
    return {what: seconds / parts.total_s for what, seconds in lost_s.items()}


OTHER_NODES: Final = {
    "CD-DNN, FDR InfiniBand": (
        SPEED_UPS[3],
        {
            "5.82 GB/s each way, 28 cores": INFINIBAND,
            "6.8 GB/s each way, the nominal rate of FDR": replace(INFINIBAND, bytes_per_s=6.8e9),
            "5.82 GB/s both ways at once": replace(INFINIBAND, overlap=1.0),
            "24 cores": replace(INFINIBAND, cores=24),
            "36 cores": replace(INFINIBAND, cores=36),
        },
    ),
    "VGG-A, AWS": (
        CLOUD,
        {
            "10 Gbit/s each way, 18 cores": AWS,
            "10 Gbit/s both ways at once": replace(AWS, overlap=1.0),
            "9.4 Gbit/s, what TCP leaves of 10": replace(AWS, bytes_per_s=9.4e9 / 8),
            "36 cores, hyper-threads counted": replace(AWS, cores=36),
        },
    ),
}
"""Other inputs that could have been chosen: [M, low] or [D], all of them."""


def _balance() -> Iterator[str]:
    yield "| model | node | operations per byte | fewest examples, published | most nodes, published |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for (name, node), (examples, nodes) in BALANCE.items():
        layers = [layer for layer in PRESETS[name]() if layer.name.startswith("conv")]
        ours = fewest_examples(layers, NODES[node]), most_nodes(layers, 256, NODES[node])
        ratio = operations_per_byte(layers)
        yield f"| {name} | {node} | {ratio:.1f} | {ours[0]}, {examples} | {ours[1]}, {nodes} |"


def _hybrid() -> Iterator[str]:
    layer = fully_connected("fc", 4096, 4096, bias=False)
    yield "| nodes | examples | overlap | best number of groups | MB a node exchanges there | data parallel |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for nodes, batch, overlap in HYBRID:
        best = best_groups(layer, nodes, batch, overlap)
        there, parallel = (
            exchanged_bytes(layer, nodes, batch, groups, overlap) / 1e6 for groups in (best, float(nodes))
        )
        yield f"| {nodes} | {batch} | {overlap:g} | {best:.2f} | {there:.3f} | {parallel:.1f} |"


def _speed_ups() -> Iterator[str]:
    yield "| model | cluster | nodes | batch | computing | exchanging | waiting | published | ours | error |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for each in (*SPEED_UPS, *NEAR, CLOUD):
        parts = step_time(PRESETS[each.model](), each.node, each.nodes, each.batch)
        seconds = (parts.computing_s, parts.exchanging_s, parts.waiting_s)
        yield (
            f"| {each.model} | {each.cluster} | {each.nodes} | {each.batch} | "
            + " | ".join(f"{1000 * part:.1f} ms" for part in seconds)
            + f" | {each.published:g} | {each.predicted:.1f} | "
            f"{100 * (each.predicted / each.published - 1):+.1f} % |"
        )


def _other_nodes() -> Iterator[str]:
    for name, (run, nodes) in OTHER_NODES.items():
        errors = {what: replace(run, node=node).predicted / run.published - 1 for what, node in nodes.items()}
        each = ", ".join(f"{100 * error:+.1f} % ({what})" for what, error in errors.items())
        yield f"- {name}: {each}"


def sections() -> str:
    """What the page has on this paper, in Markdown."""
    balance, hybrid, speed_ups, others = (
        "\n".join(lines) for lines in (_balance(), _hybrid(), _speed_ups(), _other_nodes())
    )
    losses = "; ".join(f"{share:.3f} by {what}" for what, share in cloud_losses().items())
    least, most = CLOUD_LOSS
    return f"""\
## Balance (Das et al., arXiv 1602.06709) [M, medium]

A node with so many operations per byte of its link keeps computing for as long as it sends gradients if it
has enough examples: the fewest, and the most nodes for a batch of 256. Convolutions, data parallel, sending
and receiving at once; operations per byte of gradients are for one example.

{balance}

## Hybrid parallelism (the same paper) [D]

A fully connected layer of 4,096 by 4,096, model parallel inside groups and data parallel across them. Time
only: no scheme here trains so.

{hybrid}

## Speed-ups (the same paper) [S]

`benchmarks/large_models/closed_forms/scaling.py`: data parallel convolutions, averaged by a thread and waited
for layer by layer; fully connected layers hybrid, their exchanges waited for; one core of each node for the
messages, sent and received one after the other. Nothing is fitted to a speed-up on several nodes. What one
node does in a second is published: 27.9 images of VGG-A on Cori, 4,600 frames of speech, 397 / 14.2 images on
AWS [M, medium]; OverFeat is taken to compute at VGG-A's rate. The networks:

- *Cori*: its nodes' share of the links between all, 45 TB/s of bisection for 12,076 nodes; latency 3.7 us
  [S: NERSC's pages on Cori]. *Neighbours*: 8 GB/s between two nodes [S: there], as if no link were shared.
- *FDR InfiniBand*: MPI moves 11.64 GB/s both ways together [M, medium: OSU's benchmarks on ConnectX-3], half
  of them each way; 28 cores [M, low]; latency 1 us [M, medium].
- *AWS*: c4.8xlarge, 10 Gbit/s and 18 cores [S: data sheet]; latency 50 us [M, low].

{speed_ups}

By its *loss*, the share of perfect scaling that is lost, AWS is {cloud_loss():.3f} (published: {least:g} to
{most:g}, so {cloud_loss() - most:.3f} above): {losses}.

From 64 to 128 nodes a node's work and volumes stay the same, so that what is predicted hardly changes, but
the published efficiency falls from 83 to 70 %: something that grows with the nodes is not in the model.

*In sample*: the rates of nodes, the order of messages and the core for them were settled on Cori's rows,
the rate of FDR InfiniBand and the cores of its node on CD-DNN's. Errors with other inputs:

{others}
"""
