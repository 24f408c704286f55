"""Seconds per iteration that others have published, beside simulations: SGP, ADPSGD, exponential graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads.layers.presets import PRESETS

SCENARIO: Final = """\
name: published-iterations
workload: {{timing_only: true, payload: {payload_bytes!r} B}}
cluster:
  workers: {workers}
  compute: {{time: {compute_s!r} s}}
  stragglers: [{stragglers}]
  network: {{latency: {latency_s!r} s, bandwidth: {bandwidth!r} bit/s, transport: ideal}}
collectives: {{all_reduce: {algorithm}}}
schemes: [{scheme}]
stop: {{max_iterations: {steps}}}
"""
RESNET_BYTES: Final = 4 * 25_557_032.0
LATENCY_S: Final = 50e-6
"""Of a message between machines [M, low]."""


@dataclass(frozen=True)
class Iterations:
    """What is simulated.

    Attributes:
        scheme: as in a scenario.
        payload_bytes: of a model.
        algorithm: of the all-reduce.
        steps: that are simulated: the mean of them is taken.
        pause_s: by which one gradient in ``1 / PAUSES`` lasts longer, on any node.
    """

    scheme: str
    payload_bytes: float = RESNET_BYTES
    algorithm: str = "ring"
    steps: int = 40
    pause_s: float = 0.0

    def step_s(self, workers: int, compute_s: float, bandwidth: float, latency_s: float = LATENCY_S) -> float:
        """Seconds of an iteration; ``bandwidth`` of a host's link in bits per second."""
        stragglers = f"{{probability: {PAUSES}, pause: {self.pause_s!r} s}}" if self.pause_s else ""
        text = SCENARIO.format(
            payload_bytes=self.payload_bytes, workers=workers, compute_s=compute_s, stragglers=stragglers,
            latency_s=latency_s, bandwidth=bandwidth, algorithm=self.algorithm, scheme=self.scheme,
            steps=self.steps,
        )  # fmt: skip
        (run,) = simulate(parse(text))
        return run.wall_clock_s / self.steps


# --- Assran et al., ICML 2019, ResNet-50 over 10 Gbit/s Ethernet: seconds per iteration [M, medium; D] ---

STEP_S: Final = {
    "all_reduce": {4: 0.703, 8: 0.896, 16: 1.090, 32: 1.308},
    "gossip": {4: 0.630, 8: 0.621, 16: 0.641, 32: 0.641},
    "sgp": {4: 0.377, 8: 0.378, 16: 0.410, 32: 0.423},
}
ETHERNET: Final = 10e9
INFINIBAND: Final = 100e9
INFINIBAND_EFFICIENCY: Final = 0.924
"""Of SGP from 4 to 32 nodes over 100 Gbit/s InfiniBand, where messages take next to nothing [M, low]."""
PAUSES: Final = 0.01
PAUSED_STEPS: Final = 400
SCHEMES: Final = {
    "all_reduce": "all_reduce",
    "gossip": "{gossip: {topology: one_peer_exponential}}",
    "sgp": "{sgp: {topology: one_peer_exponential}}",
}


@dataclass(frozen=True)
class FittedRow:
    """What the computing time, and for several nodes the link too, is fitted on.

    Attributes:
        scheme: as in ``STEP_S``.
        what: in the page.
        known: the nodes that it is fitted on.
        algorithm: of the all-reduce.
        messages: models' worth that a link carries one after another, beside what the scheme sends.
        paused: whether gradients pause now and then.
    """

    scheme: str
    what: str
    known: tuple[int, ...]
    algorithm: str = "ring"
    messages: int = 1
    paused: bool = False

    def iterations(self) -> Iterations:
        """What is simulated."""
        return Iterations(
            SCHEMES[self.scheme],
            payload_bytes=self.messages * RESNET_BYTES,
            algorithm=self.algorithm,
            steps=PAUSED_STEPS if self.paused else 40,
            pause_s=fitted_pause_s() if self.paused else 0.0,
        )


FITTED_ROWS: Final = (
    FittedRow("all_reduce", "all_reduce, recursive_doubling", (4, 8), algorithm="recursive_doubling"),
    FittedRow("all_reduce", "all_reduce, ring", (4, 8)),
    FittedRow("gossip", "gossip", (4,)),
    FittedRow("gossip", "gossip, 4 models on a link", (4,), messages=4),
    FittedRow("sgp", "sgp", (4,)),
    FittedRow("gossip", "gossip, 4 models on a link, pauses", (4,), messages=4, paused=True),
    FittedRow("sgp", "sgp, pauses", (4,), paused=True),
)


@cache
def fitted_pause_s() -> float:
    """How long pauses are with which SGP's efficiency over InfiniBand is the published one.

    Ethernet's seconds on more than 4 nodes have no part in it.
    """
    alone_s = STEP_S["sgp"][4] - Iterations(SCHEMES["sgp"]).step_s(4, 0.0, ETHERNET)

    def efficiency(pause_s: float) -> float:
        paused = Iterations(SCHEMES["sgp"], steps=PAUSED_STEPS, pause_s=pause_s)
        return paused.step_s(4, alone_s, INFINIBAND) / paused.step_s(32, alone_s, INFINIBAND)

    least, most = 0.0, alone_s
    for _ in range(10):
        middle = (least + most) / 2
        least, most = (middle, most) if efficiency(middle) > INFINIBAND_EFFICIENCY else (least, middle)
    return (least + most) / 2


def fitted(row: FittedRow) -> tuple[float, float]:
    """The (computing time, bandwidth) with which simulated iterations last as published on known nodes.

    On one number of nodes the time follows from the bandwidth that the paper states.
    """
    published, simulated = [STEP_S[row.scheme][n] for n in row.known], row.iterations()
    if len(row.known) == 1:
        (nodes,) = row.known
        compute_s = published[0] - simulated.step_s(nodes, 0.0, ETHERNET)
        # With pauses the time of others' waiting is in it too.
        return compute_s + published[0] - simulated.step_s(nodes, compute_s, ETHERNET), ETHERNET
    alone = [simulated.step_s(n, 0.0, ETHERNET) for n in row.known]
    # Exchanges take as much longer as the link is slower, beside latencies that are lost in rounding.
    design = np.column_stack([np.ones(len(row.known)), alone])
    (compute_s, slower), *_ = np.linalg.lstsq(design, np.array(published), rcond=None)
    return float(compute_s), ETHERNET / float(slower)


def _sgp() -> Iterator[str]:
    yield "| scheme | fitted on | computing | link | nodes | published | simulated | error |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in FITTED_ROWS:
        compute_s, bandwidth = fitted(row)
        on = " and ".join(map(str, row.known))
        if compute_s < 0 or not math.isfinite(bandwidth) or bandwidth <= 0:
            yield f"| {row.what} | {on} | - | - | - | - | - | no fit: {compute_s:.3f} s of computing |"
            continue
        simulated = row.iterations()
        for nodes, published in STEP_S[row.scheme].items():
            ours = simulated.step_s(nodes, compute_s, bandwidth)
            mark = " (fitted)" if nodes in row.known else ""
            yield (
                f"| {row.what} | {on} | {compute_s:.3f} s | {bandwidth / 1e9:.2f} Gbit/s | {nodes} | "
                f"{published:.3f} s | {ours:.3f} s | {100 * (ours / published - 1):+.1f} %{mark} |"
            )


# --- Jiang and Agrawal, arXiv 2007.06134: ADPSGD beside FULLSGD on 16 nodes with a P100 each ---

ADPSGD_NODES: Final = 16
ADPSGD_PERIOD: Final = 8
"""Steps between two averagings, on average [M, medium]."""
NETWORKS: Final = {"10 Gbit/s": 10e9, "100 Gbit/s": 40e9}
"""Of 100 Gbit/s the sheet leaves 25 to 40 % [D]: the most of it."""
MESSAGE_S: Final = 5e-6
"""Latency of a message, with the software that sends it [M, low]."""
SPEED_UP_RANGE: Final = {"10 Gbit/s": (1.46, 1.95), "100 Gbit/s": (1.14, 1.27)}


@dataclass(frozen=True)
class Trained:
    """A model of that paper.

    Attributes:
        name: of the model and its data.
        parameters: how many.
        layers: with parameters, each of which is averaged by itself.
        compute_s: of an iteration on one node; None: fitted on 1.46, the least at 10 Gbit/s.
        source: of both.
    """

    name: str
    parameters: int
    layers: int
    compute_s: float | None
    source: str

    def step_s(self, scheme: str, compute_s: float, bandwidth: float) -> float:
        """Seconds of an iteration. Rings' latencies add up layer by layer, so that one ring has them all."""
        whole = Iterations(scheme, payload_bytes=4.0 * self.parameters, algorithm="ring_stop_and_wait")
        return whole.step_s(ADPSGD_NODES, compute_s, bandwidth, self.layers * MESSAGE_S)

    def speed_up(self, compute_s: float, bandwidth: float) -> float:
        """How much faster an iteration is that averages every 8th time only."""
        seldom = f"{{local_sgd: {{period: {ADPSGD_PERIOD}}}}}"
        return self.step_s("all_reduce", compute_s, bandwidth) / self.step_s(seldom, compute_s, bandwidth)


TRAINED: Final = (
    Trained("GoogLeNet, CIFAR-10", 6_166_250, 65, None, "computing fitted on 1.46"),
    Trained("VGG-16, CIFAR-10", 14_728_266, 14, None, "computing as GoogLeNet's"),
    Trained("ResNet-50, ImageNet", 25_557_032, 54, 32 / 219, "32 images at 219/s [M, medium]"),
    Trained("AlexNet, ImageNet", 61_100_840, 8, 32 / 2987, "32 images at 2,987/s [M, medium]"),
)


@cache
def fitted_computing_s() -> float:
    """Of an iteration of GoogLeNet, with which its speed-up at 10 Gbit/s is the least published one."""
    least = SPEED_UP_RANGE["10 Gbit/s"][0]
    averaging_s = TRAINED[0].step_s("all_reduce", 0.0, NETWORKS["10 Gbit/s"])
    return averaging_s * (1 - least / ADPSGD_PERIOD) / (least - 1)


def _adpsgd() -> Iterator[str]:
    yield "| model | parameters | computing | from | 10 Gbit/s, 1.46 to 1.95 | 100 Gbit/s, 1.14 to 1.27 |"
    yield "| --- | ---: | ---: | --- | ---: | ---: |"
    for model in TRAINED:
        compute_s = fitted_computing_s() if model.compute_s is None else model.compute_s
        cells = [_marked(model.speed_up(compute_s, rate), name) for name, rate in NETWORKS.items()]
        yield (
            f"| {model.name} | {model.parameters:,} | {1000 * compute_s:.0f} ms | {model.source} | "
            f"{' | '.join(cells)} |"
        )


CIFAR_BATCH: Final = 128
"""Images of a node and step [M, medium]."""
CIFAR_FLOPS: Final = {"GoogLeNet, CIFAR-10": 2 * 1.5e9, "VGG-16, CIFAR-10": 2 * 0.31e9}
"""Of an image's forward pass [M, low]."""
P100_FLOPS: Final = 219 * sum(layer.flops for layer in PRESETS["resnet-50"]())
"""Operations a second that a P100 reaches in training: those of 219 images of ResNet-50 [M, medium]."""


def computing_s(model: Trained) -> float:
    """Of an iteration by sources that know nothing of ADPSGD: published, else three passes' operations."""
    if model.compute_s is not None:
        return model.compute_s
    return 3 * CIFAR_BATCH * CIFAR_FLOPS[model.name] / P100_FLOPS


def _by_sources() -> Iterator[str]:
    yield "| model | computing | 10 Gbit/s | 100 Gbit/s |"
    yield "| --- | ---: | ---: | ---: |"
    for model in TRAINED:
        compute_s = computing_s(model)
        cells = [
            _marked(model.speed_up(compute_s, nominal), network)
            for network, nominal in zip(SPEED_UP_RANGE, (10e9, 100e9), strict=True)
        ]
        yield f"| {model.name} | {1000 * compute_s:.0f} ms | {' | '.join(cells)} |"


def _marked(speed_up: float, network: str) -> str:
    least, most = SPEED_UP_RANGE[network]
    inside = least - 0.005 <= speed_up <= most + 0.005
    return f"{speed_up:.2f}" if inside else f"{speed_up:.2f}, outside"


OTHER_SHARES: Final = (0.25, 0.30, 0.35, 0.40, 0.50, 1.00)
"""Of 100 Gbit/s: what could have been chosen instead."""


def _other_shares() -> Iterator[str]:
    yield "| share of 100 Gbit/s |" + "".join(f" {model.name} |" for model in TRAINED[:3])
    yield "| ---: |" + " ---: |" * 3
    for share in OTHER_SHARES:
        cells = []
        for model in TRAINED[:3]:
            compute_s = fitted_computing_s() if model.compute_s is None else model.compute_s
            cells.append(_marked(model.speed_up(compute_s, share * 100e9), "100 Gbit/s"))
        yield f"| {100 * share:.0f} % | {' | '.join(cells)} |"


# --- Exponential graphs: seconds per epoch of ResNet-50, machines of 8 V100, 25 Gbit/s [S; D] ---

IMAGES: Final = 1_281_167
IMAGES_A_STEP: Final = 8 * 64
"""Of a machine: 64 for each of its 8 GPUs [S: another benchmark of the authors]."""
EPOCH_S: Final = {("sgp", 8): 200.4, ("sgp", 32): 47.5, ("all_reduce", 8): 294.9, ("all_reduce", 32): 66.6}
MACHINES_BIT_PER_S: Final = 25e9


def _epochs() -> Iterator[str]:
    yield "| scheme | machines | published | simulated | error |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    steps = {machines: IMAGES / (IMAGES_A_STEP * machines) for machines in (8, 32)}
    known = EPOCH_S["sgp", 8] / steps[8]
    compute_s = known - Iterations(SCHEMES["sgp"]).step_s(8, 0.0, MACHINES_BIT_PER_S)
    for (scheme, machines), published in EPOCH_S.items():
        step_s = Iterations(SCHEMES[scheme]).step_s(machines, compute_s, MACHINES_BIT_PER_S)
        ours = step_s * steps[machines]
        mark = " (fitted)" if (scheme, machines) == ("sgp", 8) else ""
        name = "one-peer exponential" if scheme == "sgp" else "all-reduce, ring"
        yield (
            f"| {name} | {machines} | {published} s | {ours:.1f} s | "
            f"{100 * (ours / published - 1):+.1f} %{mark} |"
        )


def _lines(rows: Iterator[str]) -> str:
    return "\n".join(rows)


def sections() -> str:
    """What the page has on seconds per iteration, in Markdown."""
    return f"""\
## Seconds per iteration (Assran et al., ICML 2019) [M, medium; D]

ResNet-50, 8 GPUs a node, 10 Gbit/s Ethernet. Fitted: the computing time, and for all-reduce the link's
effective bandwidth too, on the nodes named; the others are predicted. The all-reduce of torch's TCP back end
of that time exchanged the whole vector in log2(n) rounds (`recursive_doubling`), which a ring does not.

{_lines(_sgp())}

*Pauses.* SGP's messages do not grow with the nodes; how often somebody is late does. The published
efficiency of SGP over InfiniBand (92.4 % from 4 to 32 nodes [M, low]) has hardly any messages in it; a
pause of {1000 * fitted_pause_s():.0f} ms in one of {1 / PAUSES:.0f} gradients gives it, and with that and 4
nodes the others are predicted. D-PSGD swaps models both ways, one after another, and needs four models'
time on a link ([D]: 0.63 s less the 0.30 s of the all-reduce column's intercept).

## ADPSGD beside synchronous SGD (Jiang and Agrawal, arXiv 2007.06134) [S]

16 nodes, averaging every 8th step on average; a ring for each layer, {1e6 * MESSAGE_S:.0f} us a message
[M, low]; from 2 to 10 us both models for CIFAR-10 stay inside. Effective are all of 10 Gbit/s and 40 %
of 100 Gbit/s ([D]: the sheet's 25 to 40 %). Parameters and layers of the models for CIFAR-10 [M, medium].

{_lines(_adpsgd())}

One computing time for both models of CIFAR-10 is fitted on the least speed-up at 10 Gbit/s. That they
compute for equally long is an assumption that the ranges need: by their operations (1.5 and 0.31 billion
multiplications of a CIFAR image [M, low]) GoogLeNet would compute five times as long. AlexNet at its
published rate is far outside (reading its images is not modelled).

*In sample*: of the paper only the abstract could be read, the four ends of the ranges, and the pair of
models, their computing time and the 40 % were chosen with these known. One computing time and one share can
give all four ends, and predict none. Speed-ups at 100 Gbit/s by the share (published: 1.14 to 1.27):

{_lines(_other_shares())}

*With inputs that nobody chose for these figures*: networks at their nominal rate, and computing by the
operations of the models ({CIFAR_BATCH} images of CIFAR-10 a step [M, medium]) at the rate that a P100 reaches
with ResNet-50, {P100_FLOPS / 1e12:.1f} Tflop/s:

{_lines(_by_sources())}

## Seconds per epoch (exponential graphs: BlueFog's slides, Nov. 2020) [S; D], no bar

ResNet-50, machines of 8 V100, 25 Gbit/s, {IMAGES_A_STEP} images a machine and step [S: another benchmark of
the authors]. Computing is fitted on 8 machines with neighbour averaging.

{_lines(_epochs())}
"""
