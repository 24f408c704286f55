"""The registry's record of a scheme, and its defaults."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Final, Literal

from .. import topology
from ..config.settings import Settings
from ..errors import InputError
from ..network.network import Network
from ..program.worker import Program, Worker
from ..records.run import On
from .common.held import Held, Sizes
from .common.inside import count_units
from .common.local_steps import period_steps

MAX_BUCKETS: Final = 10_000
"""Largest number of buckets of a payload: each is a collective at every step."""


def one_period(options: Any, workers: int) -> int:
    """``cycle`` of a scheme that averages every ``period`` steps."""
    return period_steps(options.period)


def publishes_averages(options: Any) -> On:
    """``publishes`` of a scheme with an average, or an outer model, of all workers."""
    return "averaged"


def publishes_none(options: Any) -> On:
    """``publishes`` of a scheme whose workers have models of their own alone."""
    return "mean"


def cycle_of_graphs(options: Any, workers: int) -> int:
    """``cycle`` of a scheme over a topology: steps after which the graphs repeat; 1 for random ones."""
    return topology.plan(options.topology, workers, options.weights).period or 1


def draws_graphs(options: Any) -> bool:
    """``draws`` of a scheme that draws nothing but perhaps the graphs of its topology."""
    graphs = getattr(options, "topology", None)
    return isinstance(graphs, topology.TopologyEntry) and topology.topology_named(graphs.name).drawn


@dataclass(frozen=True)
class Scheme:
    """An averaging scheme: its program, its options, and facts that follow from the options.

    Attributes:
        name: as in scenarios.
        program: ``async def program(worker, options)``, or a function that returns a ``Program``.
        options: settings model of the options.
        synchronous: uses pattern operations only, so results do not depend on timing (unless the options make
            it ``depends_on_timing``).
        check: raises ``InputError`` where the options do not fit the number of units: workers, or those
            ``inside`` a place (default: any fit).
        own_momentum: the scheme brings its own momentum, so its optimiser must have none.
        publishes: what ``evaluate.on: published`` scores: its averages, a leader's model, or the mean of the
            workers' models, where it has no model of all; None: what it has published by then.
        check_network: raises ``InputError`` where the options do not fit the hosts or sites; None: any fit.
        bucket_bytes: bytes of the first part of a gradient that is sent during the backward pass, and of the
            later ones; 0: one layer each, None: the gradient is sent in one piece.
        averages_gradients: whether every gradient is all-reduced, as in DDP.
        cycle: number of steps after which messages and their receivers repeat.
        parts: how many parts of the model are averaged separately; a model has at least that many parameters.
        long_run: options that give the behaviour after any warm-up from the first step.
        held: a worker's memory; None: unknown.
        depends_on_timing: whether results depend on timing: workers do not wait for each other, or averages
            leave out stragglers.
        encodes: whether averages are encoded, so that they cannot be summed in transit.
        collectives: whether it may use any; a scheme that mixes alone has no algorithm to choose.
        shrinks: whether the living can go on without a worker that fails, and take it in again.
        split: from what a worker had (``Worker.kept``), what it and the worker that it heals resume from.
        draws: whether its messages depend on the seed (default: where a topology does).
        in_shards: whether workers update a shard of the model each.
        inside: places whose workers act as one, ``hosts`` or ``sites``; None: each acts alone.
        weighs: what counts by examples where batches differ in size: the gradients that all workers share, or
            the models of workers that step alone, by ``Worker.weighed``; None: neither can.
    """

    name: str
    program: Callable[[Worker, Any], Coroutine[Any, Any, None] | Program]
    options: type[Settings]
    synchronous: bool
    check: Callable[[Any, int], object] = lambda options, workers: None
    own_momentum: bool = False
    check_network: Callable[[Any, Network], object] | None = None
    publishes: Callable[[Any], On | None] = lambda options: None
    bucket_bytes: Callable[[Any], tuple[float, float] | None] = lambda options: None
    averages_gradients: Callable[[Any], bool] = lambda options: False
    cycle: Callable[[Any, int], int] = lambda options, workers: 1
    parts: Callable[[Any], int] = lambda options: 1
    long_run: Callable[[Any], Any] = lambda options: options
    held: Callable[[Any, Sizes], Held] | None = None
    depends_on_timing: Callable[[Any], bool] = lambda options: False
    encodes: Callable[[Any], bool] = lambda options: False
    collectives: Callable[[Any], bool] = lambda options: True
    shrinks: Callable[[Any], bool] = lambda options: False
    split: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda kept: kept
    draws: Callable[[Any], bool] = draws_graphs
    in_shards: Callable[[Any], bool] = lambda options: False
    inside: Callable[[Any], str | None] = lambda options: None
    weighs: Callable[[Any], Literal["gradients", "models"] | None] = lambda options: "gradients"

    @property
    def does(self) -> str:
        """First sentence of the program's docstring; "" where there is none."""
        doc = self.program.__doc__
        if doc is None:  # ``python -OO`` drops it
            with suppress(OSError, SyntaxError, TypeError):
                tree: Any = ast.parse(dedent(inspect.getsource(self.program)))
                doc = ast.get_docstring(tree.body[0])
        text = " ".join((doc or "").partition("\n\n")[0].replace("``", "'").split())
        return re.split(r"(?<=\.) ", text, maxsplit=1)[0]

    def in_step(self, options: Settings) -> bool:
        """Whether the scheme is synchronous under these options."""
        return self.synchronous and not self.depends_on_timing(options)

    def units(self, options: Settings, network: Network) -> int:
        """Number of workers, or groups of them (``inside``), that act on their own."""
        return count_units(self.inside(options), network)

    def num_buckets(self, options: Settings, payload_bytes: float) -> int:
        """Number of equal buckets of a payload's gradient; 0: not sent during the backward pass.

        Raises ``InputError`` if the options give no such size, or for more than ``MAX_BUCKETS``. Without
        ``workload.layer_profile`` no layers could say what is ready when.
        """
        sizes = self.bucket_bytes(options)
        if sizes is None:
            return 0
        first_bytes, bucket_bytes = sizes
        if not bucket_bytes:
            equal = (
                "'unit: 100 MB', for equal units"
                if self.in_shards(options)
                else ("'bucket: 25 MB' beside overlap, for equal buckets")
            )
            raise InputError(
                "nothing is known of a payload's layers, so they cannot be sent during the backward pass; "
                f"write for example {equal} of at least that size, or name them: 'workload.layer_profile: "
                "resnet-50'"
            )
        if first_bytes != bucket_bytes:
            raise InputError(
                "nothing is known of a payload's layers, so its buckets are equally large: leave "
                "first_bucket out, or name the layers: 'workload.layer_profile: resnet-50'"
            )
        number = max(1, int(payload_bytes / bucket_bytes))
        if number > MAX_BUCKETS:
            raise InputError(
                f"the payload would be cut into {number:,} buckets, at most {MAX_BUCKETS:,} are possible; "
                "write a larger bucket"
            )
        return number

    def start(self, worker: Worker, options: Settings) -> Program:
        """Create the coroutines of one worker, not yet running."""
        program = self.program(worker, options)
        return program if isinstance(program, Program) else Program(program)
