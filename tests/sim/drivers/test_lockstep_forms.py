"""Every scheme in each of its forms: where the lockstep driver takes it, it gives what events give."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import event, example, given, reject, settings
from hypothesis import strategies as st

from paceline.sim.compute.compute_settings import Compute
from paceline.sim.compute.model import ComputeModel
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.program.worker import Worker
from paceline.sim.schemes import SCHEMES
from paceline.sim.topology import TOPOLOGIES
from paceline.sim.training.learning_rate import Drops, LearningRate
from paceline.sim.training.optimizer import Clipped, Sgd
from tests.support.both_drivers import NETWORKS, SITES, STRAGGLERS, Options, assert_the_same, job_of
from tests.support.factory import NoOptions, make_scheme, network_of, scored
from tests.support.scheme_forms import DISTINCT, EIGHT_BITS, FORMS, INSIDE, RULED, Form

REFUSED = (
    "a gradient and exchanges begun meanwhile",
    "overlaps something else",
    "an exchange is under way from one step to the next",
    "has services",
    "makes differences by a worker's rank",
)
"""What forms do that lockstep leaves to the event driver."""

COMPUTES: dict[str, Any] = {
    "constant": {"time": "1 s"},
    "lognormal": {"time": "1 s", "jitter": {"lognormal": {"cv": 0.4}}},
    "gamma": {"time": "1 s", "jitter": {"gamma": {"cv": 0.4}}},
    "shifted exponential": {"time": "1 s", "jitter": {"shifted_exponential": {"cv": 0.4}}},
    "pareto": {"time": "1 s", "jitter": {"pareto": {"shape": 3.0}}},
    "each its own": {"time": "1 s", "spread": 0.3},
    "trace": {"trace": {"durations": ["0.5 s", "1 s", "2.5 s"]}},
    "a trace each": {"trace": {"workers": [["1 s", "2 s"], ["0.5 s", "0.7 s", "3 s"]]}},
}

TRANSPORTS = (None, "ideal", "gloo", "nccl")
LIMIT_S = 4.2345
"""A time limit at which nothing happens: the drivers' times differ in rounding."""


def computing(job: Job, compute: str) -> Job:
    return replace(
        job, compute=ComputeModel(Compute.model_validate(COMPUTES[compute]), job.compute.stragglers, job.seed)
    )


@pytest.mark.slow
@settings(max_examples=120)
@given(
    form=st.sampled_from([*FORMS, *INSIDE, *RULED]),
    topology=st.sampled_from(["", *sorted(TOPOLOGIES)]),
    workers=st.sampled_from([2, 4, 5, 6, 8, 9]),
    network=st.sampled_from([*NETWORKS, SITES]),
    transport=st.sampled_from(TRANSPORTS),
    sharing=st.sampled_from(["max_min", "rtt", "none"]),
    compute=st.sampled_from(sorted(COMPUTES)),
    stragglers=st.sampled_from(sorted(STRAGGLERS)),
    momentum=st.sampled_from([0.0, 0.9]),
    drops=st.booleans(),
    clips=st.booleans(),
    limit_s=st.sampled_from([None, LIMIT_S]),
    trains=st.booleans(),
    evaluation_s=st.sampled_from([0.0, 0.37]),
)
@example(  # over before anything is encoded
    form=Form("local_sgd", {"period": 4, **EIGHT_BITS}, None), topology="", workers=2,
    network={"latency_s": 0.0}, transport=None, sharing="max_min", compute="a trace each", stragglers="none",
    momentum=0.0, drops=False, clips=False, limit_s=4.2, trains=False, evaluation_s=0.0,
)  # fmt: skip
@example(  # sites that act as one
    form=INSIDE[1], topology="", workers=2, network=SITES, transport=None, sharing="max_min",
    compute="a trace each", stragglers="none", momentum=0.0, drops=False, clips=False, limit_s=None,
    trains=False, evaluation_s=0.37,
)  # fmt: skip
def test_where_lockstep_is_taken_both_drivers_agree(
    form: Form, topology: str, workers: int, network: Options, transport: str | None,
    sharing: str, compute: str, stragglers: str, momentum: float, drops: bool, clips: bool,
    limit_s: float | None, trains: bool, evaluation_s: float,
) -> None:  # fmt: skip
    """What nobody could simulate, as a hypercube of five workers, is passed over."""
    options = form.in_few_steps()
    if topology and "topology" in options:
        options["topology"] = topology
    if network is SITES:
        sites = {"a": 2, "b": 2} if "inside" in options else SITES["sites"]
        workers = sum(sites.values())
        network = {"network": network_of(workers, **{**SITES, "sites": sites})}
        options |= {"inside": "sites"} if "inside" in options else {}
    job = job_of(
        (form.scheme, options), workers=workers, transport=transport, sharing=sharing, trains=trains,
        momentum=min(momentum, form.momentum), stragglers=STRAGGLERS[stragglers], max_iterations=7,
        every=2, rule=form.rule, **network,
    )  # fmt: skip
    job = scored(computing(job, compute), time_s=evaluation_s)
    if trains and drops:
        schedule = LearningRate(drops=Drops.model_validate({"at": ("3 steps",)}))
        job = replace(job, optimizer=Sgd(0.1, min(momentum, form.momentum), schedule=schedule))
    if trains and clips:
        job = replace(job, optimizer=Clipped(job.optimizer, 0.5))
    if limit_s is not None:
        job = replace(job, max_time_s=limit_s)
    try:
        engine = simulate_job(job).engine
    except InputError:
        reject()
    event(f"{form.scheme}: {engine}")
    if engine == "lockstep":
        assert_the_same(job)


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "sharded"])  # which has services
def test_every_synchronous_scheme_is_taken(name: str) -> None:
    """Where links are nobody else's; the forms that are refused there are refused for what they do.

    A scheme's first form is tried on every transport, each other one on the next of them.
    """
    taken = set()
    first, *others = (form for form in DISTINCT if form.scheme == name)
    forms = zip([first] * 3 + [first, *others], cycle(TRANSPORTS), cycle(sorted(COMPUTES)), strict=False)
    for form, transport, compute in forms:
        job = job_of(
            (name, form.in_few_steps()), workers=6, transport=transport, sharing="none", every=2,
            max_iterations=5, latency_s=0.2, bandwidth_bytes_per_s=400.0,
        )  # fmt: skip
        job = computing(job, compute)
        run = simulate_job(job)
        if run.engine == "lockstep":
            taken.add(transport)
            assert_the_same(job)
        elif job.synchronous:
            assert any(why in run.engine_reason for why in REFUSED), run.engine_reason
    assert taken == (set(TRANSPORTS) if SCHEMES[name].synchronous else set())


async def _broadcasts_in_turn(worker: Worker, options: NoOptions) -> None:
    x = worker.start
    async for k in worker.steps():
        x = x - 0.1 * await worker.gradient(x)
        x = (x + await worker.broadcast(x, root=k % worker.size)) / 2
        await worker.publish(k, x)


@settings(max_examples=20)
@given(
    workers=st.integers(2, 9),
    network=st.sampled_from(NETWORKS),
    transport=st.sampled_from(TRANSPORTS),
    compute=st.sampled_from(sorted(COMPUTES)),
    stragglers=st.sampled_from(sorted(STRAGGLERS)),
    limit_s=st.sampled_from([None, LIMIT_S]),
)
def test_nobody_waits_in_a_broadcast_but_for_those_above(
    workers: int,
    network: Options,
    transport: str | None,
    compute: str,
    stragglers: str,
    limit_s: float | None,
) -> None:
    job = job_of(
        (make_scheme(_broadcasts_in_turn), {}), workers=workers, transport=transport, sharing="none",
        stragglers=STRAGGLERS[stragglers], max_iterations=7, **network,
    )  # fmt: skip
    job = replace(computing(job, compute), max_time_s=math.inf if limit_s is None else limit_s)
    assert_the_same(job)
