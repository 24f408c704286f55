"""Push-sum: conservation of mass under any delay, recursions in numpy, exact facts, bytes, waiting."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from types import coroutine
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from paceline.reports.tables import warnings
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.network.network import Network
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import decoded
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Program, Worker
from paceline.sim.records.summarise import summarise
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.common.inside import Units
from paceline.sim.schemes.sgp import Mass, pass_on, push_freely, push_in_step, take_in
from paceline.sim.topology import Plan, plan
from paceline.sim.training.optimizer import Adam, AdamSettings
from tests.support.factory import make_job, make_scheme, run_events, simulated
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import Array, close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR, BETA = 6, 17, 0.1, 0.9
REGULAR = ("ring", "static_exponential", "one_peer_exponential", "complete")


def _plan(matrices: Sequence[Array]) -> Plan:
    """A plan of given column-stochastic matrices, in turn."""
    sparse = [csr_array(matrix) for matrix in matrices]
    patterns = [Pattern.from_matrix(matrix) for matrix in sparse]
    n = len(matrices)
    return Plan(
        "test", len(matrices[0]), "given", n, lambda step: sparse[step % n], lambda step: patterns[step % n]
    )


def _split_equally(receivers: Sequence[Sequence[int]]) -> Array:
    """P where j sends equal shares to ``receivers[j]`` and to itself."""
    p = np.zeros((len(receivers),) * 2)
    for j, out in enumerate(receivers):
        p[[*out, j], j] = 1 / (len(out) + 1)
    return p


IRREGULAR = (_split_equally([[1, 2, 3], [2], [3, 0], [4], [5, 1], [0, 3]]), _split_equally([[4], *[[]] * 5]))
"""Out-degrees from 1 to 3; then a step in which one worker sends and nobody else does."""


def _job(plan: Plan, masses: list[Mass], *, overlap: int, asynchronous: bool = False, **job: Any) -> Job:
    """Push-sum over a plan; ``masses`` gets what the workers hold, by rank."""

    def program(worker: Worker, options: Any) -> Program:
        mass = Mass(worker.start, torch.ones_like(worker.start[..., :1]))
        masses.append(mass)
        if asynchronous:
            services = take_in(worker, mass), pass_on(worker, mass, plan)
            return Program(push_freely(worker, mass, plan, overlap), services)
        return Program(push_in_step(worker, mass, Units(worker, None), plan, overlap))

    made = quadratic_job("local_sgd", {"period": 1}, workers=plan.workers, **job)
    return replace(made, scheme=make_scheme(program, synchronous=not asynchronous))


# --- trajectories against numpy -----------------------------------------------------------------


def _recursion(
    job: Job, matrices: Sequence[Array], overlap: int, biased: bool = False
) -> tuple[Array, Array]:
    """z and w after ``STEPS`` steps of heavy-ball momentum, in numpy."""
    gradients, x = gradients_of(job), start_of(job)
    w, m = np.ones((len(x), 1)), np.zeros_like(x)
    sent: list[tuple[Array, Array]] = []
    for k in range(STEPS):
        p = matrices[k % len(matrices)]
        m = BETA * m + gradients(k, x if biased else x / w)
        x = x - LR * m
        kept = np.diag(p)[:, None]
        sent.append(((p - np.diag(np.diag(p))) @ x, (p - np.diag(np.diag(p))) @ w))
        x, w = kept * x, kept * w
        if k >= overlap:
            x, w = x + sent[k - overlap][0], w + sent[k - overlap][1]
        total = w.sum() + sum(arriving.sum() for _, arriving in sent[max(0, k - overlap + 1) : k + 1])
        assert total == pytest.approx(len(x), rel=1e-12)
    return (x if biased else x / w), w


@pytest.mark.parametrize("overlap", [0, 1, 3])
@pytest.mark.parametrize("matrices", [IRREGULAR, (_split_equally([[1, 2], [2], [0]]),)], ids=["six", "three"])
def test_is_its_recursion(matrices: tuple[Array, ...], overlap: int) -> None:
    masses: list[Mass] = []
    job = _job(_plan(matrices), masses, overlap=overlap, max_iterations=STEPS, lr=LR, momentum=BETA)
    expected, w = _recursion(job, matrices, overlap)
    close(finals_of(job), expected)
    assert np.ptp(w) > 0.1  # the graph is irregular enough to matter
    masses.clear()
    close(run_lockstep(job).numpy(), expected)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("overlap", [0, 1, 2])
@pytest.mark.parametrize("name", ["one_peer_exponential", "star"])
def test_the_registered_scheme_is_its_recursion(name: str, overlap: int, biased: bool) -> None:
    options = {"topology": name, "overlap": overlap, "biased": biased}
    job = quadratic_job("sgp", options, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
    found = plan(name, WORKERS, "column_stochastic")
    matrices = [found.at(k).matrix for k in range(found.period or 1)]
    close(finals_of(job), _recursion(job, matrices, overlap, biased)[0])


@pytest.mark.parametrize("overlap", [0, 1])
def test_adam_inside(overlap: int) -> None:
    job = quadratic_job("sgp", {"topology": "star", "overlap": overlap}, workers=4, max_iterations=STEPS)
    job = replace(job, optimizer=Adam(AdamSettings(lr=0.05)))
    p = _split_equally([[1, 2, 3], [0], [0], [0]])
    gradients, x = gradients_of(job), start_of(job)
    w, mean, square, arriving = (
        np.ones((4, 1)),
        np.zeros_like(x),
        np.zeros_like(x),
        (0.0 * x, np.zeros((4, 1))),
    )
    for k in range(STEPS):
        g = gradients(k, x / w)
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        x = x - 0.05 * (mean / (1 - 0.9 ** (k + 1))) / (np.sqrt(square / (1 - 0.999 ** (k + 1))) + 1e-8)
        off, kept = p - np.diag(np.diag(p)), np.diag(p)[:, None]
        sent = off @ x, off @ w
        now = arriving if overlap else sent
        x, w, arriving = kept * x + now[0], kept * w + now[1], sent
    np.testing.assert_allclose(finals_of(job), x / w, rtol=1e-9)


# --- conservation -------------------------------------------------------------------------------


@coroutine
def _watched(main: Any, ledger: dict[str, Any], check: Any) -> Generator[Any, Any, None]:
    """``main``; what it sends is added to the ledger, and what it receives taken from it."""
    reply = None
    while True:
        if isinstance(reply, ops.Message):
            ledger["under way"] = ledger["under way"] - reply.value
        try:
            operation = main.send(reply)
        except StopIteration:
            return
        begun = operation.operation if isinstance(operation, ops.Start) else operation
        if isinstance(begun, ops.Send):
            ledger["under way"] = ledger["under way"] + decoded(begun.value)
        if not isinstance(operation, ops.Start):  # all messages of a step are started in one go
            check()
        reply = yield operation


def _under(job: Job, ledger: dict[str, Any], check: Any) -> Job:
    """A job all of whose coroutines are ``_watched``."""

    def program(worker: Worker, options: Any) -> Program:
        made = cast("Program", job.scheme.program(worker, options))
        main, *services = (cast("Any", _watched(each, ledger, check)) for each in (made.main, *made.services))
        return Program(main, services=tuple(services))

    return replace(job, scheme=replace(job.scheme, program=program))


@st.composite
def _digraphs(draw: st.DrawFn) -> list[Array]:
    """Up to three graphs, in turn, each a cycle with any edges beside it."""
    n = draw(st.integers(2, 5))
    edges = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=6)
    found = []
    for extra in draw(st.lists(edges, min_size=1, max_size=3)):
        out = [{(j + 1) % n} | {b for a, b in extra if a == j and b != j} for j in range(n)]
        found.append(_split_equally([sorted(each) for each in out]))
    return found


def _lopsided(latencies_s: Array) -> Network:
    """Every worker at a site of its own: one latency per ordered pair."""
    n = len(latencies_s)
    return Network(
        sites=tuple(f"site{i}" for i in range(n)),
        site_of=tuple(range(n)),
        links=(),
        latency_s=tuple(tuple(row) for row in latencies_s.tolist()),
        per_flow_bytes_per_s=((math.inf,) * n,) * n,
        up={},
        down={},
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(
    matrices=_digraphs(),
    seed=st.integers(0, 10**6),
    overlap=st.integers(0, 3),
    cv=st.sampled_from([0.0, 1.5]),
    slowdown=st.sampled_from([1.0, 12.0]),
    data=st.data(),
)
def test_mass_is_conserved_under_any_delay(
    matrices: list[Array], seed: int, overlap: int, cv: float, slowdown: float, data: st.DataObject
) -> None:
    """At every moment what is held and what is under way add up, whoever is slow, whatever overtakes what."""
    n = len(matrices[0])
    latencies = np.array(data.draw(st.lists(st.floats(0, 20), min_size=n * n, max_size=n * n))).reshape(n, n)
    masses: list[Mass] = []
    job = _job(
        _plan(matrices), masses, overlap=overlap, asynchronous=True, seed=seed, cv=cv, max_iterations=8,
        network=_lopsided(latencies), stragglers=[Straggler(workers=(0,), slowdown=slowdown)], lr=1e-200,
    )  # fmt: skip
    job = replace(job, start=torch.linspace(-3.0, 5.0, 5, dtype=torch.float64))
    ledger: dict[str, Any] = {"under way": torch.zeros(6, dtype=torch.float64), "most": 0.0, "checks": 0}
    expected = n * torch.cat([job.start, torch.ones(1, dtype=torch.float64)])

    def check() -> None:
        if len(masses) == n:
            held = torch.stack([mass.whole for mass in masses]).sum(0)
            torch.testing.assert_close(held + ledger["under way"], expected, rtol=1e-12, atol=1e-12)
            assert all(mass.w is not None and mass.w.item() > 0 for mass in masses)
            ledger["checks"] += 1
            ledger["most"] = max(ledger["most"], ledger["under way"][-1].item())

    run_events(_under(job, ledger, check))
    assert ledger["checks"] > 16 * n
    assert ledger["most"] > 0.1  # messages were under way when it was checked


@pytest.mark.slow
@settings(max_examples=15)
@given(
    matrices=_digraphs(), overlap=st.integers(0, 1), asynchronous=st.booleans(), seed=st.integers(0, 10**6)
)
def test_everybody_comes_to_the_mean(
    matrices: list[Array], overlap: int, asynchronous: bool, seed: int
) -> None:
    """Without learning, z tends to the mean of the first models on any strongly connected digraphs."""
    n = len(matrices[0])
    masses: list[Mass] = []
    job = _job(
        _plan(matrices), masses, overlap=overlap, asynchronous=asynchronous, seed=seed, cv=0.3, lr=1e-200,
        max_iterations=150, every=150, record_events=False,
    )  # fmt: skip
    starts = torch.linspace(-1, 2, n, dtype=torch.float64)[:, None] * torch.ones(5, dtype=torch.float64)

    def program(worker: Worker, options: Any) -> Program:
        return cast("Program", job.scheme.program(replace(worker, start=starts[worker.rank]), options))

    run_events(replace(job, scheme=replace(job.scheme, program=program)))
    for mass in masses:
        np.testing.assert_allclose(mass.z.numpy(), 0.5, atol=2e-3)


@pytest.mark.parametrize(
    ("topology", "slowest"),
    [("ring", 1.2), ("one_peer_exponential", 3.0), ("directed", 1.2), ("directed", 3.0)],
)
def test_who_is_through_keeps_no_mass_of_those_who_step(topology: str, slowest: float) -> None:
    """A worker takes 1.2 or 3 times as long as the others: they end first, and it keeps its weight."""
    masses: list[Mass] = []
    least = [1.0]
    cycle = _plan([_split_equally([[1], [2], [3], [0]])])
    chosen = cycle if topology == "directed" else plan(topology, 4, "column_stochastic")
    job = _job(
        chosen, masses, overlap=0, asynchronous=True, compute_s=0.01, latency_s=0.001, lr=0.02,
        stragglers=[Straggler(workers=(0,), slowdown=slowest)], max_iterations=100,
    )  # fmt: skip
    ledger: dict[str, Any] = {"under way": torch.zeros(6, dtype=torch.float64)}

    def check() -> None:
        if len(masses) == 4:
            held = sum(float(mass.whole[-1]) for mass in masses)
            assert held + float(ledger["under way"][-1]) == pytest.approx(4.0, rel=1e-12)
            least[0] = min(least[0], *(float(mass.whole[-1]) for mass in masses if mass.steps))

    run = simulated(_under(job, ledger, check))
    assert run.status == "completed"
    assert run.message == ""
    assert least[0] > 0.05
    losses = [each.metrics["train_loss"] for each in run.evaluations]
    assert losses[-1] is not None
    assert losses[-2] is not None
    assert losses[-1] < 1.1 * losses[-2]


def test_a_small_weight_is_told() -> None:
    """One worker begins with a ten-thousandth of the weight that is due to it."""
    masses: list[Mass] = []
    cycle = _plan([_split_equally([[1, 2], [2, 0], [0, 1]])])
    job = _job(cycle, masses, overlap=0, max_iterations=3)

    def program(worker: Worker, options: Any) -> Program:
        made = job.scheme.program(worker, options)
        masses[-1].w = masses[-1].w * 1e-4  # type: ignore[operator,assignment]
        return cast("Program", made)

    run = simulated(replace(job, scheme=replace(job.scheme, program=program)))
    assert (run.status, run.message) == (
        "completed", "push-sum weights fell below 0.001, so that models are magnified sums of little"
    )  # fmt: skip
    assert warnings(summarise("s", [run]), "simulated") == [f"{run.label}: {run.message}."]


def test_weights_tend_to_the_perron_vector() -> None:
    """0 -> 1, 1 -> 2, 2 -> 0 and 0 -> 2, split equally: w tends to n pi with P pi = pi."""
    p = _split_equally([[1, 2], [2], [0]])
    masses: list[Mass] = []
    run_events(_job(_plan([p]), masses, overlap=0, max_iterations=80))
    values, vectors = np.linalg.eig(p)
    pi = np.real(vectors[:, np.argmax(np.real(values))])
    found = np.array([mass.w.item() for mass in masses if mass.w is not None])
    np.testing.assert_allclose(found, 3 * pi / pi.sum(), rtol=1e-12)


# --- what it is in special cases ----------------------------------------------------------------


@pytest.mark.parametrize("name", REGULAR)
def test_on_regular_graphs_it_is_gossip(name: str) -> None:
    """Doubly stochastic P: w stays 1 and is not sent; the same bits as adapt then combine."""
    job: dict[str, Any] = dict(workers=8, max_iterations=STEPS, lr=LR, momentum=BETA)
    push = simulated(quadratic_job("sgp", {"topology": name}, **job))
    gossip = simulated(quadratic_job("gossip", {"topology": name}, **job))
    assert (push.digest, push.bytes_sent) == (gossip.digest, gossip.bytes_sent)


def test_on_the_complete_graph_it_is_synchronous_sgd() -> None:
    push = quadratic_job("sgp", {"topology": "complete"}, workers=5, max_iterations=STEPS, lr=LR)
    full = quadratic_job("all_reduce", {}, workers=5, max_iterations=STEPS, lr=LR)
    close(finals_of(push), finals_of(full))


def test_one_peer_exponential_averages_exactly_in_log_n_steps() -> None:
    job = quadratic_job("sgp", {"topology": "one_peer_exponential"}, workers=8, max_iterations=3, lr=1e-200)
    starts = torch.arange(8.0, dtype=torch.float64)[:, None].expand(8, 5).clone()

    def program(worker: Worker, options: Any) -> Any:
        return SCHEMES["sgp"].program(replace(worker, start=starts[worker.rank]), options)

    finals = finals_of(replace(job, scheme=replace(job.scheme, program=program)))
    assert np.array_equal(finals, np.full((8, 5), 3.5))


def test_the_division_by_the_weight_matters() -> None:
    """Without learning on a star: de-biased models agree on the mean, biased ones never do."""
    finals = {}
    for biased in (False, True):
        options = {"topology": "star", "biased": biased}
        job = quadratic_job("sgp", options, workers=5, max_iterations=200, lr=1e-200, every=200)
        job = replace(job, start=torch.full((5,), 2.0, dtype=torch.float64))
        finals[biased] = finals_of(job)[:, 0]
    np.testing.assert_allclose(finals[False], 2.0, rtol=1e-12)
    assert finals[True].sum() == pytest.approx(10.0)
    assert np.ptp(finals[True]) > 1.0


# --- bytes and time -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "messages", "numbers"),
    [
        ({"topology": "one_peer_exponential"}, 1, 100),
        ({"topology": "static_exponential"}, 3, 100),
        ({"topology": "one_peer_exponential", "overlap": 1}, 1, 101),
        ({"topology": "one_peer_exponential", "overlap": 1, "biased": True}, 1, 100),
        ({"topology": "one_peer_exponential", "asynchronous": True}, 1, 101),
        ({"topology": "star"}, 14 / 8, 101),
    ],
)
def test_bytes_per_step(options: dict[str, Any], messages: float, numbers: int) -> None:
    job = make_job("sgp", options, task="quadratic", workers=8, max_iterations=6, every=6)
    assert simulated(job).bytes_sent == 6 * 8 * messages * numbers * 4


@pytest.mark.parametrize("proxy", [{}, {"task": "quadratic", "task_options": {"dimension": 10}}])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_weight_has_four_bytes_whatever_a_parameter_stands_for(
    proxy: dict[str, Any], asynchronous: bool
) -> None:
    options = {"topology": "one_peer_exponential", "overlap": 1, "asynchronous": asynchronous}
    payload = 1e7 / (10 if proxy else 1)
    job = make_job("sgp", options, workers=4, max_iterations=6, bytes_per_parameter=payload, **proxy)
    assert simulated(job).bytes_sent == 6 * 4 * (10_000_000 + 4)


@pytest.mark.parametrize("transfer_s", [0.25, 3.0])
def test_time_of_a_step(transfer_s: float) -> None:
    """Blocking: computation + M/B; overlapped: the longer of the two; all-reduce: + 2 (n-1)/n M/B."""

    def wall_s(scheme: str, options: dict[str, Any]) -> float:
        job = make_job(
            scheme, options, workers=8, compute_s=1.0, max_iterations=40, bytes_per_parameter=800.0,
            bandwidth_bytes_per_s=800.0 / transfer_s,
        )  # fmt: skip
        return simulated(job).wall_clock_s / 40

    push = {"topology": "one_peer_exponential"}
    assert wall_s("sgp", push) == pytest.approx(1.0 + transfer_s, rel=1e-12)
    assert wall_s("sgp", {**push, "overlap": 1, "biased": True}) == pytest.approx(
        max(1.0, transfer_s), rel=0.03
    )
    assert wall_s("all_reduce", {}) == pytest.approx(1.0 + 2 * 7 / 8 * transfer_s, rel=1e-12)


def test_a_delay_spreads_one_hop_a_step() -> None:
    """Late are those on a path from the slow worker in time; by an all-reduce, everybody at once."""
    slow = [Straggler(workers=(0,), slowdown=100)]
    job = make_job("sgp", {"topology": "one_peer_exponential"}, workers=32, max_iterations=4, stragglers=slow)
    events = simulated(job).events
    for k in range(4):
        ends = {e.worker: e.end_s for e in events if e.operation == "mix" and e.step == k}
        late = {w for w, end_s in ends.items() if end_s >= 100.0}
        reach = 2 ** (k + 1) - 1
        assert late == {i % 32 for i in range(-reach, reach + 1)}
    job = make_job("all_reduce", workers=32, max_iterations=1, stragglers=slow)
    assert all(e.end_s >= 100.0 for e in simulated(job).events if e.operation == "all_reduce")


def test_asynchronously_nobody_waits_for_a_straggler() -> None:
    slow = [Straggler(workers=(3,), slowdown=10)]
    options = {"topology": "one_peer_exponential", "asynchronous": True}
    job = make_job(
        "sgp", options, workers=8, max_iterations=None, stragglers=slow, latency_s=0.01, task="quadratic",
    )  # fmt: skip
    steps = [a.steps for a in run_events(replace(job, max_time_s=100.5)).breakdowns]
    assert steps[3] == 10
    assert min(steps[:3] + steps[4:]) >= 95


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topology": "star", "weights": "uniform"}, "columns that sum to 1.*use weights: column_stochastic"),
        (
            {"topology": "grid", "weights": "metropolis_local_degree"},
            "go down to 0: use weights: column_stoch",
        ),
    ],
)
def test_what_would_lose_mass_is_refused(options: dict[str, Any], text: str) -> None:
    scheme = SCHEMES["sgp"]
    with pytest.raises(InputError, match=text):
        scheme.check(scheme.options(**options), 9)
