"""A public benchmark of four servers with eight GPUs each, predicted from its rows of one GPU.

Inputs were written down, with their sources, and committed before anything was computed from them and before
rows of several GPUs were read.

Source: Oneflow-Inc/DLPerf at c89430b (2022-01-21), NVIDIADeepLearningExamples [S]: README.md (the machines),
PyTorch/BERT and PyTorch/resnet50v1.5 (the rows, and the scripts with their options).
"""

from __future__ import annotations

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
            scheme = f"{{all_reduce: {{overlap: true, bucket: {BUCKET_BYTES:.0f} B, send_order: ready_first}}}}"
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
"""Sequences of 128 tokens, or images. BERT-base at 96 a GPU is left out: its rows were seen with the inputs."""

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
