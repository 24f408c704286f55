"""Run requests (one scheme, seed and length each), orders to the processes that do them, and their answers.

A request's length is fixed before a run begins, by the scenario or by a prediction.

An order is ``{"join": {"rank", "size", "store", "timeout_s"}}`` to meet the others in a new group,
``{"leave": {}}``, or ``{"run": {"request", "timeout_s", "faults", "code", "life"}}``, where ``code`` has the
folders of the scenario's own modules. Answers to a run, or to a failed join, are ``{"progress": steps}``
from rank 0, ``{"result": ...}`` from the collecting rank, ``{"done": rank}`` from every rank, or
``{"error": [kind, text]}``; from a rank whose view is over, ``{"left": exchanges}`` (-1: not healed yet).

A process of the launcher gets orders as lines of JSON on standard input, and answers in lines of JSON on what
was standard output; all other output goes to standard error. For a rank of torchrun or Slurm both go through
the job's control store (``paceline.realrun.launch.launched_job``).
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from pydantic import TypeAdapter
from torch._C._distributed_c10d import FileStore, Store

from paceline.sim.config.problems import format_message
from paceline.sim.config.user_code.code_files import add_folders
from paceline.sim.drivers.job import UNRECORDED, Job
from paceline.sim.errors import InputError, PacelineError, RunError, shorten
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.prepare import churn_of, prepare, seeds_of
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.faults.outages import Churn
from paceline.sim.network.build import build_network
from paceline.sim.records.run import Run
from paceline.sim.records.unfinished import NOTHING_KEPT, Parts, begin_parts, open_parts
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.repeats import AutoRepeats
from paceline.sim.scenario.schema import Scenario, dump, over_transport, parse
from paceline.sim.schemes import find_scheme

from ..driver.one_run import run_job
from ..driver.rank_log import Timing
from ..driver.rank_state import Life
from ..group.group import Group, join, leave
from ..lab import Lab
from ..transport.device import device_of


@dataclass(frozen=True)
class RunRequest:
    """A real run to be made.

    Attributes:
        scenario: the text of the resolved scenario.
        entry: number of the scheme in it.
        seed: of the repeat.
        max_iterations, max_time_s: its length, fixed before it begins; None: no such limit.
        draws: the seed of its computing times; None: ``seed``.
    """

    scenario: str
    entry: int
    seed: int
    max_iterations: int | None = None
    max_time_s: float | None = None
    draws: int | None = None

    @property
    def workers(self) -> int:
        """Number of ranks."""
        return _parsed(self.scenario).cluster.workers

    @property
    def connects_anew(self) -> bool:
        """Whether to reconnect: hosts with a stock TCP would keep the windows of the run before."""
        return _parsed(self.scenario).cluster.network.tcp is not None

    @property
    def crashing(self) -> frozenset[int]:
        """Ranks planned by the scenario to end before the run does."""
        stragglers = _parsed(self.scenario).cluster.stragglers
        return frozenset(rank for each in stragglers if each.crash for rank in each.workers or ())

    @property
    def churn(self) -> Churn | None:
        """Faults and checkpoints of the run."""
        scenario = _parsed(self.scenario)
        return churn_of(scenario, scenario.schemes[self.entry], self.seed)


@dataclass(frozen=True)
class Result:
    """The outcome of a run: its record, and each worker's fidelity to the compute model.

    The record of a failed run is ``partial``, with the reason in its ``message``.
    """

    run: Run
    timings: tuple[Timing, ...]


class RankPool(Protocol):
    """Processes that do one real run after another: launched for it, perhaps in a lab, or those of a job."""

    lab: Lab | None = None

    def run(self, request: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        """Execute one run; ``progress`` is called with rank 0's step count. ``InputError``: the request has
        no real run; ``RunError``: it failed before its record.
        """


REQUEST: Final = TypeAdapter(RunRequest)
RESULT: Final = TypeAdapter(Result)
"""JSON codecs of requests and results."""


def run_requests(scenario: Scenario) -> list[RunRequest]:
    """One request per scheme and seed; ``InputError`` if the scenario does not fix a scheme's length."""
    check_fixed(scenario)
    stop = scenario.stop
    for entry in scenario.schemes:
        synchronous = find_scheme(entry.name).in_step(entry.options)
        if stop.max_iterations is None and (stop.max_time is None or synchronous):
            raise InputError(
                f"{shorten(entry.label)}: a real run's length is fixed before it starts: give "
                "stop.max_iterations" + ("" if synchronous else " or stop.max_time")
            )
    text = dump(scenario)
    return [
        RunRequest(text, number, seed, stop.max_iterations, stop.max_time)
        for seed in seeds_of(scenario)
        for number in range(len(scenario.schemes))
    ]


@contextmanager
def keep_runs(
    scenario: Scenario, command: str, out: Path | None, force: bool, say: Callable[[str], None]
) -> Iterator[Parts]:
    """Keep a command's measured runs in ``out``, if given; arguments and errors as ``open_parts``."""
    if out is None:
        yield NOTHING_KEPT
        return
    text = dump(over_transport(scenario, scenario.cluster.backend))
    begin = partial(begin_parts, out, command, scenario.name, force, text.__eq__, lambda: text, say)
    with open_parts(out, begin, say) as parts:
        yield replace(parts, facts=describe_schemes(scenario, with_bounds=False))


def check_fixed(scenario: Scenario) -> None:
    """Raise ``InputError`` unless the scenario fixes all its runs in advance."""
    if isinstance(scenario.repeats, AutoRepeats):
        raise InputError("a real run needs a number of repeats: add --set repeats=5")
    if scenario.tune is not None:
        raise InputError(
            "values are tuned in simulation: run 'paceline simulate SCENARIO --out DIR', then give "
            "DIR/scenario.yaml, which holds the values chosen"
        )


@lru_cache(maxsize=8)
def _parsed(text: str) -> Scenario:
    return parse(text)


def with_draws(job: Job, seed: int) -> Job:
    """``job`` with computing times drawn under another seed; data and all else stay."""
    return replace(job, compute=replace(job.compute, seed=seed))


def requested_job(request: RunRequest, rank: int) -> Job:
    """The job of a request, with its values on the device of this rank's backend."""
    scenario = _parsed(request.scenario)
    device = device_of(scenario.cluster.backend, rank)
    job = prepare(scenario, scenario.schemes[request.entry], request.seed, device)
    limit_s = float("inf") if request.max_time_s is None else request.max_time_s
    job = replace(job, max_iterations=request.max_iterations, max_time_s=limit_s)
    return job if request.draws is None else with_draws(job, request.draws)


LENGTH_MARGIN: Final = 1.2
"""Ratio of a real run's steps, or time, to those of its prediction."""


def with_length(request: RunRequest, scenario: Scenario, entry: SchemeEntry, predicted: Run) -> RunRequest:
    """The request with the length of its prediction, and a margin.

    A synchronous scheme gets a number of steps: ``LENGTH_MARGIN`` times those of the worker furthest ahead at
    the prediction's end, rounded up to whole multiples of ``evaluate.every`` and then of the scheme's period.
    An asynchronous one gets a time, after which its workers stop where they are. ``stop.max_iterations``
    limits each worker on both sides; without a target it is the length as it stands. ``predicted`` was
    simulated to the target or to the scenario's limits.
    """
    limit = scenario.stop.max_iterations
    if scenario.stop.target is None and limit is not None:
        return replace(request, max_iterations=limit, max_time_s=None)
    scheme, cluster = find_scheme(entry.name), scenario.cluster
    if scheme.in_step(entry.options):
        last = predicted.evaluations[-1].steps if predicted.evaluations else ()
        steps = math.ceil(LENGTH_MARGIN * max(predicted.iterations, *last, 0))
        units = scheme.units(entry.options, build_network(cluster.network, cluster.workers))
        for whole in (scenario.evaluate.every, scheme.cycle(entry.options, units)):
            steps = max(1, math.ceil(steps / whole)) * whole
        return replace(request, max_iterations=steps if limit is None else min(steps, limit), max_time_s=None)
    needed_s = predicted.time_to_target_s or predicted.wall_clock_s
    return replace(request, max_iterations=limit, max_time_s=LENGTH_MARGIN * needed_s)


def with_lengths(scenario: Scenario, progress: Callable[[str, int], None] | None = None) -> list[RunRequest]:
    """The requests of a scenario with lengths predicted for the backend of the real runs.

    ``stop.max_iterations`` is the length where given; otherwise each run is simulated first.
    """
    if scenario.stop.max_iterations is not None:
        return run_requests(scenario)
    bounded = scenario.model_copy(update={"stop": scenario.stop.model_copy(update={"max_iterations": 1})})
    carried = over_transport(scenario, scenario.cluster.backend)
    requests = []
    for request in run_requests(bounded):
        entry = scenario.schemes[request.entry]
        job = prepare(carried, entry, request.seed)
        run = simulate_job(
            replace(job, recording=UNRECORDED), progress=progress, profile=carried.cluster.profile
        )
        requests.append(with_length(request, scenario, entry, run))
    return requests


Report = Callable[[Mapping[str, Any]], None]
"""Receives an answer."""

OpenStore = Callable[[str, int], Store]
"""Opens the store of a group, from its name in the order and the number of ranks."""

_PROGRESS_EVERY_S: Final = 0.2


def serve() -> NoReturn:
    """Obey orders until standard input ends or a run fails, and exit."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries must not print between the answers

    def report(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    orders = (json.loads(line) for line in sys.stdin)
    status = 1
    try:
        status = obey(orders, report, FileStore)
    except PacelineError as error:
        report(error_answer(error))
    answers.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo


def obey(orders: Iterable[Mapping[str, Any]], report: Report, open_store: OpenStore) -> int:
    """Obey orders until they end, or a run fails; returns the exit status.

    Raises ``InputError`` for an order without a real run, ``RunError`` if other ranks did not come.
    """
    group: Group | None = None
    abandoned: list[Group] = []
    for each in orders:
        ((order, details),) = each.items()
        if order == "run":
            assert group is not None
            run_order(group, report, **details)
            if group.standing is not None:
                abandoned.append(group)  # gloo would wait for what others have left undone, for ever
            if group.broken:
                return 1
            continue
        if group is not None:
            leave(group)
            group = None
        if order == "join":
            size = details["size"]
            group = join(open_store(details["store"], size), details["rank"], size, details["timeout_s"])
            group.standing = abandoned[-1].standing if abandoned else None
    return 0


def error_answer(error: PacelineError) -> Mapping[str, Any]:
    """The answer of a rank that cannot continue."""
    return {"error": ["InputError" if isinstance(error, InputError) else "RunError", format_message(error)]}


def run_order(
    group: Group,
    report: Report,
    request: Mapping[str, Any],
    timeout_s: float,
    faults: Mapping[str, int],
    code: Sequence[str],
    life: Mapping[str, Any],
) -> None:
    """Take part in a run; every rank calls this alike.

    Raises:
        InputError: it cannot be run for real.
        RunError: a rank did not come to the start, or the backend does not connect them.
    """
    add_folders(code)
    reported_s = 0.0

    def progress(steps: int) -> None:
        nonlocal reported_s
        now_s = time.monotonic()
        if group.rank == 0 and now_s - reported_s >= _PROGRESS_EVERY_S:
            reported_s = now_s
            report({"progress": steps})

    parsed = REQUEST.validate_python(request)
    ended = run_job(
        group,
        requested_job(parsed, group.rank) if group.standing is None else group.standing.job,
        backend=_parsed(parsed.scenario).cluster.backend,
        timeout_s=timeout_s,
        faults={int(rank): number for rank, number in faults.items()},
        progress=progress,
        life=Life(**life),
    )
    if group.standing is not None:
        report({"left": group.standing.exchanges if group.standing.states else -1})
        return
    if ended.run is not None:
        report({"result": RESULT.dump_python(Result(ended.run, ended.timings), mode="json")})
    report({"done": group.rank})


AFTER_A_FAILURE_S: Final = 15.0
"""Time for other processes to continue after a failure, beyond the time-out of a wait."""
AFTER_A_RECORD_S: Final = 1.0
"""Time for processes to end after the record of a failed run, or after a death before its first step."""


class RunState:
    """The state of one run; the ``planned`` ranks end on their own, and the others continue.

    Attributes:
        waited: ranks that are not done yet.
        begun: whether the first rank has done a step.
        left: ranks that have left their view, and after how many exchanges.
        lost: ranks whose processes ended without reporting an error.
        result: the record, once it is there.
        failed_s: time of the first sign of failure; None: none.
    """

    def __init__(self, members: Iterable[int], planned: frozenset[int]) -> None:
        self.waited = set(members)
        self.left: dict[int, int] = {}
        self._planned = planned
        self.begun = False
        self.lost: set[int] = set()
        self.result: Result | None = None
        self.failed_s: float | None = None
        self._errors: dict[int, tuple[str, str]] = {}

    def note_answer(self, rank: int, answer: Mapping[str, Any]) -> None:
        """Record an answer of a rank."""
        if "result" in answer:
            self.result = RESULT.validate_python(answer["result"])
            if self.result.run.status == "partial":
                self._fail()
        elif "error" in answer:
            kind, text = answer["error"]
            self._errors[rank] = (kind, text)
            self._fail()
        elif "left" in answer:
            self.left[rank] = answer["left"]
            self.waited.discard(rank)
        elif "done" in answer:
            self.waited.discard(rank)
        elif "progress" in answer:
            self.begun = True

    def note_end(self, rank: int) -> bool:
        """Record the end of a rank's process; returns whether to tell the others."""
        if rank not in self.waited:
            return False
        self.waited.discard(rank)
        if rank in self._planned:
            return True
        self._fail()
        if rank in self._errors:
            return False
        self.lost.add(rank)
        return True

    def lost_patience(self, timeout_s: float) -> bool:
        """Whether the others have had time enough after a failure; less once the record is there."""
        soon = self.result is not None or (self.lost and not self.begun)
        more_s = AFTER_A_RECORD_S if soon else timeout_s + AFTER_A_FAILURE_S
        return self.failed_s is not None and time.monotonic() > self.failed_s + more_s

    def _fail(self) -> None:
        if self.failed_s is None:
            self.failed_s = time.monotonic()

    def failure(self, fates: str) -> Result:
        """Record of a failed run, with one message for all failures; raises that if there is no record."""
        added = f" ({fates})" if fates else ""
        if self.result is not None:
            run = self.result.run
            return replace(self.result, run=replace(run, status="partial", message=run.message + added))
        if self._errors:
            kind, text = self._errors[min(self._errors)]
            raise InputError(text) if kind == "InputError" else RunError(text + added)
        raise RunError(fates or "the processes ended without a word")
