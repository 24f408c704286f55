"""Serves blocks of other simulators with real gradients, and of real processes over gloo.

    python -m benchmarks.speed.peers WAY WORKERS HIDDEN

Each does one step of plain SGD on a batch of 32 of the digits MLP for every worker-iteration, on one thread,
without scoring and with as little logging as it has.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.speed.children import Block, Usage, serve
from benchmarks.speed.work import BATCH_SIZE, LR, PERIOD, Work, parse_work


def gossipy(work: Work) -> Block:
    """Push gossip of gossipy-dfl: everybody sends to a random peer, and whoever receives averages and steps.

    One tick a round, without delays and without test sets, which is the least that it can do.
    """
    # It imports torchvision for data sets that are not used here, and does not declare it.
    sys.modules.setdefault("torchvision", types.ModuleType("torchvision"))
    from gossipy import LOG, set_seed
    from gossipy.core import AntiEntropyProtocol, ConstantDelay, CreateModelMode, StaticP2PNetwork
    from gossipy.model import TorchModel
    from gossipy.model.handler import TorchModelHandler
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator

    LOG.setLevel(logging.ERROR)
    set_seed(1)
    inputs, classes = work.examples()

    class Perceptron(TorchModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = work.module()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.layers(x)
            return outputs

        def init_weights(self) -> None:
            pass

    class Shares:
        """Each worker's examples; no test set."""

        def __getitem__(self, worker: int) -> Any:
            return (inputs[worker], classes[worker]), None

        def has_test(self) -> bool:
            return False

    handler = TorchModelHandler(
        net=Perceptron(), optimizer=torch.optim.SGD, optimizer_params={"lr": LR},
        criterion=torch.nn.functional.cross_entropy, local_epochs=0, batch_size=BATCH_SIZE,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )  # fmt: skip
    shares = Shares()
    nodes = GossipNode.generate(
        data_dispatcher=shares, p2p_net=StaticP2PNetwork(work.workers), model_proto=handler, round_len=1,
        sync=True,
    )  # fmt: skip
    simulator = GossipSimulator(
        nodes=nodes, data_dispatcher=shares, delta=1, protocol=AntiEntropyProtocol.PUSH,
        delay=ConstantDelay(0),
    )  # fmt: skip
    simulator.init_nodes(seed=1)

    def block(steps: int) -> None:
        simulator.start(n_rounds=steps)

    return block


def one_peer(rank: int, size: int, step: int) -> tuple[int, int]:
    """To whom a worker sends and from whom it receives: distances 1, 2, 4 ... in turn."""
    distance = 2 ** (step % max(1, (size - 1).bit_length()))
    return (rank + distance) % size, (rank - distance) % size


def _gloo_worker(
    rank: int, work: Work, share: tuple[Tensor, Tensor], scheme: str, store: str, orders: Any, line: Any
) -> None:
    """Do what the parent orders, as one of ``work.workers`` processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=work.workers)
    torch.manual_seed(1)
    module, random = work.module(), torch.Generator().manual_seed(rank)
    inputs, classes = share
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    other = torch.empty(work.parameters)
    while True:
        steps = orders.recv()
        line.wait()
        for step in range(steps):
            picked = torch.randint(len(classes), (BATCH_SIZE,), generator=random)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs[picked]), classes[picked]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            x = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
            if scheme == "gossip":
                to, source = one_peer(rank, work.workers, step)
                sending = dist.isend(x, to)
                dist.recv(other, source)
                assert sending is not None
                sending.wait()
                torch.nn.utils.vector_to_parameters((x + other) / 2, module.parameters())
            elif (step + 1) % PERIOD == 0:
                dist.all_reduce(x)
                torch.nn.utils.vector_to_parameters(x / work.workers, module.parameters())
        line.wait()


def _usage_of(processes: list[int]) -> tuple[float, float]:
    """Processor seconds and memory of processes, what they share counted once."""
    total_kib, ticks = 0, 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime: proc(5)
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kib += int(line.split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), total_kib / 2**20


def gloo(scheme: str, work: Work) -> tuple[Block, Usage]:
    """A process for each worker, which really computes and sends; forked, so that torch is shared."""
    context = multiprocessing.get_context("fork")
    folder = tempfile.TemporaryDirectory()
    line = context.Barrier(work.workers + 1)
    inputs, classes = work.examples()
    pipes = [context.Pipe() for _ in range(work.workers)]
    workers = [
        context.Process(
            target=_gloo_worker,
            args=(
                rank,
                work,
                (inputs[rank], classes[rank]),
                scheme,
                f"{folder.name}/store",
                pipes[rank][1],
                line,
            ),
            daemon=True,
        )
        for rank in range(work.workers)
    ]
    torch.optim.SGD(work.module().parameters(), lr=LR).step()  # imports much, which is shared then
    gc.freeze()
    for worker in workers:
        worker.start()
    numbers = [os.getpid(), *(worker.pid for worker in workers if worker.pid is not None)]

    def block(steps: int, folder: object = folder) -> None:  # which goes with the block
        for pipe, _ in pipes:
            pipe.send(steps)
        line.wait()
        line.wait()

    return block, lambda: _usage_of(numbers)


def vsim(work: Work) -> Block:
    """APPFL's virtual-time simulator: federated averaging of all clients after ``PERIOD`` local steps.

    Its network has a bandwidth and nothing else, and everybody is as fast. It collects garbage several times
    for every client, which takes a hundred times as long as training; nothing is left to it to look through.
    """
    from appfl.agent import ClientAgent, ServerAgent
    from appfl.vsim import ClientProfile, SyncSimDriver
    from omegaconf import OmegaConf

    parts, folder = str(Path(__file__).with_name("vsim_parts.py")), tempfile.TemporaryDirectory()
    model = {"model_path": parts, "model_name": "Perceptron", "model_kwargs": {"hidden": work.hidden}}
    training = {
        "trainer": "VanillaTrainer", "mode": "step", "num_local_steps": PERIOD, "optim": "SGD",
        "optim_args": {"lr": LR}, "loss_fn": "CrossEntropyLoss", "metric_path": parts,
        "metric_name": "accuracy", "do_validation": False,
        "optimize_memory": False, "train_batch_size": BATCH_SIZE, "device": "cpu",
        "logging_output_dirname": folder.name, "logging_output_filename": "log",
    }  # fmt: skip
    serving = {
        "num_clients": work.workers, "num_global_epochs": 10**9, "device": "cpu",
        "optimize_memory": False,
        "scheduler": "SyncScheduler", "scheduler_kwargs": {"num_clients": work.workers},
        "aggregator": "FedAvgAggregator", "aggregator_kwargs": {"client_weights_mode": "equal"},
        "logging_output_dirname": folder.name, "logging_output_filename": "log",
    }  # fmt: skip
    server = ServerAgent(
        OmegaConf.create(
            {"client_configs": {"model_configs": model, "train_configs": training}, "server_configs": serving}
        )
    )
    clients = []
    for worker in range(work.workers):
        data = {
            "dataset_path": parts,
            "dataset_name": "share_of",
            "dataset_kwargs": {"worker": worker, "workers": work.workers},
        }
        own = {
            "client_id": f"client{worker}",
            "optimize_memory": False,
            "train_configs": {"logging_output_dirname": folder.name, "logging_output_filename": "log"},
            "data_configs": data,
        }
        client = ClientAgent(OmegaConf.create(own))
        client.load_config(server.get_client_configs())
        clients.append(client)
    log = logging.getLogger("vsim")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    profiles = {client.get_id(): ClientProfile() for client in clients}
    gc.freeze()

    def block(steps: int, folder: object = folder) -> None:  # which goes with the block
        SyncSimDriver(
            server_agent=server, client_agents=clients, profiles=profiles,
            participants_per_round=work.workers, logger=log, base_step_time=0.01,
            target_rounds=max(1, steps // PERIOD),
        ).run()  # fmt: skip

    return block


WAYS: Final[Mapping[str, Callable[[Work], Any]]] = {
    "gossipy": gossipy,
    "vsim": vsim,
    "gloo_gossip": partial(gloo, "gossip"),
    "gloo_local_sgd": partial(gloo, "local_sgd"),
}


def main() -> None:
    """Serve one of them."""
    torch.set_num_threads(1)
    way, work = parse_work(sys.argv[1:])
    prepared = WAYS[way](work)
    if isinstance(prepared, tuple):
        serve(*prepared)
    else:
        serve(prepared)


if __name__ == "__main__":
    main()
