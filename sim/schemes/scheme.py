"""The record of a scheme in the registry, and what schemes share."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final

import torch
from pydantic import Field

from ..config.limits import MAX_FACTOR
from ..config.settings import Settings
from ..errors import InputError
from ..network.network import Network
from ..program.worker import Program, Worker
from .common.held import Held, Sizes
from .common.inside import count_units


def accept_any_number(options: Settings, workers: int) -> None:
    """The ``check`` of a scheme that runs with any number of workers."""


def never(options: Settings) -> bool:
    """The ``depends_on_timing``, or ``encodes``, of a scheme whose options do not bear on that."""
    return False


def if_asynchronous(options: Any) -> bool:
    """The ``depends_on_timing`` of a scheme with an option ``asynchronous``."""
    asynchronous: bool = options.asynchronous
    return asynchronous


def act_alone(options: Settings) -> str | None:
    """The ``inside`` of a scheme whose workers each act on their own."""
    return None


def as_inside_says(options: Any) -> str | None:
    """The ``inside`` of a scheme with an option of that name."""
    inside: str | None = options.inside
    return inside


def send_at_the_end(options: Settings) -> tuple[float, float] | None:
    """The ``bucket_bytes`` of a scheme that sends nothing of a gradient before all of it is there."""
    return None


def averages_models(options: Settings) -> bool:
    """The ``averages_gradients`` of a scheme that has something else averaged."""
    return False


def in_one_part(options: Settings) -> int:
    """The ``parts`` of a scheme that averages models whole."""
    return 1


MAX_BUCKETS: Final = 10_000
"""The most buckets of a payload: each of them is a collective at every step."""


def one_step(options: Settings, workers: int) -> int:
    """The ``cycle`` of a scheme all of whose steps are alike."""
    return 1


def one_period(options: Any, workers: int) -> int:
    """The ``cycle`` of a scheme that averages every ``period`` steps."""
    period: int = options.period
    return period


def keep_options(options: Any) -> Any:
    """The ``long_run`` of a scheme that does from the start what it always does."""
    return options


@dataclass(frozen=True)
class Scheme:
    """An averaging scheme.

    Attributes:
        name: as in scenarios.
        program: ``async def program(worker, options)``, or a function that returns a ``Program``.
        options: the settings model of ``options``.
        synchronous: it uses pattern operations only, so that its iterates do not depend on the clock, unless
            its options make it ``depends_on_timing``.
        check: raises ``InputError`` where the options do not fit that many workers.
        own_momentum: it brings its momentum itself, so that its optimiser must not have any.
        averages: it publishes the averages that it makes, where it is synchronous; None: that is not known.
        check_network: raises ``InputError`` where the options do not fit the network's hosts or sites; None:
            any will do.
        bucket_bytes: of its options, the bytes of the first part of a gradient that is sent during the
            backward pass, and of those that follow; 0: a layer each, None: it is sent in one piece.
        averages_gradients: of its options, whether every gradient is all-reduced, as DDP does it.
        cycle: number of steps after which what a step sends, and to whom, repeats itself.
        parts: of its options, how many parts of the model are averaged apart from each other; a model has at
            least that many parameters.
        long_run: the options under which it does from the start what it does after any warm-up.
        held: of its options, what a worker holds in memory; None: that is not known.
        depends_on_timing: whether its options make its iterates depend on the clock: workers that do not wait
            for each other, or averages without stragglers.
        encodes: of its options, whether averages are encoded, so that they cannot be added up on their way.
        inside: of its options, the places whose workers act as one, ``hosts`` or ``sites``; None: each acts
            alone.
    """

    name: str
    program: Callable[[Worker, Any], Coroutine[Any, Any, None] | Program]
    options: type[Settings]
    synchronous: bool
    check: Callable[[Any, int], None] = accept_any_number
    own_momentum: bool = False
    check_network: Callable[[Any, Network], None] | None = None
    averages: bool | None = None
    bucket_bytes: Callable[[Any], tuple[float, float] | None] = send_at_the_end
    averages_gradients: Callable[[Any], bool] = averages_models
    cycle: Callable[[Any, int], int] = one_step
    parts: Callable[[Any], int] = in_one_part
    long_run: Callable[[Any], Any] = keep_options
    held: Callable[[Any, Sizes], Held] | None = None
    depends_on_timing: Callable[[Any], bool] = never
    encodes: Callable[[Any], bool] = never
    inside: Callable[[Any], str | None] = act_alone

    @property
    def does(self) -> str:
        """What it does, in a sentence: the first of its program's docstring; "" where there is none."""
        text = " ".join((self.program.__doc__ or "").partition("\n\n")[0].replace("``", "'").split())
        return re.split(r"(?<=\.) ", text, maxsplit=1)[0]

    def in_step(self, options: Settings) -> bool:
        """Whether it is synchronous under these options."""
        return self.synchronous and not self.depends_on_timing(options)

    def units(self, options: Settings, network: Network) -> int:
        """Number of workers, or groups of them (``inside``), that act on their own."""
        return count_units(self.inside(options), network)

    def publishes_averages(self, options: Settings) -> bool | None:
        """Whether it publishes averages under these options; None: that is not known."""
        return self.averages if self.averages is None else self.averages and self.in_step(options)

    def num_buckets(self, options: Settings, payload_bytes: float) -> int:
        """How many equal buckets the gradient of a payload has; 0: it is not sent during the backward pass.

        Of a payload without ``workload.layer_profile`` they cannot decide what is ready when.

        Raises:
            InputError: the options do not say how large a bucket is, or there would be very many.
        """
        sizes = self.bucket_bytes(options)
        if sizes is None:
            return 0
        first_bytes, bucket_bytes = sizes
        if not bucket_bytes:
            raise InputError(
                "nothing is known of a payload's layers, so they cannot be sent during the backward pass; "
                "write for example 'bucket: 25 MB' beside overlap, for equal buckets of at least that size, "
                "or name them: 'workload.layer_profile: resnet-50'"
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
        """The coroutines of one worker, not yet started."""
        program = self.program(worker, options)
        return program if isinstance(program, Program) else Program(program)


Spread = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_FACTOR,
        description="standard deviation of every worker's own start around the common one",
    ),
]


def scattered(worker: Worker, spread: float) -> torch.Tensor:
    """This worker's first model: x(0) + ``spread`` times standard normal numbers of its own, [..., d]."""
    if spread == 0:
        return worker.start
    return worker.start + spread * worker.normal("start", 0, worker.start.shape[-1:])
