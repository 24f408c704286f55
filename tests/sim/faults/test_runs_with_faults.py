"""Runs of a scenario with faults: the same models, later."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import churn_of, resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.faults.fault_settings import Checkpoint, Fault
from paceline.sim.faults.outages import Churn, follow
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import Scenario


def scenario(**changes: Any) -> Scenario:
    """Four workers on a quadratic, with a straggler."""
    cluster = {
        "workers": 4,
        "compute": {"time": "50 ms", "jitter": {"lognormal": {"cv": 0.2}}},
        "network": {"latency": "5 ms", "bandwidth": "1 Gbit/s"},
        **changes.pop("cluster", {}),
    }
    return Scenario.model_validate(
        {
            "name": "faults",
            "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}, "payload": "1 MB"},
            "cluster": cluster,
            "evaluate": {"every": "5 steps"},
            "schemes": ["all_reduce", {"local_sgd": {"period": 4}}, {"ad_psgd": {"topology": "ring"}}],
            "stop": {"max_iterations": 40},
            **changes,
        }
    )


FAULTS = [
    {"workers": [1], "at": "700 ms", "back_after": "400 ms"},
    {"mean_time_between": "3 s", "back_after": "200 ms"},
]
CHECKPOINT = {"every": "8 steps", "write": "20 ms", "restart": "100 ms"}


def runs_of(of: Scenario, engine: Any = "auto") -> list[Run]:
    return list(simulate(resolve(of, torch.device("cpu")), engine=engine))


@pytest.mark.parametrize("more", [{}, {"checkpoint": CHECKPOINT}])
def test_the_models_are_those_without_faults(more: dict[str, Any]) -> None:
    for without, run in zip(
        runs_of(scenario()), runs_of(scenario(cluster={"faults": FAULTS}, **more)), strict=True
    ):
        assert run.digest == without.digest
        assert [e.metrics for e in run.evaluations] == [e.metrics for e in without.evaluations]
        assert run.faults is not None
        assert run.faults["outages"] > 0
        lost_s = run.faults["down_s"] + run.faults["repeated_s"] + run.faults["writing_s"]
        assert run.wall_clock_s == pytest.approx(without.wall_clock_s + lost_s)
        shares = run.time_s
        parts = (shares.compute, shares.communicate, shares.wait, shares.idle, shares.down)
        assert math.fsum(parts) == pytest.approx(run.wall_clock_s)
        assert all(
            e.end_s <= run.wall_clock_s * (1 + 1e-12) and e.start_s <= e.peer_s <= e.end_s for e in run.events
        )


@settings(max_examples=5)
@given(
    st.integers(0, 1000), st.sampled_from(["wait", "restart"]), st.sampled_from(["all_reduce", "local_sgd"])
)
def test_lockstep_is_the_event_driver(seed: int, policy: str, scheme: str) -> None:
    entry = {scheme: {"on_fault": policy, **({"period": 3} if scheme == "local_sgd" else {})}}
    more = {"checkpoint": CHECKPOINT, "schemes": [entry]}
    drawn = scenario(seed=seed, cluster={"faults": FAULTS}, **more)
    (event,), (lockstep,) = runs_of(drawn, "event"), runs_of(drawn, "lockstep")
    assert lockstep.wall_clock_s == pytest.approx(event.wall_clock_s, rel=1e-9)
    assert event.faults is not None
    assert lockstep.faults == pytest.approx(event.faults, rel=1e-9)
    assert [e.time_s for e in lockstep.evaluations] == pytest.approx(
        [e.time_s for e in event.evaluations], rel=1e-9
    )


@pytest.mark.parametrize("engine", ["event", "lockstep"])
@pytest.mark.parametrize("max_time", ["900 ms", "1.05 s", "2 s"])
def test_a_run_ends_at_its_time(max_time: str, engine: str) -> None:
    cut = scenario(
        cluster={"faults": FAULTS},
        stop={"max_time": max_time, "max_iterations": 1000},
        schemes=["all_reduce"],
    )
    (run,) = runs_of(cut, engine)
    assert run.wall_clock_s == pytest.approx(float(max_time.split()[0]) * (1e-3 if "ms" in max_time else 1))
    assert all(e.time_s <= run.wall_clock_s for e in run.evaluations)
    assert run.time_s.down > 0


def test_a_sweep_says_the_same_as_runs_by_themselves() -> None:
    base = scenario(
        cluster={"faults": FAULTS}, stop={"max_time": "2 s", "max_iterations": 1000}, schemes=["all_reduce"]
    )
    swept = paceline.sweep(base, {"cluster.network.latency": ["1 ms", "5 ms"]}, progress=False)
    (alone,) = runs_of(base)
    assert swept.studies[1].totals["runs"][0]["wall_clock_s"] == alone.wall_clock_s
    assert swept.studies[1].totals["runs"][0]["faults"] == alone.faults


def test_a_fault_says_whom_it_takes() -> None:
    link = {"latency": "9 ms", "bandwidth": "1 Gbit/s"}
    when = {"at": "1 s", "back_after": "1 s"}
    faults = [
        {"sites": ["eu", "us"], **when},
        {"workers": [4, 1], **when},
        when,
        {"sites": ["us"], "at_step": "2 steps", "back_after": "1 s"},
    ]
    network = {"sites": {"us": 3, "eu": 2}, "within": link, "between": link}
    drawn = scenario(cluster={"workers": 5, "network": network, "faults": faults}, schemes=["all_reduce"])
    churn = churn_of(drawn, drawn.schemes[0], 0)
    assert churn is not None
    assert sorted(each.workers for each in churn.outages()) == sorted(
        [(3, 4), (0, 1, 2), (4,), (1,), (0,), (1,), (2,), (3,), (4,)]
    )
    assert [workers for _, workers in churn.at_steps()[2]] == [(0, 1, 2)]


@pytest.mark.parametrize("policy", ["wait", "restart"])
def test_goodput_is_useful_steps_a_second_over_those_without_faults(policy: str) -> None:
    more = {"schemes": [{"all_reduce": {"on_fault": policy}}], "repeats": 3}
    plain, faulty = (
        summarise("s", runs_of(scenario(cluster=cluster, **more))) for cluster in ({}, {"faults": FAULTS})
    )
    assert faulty["summary"][0]["goodput"] == pytest.approx(
        plain["summary"][0]["wall_clock_s"] / faulty["summary"][0]["wall_clock_s"]
    )
    assert "goodput" not in plain["summary"][0]


GPUS = {"network": {"latency": "5 ms", "bandwidth": "1 Gbit/s", "host": {"gpus": 2}}}


def walls_of(cluster: dict[str, Any], seed: int = 0, **more: Any) -> list[float]:
    changed = scenario(cluster=cluster, seed=seed, schemes=["all_reduce"], checkpoint=CHECKPOINT, **more)
    return [run.wall_clock_s for run in runs_of(changed)]


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(0.5, 5.0))
def test_a_trace_of_random_outages_is_the_same_run(seed: int, between_s: float) -> None:
    fault = {
        "mean_time_between": f"{between_s!r} s", "back_after": "200 ms", "detect": "50 ms", "warning": "30 ms"
    }  # fmt: skip
    drawn = scenario(cluster={"faults": [fault]}, seed=seed, schemes=["all_reduce"], checkpoint=CHECKPOINT)
    churn = churn_of(drawn, drawn.schemes[0], seed)
    assert churn is not None
    with TemporaryDirectory() as folder:
        rows = [
            f"{each.workers[0]},{each.at_s!r},0.2,0.05,0.03"
            for each in itertools.takewhile(lambda outage: outage.at_s < 60.0, churn.outages())
        ]
        header = "worker,at [s],back_after [s],detect [s],warning [s]"
        path = Path(folder) / "spot.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        traced = drawn.model_copy(
            update={"cluster": scenario(cluster={"faults": [{"trace": str(path)}]}).cluster}
        )
    for policy in ("wait", "restart"):
        entries = (drawn.schemes[0].model_copy(update={"on_fault": policy}),)
        (one,), (other,) = (runs_of(each.model_copy(update={"schemes": entries})) for each in (drawn, traced))
        assert one.wall_clock_s < 60.0
        assert other.wall_clock_s == one.wall_clock_s
        assert other.faults == one.faults


@settings(max_examples=10)
@given(st.integers(0, 1000), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
def test_hosts_of_one_worker_are_workers(seed: int, ranks: list[int]) -> None:
    fault, stop = {"mean_time_between": "500 ms", "back_after": "100 ms"}, {"max_iterations": 10}
    by_host, by_worker = (
        walls_of({"faults": [{key: ranks, **fault}]}, seed=seed, stop=stop) for key in ("hosts", "workers")
    )
    assert by_host == by_worker


def test_the_workers_of_a_host_fail_together() -> None:
    drawn = scenario(cluster={**GPUS, "faults": [{"hosts": [1], "at": "1 s", "back_after": "1 s"}]})
    churn = churn_of(drawn, drawn.schemes[0], 0)
    assert churn is not None
    assert [each.workers for each in churn.outages()] == [(2, 3)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "worker,at,back_after\n0,1 s,2 s\n4,1 s,2 s\n",
            r"spot.csv:3: worker: must be a number from 0 to 3, not '4'",
        ),
        ("worker,at,back_after\n0,1 s,2\n", r"spot.csv:2: back_after: .*has no unit"),
        ("worker,at\n0,1 s\n", r"spot.csv: has no column 'back_after'"),
        ("rank,at,back_after\n0,1 s,2 s\n", "no column 'rank'; choose from: .*worker"),
        ("host,at,back_after\n2,1 s,2 s\n", "there is no host 2; hosts go from 0 to 1"),
        ("worker,at,back_after,detects\n0,1 s,2 s,1 s\n", "no column 'detects'; did you mean 'detect'"),
        ("worker,at,back_after\n" + "0,1 s,2 s\n" * 2001, "has 2001 rows; a scenario has at most 2000"),
    ],
)
def test_wrong_traces(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "spot.csv").write_text(text)
    with pytest.raises(ValueError, match=error):
        scenario(cluster={**GPUS, "faults": [{"trace": str(tmp_path / "spot.csv")}]})


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        ({"faults": [{"workers": [4], "at": "1 s", "back_after": "1 s"}]}, "there is no worker 4"),
        ({"faults": [{"sites": ["eu"], "at": "1 s", "back_after": "1 s"}]}, "no site is called 'eu'"),
        ({"faults": [{"back_after": "1 s"}]}, "say when: at, at_step or mean_time_between"),
        ({"faults": [{"at": "1 s", "at_step": "3 steps", "back_after": "1 s"}]}, "keep to one of them"),
        ({"faults": [{"at": "1 s", "back_after": "1 s", "shape": 2}]}, "goes with mean_time_between"),
        ({"faults": [{"at": "1 s"}]}, "back_after"),
        ({"faults": [3]}, "valid dictionary"),
        ({"faults": [{"hosts": [4], "at": "1 s", "back_after": "1 s"}]}, "there is no host 4"),
        ({"faults": [{"hosts": [0], "sites": ["a"], "at": "1 s", "back_after": "1 s"}]}, "says who already"),
        ({"faults": [{"links": ["a->b"], "at": "1 s", "back_after": "1 s"}]}, "is network.variation"),
        ({"faults": [{"trace": "no.csv", "detect": "1 s"}]}, "leave the other keys out"),
    ],
)  # fmt: skip
def test_wrong_faults(cluster: dict[str, Any], error: str) -> None:
    with pytest.raises((InputError, ValueError), match=error):
        scenario(cluster=cluster)


@pytest.mark.parametrize(
    ("every", "error"),
    [
        ("10", "has no unit"),
        (10, "has no unit"),
        ("0 s", "greater than|must be"),
        ("ten", "not a number with a unit"),
    ],
)
def test_wrong_checkpoints(every: object, error: str) -> None:
    with pytest.raises((InputError, ValueError), match=error):
        scenario(checkpoint={"every": every})


@pytest.mark.slow
def test_dalys_model_of_checkpoints() -> None:
    """J. T. Daly, A higher order estimate of the optimum checkpoint interval, FGCS 22 (2006), eq. 20 [M]:
    T = M exp(R / M) (exp((tau + delta) / M) - 1) T_s / tau, for exponential faults, during restarts too."""
    inside = 0
    for number in range(30):
        rng = np.random.default_rng(number)
        tau_s, segments = float(rng.uniform(60, 1200)), int(rng.integers(20, 60))
        write_s, restart_s = float(rng.uniform(0, 60)), float(rng.uniform(0, 120))
        mean_s = float(rng.uniform(600, 6000))
        every = Checkpoint.model_validate(
            {"every": "10 steps", "write": f"{write_s!r} s", "restart": f"{restart_s!r} s"}
        )
        fault = Fault.model_validate({"mean_time_between": f"{mean_s!r} s", "back_after": "0 s"})
        ends_s = [(k + 1) * tau_s / 10 for k in range(10 * segments)]
        walls = [
            follow(
                Churn((fault,), (((0,),),), "restart", every, 2000 * number + seed), ends_s, ends_s[-1]
            ).wall_s
            for seed in range(2000)
        ]
        # The last segment is followed by no write.
        model_s = mean_s * math.exp(restart_s / mean_s) * (
            (segments - 1) * math.expm1((tau_s + write_s) / mean_s) + math.expm1(tau_s / mean_s)
        )  # fmt: skip
        half = 1.96 * float(np.std(walls, ddof=1)) / math.sqrt(len(walls))
        inside += abs(float(np.mean(walls)) - model_s) <= half
    assert inside >= 27  # of 30
