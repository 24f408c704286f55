"""Tables that were found after everything else here was settled, predicted by the code as it was.

Inputs were written down, with their sources, and committed before anything was computed from them.
"""

from __future__ import annotations

from typing import Final

from .low_communication import Published

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

# --- Tang et al. (1-bit Adam), arXiv 2102.02888, table 1 [S: a summary that copies it]: milliseconds in which
# all GPUs all-reduce the gradient of BERT-large in 16 bits, by network and number of nodes. Of several runs
# on the same nodes (examples a GPU, steps of accumulation) all are given. NCCL's ring over all GPUs [M, high].

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
