"""``make validate``: run the whole design on the lab and write ``docs/validation.md``.

``python -m benchmarks.validation.campaign [--hosts tuned|stock] [--congestion NAME] [--queue fair|fifo]
[--out PAGE] [--state FOLDER] [--cells N] [--profile FILE]``. Every run that is complete is kept in the state
folder, so that an interrupted campaign goes on where it stopped. One set of processes serves all cells. Stock
hosts, and first-in-first-out links, have pages and folders (with probes) of their own. Of the latter the
cells are the twelve of the design with the largest error (a) of the wall clock on the page of the same hosts
with fair queues, unless ``--cells`` says otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from benchmarks.validation import unpadded
from benchmarks.validation.design import (
    CELLS,
    EVERY,
    SCHEMES,
    SEED,
    STEPS,
    DesignPoint,
    computation_s,
    spread,
    time_to_target_s,
    worst,
)
from paceline.realrun.calibration import cluster_probes, fit, probes
from paceline.realrun.calibration.probes import plan_for
from paceline.realrun.calibration.validate import DRAWS, other_wake_ups, simulate_again, successful_run
from paceline.realrun.lab import Lab
from paceline.realrun.launch.cells import run_requests, with_draws
from paceline.realrun.launch.processes import Processes
from paceline.sim.config.files import write_atomically
from paceline.sim.devices import one_thread
from paceline.sim.drivers.job import UNRECORDED
from paceline.sim.errors import InputError, PacelineError
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network import profile as profiles
from paceline.sim.network.build import build_network
from paceline.sim.network.network_settings import Congestion, HostTuning, QueueName, TcpSettings
from paceline.sim.network.profile import Profile
from paceline.sim.records.comparison import error_pct
from paceline.sim.records.intervals import of_runs
from paceline.sim.records.run import SUM_TOLERANCE, Run, exact_exchanges, score_difference
from paceline.sim.scenario.schema import parse

MOST_WORKERS: Final = max(cell.workers for cell in CELLS)
_REPEATS_NOISY: Final[Mapping[HostTuning, int]] = {"tuned": 10, "stock": 4}
"""Real runs where noise decides, fewer where limits are wider.

Of random computing times every other one draws others.
"""

_REPEATS_FIFO: Final = 8
"""The same over first-in-first-out links, where chance decides which connections leave slow start early: runs
of one cell differ by a third."""

_PROBES: Final = 4
"""Spread over the campaign: their mean is of the machine as it was, their spread of how it changed."""

_PROBE_REPEATS: Final = 4

_FIFO_CELLS: Final = 12
"""Cells that are run with first-in-first-out links: those that fair queues got worst."""


@dataclass(frozen=True)
class CampaignResult:
    """What is kept of one run.

    Attributes:
        wall_s, target_s: wall clock, and time to the design's target (None if it was not met).
        operations_s: mean over workers of the time in each kind of operation.
        digest: of the final models.
        loss: their last training loss.
        exchanges: see ``Run``.
        overruns: gradients that did not fit into their time.
        load: processes that wanted to run before it started; None for a simulated one.
    """

    wall_s: float
    target_s: float | None
    operations_s: dict[str, float]
    digest: str
    loss: float | None
    overruns: int = 0
    load: float | None = None
    exchanges: tuple[str, ...] | None = None


def outcome(run: Run, workers: int, overruns: int = 0, load: float | None = None) -> CampaignResult:
    """Keep what the page needs."""
    sums: dict[str, float] = defaultdict(float)
    for event in run.events:
        if event.task == 0 and event.operation != "next_step":
            sums[event.operation] += (event.end_s - event.start_s) / workers
    loss = run.evaluations[-1].metrics["train_loss"] if run.evaluations else None
    return CampaignResult(
        run.wall_clock_s, time_to_target_s(run), dict(sums), run.digest, loss, overruns, load, run.exchanges
    )


def runs_wanted(cell: DesignPoint, hosts: HostTuning = "tuned", queue: QueueName = "fair") -> int:
    """Measured runs: one with the scenario's draws, others with other ones."""
    if not cell.noise_decides:
        return 2
    return _REPEATS_NOISY[hosts] if queue == "fair" else _REPEATS_FIFO


def draws_of(number: int) -> int | None:
    """The seed of measured run ``number``'s draws; None, the scenario's own, for every other run."""
    return None if number % 2 == 0 else DRAWS[0] - number


def same_draws(cell: DesignPoint, measured: Sequence[CampaignResult]) -> Sequence[CampaignResult]:
    """The measured runs whose computing times are the scenario's own."""
    if not cell.noise_decides:
        return measured[:1]
    return measured[::2] if cell.random else measured


def other_draws(cell: DesignPoint, measured: Sequence[CampaignResult]) -> Sequence[CampaignResult]:
    """The measured runs that a forecast is compared with: none has the draws of the mechanism's, where these
    are random."""
    return measured if cell.noise_decides and not cell.random else measured[1::2]


def measure_cell(
    processes: Processes,
    cell: DesignPoint,
    number: int,
    tcp: TcpSettings | None = None,
    queue: QueueName = "fair",
) -> CampaignResult:
    """One real run."""
    scenario = cluster_probes.on_hosts(cell.scenario(), tcp, queue)
    assert processes.lab
    processes.lab.reconfigure(build_network(scenario.cluster.network, cell.workers))
    (request,) = run_requests(scenario)
    load = os.getloadavg()[0]
    result = processes.run(replace(request, draws=draws_of(number)))
    overruns = sum(timing.overruns for timing in result.timings)
    return outcome(successful_run(result), cell.workers, overruns, load)


@one_thread()
def predict_cell(
    cell: DesignPoint, profile: Profile, tcp: TcpSettings | None = None, queue: QueueName = "fair"
) -> dict[str, Any]:
    """The mechanism (the same draws) and the forecast (others, of the factors too)."""
    job = cell.job()
    job = replace(job, transfer=replace(job.transfer, tcp=tcp, queue=queue))
    run = simulate_job(job, profile=profile)
    same = outcome(run, cell.workers)
    seeds = DRAWS if cell.noise_decides or cell.random else ()
    fresh = [outcome(simulate_again(with_draws(job, seed), profile, seed), cell.workers) for seed in seeds]
    timing = replace(job, problem=None, task=None, recording=UNRECORDED)
    noisy = seeds if cell.noise_decides else ()
    return {
        "same": asdict(same),
        "same_walls_s": [
            simulate_job(other_wake_ups(timing, seed), profile=profile).wall_clock_s for seed in noisy
        ]
        or [same.wall_s],
        "fresh": [[each.wall_s, each.target_s] for each in fresh] or [[same.wall_s, same.target_s]],
        "computation_s": computation_s(job, run),
    }


class RunStore:
    """Complete runs, one file each; what other code or another profile has written is not used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, key: str) -> Any:
        """What was kept under ``name`` for ``key``; None if nothing."""
        path = self._folder / f"{name}.json"
        if not path.is_file():
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            return None
        return kept["value"] if kept.get("key") == key else None

    def put(self, name: str, key: str, value: Any) -> None:
        """Keep a complete run."""
        write_atomically(
            self._folder / f"{name}.json", json.dumps({"key": key, "value": value}, allow_nan=False)
        )


def key_of(*parts: object) -> str:
    """A key that changes with what a run depends on."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def run(
    cells: Sequence[DesignPoint],
    state: RunStore,
    profile: Profile | None,
    tcp: TcpSettings | None = None,
    queue: QueueName = "fair",
) -> tuple[list[dict[str, Any]], dict[str, Any], Profile, float]:
    """Measure what is missing, then predict.

    Returns:
        A row per cell, column (c), the profile and the seconds spent.
    """
    begin_s = time.monotonic()
    hosts: HostTuning = "tuned" if tcp is None else "stock"
    where = () if tcp is None else (tcp.model_dump_json(),)
    if queue != "fair":
        where = (*where, queue)

    def cell_key(cell: DesignPoint) -> str:
        return key_of(cell, SEED, STEPS, EVERY, *where)

    standard = parse(cluster_probes.STANDARD).cluster
    network = build_network(standard.network, standard.workers)
    plan = plan_for(network, cluster_probes.MESSAGE_SIZES_BYTES, _PROBE_REPEATS + 1)
    probe_key = key_of(_PROBES, plan, *where)
    missing = [
        (cell, number)
        for number in range(max(runs_wanted(cell, hosts, queue) for cell in cells))
        for cell in sorted(cells, key=lambda c: c.workers)
        if number < runs_wanted(cell, hosts, queue)
        and state.get(f"{cell.name}.{number}", cell_key(cell)) is None
    ]
    unprobed = []
    if profile is None:
        unprobed = [k for k in range(_PROBES) if state.get(f"probe.{k}", probe_key) is None]
    unpadded_key = key_of(unpadded.STEPS, unpadded.scenario("all_reduce", {"time": "0 s"}), *where)
    alone = state.get("unpadded", unpadded_key)
    if missing or alone is None or unprobed:
        start = build_network(
            max(cells, key=lambda c: c.workers).scenario().cluster.network, max(c.workers for c in cells)
        )
        lab = Lab(start, tcp=tcp, queue=queue)
        with Processes(lab=lab) as processes:
            for each in _with_probes(missing, unprobed):
                if isinstance(each, int):
                    _say(f"probe {each + 1} of {_PROBES}")
                    setting, kind = (
                        cluster_probes.standard(tcp, queue),
                        probes.lab_hosts(tcp, queue),
                    )
                    probed = cluster_probes.measure(processes, kind, setting, repeats=_PROBE_REPEATS)
                    state.put(f"probe.{each}", probe_key, probed.model_dump(mode="json"))
                    continue
                done, cell, number = each
                of_all = f"{done + 1} of {len(missing)}"
                _say(f"{of_all}: {cell.name}, run {number}, load {os.getloadavg()[0]:.1f}")
                result = measure_cell(processes, cell, number, tcp, queue)
                state.put(f"{cell.name}.{number}", cell_key(cell), asdict(result))
            if alone is None:
                _say("unpadded computation")
                alone = unpadded.measure(processes, SCHEMES)
                state.put("unpadded", unpadded_key, alone)
    if profile is None:
        _say("calibrating")
        read = cluster_probes.Measurements.model_validate_json
        profile = fit.calibrate(
            [read(json.dumps(state.get(f"probe.{k}", probe_key))) for k in range(_PROBES)]
        ).profile
    _say("predicting")
    rows = []
    for cell in cells:
        kept = [state.get(f"{cell.name}.{n}", cell_key(cell)) for n in range(runs_wanted(cell, hosts, queue))]
        measured = [CampaignResult(**each) for each in kept]
        rows.append(row_of(cell, predict_cell(cell, profile, tcp, queue), measured))
    alone["predicted_s"] = unpadded.predict(alone, SCHEMES, profile, tcp, queue)
    return rows, alone, profile, time.monotonic() - begin_s


def _with_probes(
    missing: Sequence[tuple[DesignPoint, int]], unprobed: list[int]
) -> Iterator[int | tuple[int, DesignPoint, int]]:
    """The missing runs, numbered, and spread over them the numbers of the missing probes."""
    for done, (cell, number) in enumerate(missing):
        while unprobed and done * (_PROBES - 1) >= unprobed[0] * len(missing):
            yield unprobed.pop(0)
        yield done, cell, number
    yield from unprobed


def row_of(
    cell: DesignPoint, predicted: dict[str, Any], measured: Sequence[CampaignResult]
) -> dict[str, Any]:
    """Everything about one cell, errors in per cent of what was measured.

    The mechanism: the same computing times on both sides; means of both where the machine's noise decides.
    The forecast is compared with real runs that it does not share draws with: one, and the mean of several
    where the noise decides. ``targets_s``: the mean of the forecast's times to the target, and of the
    measured ones; None where a run did not get there.
    """
    same = CampaignResult(**predicted["same"])
    same_s = statistics.fmean(predicted["same_walls_s"])
    first, alike_s = measured[0], statistics.fmean(m.wall_s for m in same_draws(cell, measured))
    others = other_draws(cell, measured)
    computed_s = predicted["computation_s"]
    walls = [wall for wall, _ in predicted["fresh"]]
    targets = [target for _, target in predicted["fresh"] if target is not None]
    real_wall_s = statistics.fmean(m.wall_s for m in others)
    real_targets = [m.target_s for m in measured if m.target_s is not None]
    low, high = of_runs(walls, 0.9)
    return {
        "cell": cell.name,
        "scheme": cell.scheme,
        "setting": list(cell.setting),
        "targets_s": [
            statistics.fmean(targets) if len(targets) == len(predicted["fresh"]) else None,
            statistics.fmean(real_targets) if len(real_targets) == len(measured) else None,
        ],
        "predicted_s": same_s,
        "measured_s": alike_s,
        "share": computed_s / same_s,
        "mechanism_pct": error_pct(same_s, alike_s),
        "exchange_pct": 100 * (same_s - alike_s) / max(alike_s - computed_s, 1e-9),
        "same_models": None if cell.asynchronous else _likeness(same, first),
        "forecast_s": float(np.mean(walls)),
        "forecast_pct": error_pct(float(np.mean(walls)), real_wall_s),
        "target_pct": error_pct(statistics.fmean(targets), statistics.fmean(real_targets))
        if targets and real_targets
        else None,
        "floor_pct": error_pct(measured[1].wall_s, first.wall_s),
        "interval_s": [low, high] if len(walls) > 1 else None,
        "mean_inside": low <= real_wall_s <= high if cell.noise_decides else None,
        "inside": [low <= m.wall_s <= high for m in measured] if len(walls) > 1 else [],
        "operations": {
            name: [same.operations_s.get(name, 0.0), first.operations_s.get(name, 0.0)]
            for name in sorted({*same.operations_s, *first.operations_s})
        },
        "overruns": sum(m.overruns for m in measured),
        "load": first.load,
    }


def _likeness(predicted: CampaignResult, measured: CampaignResult) -> str:
    """How the final models of both sides compare: a synchronous scheme has to give the same ones."""
    if predicted.digest == measured.digest:
        return "same bits"
    exact = exact_exchanges(predicted.exchanges) and exact_exchanges(measured.exchanges)
    if (
        exact
        or measured.loss is None
        or score_difference({"train_loss": predicted.loss}, {"train_loss": measured.loss}) > SUM_TOLERANCE
    ):
        return "**differ**"
    return f"loss within {SUM_TOLERANCE:g}"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    from benchmarks.validation import page

    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation.campaign", description=__doc__)
    parser.add_argument(
        "--hosts", choices=get_args(HostTuning), default="tuned", help="TCP of the lab's hosts"
    )
    parser.add_argument(
        "--congestion", choices=get_args(Congestion), default="cubic", help="of stock hosts; absent: cubic"
    )
    parser.add_argument(
        "--queue", choices=get_args(QueueName), default="fair", help="how the lab's links serve what waits"
    )
    parser.add_argument(
        "--out", type=Path, help="the page to write; absent: docs/validation.md, for others -stock, -fifo"
    )
    parser.add_argument(
        "--state", type=Path, help="where complete runs are kept; absent: out/validation, or -stock, -fifo"
    )
    parser.add_argument(
        "--cells", type=int, default=None, metavar="N", help="only N of the cells, spread over the design; "
        f"absent: all, with --queue fifo the {_FIFO_CELLS} worst of the page with fair queues"
    )  # fmt: skip
    parser.add_argument(
        "--profile", type=Path, default=None, help="use this profile instead of probing first"
    )
    arguments = parser.parse_args(argv)
    hosts = "validation" if arguments.hosts == "tuned" else "validation-stock"
    if arguments.cells is not None:
        cells = spread(arguments.cells)
    elif arguments.queue == "fair":
        cells = list(CELLS)
    else:
        cells = worst(Path("docs", f"{hosts}.md"), _FIFO_CELLS)
    profile = profiles.load(arguments.profile) if arguments.profile is not None else None
    tcp = None if arguments.hosts == "tuned" else TcpSettings(congestion=arguments.congestion)
    which = hosts if arguments.queue == "fair" else f"{hosts}-fifo"
    state, out = arguments.state or Path("out", which), arguments.out or Path("docs", f"{which}.md")
    rows, alone, profile, spent_s = run(cells, RunStore(state), profile, tcp, arguments.queue)
    write_atomically(state / "rows.json", json.dumps(rows, indent=1, allow_nan=False) + "\n")
    write_atomically(out, page.page(rows, alone, profile, spent_s, arguments.hosts, arguments.queue))
    _say(f"wrote {out}")
    return 0 if page.met(rows, arguments.hosts, arguments.queue) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PacelineError as error:
        _say(f"paceline: {error}")
        sys.exit(2 if isinstance(error, InputError) else 1)
