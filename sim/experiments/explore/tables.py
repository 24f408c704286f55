"""The law of a lockstep clock as tables of numbers, for whoever moves clocks outside Python.

Messages of a mix, and the blocks and posts of collectives, are those of ``MixTimes`` and
``collectives.pricing``; a table holds what does not depend on speeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ...collectives.collective import Collective
from ...collectives.pipelines import least_latencies
from ...collectives.pricing import PlainBlock
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

_SLOW: Final = 2.0**-40
"""Factor on bandwidths at which no fixed one limits a route any more; a power of two, so nothing is rounded."""


class Step(NamedTuple):
    """The operations of one step, each its kind and its number in a table, or seconds."""

    operations: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Tables:
    """Distinct steps, mixes, collectives and layouts, each numbered as it comes.

    Attributes:
        kept: what has a number, so that nothing is written twice.
        steps, mixes, collectives, layouts: rows for JSON.
    """

    kept: dict[Hashable, tuple[int, Any]] = field(default_factory=dict)
    steps: list[Any] = field(default_factory=list)
    mixes: list[Any] = field(default_factory=list)
    collectives: list[Any] = field(default_factory=list)
    layouts: list[Any] = field(default_factory=list)

    def number_of(self, step: Step) -> int:
        """The number of a step."""
        return self._number(("step", step), self.steps, lambda: step.operations)

    def gradients(self, number: int) -> int:
        """Gradients of each worker in a step."""
        return sum(operation[0] == "gradient" for operation in self.steps[number])

    def entry(self, job: Job, operation: ops.Operation[Any]) -> tuple[Any, ...]:
        """An operation of all workers as a row; ``NotInLockstep`` where its time is not in closed form."""
        match operation:
            case ops.Gradient():
                return ("gradient",)
            case ops.Encode():
                took_s = job.encode_s(operation)
                return ("encode", 0.0 if took_s is None else np.broadcast_to(took_s, job.workers).tolist())
            case ops.Evaluate(duration_s=took_s) | ops.Sleep(duration_s=took_s):
                return ("pass", took_s)
            case ops.Mix():
                value = of_one_worker(operation).value
                num_bytes, pattern = message_bytes(value, job.bytes_per_parameter), operation.pattern
                key = "mix", pattern.sources, num_bytes
                return "mix", self._number(key, self.mixes, lambda: [num_bytes, pattern.sources])
        groups = partition(getattr(operation, "groups", None), job.workers)
        kind = "collective", job.label, signature(operation)
        return "collectives", tuple(
            self._number((*kind, group, root), self.collectives, lambda g=group: self._row(job, operation, g))
            for group in groups
            for root in [root_of(operation, group[0], group) if isinstance(operation, ops.Broadcast) else -1]
        )

    def _row(self, job: Job, operation: Any, group: tuple[int, ...]) -> dict[str, Any]:
        """A collective of a group, with each algorithm from which its scheme may choose."""
        one, taken = of_one_worker(operation), Algorithms()
        only = replace(job, chosen=taken).choice.collective_of(one, group, group[0])
        what, payloads = next(iter(taken.taken.items()), ("", {}))
        sites = next(iter(payloads))[1] if payloads else ()
        names = [
            name
            for name in (job.choice.candidates(what) if what else ())
            if not math.isinf(least_latencies(name, sites))
        ]
        variants = [
            (name, *replace(job, chosen=Algorithms({what: name})).choice.collective_of(one, group, group[0]))
            for name in names
        ]
        return {
            "what": what,
            "root": isinstance(operation, ops.Broadcast),
            "fixed": isinstance(operation, ops.AllGather),
            "of": [
                {"name": name, "hosts": hosts, "layout": self._layout(job, collective, hosts)}
                for name, collective, hosts in variants or [("", *only)]
            ],
        }

    def _layout(self, job: Job, collective: Collective, hosts: tuple[int, ...]) -> int:
        placed, model = place(collective, hosts, job.transfer), job.transfer
        own_links = model.sharing == "none" or placed.access_only
        if not placed.always_apart or placed.costs.stream is not None or not own_links:
            raise NotInLockstep("messages of its collectives share links (network.sharing)")
        return self._number(("layout", collective), self.layouts, lambda: _rows_of(placed.layout))

    def _number(self, key: Hashable, rows: list[Any], row: Callable[[], Any]) -> int:
        if key not in self.kept:
            self.kept[key] = -1, key
            written = row()
            self.kept[key] = len(rows), key
            rows.append(written)
        return self.kept[key][0]


def _rows_of(layout: Any) -> dict[str, Any]:
    c: Collective = layout.collective
    return {
        "ranks": c.ranks,
        "rendezvous": c.rendezvous,
        "tail": c.tail,
        "piece_bytes": (c.num_bytes / c.pieces)[layout.numbers].tolist(),
        "nodes": [
            [node.source, node.destination, node.offered, node.posted, node.pieces, node.after, node.behind]
            if isinstance(node, PlainBlock)
            else [node.post, node.rank, node.before, [2 * place + comes for place, comes in node.ends]]
            for node in layout.plain
        ],
    }


def scaled(network: Network, latency: float, bandwidth: float) -> Network:
    """A network with factors on the latencies and bandwidths between its sites; without sites on all.

    Links inside the nodes of several GPUs stay as they are.
    """
    apart = len(network.sites) > 1 and not network.routes
    inner = {*network.inner_up.values(), *network.inner_down.values()}
    everywhere = set(range(len(network.links))) - inner
    far = {*network.pipe.values(), *network.leave.values(), *network.enter.values()} if apart else everywhere
    sites = range(len(network.sites))

    def table(values: tuple[tuple[float, ...], ...], factor: float) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(values[a][b] * (1.0 if apart and a == b else factor) for b in sites) for a in sites
        )

    return replace(
        network,
        links=tuple(
            replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * (bandwidth if i in far else 1.0))
            for i, link in enumerate(network.links)
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
    """Costs between any two hosts: [n, n] numbers of ``costs``.

    A cost is (a, b, c, d): with factors l and w on latencies and bandwidths a message takes a + b l seconds and
    max(c, d / w) seconds per byte.
    """
    n = model.network.num_hosts
    sources, destinations = np.divmod(np.arange(n * n), n)
    apart = sources != destinations

    def routes(latency: float, bandwidth: float) -> Any:
        changed = replace(model, network=scaled(model.network, latency, bandwidth))
        return HostRoutes(changed).of(sources[apart], destinations[apart])

    fixed_s, free = routes(0.0, math.inf)
    whole_s, slow = routes(1.0, _SLOW)
    rows = np.stack([fixed_s, whole_s - fixed_s, 1 / free, 1 / (slow / _SLOW)], axis=1)
    costs, which = np.unique(rows, axis=0, return_inverse=True)
    number = np.zeros(n * n, np.int64)
    number[apart] = which.ravel()
    return {"costs": costs.tolist(), "of": number.reshape(n, n).tolist()}
