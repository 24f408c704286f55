"""Averages of NCCL, and steps of DistributedDataParallel, behind token buckets on one machine.

    sudo python -m benchmarks.shaped_nccl RATE WHAT [--ranks 4] [--mtu 9001] [--sockets 2x8] [--backend nccl]
    ... 1gbit tensors,ddp,ddp+buffers          DDP with and without the buffers of the board's diloco_measured
    ... 200mbit tensors,31MB --sockets 1x1     its tensors one after the other, and one tensor of 31 MB

Every rank gets a network namespace with ``tbf rate RATE burst 32768 latency 50ms`` on its own interface, and
all share one GPU; it needs root, iproute2, and a CUDA device (``--backend gloo``: none).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel

WIDTH: Final = 256
HIDDEN: Final = 768
LAYERS: Final = 6
VOCABULARY: Final = 50_257
BUFFER_BYTES: Final = 131_072 * 8 * 8
"""A layer's cache of rotary positions."""
REPEATS: Final = 4


class Layer(nn.Module):
    """A layer of torchtitan's Llama-3 debug model, without its rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Of [batch, length, width]."""
        parts = self.query_key_value(self.before(x)).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.between(x)
        return x + torch.as_tensor(self.down(silu(self.gate(h)) * self.up(h)))


class Model(nn.Module):
    """30,846,720 parameters; with ``buffers`` one of ``BUFFER_BYTES`` for each layer."""

    def __init__(self, buffers: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for number in range(LAYERS * buffers):
            self.register_buffer(f"cache{number}", torch.zeros(BUFFER_BYTES // 4), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of [batch, length]."""
        return torch.as_tensor(self.head(self.norm(self.layers(self.embedding(tokens)))))


def averages(sizes: Sequence[int], device: torch.device) -> Callable[[], None]:
    """All-reduce tensors of these sizes, in elements, one after the other."""
    tensors = [torch.ones(size, device=device) for size in sizes]

    def run() -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)
            settle(device)

    return run


def steps(buffers: bool, device: torch.device) -> Callable[[], None]:
    """A step of DistributedDataParallel with its defaults, on 4 x 512 tokens."""
    model = DistributedDataParallel(Model(buffers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, VOCABULARY, (4, 512), device=device)

    def run() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        settle(device)

    return run


def settle(device: torch.device) -> None:
    """Wait until the device has done all."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def be_rank(rank: int, ranks: int, backend: str, what: Sequence[str]) -> None:
    """In a namespace: time each of ``what``, and print seconds."""
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(backend, init_method="tcp://10.9.0.1:29512", rank=rank, world_size=ranks)
    for name in what:
        if name.startswith("ddp"):
            run = steps(name == "ddp+buffers", device)
        elif name == "tensors":
            run = averages([each.numel() for each in Model(False).parameters()], device)
        else:
            run = averages([int(float(name.removesuffix("MB")) * 1e6 / 4)], device)
        taken = []
        for _ in range(REPEATS + 2):  # buckets are made anew after the first step
            dist.all_reduce(torch.zeros(1, device=device))
            settle(device)
            begin_s = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin_s)
        if rank == 0:
            sys.stdout.write(f"{name}: {' '.join(f'{each:.3f}' for each in taken)} s\n")
    dist.destroy_process_group()


def lay_out(ranks: int, rate: str, mtu: int) -> None:
    """A bridge, and a namespace behind a token bucket for each rank."""
    commands = [f"link add br9 mtu {mtu} type bridge", "link set br9 up"]
    for rank in range(ranks):
        commands += [
            f"netns add rank{rank}", f"link add v{rank} mtu {mtu} type veth peer name e0 netns rank{rank}",
            f"link set v{rank} master br9 mtu {mtu} up", f"-n rank{rank} link set lo up",
            f"-n rank{rank} link set e0 mtu {mtu} up", f"-n rank{rank} addr add 10.9.0.{rank + 1}/24 dev e0",
            f"-n rank{rank} route replace 10.9.0.0/24 dev e0 src 10.9.0.{rank + 1} congctl cubic",
        ]  # fmt: skip
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    for rank in range(ranks):
        shaper = f"-n rank{rank} qdisc add dev e0 root tbf rate {rate} burst 32768 latency 50ms"
        subprocess.run(["tc", *shaper.split()], check=True)


def clear(ranks: int) -> None:
    """Take the namespaces and the bridge away."""
    for command in [*(f"netns del rank{rank}" for rank in range(ranks)), "link del br9"]:
        subprocess.run(["ip", *command.split()], check=False, stderr=subprocess.DEVNULL)


def main() -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shaped_nccl", description=__doc__)
    parser.add_argument("rate", help="of each rank, as tc reads it")
    parser.add_argument("what", help="tensors, ddp, ddp+buffers or a size such as 31MB, separated by commas")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mtu", type=int, default=9001)
    parser.add_argument("--sockets", default="2x8", help="threads x sockets a channel (AWS: 2x8)")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        be_rank(given.rank, given.ranks, given.backend, given.what.split(","))
        return 0
    threads, _, sockets = given.sockets.partition("x")
    shared = {
        "NCCL_SOCKET_NTHREADS": threads, "NCCL_NSOCKS_PERTHREAD": sockets, "NCCL_SOCKET_IFNAME": "e0",
        "GLOO_SOCKET_IFNAME": "e0", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
    }  # fmt: skip
    own = [sys.executable, "-m", "benchmarks.shaped_nccl", *sys.argv[1:], "--rank"]
    clear(given.ranks)
    try:
        lay_out(given.ranks, given.rate, given.mtu)
        children = [
            subprocess.Popen(
                ["nsenter", f"--net=/run/netns/rank{rank}", *own, str(rank)],
                env={**os.environ, **shared, "NCCL_HOSTID": f"rank{rank}"},
            )
            for rank in range(given.ranks)
        ]
        return max(abs(child.wait()) for child in children)
    finally:
        clear(given.ranks)


if __name__ == "__main__":
    sys.exit(main())
