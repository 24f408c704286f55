"""Laws of answers on drawn clusters: the same numbers in every command, chance, and both drivers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.experiments.costs import step_cost as step_costs
from paceline.sim.experiments.costs import tokens
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.costs.step_cost import endless, follow_whole, step_cost
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate, simulate_job
from paceline.sim.faults import goodput as goodputs
from paceline.sim.network.transport import TRANSPORTS
from paceline.sim.records.money.cost import cost_of_step
from paceline.sim.records.scenario_facts import read_price
from paceline.sim.records.summarise import summarise_resolved
from paceline.sim.scenario.schema import Scenario, dump
from paceline.sim.schemes import SCHEMES
from tests.sim.experiments.test_one_answer import LANGUAGE, scenario
from tests.support.scheme_forms import FORMS, INSIDE, SYNCHRONOUS, WORKERS, Form

UNEVEN: list[Any] = [
    [], [{"workers": [1, 4], "slowdown": 3}], [{"workers": [5], "slowdown": 8}],
    [{"probability": 0.1, "slowdown": 4}],
]  # fmt: skip
SITES: dict[str, Any] = {
    "sites": {"a": 2, "b": 4}, "within": {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"},
    "between": {"latency": "10 ms", "bandwidth": "1 Gbit/s"},
}  # fmt: skip
FLAT: dict[str, Any] = {"latency": "2 ms", "bandwidth": "1 Gbit/s"}
PRICE = {"worker_hour": "$3", "egress": {"default": "$2"}}
LED_BY_LOSSES = {"leader_sgd"}
"""Schemes in which losses decide who sends. Without training all commands draw them, so that each worker is
as often the first; whom a training set favours, and how seldom a slow worker leads, is known to it alone."""
ON_THE_CLOCK = [form for form in SYNCHRONOUS if form.scheme not in {"adaptive_local_sgd", *LED_BY_LOSSES}]
"""Of which one repeat says who is first: values decide when and by whom the others' models are sent."""


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_costs, "ENOUGH_WORK", 2_000)
        patch.setattr(tokens, "UTILISATIONS", ())
        yield


def law(examples: int, deep: int, **drawn: Any) -> Callable[[Callable[..., None]], Any]:
    """A test of ``examples`` settings, and as a slow one of ``deep``: fresh ones, but the same in each CI.

    None is shrunk, which takes minutes.
    """

    def decorate(check: Callable[..., None]) -> Any:
        def run(number: int) -> None:
            same = number == examples or settings().derandomize
            settings(max_examples=number, phases=[Phase.generate], derandomize=same)(given(**drawn)(check))()

        slow = pytest.param(deep, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
        return pytest.mark.parametrize("number", [examples, slow])(run)

    return decorate


def of_form(form: Form, **changes: Any) -> Scenario:
    """A scenario with one form of a scheme; ``reject``ed where it does not fit."""
    try:
        return scenario(
            {form.scheme: form.of_payload("2 MB")},
            workers=None if "sites" in changes["network"] else WORKERS,
            **changes,
        )
    except InputError:
        reject()


@law(
    3, 40, form=st.sampled_from(FORMS), uneven=st.sampled_from(UNEVEN),
    network=st.sampled_from([FLAT, SITES]), payload=st.sampled_from(["1 MB", "10 MB"]),
)  # fmt: skip
def test_a_step_has_one_time_size_and_price(
    form: Form, uneven: Any, network: dict[str, Any], payload: str
) -> None:
    """In ``check``, ``throughput`` and a run, over the same steps of the long run."""
    workload = {"task": "quadratic", "batch_size": 4, "payload": payload}
    workload["optimizer"] = {"lr": 0.001, "momentum": form.momentum}
    if form.scheme in LED_BY_LOSSES:
        workload = {"timing_only": True, "batch_size": 4, "payload": payload}
    wanted = of_form(form, network=network, stragglers=uneven, workload=workload, price=PRICE)
    entry = wanted.schemes[0]
    cost = step_cost(wanted, entry)
    if cost.problem:
        return
    whole, price = follow_whole(wanted, entry), read_price(wanted.model_dump(mode="json"))
    job = endless(prepare(wanted, entry, 0))
    runs = [
        simulate_job(replace(job, max_iterations=max(1, end * job.cycle)))
        for end in (whole.span.first, whole.span.last)
    ]
    paces = [run.pace for run in runs if run.pace is not None]
    pace, said = paces[1].since(paces[0]) if whole.span.first else paces[1], (form, uneven, network, payload)
    # Exact, but where a worker is within a step at the end. Under ``next_forward``, and in shards, a step
    # ends in the forward pass of the next, a third of a step up to four times as long: not a run's last.
    ahead = form.scheme == "sharded" or form.options.get("next_forward")
    reaches = 8 / 3 / cost.steps if ahead else 0.0
    assert cost.step_s == pytest.approx(pace.step_s, rel=2e-3 + reaches), said
    # Lockstep counts bytes by run, all others at the moments of the pace.
    sent = pace.bytes_sent or runs[1].bytes_sent - (runs[0].bytes_sent if whole.span.first else 0)
    assert cost.bytes_per_worker == pytest.approx(sent / sum(pace.steps), rel=2e-3), said
    of_step = tokens._costs(whole, price, 1, None, 1.0)["a step"]
    start_s = (pace.step_s or 0.0) - (runs[1].step_s or 0.0)  # which the run has, and the long run has not
    of_run = (cost_of_step(runs[1], price) or 0.0) + price["per_hour"] / 3600 * start_s
    # Bytes between sites are those of all that was followed, with the step that is cut off at the end, one of
    # dozens. Who sends is drawn in some, here a few dozen times; the product follows twenty times as much.
    # A run of shards gathers the last model once more, at most half of a step's bytes.
    more = (
        0.05 if form.scheme in LED_BY_LOSSES else 0.5 / whole.span.last if form.scheme == "sharded" else 0.0
    )
    assert of_step == pytest.approx(of_run, rel=0.03 + more), said


def draws(form: Form) -> bool:
    """Whether a form draws who exchanges, and so how long a step is."""
    scheme = SCHEMES[form.scheme]
    return scheme.draws(scheme.options(**form.options))


FAULT = st.fixed_dictionaries(
    {
        "mean_time_between": st.sampled_from(["60 s", "150 s", "500 s"]),
        "back_after": st.sampled_from(["0.5 s", "3 s", "10 s"]),
    },
    optional={
        "detect": st.sampled_from(["0.5 s", "5 s"]), "shape": st.sampled_from([0.7, 2]),
        "how": st.sampled_from(["stop", "cut"]), "workers": st.sampled_from([[1], [2, 3], [1, 2, 3, 4, 5]]),
    },
)  # fmt: skip
CHECKPOINTS = [
    {"every": every, "write": write, "restart": restart}
    for every, write, restart in [
        ("3 steps", "0.5 s", "2 s"),
        ("15 s", "0 s", "0 s"),
        ("15 s", "0.5 s", "0 s"),
    ]
]


@law(
    2, 40, form=st.sampled_from(FORMS), uneven=st.sampled_from(UNEVEN),
    network=st.sampled_from([FLAT, SITES]), faults=st.lists(FAULT, min_size=1, max_size=2),
    policy=st.sampled_from(["wait", "restart", "shrink", "skip"]), checkpoint=st.sampled_from(CHECKPOINTS),
)  # fmt: skip
def test_goodput_is_that_of_a_run(
    form: Form, uneven: Any, network: dict[str, Any], faults: list[Any], policy: str, checkpoint: Any
) -> None:
    """Of a run with the same faults; where they are only counted, of one with as many as it has."""
    try:
        wanted = scenario(
            {form.scheme: form.of_payload("2 MB") | {"on_fault": policy}},
            workers=None if "sites" in network else WORKERS, network=network, stragglers=uneven,
            compute={"time": "1 s"}, workload=LANGUAGE, faults=faults, stop={"max_iterations": 300},
            **({"checkpoint": checkpoint} if policy == "restart" else {}),
        )  # fmt: skip
    except InputError:
        reject()
    (run,) = simulate(wanted)
    assert run.faults is not None
    (own,) = summarise_resolved(dump(wanted), "s", [run])["summary"]
    lost, outages = 1 - own["goodput"], run.faults["outages"]
    per_s = sum(
        len(wanted.cluster.units_of(fault)) / ((fault.mean_time_between or 0.0) + fault.back_after)
        for fault in wanted.cluster.faults
    )
    with pytest.MonkeyPatch.context() as patch:
        if policy in ("wait", "restart"):
            patch.setattr(goodputs, "ENOUGH_OUTAGES", per_s * run.wall_clock_s * (1 - lost))
            patch.setattr(goodputs, "MOST_STOPS", math.inf)
        (row,) = tokens.throughput(wanted)["schemes"]
    # Under ``shrink`` each fault is counted by itself, not one that strikes while others repeat their steps.
    if row["problem"] or outages < 4 or (policy == "shrink" and lost > 0.3):
        return
    # One fault or checkpoint may fall on the other side of a step's end, or of the run's; the dearest fault,
    # right before a checkpoint, costs up to half as much again as the mean one.
    # How long the steps are in which faults happen is chance where they are drawn, and so is everything where
    # faults are only counted. Under ``shrink`` the rounds without a slow worker are shorter, which no
    # count knows.
    by_chance = {"wait": 0.0, "restart": 0.0, "shrink": 3.0, "skip": 3.0}[policy]
    if any("probability" in each for each in uneven) or draws(form):
        by_chance = max(by_chance, 2.0)
    tolerance = (0.25 if policy == "shrink" else 0.01) + 1.5 / outages + by_chance / math.sqrt(outages)
    assert lost == pytest.approx(1 - row["goodput"], rel=tolerance), (
        form,
        uneven,
        faults,
        policy,
        checkpoint,
    )


@law(
    2, 6, forms=st.lists(st.sampled_from(ON_THE_CLOCK), min_size=2, max_size=3, unique_by=str),
    uneven=st.sampled_from(UNEVEN), spread=st.sampled_from([None, 0.1]), faulty=st.booleans(),
    network=st.sampled_from([FLAT, SITES]),
)  # fmt: skip
def test_what_one_repeat_settles_stays(
    forms: list[Form], uneven: Any, spread: float | None, faulty: bool, network: dict[str, Any]
) -> None:
    """The same scheme is first on at least 19 of 20 fresh seeds."""
    faults = [{"mean_time_between": "20 s", "back_after": "1 s"}] if faulty else []
    labelled = [{form.scheme: form.options | {"label": str(form)}} for form in forms]
    compute = {"time": "100 ms"} | ({"spread": spread} if spread else {})
    first = []
    try:
        for seed in range(21):
            wanted = scenario(
                *labelled, workers=None if "sites" in network else WORKERS, network=network, faults=faults,
                compute=compute, stragglers=uneven, seed=seed, stop={"max_iterations": 12},
            )  # fmt: skip
            facts = describe_schemes(wanted, with_bounds=False)
            summary = summarise_resolved(dump(wanted), "s", [*simulate(wanted)], facts=facts)
            first.append(summary["verdict"]["first"])
            if not summary["verdict"]["settled"] and not seed:
                return
    except InputError:
        reject()
    assert first[1:].count(first[0]) >= 19, (labelled, uneven, spread, faulty)


@law(
    6, 120, form=st.sampled_from([*SYNCHRONOUS, *INSIDE]), gpus=st.integers(1, 5), hosts=st.integers(1, 4),
    algorithm=st.sampled_from(TRANSPORTS[None].all_reduces),
    time=st.sampled_from(["1 ms", "10 ms", "200 ms"]), latency=st.sampled_from(["10 ms", "0.1 ms"]),
    jitter=st.sampled_from([None, {"lognormal": {"cv": 0.4}}]), sharing=st.sampled_from(["max_min", "none"]),
    uneven=st.sampled_from([[], [{"workers": [1], "slowdown": 3}]]),
    inside=st.sampled_from(["1 Gbit/s", "10 Gbit/s"]),
)  # fmt: skip
def test_lockstep_is_the_event_driver_on_hosts_of_gpus(
    form: Form, gpus: int, hosts: int, algorithm: str, time: str, jitter: Any, uneven: Any, sharing: str,
    latency: str, inside: str,
) -> None:  # fmt: skip
    host = {"gpus": gpus, "latency": "1 us", "bandwidth": inside}
    network = {"latency": latency, "bandwidth": "1 Gbit/s", "sharing": sharing, "host": host}
    try:
        wanted = scenario(
            {form.scheme: form.of_payload("2 MB")}, workers=gpus * hosts, stragglers=uneven, network=network,
            compute={"time": time} | ({"jitter": jitter} if jitter else {}), stop={"max_iterations": 6},
            workload={"timing_only": True, "payload": "10 MB"}, collectives={"all_reduce": algorithm},
        )  # fmt: skip
    except InputError:
        reject()
    job = prepare(wanted, wanted.schemes[0], 0)
    run = simulate_job(job)
    if run.engine == "lockstep":
        expected = simulate_job(job, engine="event")
        assert run.wall_clock_s == pytest.approx(expected.wall_clock_s, rel=1e-9)
        assert run.bytes_sent == expected.bytes_sent
