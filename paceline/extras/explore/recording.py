"""Runs in lockstep recorded as tables of numbers: what their clock computes with, and no times.

``paceline/extras/explore/law.js`` moves the clock by them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from paceline.sim.collectives.collective import Collective, Lists
from paceline.sim.collectives.pipelines import least_latencies
from paceline.sim.collectives.pricing import Layout, PostStep
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.collective_times import of_one_worker, signature
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.drivers.lockstep.stacked import StackedTask
from paceline.sim.drivers.outcome import run_record
from paceline.sim.drivers.tasks.runner import InFlight
from paceline.sim.errors import NotInLockstep
from paceline.sim.network.transport import TransferModel
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import root_of
from paceline.sim.program.encoding import message_bytes
from paceline.sim.program.groups import partition
from paceline.sim.records.run import Run
from paceline.sim.traffic.placing import place
from paceline.sim.traffic.selection import Algorithms
from paceline.sim.training.scoring import Scorer


@dataclass(frozen=True)
class Tables:
    """Distinct steps, mixes, collectives and layouts: ``rows`` by table, each with a number in ``kept``."""

    kept: dict[Hashable, int] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def number_of(self, table: str, key: Hashable, row: Any = None) -> int:
        """The number of a row, by default the key itself, which is added if it is new."""
        if (table, key) not in self.kept:
            self.kept[table, key] = len(self.rows[table])
            self.rows[table].append(row or key)
        return self.kept[table, key]

    def row_of(self, job: Job, operation: ops.Operation[Any]) -> tuple[str, Any]:
        """An operation's kind, and seconds or numbers in a table; ``NotInLockstep``: no closed form."""
        match operation:
            case ops.Gradient():
                return "gradient", 0
            case ops.Encode():
                took_s = job.encode_s(operation) or 0.0
                return "encode", tuple(np.broadcast_to(took_s, job.workers).tolist())
            case ops.Evaluate() | ops.SpendRound() | ops.Sleep():
                return "pass", operation.duration_s
            case ops.Mix(pattern=pattern):
                num_bytes = message_bytes(of_one_worker(operation).value, job.bytes_per_parameter)
                return "mix", self.number_of("mixes", (num_bytes, pattern.sources))
        groups = partition(getattr(operation, "groups", None), job.workers)
        return "collectives", tuple(self._collective(job, operation, group) for group in groups)

    def hand_over(self, job: Job) -> int | None:
        """Number of the step after which somebody holds the mean model; None: no scores wait for it."""
        if not job.hand_over.time_s:
            return None
        return self.number_of("steps", (self.row_of(job, ops.AllReduce(job.vectorised_worker().start)),))

    def _collective(self, job: Job, operation: Any, group: tuple[int, ...]) -> int:
        """The number of a group's collective, with each algorithm from which its scheme may choose."""
        root = root_of(operation, group[0], group) if isinstance(operation, ops.Broadcast) else None
        key = job.bytes_per_parameter, signature(operation), group, root
        if ("collectives", key) in self.kept:
            return self.kept["collectives", key]
        one, taken = of_one_worker(operation), Algorithms()

        def placed(chosen: Algorithms) -> dict[str, Any]:
            taking = replace(job, collectives=replace(job.collectives, chosen=chosen))
            collective, hosts = taking.choice.collective_of(one, group, group[0])
            return {"hosts": hosts, "layout": self._layout(job, collective, hosts)}

        of = {"": placed(taken)}
        for what, payloads in taken.taken.items():
            sites = next(iter(payloads))[1]
            names = [n for n in job.choice.candidates(what) if math.isfinite(least_latencies(n, sites))]
            of = {name: placed(Algorithms({what: name})) for name in names}
        what, plain = next(iter(taken.taken), ""), isinstance(operation, ops.AllGather)
        row = {"what": what, "root": root is not None, "plain": plain, "of": of}
        return self.number_of("collectives", key, row)

    def _layout(self, job: Job, collective: Collective, hosts: tuple[int, ...]) -> int:
        placed = place(collective, hosts, job.transfer)
        alone = placed.always_apart and (job.transfer.sharing == "none" or placed.access_only)
        if not alone or placed.costs.stream is not None:
            raise NotInLockstep("messages of its collectives may share links (network.sharing)")
        layout, piece_bytes = placed.layout, collective.num_bytes / collective.pieces
        row: dict[str, Any] = {"rendezvous": collective.rendezvous, "tail": collective.tail}
        row["piece_bytes"] = piece_bytes[layout.numbers].tolist()
        row["nodes"] = _nodes(layout)
        return self.number_of("layouts", collective, row)


def _nodes(layout: Layout) -> list[list[Any]]:
    """Posts and blocks one by one, in an order in which none needs a later one; without streams.

    A post is its number, its rank, the post before it, and its ends: positions of blocks, and whether it
    receives them. A block is its source and destination, the posts that offer and take it, its pieces, and
    the positions of the blocks that it needs and is behind; its own position is its place among blocks.
    """
    c, at = layout.collective, np.argsort(layout.numbers)
    ends, *needs = (Lists(each.start, at[each.flat]).tolist() for each in (c.ends, c.after, c.behind))
    source, rank, before = c.source[layout.numbers].tolist(), c.post_rank.tolist(), c.post_before.tolist()
    columns = [each.tolist() for each in (c.source, c.destination, c.offered, c.posted, c.pieces)] + needs
    nodes: list[list[Any]] = []
    for step in layout.steps:
        if isinstance(step, PostStep):
            for post in layout.posts[step.here].tolist():
                parts = [(each, source[each] != rank[post]) for each in ends[post]]
                nodes.append([post, rank[post], before[post], parts])
        else:
            nodes += ([column[k] for column in columns] for k in layout.numbers[step.here].tolist())
    return nodes


class RecordingDriver(LockstepDriver):
    """A lockstep driver that keeps each step's operations in ``tables``; ``steps``: their numbers there."""

    def __init__(self, job: Job, scorer: Scorer[Tensor], tables: Tables) -> None:
        super().__init__(job, scorer)
        self._tables, self._now, self.steps = tables, list[tuple[str, Any]](), list[int]()

    @override
    def complete(self, task: StackedTask, operation: ops.Operation[Any]) -> Any:
        self._now.append(self._tables.row_of(self.job, operation))
        return super().complete(task, operation)

    @override
    def issue(self, task: StackedTask, operation: ops.Operation[Any], handle: ops.Handle | None) -> InFlight:
        pending = super().issue(task, operation, handle)
        self._now.append(("start", self._tables.row_of(self.job, operation)[1]))
        return pending

    @override
    def wait(self, task: StackedTask, operation: ops.Wait) -> Any:
        self._now.append(("wait", 0))
        return super().wait(task, operation)

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        super().publish(task, operation)
        self.steps.append(self._tables.number_of("steps", tuple(self._now)))
        self._now.clear()


def record(job: Job, tables: Tables) -> tuple[Run, list[int]]:
    """Run a job; return the run, and each step's number in ``tables``. Raises ``RunError``."""
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    driver = RecordingDriver(job, scorer, tables)
    return run_record(job, driver.run(), scorer, "simulated"), driver.steps


def pairs_of(model: TransferModel) -> dict[str, Any]:
    """Costs between any two hosts: ``pairs`` [n, n] are numbers of ``costs``.

    A cost is (a, b, c, d): with factors l and w on latencies and bandwidths between sites (without sites on
    all but those inside a host) a message takes a + b l seconds, and max(c, d / w) for each byte.
    """
    network, costs = model.network, dict[tuple[float, ...], int]()
    apart = len(network.sites) > 1 and not network.routes
    access = {*network.up.values(), *network.down.values()} if apart else ()

    def cost(source: int, destination: int) -> tuple[float, ...]:
        route, site = network.route(source, destination), network.site_of
        far = not network.same_node(source, destination)
        far = far and (site[source] != site[destination] or not apart)
        scaled_s, rates = route.latency_s * far, ([math.inf], [math.inf])
        rates[far].append(route.per_flow_bytes_per_s)
        for link in route.links:
            rates[far and link not in access].append(network.links[link].bandwidth_bytes_per_s)
        slowest = (1 / (min(each) * model.efficiency) for each in rates)
        return model.added_latency_s + route.latency_s - scaled_s, scaled_s, *slowest

    hosts = range(network.num_hosts)
    pairs = [[costs.setdefault(cost(a, b), len(costs)) if a != b else 0 for b in hosts] for a in hosts]
    return {"costs": list(costs), "pairs": pairs}
