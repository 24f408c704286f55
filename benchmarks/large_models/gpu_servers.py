"""A public benchmark of four servers with eight GPUs each, predicted from its rows of one GPU.

Inputs were written down, with their sources, and committed before anything was computed from them and before
rows of several GPUs were read; ``PUBLISHED`` was added afterwards, and nothing else was changed.

Source: Oneflow-Inc/DLPerf at c89430b (2022-01-21), NVIDIADeepLearningExamples [S]: README.md (the machines),
PyTorch/BERT and PyTorch/resnet50v1.5 (the rows, and the scripts with their options).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads.layers.presets import PRESETS

GPUS_IN_SERVER: Final = 8
"""V100 SXM2 of 16 GB [S]."""
CARD_BIT_PER_S: Final = 100e9
"""InfiniBand EDR, one card a server [S]."""
NVLINK_BIT_PER_S: Final = 8 * 150e9
"""Of a GPU to the others of its server: six links of 25 GB/s each way [M, high: data sheet]."""
MESSAGE_LATENCY_S: Final = 5e-6
"""Between two GPUs, inside a server too [M, low]: as for InfiniBand in ``elsewhere``."""
BERT_BASE_PARAMETERS: Final = 110_106_428
"""With the heads for pre-training [M, high]."""
BUCKET_BYTES: Final = 40e6
"""What apex's DistributedDataParallel puts together: ten million elements [M, high]. The script for BERT
raises it to 250 million [M, medium], so that all its gradients go at once, after the backward pass."""
SIZES: Final = ((1, 4), (1, 8), (2, 8), (4, 8))
"""(servers, GPUs in use of each)."""


@dataclass(frozen=True)
class Benchmarked:
    """A table of the benchmark.

    Attributes:
        name: in the page.
        batch_size: examples a GPU.
        alone_per_s: examples a second on one GPU, its first row [S].
        payload_bytes: of BERT-base's gradient; None: ResNet-50, whose buckets go during the backward pass.
    """

    name: str
    batch_size: int
    alone_per_s: float
    payload_bytes: float | None

    def per_s(self, servers: int, gpus: int) -> float:
        """Examples a second on all GPUs."""
        seconds, steps = self.batch_size / self.alone_per_s, 2
        if self.payload_bytes is None:
            flops = self.alone_per_s * sum(layer.flops for layer in PRESETS["resnet-50"]())
            compute, workload = f"speed: {flops / 1e12!r} Tflop/s", "layer_profile: resnet-50"
            bucket = f"bucket: {BUCKET_BYTES:.0f} B"
            scheme = f"{{all_reduce: {{overlap: true, {bucket}, send_order: ready_first}}}}"
        else:
            compute, workload = f"time: {seconds!r} s", f"payload: {self.payload_bytes:.0f} B"
            scheme = "all_reduce"
        text = SCENARIO.format(
            workload=workload, batch_size=self.batch_size, workers=servers * gpus, compute=compute, gpus=gpus,
            latency_s=MESSAGE_LATENCY_S, card=CARD_BIT_PER_S, inside=NVLINK_BIT_PER_S, scheme=scheme,
            steps=steps,
        )  # fmt: skip
        (run,) = simulate(parse(text))
        return steps * servers * gpus * self.batch_size / run.wall_clock_s


TABLES: Final = (
    Benchmarked("BERT-base, single precision", 32, 119.6, 4.0 * BERT_BASE_PARAMETERS),
    Benchmarked("BERT-base, single precision", 48, 121.94, 4.0 * BERT_BASE_PARAMETERS),
    Benchmarked("BERT-base, half precision, dynamic scale", 64, 444.51, 2.0 * BERT_BASE_PARAMETERS),
    Benchmarked("BERT-base, half precision, static scale", 64, 426.53, 2.0 * BERT_BASE_PARAMETERS),
    Benchmarked("ResNet-50, single precision", 128, 367.29, None),
)
"""Of sequences of 128 tokens, or of images. BERT-base at 96 a GPU is left out: its rows were seen at once."""

PUBLISHED: Final = (
    (457.72, 921.32, 1499.40, 2885.81),
    (464.66, 928.01, 1584.32, 3039.30),
    (1671.66, 3251.70, 4936.92, 9331.72),
    (1567.68, 3130.63),
    (1449.48, 2887.65, 5716.79, 10_917.09),
)
"""Examples a second on ``SIZES``, table by table; the fourth has one server only [S]."""

SCENARIO: Final = """\
name: gpu-servers
workload: {{timing_only: true, batch_size: {batch_size}, {workload}}}
cluster:
  workers: {workers}
  compute: {{{compute}}}
  network:
    latency: {latency_s!r} s
    bandwidth: {card!r} bit/s
    transport: nccl
    host: {{gpus: {gpus}, latency: {latency_s!r} s, bandwidth: {inside!r} bit/s}}
schemes: [{scheme}]
stop: {{max_iterations: {steps}}}
events: none
"""


def _rows() -> Iterator[str]:
    yield "| model | examples a GPU | servers | GPUs | published | ours | error |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for table, row in zip(TABLES, PUBLISHED, strict=True):
        for (servers, gpus), published in zip(SIZES, row, strict=False):
            ours = table.per_s(servers, gpus)
            yield (
                f"| {table.name} | {table.batch_size} | {servers} | {servers * gpus} | {published:,.0f}/s | "
                f"{ours:,.0f}/s | {100 * (ours / published - 1):+.1f} % |"
            )


def section() -> str:
    """What the page has on it, in Markdown."""
    rows = "\n".join(_rows())
    return f"""\
### Four servers of eight GPUs (DLPerf's runs of NVIDIA's examples) [S]

Examples a second, from those of one GPU; V100 with NVLink, one card of InfiniBand, 100 Gbit/s, a server;
`transport: nccl`, which takes a ring over all GPUs here. All gradients of BERT-base go after the backward
pass (440 MB, in half precision 220 MB), those of ResNet-50 during it, in buckets of 40 MB. Inputs and their
sources: `benchmarks/large_models/gpu_servers.py` (Oneflow-Inc/DLPerf at c89430b), committed before the rows
were read and before anything was computed. Nothing is fitted, and nothing was changed since.

{rows}

In single precision all are within 10 %. All are too fast, already on the GPUs of one server, whose links
cost next to nothing: computing is taken to be as fast as on one GPU alone, without waiting for the slowest of
several, for data, or for the host. Half precision, where a step is three times as short, is 23 % off on four
servers. From two servers to four, where a ring sends no more, the published speed falls behind
doubling by 4 to 6 %, which is not predicted: the same finding as for Das et al. and Horovod.
"""
