"""The laws that a scheme keeps on every driver, for a test of its author's: ``paceline.testing``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from typing_extensions import override

from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes, measure_runs
from paceline.sim.devices import one_thread
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job, Recording
from paceline.sim.drivers.lockstep.exact import same_values
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.drivers.outcome import Outcome
from paceline.sim.drivers.tasks.clocked import Pending
from paceline.sim.drivers.tasks.runner import CoroutineTask
from paceline.sim.errors import Deadlock, NotInLockstep, RunError
from paceline.sim.experiments.parity import Combination, Models, Recorder, compare_iterates
from paceline.sim.experiments.prepare import prepare
from paceline.sim.program.operations import Handle, Publish
from paceline.sim.records.run import Event
from paceline.sim.scenario.schema import Scenario, resolve_scenario
from paceline.sim.training.scoring import as_they_are, iterate_digest
from paceline.sim.training.snapshots import Published

from .replay_driver import replay
from .verify import replay_run

SMALL: Final[Mapping[str, Any]] = {
    "name": "small",
    "workload": {"task": "digits-mlp", "batch_size": 8, "optimizer": {"lr": 0.1}},
    "cluster": {
        "workers": 4,
        "compute": {"time": "20 ms", "jitter": {"lognormal": {"cv": 0.3}}},
        "network": {"latency": "1 ms", "bandwidth": "100 Mbit/s", "sharing": "none"},
    },
    "schemes": ["all_reduce"],
    "stop": {"max_iterations": 12},
}
"""Twelve steps of four workers; the scheme is replaced."""

_MOST: Final = 1e3
"""Times the seconds that its gradients take, and one, after which a scheme counts as endless."""

LAWS: Final = {
    "rules": ("it runs without an error", "see 'The rules' in the tutorial on writing a scheme"),
    "ends": (
        "every worker does all its steps and ends",
        "have all workers ask for the same exchanges in one order, by what all of them know, and end after "
        "'async for k in worker.steps()'",
    ),
    "sends": (
        "workers exchange something",
        "await worker.all_reduce and its like, without 'await' they do nothing; give options, or "
        "changes=['stop.max_iterations=40'], by which it averages within the run",
    ),
    "in_place": ("no value is written in place", "write x = x + y, not x += y: others read the tensor"),
    "seed": (
        "one seed gives one run, to the bit",
        "draw by worker.draw(purpose, k, bound) or worker.normal, not from torch, numpy or random, and keep "
        "nothing in variables that outlive a run",
    ),
    "replay": (
        "its record is replayed to the same models",
        "keep what a worker knows in its coroutine, not in variables that workers share; draw by "
        "worker.draw; never write into what was received",
    ),
    "clock": (
        "models of a synchronous scheme do not depend on the clock",
        "decide by k and by values, not by worker.now(), nor by what other workers have left in variables",
    ),
    "lockstep": (
        "all workers as one value [workers, d] do what each alone does",
        "reduce over dim=-1 and give each row its own; where that cannot be, read worker.rank: then the "
        "scheme runs by events",
    ),
    "processes": ("real processes do what is simulated", "share nothing between workers but by exchanges"),
}
"""Law -> what it says, and how to go on where it is broken."""


def check_scheme(
    scheme: Callable[..., Any] | str,
    options: Mapping[str, Any] | None = None,
    *,
    scenario: Scenario | Mapping[str, Any] | str | Path = SMALL,
    changes: Sequence[str] = (),
    processes: bool = False,
) -> dict[str, str]:
    """Check that a scheme keeps the laws of schemes, in a second or so; for your own tests.

    ::

        from paceline.testing import check_scheme


        def test_mine():
            check_scheme("my_schemes:mine", {"period": 3})

    Args:
        scheme: your function, ``module:name`` as in scenarios, or the name of a registered one.
        options: of the scheme; let it exchange something within the steps of ``scenario``.
        scenario: what it runs in, as for ``simulate``: four workers, twelve steps. Its schemes are replaced.
        changes: ``dotted.key=value`` each, as after ``--set``: ``["cluster.workers=8"]``.
        processes: run it on real processes of this machine as well (gloo; some seconds). They find
            ``module:name`` alone.

    Returns:
        Law -> what was looked at, or why nothing was.

    Raises:
        AssertionError: the scheme breaks a law: which, at which step and worker, and how to go on.
        InputError: there is no such scheme, or it does not take these options.
    """
    chosen = resolve_scenario(scenario, None, changes, [{scheme: options} if options else scheme])
    chosen = chosen.model_copy(update={"gradients": "looped", "events": "all"})
    with one_thread():
        job = prepare(chosen, chosen.schemes[0], chosen.seed)
        steps = job.max_iterations or 12
        job = replace(
            job,
            scoring=replace(job.scoring, target=None, gradient_noise=None, keep=1, keep_share=0.0),
            max_iterations=steps,
            max_time_s=_MOST * (1.0 + steps * job.computing.duration_s(0, 0)),
            recording=Recording(),
            churn=None,
        )
        laws = _check_simulated(job)
        if processes:
            laws["processes"] = _check_processes(job, chosen)
    return laws


@dataclass
class _Followed(Recorder):
    """Takes all published models.

    Attributes:
        sent: bytes that the worker had sent by then.
        lent: worker, step, what it gave away in an exchange, and torch's count of writes into it by then.
    """

    sent: dict[Combination, int] = field(default_factory=dict)
    lent: list[tuple[int, int, Tensor, int]] = field(default_factory=list)

    @override
    def publish(self, published: Published[Tensor]) -> bool:
        self.sent[published.worker, published.step + 1] = published.bytes_sent
        return super().publish(published)


class _Watching(EventDriver):
    followed: _Followed

    @override
    def issue(self, task: CoroutineTask[Pending], operation: Any, handle: Handle | None) -> Pending:
        if isinstance(value := getattr(operation, "value", None), Tensor):
            self.followed.lent.append((task.rank, task.breakdown.steps, value, value._version))
        return super().issue(task, operation, handle)


def _followed(job: Job) -> _Followed:
    models = Models(frozenset(product(range(job.workers), range(1, 1 + (job.max_iterations or 0)))))
    return _Followed(None, None, job.scoring.every, job.scoring.on, None, as_they_are, models=models)


def _broken(job: Job, law: str, what: object) -> AssertionError:
    says, hint = LAWS[law]
    return AssertionError(f"{job.label} breaks the law '{says}': {what}. To go on: {hint}.")


def _check_alone(job: Job, first: _Followed) -> Outcome:
    """Run a job by events; raise ``AssertionError`` for a law that this run breaks by itself."""
    try:
        outcome = _by_events(job, first)
    except RunError as error:
        done = min(sum(worker == rank for worker, _ in first.sent) for rank in range(job.workers))
        law = "ends" if isinstance(error, Deadlock) else "in_place" if "in place" in str(error) else "rules"
        raise _broken(job, law, f"after step {done}: {error}") from error
    for worker, each in enumerate(outcome.breakdowns):
        if each.ended_s is None or each.steps != job.max_iterations:
            goes_on = ", and goes on" if each.ended_s is None else ""
            did = f"worker {worker} did {each.steps} of {job.max_iterations} steps{goes_on}"
            raise _broken(job, "ends", did)
    for worker, step, value, version in first.lent:
        if value._version != version:
            where = f"what worker {worker} gave away in an exchange after step {step} has changed since"
            raise _broken(job, "in_place", where)
    for worker, step in sorted(first.digests, key=itemgetter(1, 0)):
        if iterate_digest(first.models.published[worker, step]) != first.digests[worker, step]:
            where = f"the model of worker {worker} after step {step} has changed since it was published"
            raise _broken(job, "in_place", where)
    return outcome


def _check_simulated(job: Job) -> dict[str, str]:
    first = _followed(job)
    outcome = _check_alone(job, first)
    sent = sum(each.bytes_sent for each in outcome.breakdowns)
    seen = f"{len(first.digests)} models of {job.workers} workers, who sent {sent} bytes"
    laws = dict.fromkeys(("rules", "ends", "sends", "in_place"), seen)
    ways: dict[str, Callable[[_Followed], object]] = {
        "seed": lambda again: _by_events(job, again),
        "replay": lambda again: _replayed(job, outcome.events, first, again),
    }
    if job.synchronous:
        other = replace(job, compute=replace(job.compute, seed=job.seed + 1))
        ways["clock"] = lambda again: _by_events(other, again)
        ways["lockstep"] = lambda again: LockstepDriver(job, again).run()
    for law, run in ways.items():
        again = _followed(job)
        try:
            run(again)
            _compare(job, law, first, again)
            laws[law] = seen
        except RunError as error:
            if not isinstance(error.__cause__ or error, NotInLockstep):
                raise _broken(job, law, error) from error
            laws[law] = f"not looked at: {error}"
    if not sent and job.workers > 1:
        raise _broken(job, "sends", f"in {job.max_iterations} steps nobody sent anything")
    return laws


def _by_events(job: Job, again: _Followed) -> Outcome:
    driver = _Watching(job, [job.program(rank) for rank in range(job.workers)], again)
    driver.followed = again
    return driver.run()


def _replayed(job: Job, events: Sequence[Event], first: _Followed, again: _Followed) -> None:
    def published(worker: int, operation: Publish) -> None:
        sent = first.sent.get((worker, operation.step + 1), 0)  # a replay counts none
        again.publish(Published(worker, operation.step, 0.0, operation.value, sent))

    replay(job, [job.program(rank) for rank in range(job.workers)], events, published)


def _compare(job: Job, law: str, first: _Followed, again: _Followed) -> None:
    """Raise ``AssertionError`` at the first model or number of bytes that differs."""
    for worker, step in sorted(first.digests, key=itemgetter(1, 0)):
        at, where = (worker, step), f"after step {step} worker {worker}"
        close = law == "lockstep" and at in again.digests
        if first.digests[at] != again.digests.get(at) and not (
            close and same_values(first.models.published[at], again.models.published[at])
        ):
            raise _broken(job, law, f"{where} has another model")
        if law != "clock" and first.sent[at] != again.sent[at]:  # there a message may still be on its way
            raise _broken(job, law, f"{where} has sent {again.sent[at]} bytes, not {first.sent[at]}")


def _check_processes(job: Job, scenario: Scenario) -> str:
    with Processes() as pool:
        (result,) = measure_runs(scenario, run_requests(scenario)[:1], pool)
    run, problem, task = result.run, job.problem, job.task
    if run.status == "partial" or problem is None or task is None:
        raise _broken(job, "processes", run.message)
    if not job.synchronous:
        if not replay_run(job, problem.workload, task, run).agrees:
            raise _broken(job, "processes", "the models of their record are others")
        return "the last models, as their record is replayed"
    compared = compare_iterates(job, run)
    if compared["same"] is False:
        raise _broken(job, "processes", compared["says"])
    sent = sum(each.bytes_sent for each in _by_events(job, _followed(job)).breakdowns)
    if run.bytes_sent != sent:
        raise _broken(job, "processes", f"they sent {run.bytes_sent} bytes, not {sent}")
    return compared["says"]
