"""The lockstep driver finds what the event driver finds, and refuses what it could not do exactly."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline.reports.tables import render_summary, warnings
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.lockstep.exact import why_not
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError, NotInLockstep
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.program.worker import Worker
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import parse
from paceline.sim.training.scoring import Target
from tests.support.both_drivers import (
    NETWORKS,
    SITES,
    STRAGGLERS,
    Options,
    assert_the_same,
    by_events,
    job_of,
)
from tests.support.factory import NoOptions, make_job, make_scheme, network_of, scored

SCHEMES: list[tuple[str, Options]] = [
    ("all_reduce", {}),
    ("all_reduce", {"part_reduce": True}),
    ("all_reduce", {"compression": {"bf16": True}}),
    ("local_sgd", {"period": 3}),
    ("local_sgd", {"period": 2, "warmup": 2, "momentum": "mixed"}),
    ("adaptive_local_sgd", {"initial_period": 1, "calibration": 2}),
    ("post_local_sgd", {"switch_at": 2, "period": 2}),
    ("gossip", {"topology": "one_peer_exponential"}),
    ("gossip", {"topology": "one_peer_exponential", "order": "combine_while_adapting"}),
    ("gossip", {"topology": "random_matching", "global_period": 3}),
    ("sgp", {"topology": "one_peer_exponential"}),
    ("easgd", {"period": 2}),
    ("eamsgd", {"period": 2, "spread": 0.1}),
]
"""Exact also where hosts' access links are shared."""

SEVERAL_PEERS: list[tuple[str, Options]] = [
    ("gossip", {"topology": "ring"}),
    ("gossip", {"topology": "ring", "order": "combine_while_adapting", "momentum": "mixed"}),
    ("gossip", {"topology": "static_exponential", "compression": {"qsgd": {"bits": 8, "bucket": 16}}}),
    ("sgp", {"topology": "star"}),
]
"""Exact where links are not shared."""


@settings(max_examples=30)
@given(
    which=st.sampled_from(SCHEMES),
    workers=st.integers(2, 9),
    network=st.sampled_from(NETWORKS),
    transport=st.sampled_from(["ideal", "nccl"]),
    sharing=st.sampled_from(["max_min", "rtt", "none"]),
    cv=st.sampled_from([0.0, 0.4]),
    stragglers=st.sampled_from(sorted(STRAGGLERS)),
    seed=st.integers(0, 3),
    every=st.sampled_from([1, 2]),
)
def test_is_what_the_event_driver_finds(
    which: tuple[str, Options], workers: int, network: Options, transport: str, sharing: str, cv: float,
    stragglers: str, seed: int, every: int,
) -> None:  # fmt: skip
    assert_the_same(
        job_of(
            which, workers=workers, transport=transport, sharing=sharing, cv=cv, seed=seed, every=every,
            stragglers=STRAGGLERS[stragglers], max_iterations=7, **network,
        )
    )  # fmt: skip


@settings(max_examples=20)
@given(
    which=st.sampled_from([*SEVERAL_PEERS, *(each for each in SCHEMES if each[0] in ("gossip", "sgp"))]),
    workers=st.integers(2, 9),
    network=st.sampled_from(NETWORKS),
    transport=st.sampled_from([None, "ideal", "gloo", "nccl"]),
    cv=st.sampled_from([0.0, 0.4]),
    stragglers=st.sampled_from(sorted(STRAGGLERS)),
)
def test_is_what_the_event_driver_finds_where_nothing_is_shared(
    which: tuple[str, Options],
    workers: int,
    network: Options,
    transport: str | None,
    cv: float,
    stragglers: str,
) -> None:
    assert_the_same(
        job_of(
            which, workers=workers, transport=transport, sharing="none", cv=cv, max_iterations=6,
            stragglers=STRAGGLERS[stragglers], **network,
        )
    )  # fmt: skip


@pytest.mark.parametrize("which", [*SCHEMES, *SEVERAL_PEERS], ids=str)
def test_sites_that_are_not_shared(which: tuple[str, Options]) -> None:
    assert_the_same(
        job_of(
            which,
            workers=5,
            sharing="none",
            network=network_of(5, **SITES),
            cv=0.3,
            max_iterations=6,
            all_reduce="ring",
        )
    )


COLLECTIVE = [which for which in SCHEMES if which[0] not in ("gossip", "sgp")]


@settings(max_examples=20)
@given(
    which=st.sampled_from(COLLECTIVE),
    transport=st.sampled_from([None, "ideal", "gloo", "nccl"]),
    sharing=st.sampled_from(["max_min", "rtt", "none"]),
    sites=st.booleans(),
    cv=st.sampled_from([0.0, 0.4]),
)
def test_collectives_that_share_links_with_themselves(
    which: tuple[str, Options], transport: str | None, sharing: str, sites: bool, cv: float
) -> None:
    """As a whole where nothing else is on their links; where something may be, it says so."""
    place: Options = {"latency_s": 0.05, "bandwidth_bytes_per_s": 80.0}
    if sites:
        place = {"network": network_of(5, **SITES)}
    job = job_of(which, workers=5, transport=transport, sharing=sharing, cv=cv, max_iterations=5, **place)
    run = simulate_job(job)
    if run.engine == "lockstep":
        assert_the_same(job)
    else:
        assert sharing != "none"
        assert "way" in run.engine_reason


@settings(max_examples=20)
@given(
    which=st.sampled_from(SCHEMES),
    sharing=st.sampled_from(["max_min", "none"]),
    cv=st.sampled_from([0.0, 0.4]),
    limit_s=st.floats(0.5, 12.0).map(lambda at_s: at_s * 1.000123),  # at an end rounding would decide
    network=st.sampled_from(NETWORKS[:3]),
)
def test_a_limit_of_time_cuts_both_alike(
    which: tuple[str, Options], sharing: str, cv: float, limit_s: float, network: Options
) -> None:
    job = job_of(which, workers=5, sharing=sharing, cv=cv, max_iterations=8, every=2, **network)
    assert_the_same(replace(job, max_time_s=limit_s))


@settings(max_examples=12)
@given(
    which=st.sampled_from(SCHEMES),
    cv=st.sampled_from([0.0, 0.4]),
    share=st.floats(0.3, 0.99),
    slow=st.booleans(),
    keep=st.sampled_from([1, 2]),
)
def test_a_target_ends_both_alike(
    which: tuple[str, Options], cv: float, share: float, slow: bool, keep: int
) -> None:
    stragglers = STRAGGLERS["one is slow"] if slow else ()
    job = job_of(
        which, workers=5, sharing="max_min", cv=cv, max_iterations=30, every=2, latency_s=0.01,
        bandwidth_bytes_per_s=100.0, stragglers=stragglers,
    )  # fmt: skip
    first = by_events(replace(job, max_iterations=1))[1].evaluations[0].metrics["train_loss"]
    assert first is not None
    job = scored(job, every=4, keep=keep, keep_share=0.0 if slow else 0.2)
    assert_the_same(scored(job, target=Target("train_loss", share * first, falling=True, on="mean")))


@settings(max_examples=25)
@given(
    which=st.sampled_from(SCHEMES),
    workers=st.integers(2, 6),
    cv=st.sampled_from([0.0, 0.4]),
    every=st.integers(1, 4),
    steps=st.integers(1, 9),
    place=st.floats(0.0, 1.0),
    nudge=st.sampled_from([-1e-6, 0.0, 1e-6]),
    seed=st.integers(0, 20),
)
def test_a_target_ends_both_alike_wherever_it_is_met(
    which: tuple[str, Options], workers: int, cv: float, every: int, steps: int, place: float, nudge: float,
    seed: int,
) -> None:  # fmt: skip
    """By the first models, at the last step, beside a score, or not at all."""
    job = job_of(
        which, workers=workers, sharing="max_min", cv=cv, max_iterations=steps, every=every, seed=seed,
        latency_s=0.01, bandwidth_bytes_per_s=100.0,
    )  # fmt: skip
    scores = [each.metrics["train_loss"] or 0.0 for each in by_events(job)[1].evaluations]
    target = scores[round(place * (len(scores) - 1))] * (1 + nudge)
    assert_the_same(scored(job, target=Target("train_loss", target, falling=True, on="mean")))


MET_AT_ZERO = """\
name: met
seed: 1
workload: {task: quadratic, dimension: 3, batch_size: 4, optimizer: {lr: 0.05}}
cluster: {workers: 8, compute: {time: 50 ms}, network: {latency: 1 ms, bandwidth: 100 Mbit/s}}
schemes: [all_reduce]
stop: {target: {metric: train_loss, value: 4}, max_iterations: 27}
"""


def test_a_target_that_the_first_models_meet_is_told() -> None:
    scenario = parse(MET_AT_ZERO)
    job = prepare(scenario, scenario.schemes[0], 1)
    found = [simulate_job(job, engine=engine) for engine in ("lockstep", "event")]
    assert [(run.engine, run.wall_clock_s, run.iterations) for run in found] == [
        ("lockstep", 0.0, 0.0), ("event", 0.0, 0.0)
    ]  # fmt: skip
    summary = summarise("s", found[:1])
    said = "all_reduce: the first models meet the target, so that it tells nothing of the scheme."
    assert warnings(summary, "simulated") == [said]
    assert summary["runs"][0]["message"] in said
    console = Console(width=200, file=StringIO())
    console.print(render_summary(summary))
    assert said in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("which", [SCHEMES[0], SCHEMES[3], SCHEMES[5], SCHEMES[7]], ids=str)
def test_scores_seldom(which: tuple[str, Options]) -> None:
    assert_the_same(job_of(which, workers=5, cv=0.5, every=21, max_iterations=45))


def test_only_the_clock() -> None:
    for which in SCHEMES:
        assert_the_same(
            job_of(
                which,
                workers=6,
                trains=False,
                cv=0.3,
                max_iterations=9,
                latency_s=0.1,
                bandwidth_bytes_per_s=9.0,
            )
        )


def test_digits_are_the_same_to_the_bit() -> None:
    job = make_job(
        PAIRS[0], PAIRS[1], task="digits-mlp", workers=8, max_iterations=6, cv=0.3, momentum=0.9,
        latency_s=0.01, bandwidth_bytes_per_s=1e6, transport="ideal", all_reduce="auto",
    )  # fmt: skip
    assert_the_same(job)


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("which", SEVERAL_PEERS, ids=str)
def test_refuses_several_messages_on_a_shared_link(which: tuple[str, Options]) -> None:
    job = job_of(which, workers=6, bandwidth_bytes_per_s=50.0)
    with pytest.raises(NotInLockstep, match="share"):
        LockstepDriver(job, job.scorer()).run()


ALONE: tuple[str, Options] = ("local_sgd", {"period": 2})
PAIRS: tuple[str, Options] = ("gossip", {"topology": "one_peer_exponential"})
CRASH = Straggler.model_validate({"workers": [1], "at": "2 steps", "crash": True})
UNSTEADY: Options = {"latency": "1 ms", "jitter": {"gamma": {"cv": 0.2}}}


@pytest.mark.parametrize(
    ("which", "changes", "reason"),
    [
        (("ad_psgd", {}), {}, "not synchronous"),
        (("easgd", {"period": 2, "asynchronous": True}), {}, "not synchronous"),
        (ALONE, {"stragglers": [CRASH]}, "a worker fails"),
        (ALONE, {"network": network_of(4, **UNSTEADY)}, "vary"),
    ],
    ids=str,
)
def test_says_why_not(which: tuple[str, Options], changes: Options, reason: str) -> None:
    job = job_of(which, **changes)
    assert reason in why_not(job)
    with pytest.raises(InputError, match="--engine lockstep"):
        simulate_job(job, engine="lockstep")
    run = simulate_job(job)
    assert (run.engine, run.status) == ("event", "partial" if "fails" in reason else "completed")
    assert reason in run.engine_reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"transport": "gloo", "bandwidth_bytes_per_s": 50.0}, "TCP streams"),
        ({"workers": 5, "network": network_of(5, **SITES)}, "different workers"),
    ],
    ids=str,
)
def test_refuses_mixes_that_meet_on_links(changes: Options, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        simulate_job(job_of(PAIRS, **changes), engine="lockstep")


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (("all_reduce", {"overlap": True}), "gradient"),
        (("sgp", {"topology": "one_peer_exponential", "overlap": 2}), "under way"),
    ],
)
def test_auto_leaves_the_rest_to_the_event_driver(which: tuple[str, Options], reason: str) -> None:
    run = simulate_job(job_of(which, workers=4, latency_s=0.01, bandwidth_bytes_per_s=1e3, max_iterations=3))
    assert run.engine == "event"
    assert reason in run.engine_reason


def test_auto_takes_it_where_it_is_exact() -> None:
    run = simulate_job(job_of(PAIRS, bandwidth_bytes_per_s=1e3))
    assert (run.engine, run.engine_reason) == ("lockstep", "")


# --- users' schemes -----------------------------------------------------------------------------


async def _averages(worker: Worker, options: NoOptions) -> None:
    x = worker.start
    async for k in worker.steps():
        x = await worker.all_reduce(x - 0.1 * await worker.gradient(x))
        await worker.publish(k, x)


async def _normalises(worker: Worker, options: NoOptions) -> None:
    """Its norm is that of all models where they are one value."""
    x = worker.start
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x = x - 0.1 * gradient / gradient.norm()
        await worker.publish(k, x)


async def _by_rank(worker: Worker, options: NoOptions) -> None:
    x = worker.start
    async for k in worker.steps():
        x = x - 0.1 * (1 + worker.rank) * await worker.gradient(x)
        await worker.publish(k, x)


@pytest.mark.parametrize(
    ("program", "engine", "reason"),
    [(_averages, "lockstep", ""), (_normalises, "event", "the models"), (_by_rank, "event", "rank")],
)
def test_a_scheme_of_ones_own_is_tried_first(program: Any, engine: str, reason: str) -> None:
    run = simulate_job(job_of((make_scheme(program), {}), latency_s=0.01, bandwidth_bytes_per_s=1e6))
    assert run.engine == engine
    assert reason in run.engine_reason
    assert run.status == "completed"
