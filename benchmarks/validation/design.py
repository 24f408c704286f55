"""The fixed design of ``make validate``: one cell is one scheme at one setting.

A fractional design over workers, one-way latency, bandwidth, model size, disturbance and scheme; the times
of computation are chosen so that it does not hide the network. Nothing here is ever fitted: the factors come
from probes at another setting (``scenarios/lab/probe.yaml``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from paceline.realrun.launch.cells import with_draws
from paceline.sim.config import yaml_file
from paceline.sim.drivers.job import UNRECORDED, Job
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.network import free_network
from paceline.sim.network.transport import TransferModel
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.schemes import find_scheme

Disturbance = Literal["homogeneous", "straggler", "lognormal", "two sites", "three sites"]

STEPS: Final = 30
EVERY: Final = 2
SEED: Final = 11
TARGET: Final = ("test_accuracy", 0.8)

SCHEMES: Final[dict[str, Any]] = {
    "all_reduce": "all_reduce",
    "local_sgd": {"local_sgd": {"period": 4}},
    "ring": {"gossip": {"topology": "ring"}},
    "one_peer": {"gossip": {"topology": "one_peer_exponential"}},
    "ad_psgd": "ad_psgd",
}
"""Those that are compared at whole settings."""

_PLAIN: Final = {"optimizer": {"lr": 0.1}}

OTHER_SCHEMES: Final[dict[str, Any]] = {
    "all_reduce_qsgd": {"all_reduce": {"compression": {"qsgd": {"bits": 8}}}},
    "all_reduce_buckets": {"all_reduce": {"overlap": True, "bucket": "250 kB"}},
    "adaptive": {"adaptive_local_sgd": {"initial_period": 2, "calibration": 8}},
    "post_local": {"post_local_sgd": {"switch_at": 10, "period": 4}},
    "exponential": {"gossip": {"topology": "static_exponential"}},
    "sgp": {"sgp": {"topology": "one_peer_exponential"}},
    "leader": {"leader_sgd": {"period": 2, "groups": "sites", "global_period": 6, "pull": 0.1}},
    "easgd": {"easgd": {"period": 2, "pull": 0.5}},
    "easgd_async": {"easgd": {"period": 2, "pull": 0.5, "asynchronous": True}},
    "eamsgd_async": {"eamsgd": {"period": 2, "pull": 0.5, "asynchronous": True, **_PLAIN}},
    "downpour": {"downpour": {"period": 2, "optimizer": {"lr": 0.02}}},
    "diloco": {"diloco": {"period": 5}},
    "streaming": {"diloco": {"period": 6, "fragments": 2, "delay": 1}},
    "slowmo": {"slowmo": {"period": 4}},
    "fedavg": {"fedavg": {"period": 4}},
    "tracking": {"gradient_tracking": {"topology": "ring"}},
    "choco": {"choco_sgd": {"topology": "ring", "compression": {"qsgd": {"bits": 8}}}},
    "halos": {"halos": {"period": 4, "exchange": 4}},
}
"""The others: with several neighbours, groups, a centre, and what travels otherwise."""

MEETING_SCHEMES: Final = frozenset(
    {
        "ring", "exponential", "tracking", "choco",
        "leader", "easgd", "easgd_async", "eamsgd_async", "downpour", "fedavg", "halos",
    }
)  # fmt: skip
"""Those of which a worker, or a centre, gets messages of several others at once."""


@dataclass(frozen=True)
class DesignPoint:
    """One scheme at one setting.

    Attributes:
        scheme: a key of one of the tables of schemes above.
        latency_ms: one way; between the sites where there are two (1 ms inside).
        mbit: of every host's access link.
        kilobytes: that one model stands for.
        compute_ms: mean of one gradient on a worker that is not slow.
    """

    scheme: str
    workers: int
    latency_ms: int
    mbit: int
    kilobytes: int
    disturbance: Disturbance
    compute_ms: int

    @property
    def name(self) -> str:
        """What results are filed under."""
        what = self.disturbance.replace(" ", "-")
        return f"{self.scheme}-{self.workers}-{self.latency_ms}ms-{self.mbit}mbit-{self.kilobytes}kB-{what}"

    @property
    def setting(self) -> tuple[object, ...]:
        """Everything but the scheme."""
        return (
            self.workers, self.latency_ms, self.mbit, self.kilobytes, self.disturbance, self.compute_ms,
        )  # fmt: skip

    @property
    def random(self) -> bool:
        """Whether two real runs differ by more than the machine's noise."""
        return self.disturbance == "lognormal"

    @property
    def asynchronous(self) -> bool:
        """Whether workers do not go in step."""
        (entry,) = self.scenario().schemes
        return not find_scheme(entry.name).in_step(entry.options)

    @property
    def noise_decides(self) -> bool:
        """Whether milliseconds of the machine's own decide which message is first, and so the wall clock.

        Of asynchronous schemes, and where several neighbours' messages meet in one pipe. There two runs with
        the same computing times differ by several per cent, simulated ones (whose wake-up delays are drawn)
        as much as real ones, so that means have to be compared.
        """
        return self.asynchronous or (self.scheme == "exponential" and self.disturbance == "two sites")

    def scenario(self) -> Scenario:
        """The cell as a scenario."""
        access = {"latency": f"{self.latency_ms} ms", "bandwidth": f"{self.mbit} Mbit/s"}
        network: dict[str, Any] = access
        if self.disturbance in ("two sites", "three sites"):
            number = 2 if self.disturbance == "two sites" else 3
            counts = [len(range(site, self.workers, number)) for site in reversed(range(number))]
            network = {
                "sites": dict(zip("abc", counts, strict=False)),
                "within": {"latency": "1 ms", "bandwidth": f"{self.mbit} Mbit/s"},
                "between": {"latency": f"{self.latency_ms} ms", "bandwidth": "100 Mbit/s"},
            }
        compute: dict[str, Any] = {"time": f"{self.compute_ms} ms"}
        if self.disturbance == "lognormal":
            compute["jitter"] = {"lognormal": {"cv": 0.3}}
        cluster: dict[str, Any] = {"workers": self.workers, "compute": compute, "network": network}
        if self.disturbance == "straggler":
            cluster["stragglers"] = [{"workers": [1], "slowdown": 3}]
        value = {
            "name": self.name,
            "seed": SEED,
            "workload": {
                "task": "digits-mlp",
                "batch_size": 32,
                "optimizer": {"lr": 0.1, "momentum": 0.9},
                "payload": f"{self.kilobytes} kB",
            },
            "cluster": cluster,
            "evaluate": {"every": f"{EVERY} steps"},
            "schemes": [(SCHEMES | OTHER_SCHEMES)[self.scheme]],
            "stop": {"max_iterations": STEPS},
            "gradients": "looped",
        }
        return parse(yaml_file.write(value), self.name)

    def job(self, compute_seed: int | None = None) -> Job:
        """What is run: with the scenario's own draws of computing times, or others."""
        scenario = self.scenario()
        job = prepare(scenario, scenario.schemes[0], SEED)
        return job if compute_seed is None else with_draws(job, compute_seed)


def computation_s(job: Job, run: Run) -> float:
    """The computation on the critical path of a simulated run.

    Of a synchronous scheme: the wall clock of the same run on a network that costs nothing. Of an
    asynchronous one, in which nobody waits for another's computation: all that the worker which ends last
    computes.

    Args:
        job: whose run it is.
        run: with its events, where the scheme is asynchronous.
    """
    if not job.synchronous:
        own = [event for event in run.events if event.task == 0]
        last = max(own, key=lambda event: event.end_s).worker
        return math.fsum(
            event.end_s - event.start_s
            for event in own
            if event.worker == last and event.operation == "gradient"
        )
    free = free_network(job.transfer.network.num_hosts)
    timing = replace(job, problem=None, task=None, recording=UNRECORDED, transfer=TransferModel(free))
    return simulate_job(timing).wall_clock_s


def time_to_target_s(run: Run) -> float | None:
    """When the mean model first scored ``TARGET``; it does not end these runs."""
    metric, value = TARGET
    for evaluation in run.evaluations:
        score = evaluation.metrics.get(metric)
        if score is not None and score >= value:
            return evaluation.time_s
    return None


def _all_schemes(*setting: Any) -> tuple[DesignPoint, ...]:
    return tuple(DesignPoint(scheme, *setting) for scheme in SCHEMES)


CELLS: Final[Sequence[DesignPoint]] = (
    *_all_schemes(8, 20, 100, 1000, "two sites", 80),
    *_all_schemes(4, 50, 400, 200, "straggler", 40),
    *_all_schemes(8, 2, 100, 1000, "homogeneous", 80),
    *_all_schemes(6, 50, 100, 1000, "lognormal", 80),
    DesignPoint("all_reduce", 4, 50, 100, 200, "lognormal", 200),
    DesignPoint("all_reduce", 6, 20, 400, 4000, "straggler", 40),
    DesignPoint("all_reduce", 8, 2, 100, 40, "two sites", 40),
    DesignPoint("local_sgd", 4, 20, 400, 40, "homogeneous", 30),
    DesignPoint("local_sgd", 8, 2, 400, 4000, "straggler", 20),
    DesignPoint("local_sgd", 8, 20, 100, 4000, "two sites", 100),
    DesignPoint("ring", 4, 50, 400, 4000, "lognormal", 100),
    DesignPoint("ring", 6, 20, 400, 1000, "lognormal", 40),
    DesignPoint("ring", 8, 50, 100, 40, "homogeneous", 50),
    DesignPoint("ring", 8, 2, 400, 4000, "homogeneous", 100),
    DesignPoint("one_peer", 4, 2, 400, 40, "homogeneous", 20),
    DesignPoint("one_peer", 8, 2, 100, 1000, "straggler", 30),
    DesignPoint("one_peer", 8, 50, 400, 4000, "homogeneous", 80),
    DesignPoint("ad_psgd", 4, 20, 400, 1000, "straggler", 40),
    DesignPoint("ad_psgd", 8, 20, 100, 200, "two sites", 60),
    DesignPoint("ad_psgd", 8, 20, 400, 4000, "lognormal", 150),
    DesignPoint("all_reduce_qsgd", 6, 20, 100, 1000, "two sites", 60),
    DesignPoint("all_reduce_buckets", 4, 2, 100, 1000, "homogeneous", 80),
    DesignPoint("adaptive", 4, 50, 400, 1000, "straggler", 30),
    DesignPoint("post_local", 6, 2, 100, 1000, "lognormal", 60),
    DesignPoint("exponential", 8, 20, 100, 1000, "two sites", 70),
    DesignPoint("exponential", 8, 2, 100, 1000, "homogeneous", 70),
    DesignPoint("exponential", 6, 50, 400, 4000, "lognormal", 100),
    DesignPoint("sgp", 8, 50, 100, 1000, "straggler", 30),
    DesignPoint("leader", 8, 20, 100, 1000, "two sites", 70),
    DesignPoint("easgd", 6, 20, 400, 1000, "lognormal", 40),
    DesignPoint("easgd_async", 6, 20, 100, 1000, "three sites", 60),
    DesignPoint("easgd_async", 8, 20, 100, 200, "straggler", 20),
    DesignPoint("eamsgd_async", 4, 50, 100, 200, "lognormal", 60),
    DesignPoint("downpour", 6, 20, 100, 200, "two sites", 40),
    DesignPoint("diloco", 6, 20, 100, 1000, "three sites", 60),
    DesignPoint("streaming", 6, 20, 100, 1000, "three sites", 60),
    DesignPoint("slowmo", 4, 50, 400, 1000, "straggler", 30),
    DesignPoint("fedavg", 6, 2, 100, 1000, "lognormal", 60),
    DesignPoint("tracking", 8, 50, 100, 200, "homogeneous", 60),
    DesignPoint("choco", 4, 20, 400, 1000, "straggler", 40),
    DesignPoint("halos", 6, 20, 100, 200, "three sites", 40),
)
"""In three quarters of them computation takes at most half of the predicted wall clock, by test."""


def spread(count: int) -> list[DesignPoint]:
    """``count`` of the cells, 1 to all of them, evenly spread over the design.

    Raises:
        InputError: the design has not so many.
    """
    if not 0 < count <= len(CELLS):
        raise InputError(f"--cells {count}: the design has {len(CELLS)}")
    return [CELLS[k * len(CELLS) // count] for k in range(count)]


def worst(page: Path, count: int) -> list[DesignPoint]:
    """The ``count`` cells of the design with the largest error (a) of the wall clock on a page of a campaign.

    Cells of the page that are no longer in the design do not count. In the order of the design.

    Raises:
        InputError: the page cannot be read, or has fewer cells of the design.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: {error.strerror}; run the campaign with fair queues first") from None
    table = text.partition("## Cells")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    if len(rows) < 3 or _WALL not in rows[0]:
        raise InputError(f"{page} has no table of cells; run the campaign with fair queues first")
    column = rows[0].index(_WALL)
    errors = {row[0]: abs(float(row[column].split()[0])) for row in rows[2:]}
    known = [cell for cell in CELLS if cell.name in errors]
    if len(known) < count:
        raise InputError(f"{page} has {len(known)} cells of the design, {count} are wanted; run it anew")
    chosen = sorted(known, key=lambda cell: -errors[cell.name])[:count]
    return [cell for cell in CELLS if cell in chosen]


_WALL: Final = "(a) wall"
"""Heading of the column of a campaign's page that has the errors of wall clocks with the same draws."""
