"""The law of a lockstep clock as tables of numbers, for whoever moves clocks outside Python.

They hold what ``lockstep.messages`` and ``collectives.pricing`` compute with, and no times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ...collectives.collective import Collective
from ...collectives.pipelines import least_latencies
from ...collectives.pricing import Layout, PlainBlock
from ...drivers.job import Job
from ...drivers.lockstep.collectives import of_one_worker, signature
from ...drivers.lockstep.messages import HostRoutes
from ...errors import NotInLockstep
from ...network.network import Network
from ...network.transfer import TransferModel
from ...program import operations as ops
from ...program.averaging import root_of
from ...program.encoding import message_bytes
from ...program.groups import partition
from ...traffic.choice import Algorithms
from ...traffic.placing import place

Row = tuple[str, Any]
"""An operation: its kind, and seconds or numbers in a table."""

_SLOW: Final = 2.0**-40
"""Factor on bandwidths at which no other one limits a route; a power of two, so nothing is rounded."""


@dataclass(frozen=True)
class Tables:
    """Distinct steps, mixes, collectives and layouts: ``rows`` by table, each with a number in ``kept``."""

    kept: dict[Hashable, int] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(
        default_factory=lambda: {"steps": [], "mixes": [], "collectives": [], "layouts": []}
    )

    def number_of(self, table: str, key: Hashable, row: Callable[[], Any] | None = None) -> int:
        """The number of a row, by default the key itself, which is added if it is new."""
        if (table, key) not in self.kept:
            self.rows[table].append(key if row is None else row())
            self.kept[table, key] = len(self.rows[table]) - 1
        return self.kept[table, key]

    def gradients(self, step: int) -> int:
        """Gradients of each worker in a step."""
        return sum(kind == "gradient" for kind, _ in self.rows["steps"][step])

    def row_of(self, job: Job, operation: ops.Operation[Any]) -> Row:
        """The row of an operation of all workers; ``NotInLockstep``: its time is not in closed form."""
        match operation:
            case ops.Gradient():
                return "gradient", 0
            case ops.Encode():
                took_s = job.encode_s(operation) or 0.0
                return "encode", tuple(np.broadcast_to(took_s, job.workers).tolist())
            case ops.Evaluate(duration_s=took_s) | ops.Sleep(duration_s=took_s):
                return "pass", took_s
            case ops.Mix(pattern=pattern):
                num_bytes = message_bytes(of_one_worker(operation).value, job.bytes_per_parameter)
                return "mix", self.number_of("mixes", (num_bytes, pattern.sources))
        numbers = []
        for group in partition(getattr(operation, "groups", None), job.workers):
            root = root_of(operation, group[0], group) if isinstance(operation, ops.Broadcast) else -1
            key = job.label, job.options, signature(operation), group, root
            numbers.append(
                self.number_of("collectives", key, lambda g=group: self._collective(job, operation, g))  # type: ignore[misc]
            )
        return "collectives", tuple(numbers)

    def _collective(self, job: Job, operation: Any, group: tuple[int, ...]) -> dict[str, Any]:
        """A group's collective, with each algorithm from which its scheme may choose."""
        one, taken = of_one_worker(operation), Algorithms()

        def placed(chosen: Algorithms) -> dict[str, Any]:
            collective, hosts = replace(job, chosen=chosen).choice.collective_of(one, group, group[0])
            return {"hosts": hosts, "layout": self._layout(job, collective, hosts)}

        of = {"": placed(taken)}
        for what, payloads in taken.taken.items():
            sites = next(iter(payloads))[1]
            names = [n for n in job.choice.candidates(what) if math.isfinite(least_latencies(n, sites))]
            of = {name: placed(Algorithms({what: name})) for name in names}
        return {
            "what": next(iter(taken.taken), ""),
            "root": isinstance(operation, ops.Broadcast),
            "plain": isinstance(operation, ops.AllGather),
            "of": of,
        }

    def _layout(self, job: Job, collective: Collective, hosts: tuple[int, ...]) -> int:
        placed, model = place(collective, hosts, job.transfer), job.transfer
        alone = placed.always_apart and (model.sharing == "none" or placed.access_only)
        if not alone or placed.costs.stream is not None:
            raise NotInLockstep("messages of its collectives may share links (network.sharing)")
        return self.number_of("layouts", collective, lambda: _in_rows(placed.layout))


def _in_rows(layout: Layout) -> dict[str, Any]:
    c = layout.collective
    return {
        "rendezvous": c.rendezvous,
        "tail": c.tail,
        "piece_bytes": (c.num_bytes / c.pieces)[layout.numbers].tolist(),
        "nodes": [
            node[1:]
            if isinstance(node, PlainBlock)
            else (*node[:3], [2 * block + comes for block, comes in node.ends])
            for node in layout.plain
        ],
    }


def scaled(network: Network, latency: float, bandwidth: float) -> Network:
    """A network with factors on latencies and bandwidths between its sites; without sites on all.

    Links inside hosts of several GPUs stay as they are.
    """
    apart, sites = len(network.sites) > 1 and not network.routes, range(len(network.sites))
    far = {*network.pipe.values(), *network.leave.values(), *network.enter.values()}
    near = {*network.inner_up.values(), *network.inner_down.values()}
    factors = [
        bandwidth if (i in far if apart else i not in near) else 1.0 for i in range(len(network.links))
    ]

    def table(values: tuple[tuple[float, ...], ...], factor: float) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(values[a][b] * (1.0 if apart and a == b else factor) for b in sites) for a in sites
        )

    return replace(
        network,
        links=tuple(
            replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
            for link, factor in zip(network.links, factors, strict=True)
        ),
        latency_s=table(network.latency_s, latency),
        per_flow_bytes_per_s=table(network.per_flow_bytes_per_s, bandwidth),
        routes={
            pair: replace(
                route,
                latency_s=route.latency_s * latency,
                per_flow_bytes_per_s=route.per_flow_bytes_per_s * bandwidth,
            )
            for pair, route in network.routes.items()
        },
    )


def pairs_of(model: TransferModel) -> dict[str, Any]:
    """Costs between any two hosts: ``pairs`` [n, n] are numbers of ``costs``.

    A cost is (a, b, c, d): with factors l and w on latencies and bandwidths a message takes a + b l seconds,
    and max(c, d / w) for each byte.
    """
    n = model.network.num_hosts
    sources, destinations = np.nonzero(~np.eye(n, dtype=bool))

    def routes(latency: float, bandwidth: float) -> Any:
        changed = replace(model, network=scaled(model.network, latency, bandwidth))
        return HostRoutes(changed).of(sources, destinations)

    (fixed_s, free), (whole_s, slow) = routes(0.0, math.inf), routes(1.0, _SLOW)
    rows = np.stack([fixed_s, whole_s - fixed_s, 1 / free, _SLOW / slow], axis=1)
    costs, which = np.unique(rows, axis=0, return_inverse=True)
    pairs = np.zeros((n, n), np.int64)
    pairs[sources, destinations] = which.ravel()
    return {"costs": costs.tolist(), "pairs": pairs.tolist()}
