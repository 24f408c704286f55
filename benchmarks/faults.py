"""Workers stopped, cut off and killed, for real in the lab, beside predictions: benchmarks/faults.csv.

    python -m benchmarks.faults --predict     # before anything is measured; probes how long a start takes
    python -m benchmarks.faults               # a quarter of an hour; or of some kinds:
    python -m benchmarks.faults shrink

Each scheme runs once with each kind of fault. The second command keeps the predictions, measures each run,
compares its models with those computed here, and prints the table of docs/checks.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from paceline.realrun.calibration.validate import processes_for, with_step_limit
from paceline.realrun.launch.cells import run_requests
from paceline.sim.config.csv_tables import read_table
from paceline.sim.config.files import write_atomically
from paceline.sim.devices import one_thread
from paceline.sim.errors import RunError
from paceline.sim.experiments.parity import compare_iterates
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.comparison import error_pct
from paceline.sim.scenario.schema import Scenario, over_transport

ROWS: Final = Path(__file__).with_name("faults.csv")
BAR_PCT: Final = 5.0
"""The bar for the mean error of the wall clock."""
STEPS: Final = 100
KINDS: Final[dict[str, dict[str, Any]]] = {
    "stop": {"workers": [2], "at": "8 s", "back_after": "10 s", "how": "stop"},
    "cut": {"workers": [2], "at_step": "40 steps", "back_after": "10 s", "how": "cut"},
    "kill": {"workers": [2], "at_step": "50 steps", "back_after": "10 s", "how": "kill"},
    "shrink": {"workers": [2], "at_step": "20 steps", "back_after": "8 s", "how": "kill"},
}
"""The fault of each run: at a time, else at the beginning of a step. ``shrink``: the others go on."""
SCHEMES: Final = ("all_reduce", "local_sgd", "gossip", "diloco")
_OPTIONS: Final[dict[str, Any]] = {
    "local_sgd": {"period": 8}, "gossip": {"topology": "ring"}, "diloco": {"period": 8}
}  # fmt: skip
_POLICIES: Final = {"stop": "wait", "cut": "wait", "kill": "restart", "shrink": "shrink"}
_STARTS: Final = 3


@dataclass(frozen=True)
class FaultRow:
    """One run.

    Attributes:
        kind, scheme: of fault, and what ran.
        start_s: probed time of a start of all workers, for ``kill``; under ``shrink`` that of who is replaced
            is over before it is back.
        predicted_s, measured_s: wall clock; NaN: not measured yet.
        same_models: whether the real run went through the models that are computed here.
    """

    kind: str
    scheme: str
    start_s: float
    predicted_s: float
    measured_s: float = float("nan")
    same_models: bool = False

    @property
    def error_pct(self) -> float:
        """How far the prediction is off, in per cent of the measurement."""
        return error_pct(self.predicted_s, self.measured_s)


def scenario_of(kind: str, scheme: str, start_s: float, steps: int = STEPS, **fault: Any) -> Scenario:
    """Four workers across a wide area, of which number 2 fails; ``fault`` changes how."""
    checkpoint = {"every": "20 steps", "restart": f"{start_s:.3f} s"}
    scenario = Scenario.model_validate(
        {
            "name": f"{kind}-{scheme}",
            "seed": 1,
            "workload": {
                "task": "digits-mlp",
                "batch_size": 32,
                "optimizer": {"lr": 0.1, "momentum": 0.9},
                "payload": "200 kB",
            },
            "cluster": {
                "workers": 4,
                "compute": {"time": "100 ms"},
                "network": {"latency": "20 ms", "bandwidth": "1 Gbit/s", "hosts": "stock"},
                "faults": [{**KINDS[kind], **fault}],
            },
            "evaluate": {"every": "10 steps"},
            "schemes": [{scheme: {**_OPTIONS.get(scheme, {}), "on_fault": _POLICIES[kind]}}],
            "stop": {"max_iterations": steps},
            **({"checkpoint": checkpoint} if kind == "kill" else {}),
        }
    )
    return over_transport(with_step_limit(scenario, None), "gloo")


def probe_start_s() -> float:
    """Median time of a start: from nothing to worker 0's first step, less the time of that step."""
    scenario = scenario_of("stop", "local_sgd", 0.0, steps=1)
    (request,) = run_requests(scenario)
    took_s: list[float] = []
    for _ in range(_STARTS):
        with processes_for(scenario, lab=True, probing=False) as pool:
            begun_s = time.monotonic()
            seen_s: list[float] = []
            pool.run(request, lambda _, seen_s=seen_s: seen_s.append(time.monotonic()))  # type: ignore[misc]
            took_s.append(seen_s[0] - begun_s - scenario.cluster.compute.time)  # type: ignore[operator]
    return statistics.median(took_s)


def predict(kind: str, scheme: str, start_s: float, **fault: Any) -> FaultRow:
    """A row without its measurement."""
    scenario = scenario_of(kind, scheme, start_s, **fault)
    with one_thread():
        run = simulate_job(prepare(scenario, scenario.schemes[0], scenario.seed))
    return FaultRow(kind, scheme, start_s, run.wall_clock_s)


def measure(row: FaultRow, **fault: Any) -> FaultRow:
    """The row with its measurement, of fresh processes."""
    scenario = scenario_of(row.kind, row.scheme, row.start_s, **fault)
    (request,) = run_requests(scenario)
    with processes_for(scenario, lab=True, probing=False) as pool:
        run = pool.run(request).run
    if run.status != "completed":
        raise RunError(f"{row.kind}, {row.scheme}: {run.message}")
    with one_thread():
        again = compare_iterates(prepare(scenario, scenario.schemes[0], scenario.seed), run)
    return replace(row, measured_s=run.wall_clock_s, same_models=again["same"] is True)


def write_rows(rows: Sequence[FaultRow]) -> None:
    """Keep rows in a CSV file with a column for each attribute."""
    lines = [",".join(each.name for each in fields(FaultRow))]
    lines += [",".join(map(str, asdict(row).values())) for row in rows]
    write_atomically(ROWS, "\n".join(lines) + "\n")


def read_rows() -> Iterator[FaultRow]:
    """The rows of that file."""
    table = read_table(ROWS)
    at = [table.find(each.name) for each in fields(FaultRow)]
    for _, cells in table.rows:
        kind, scheme, start, predicted, measured, same = (cells[column].strip() for column in at)
        yield FaultRow(kind, scheme, float(start), float(predicted), float(measured), same == "True")


def table_of(rows: Sequence[FaultRow]) -> str:
    """Markdown: a line for each scheme, and for each kind of fault prediction, measurement and error."""
    lines = ["| | " + " | ".join(KINDS) + " |", "| --- |" + " ---: |" * len(KINDS)]
    for scheme in SCHEMES:
        cells = [
            f"{row.predicted_s:.1f} / {row.measured_s:.1f} s ({row.error_pct:+.1f} %)"
            for kind in KINDS
            for row in rows
            if (row.kind, row.scheme) == (kind, scheme)
        ]
        lines.append(f"| `{scheme}` | " + " | ".join(cells) + " |")
    mean = statistics.fmean(abs(row.error_pct) for row in rows)
    verdict = "met" if mean <= BAR_PCT else "missed"
    same = sum(row.same_models for row in rows)
    return "\n".join(
        [
            *lines,
            f"\nMean error {mean:.1f} % (bar: {BAR_PCT:g} %, {verdict}). {same} of {len(rows)} runs went "
            "through the models that are computed here.",
        ]
    )


def main() -> None:
    """Predict everything, or measure it."""
    kinds = [each for each in sys.argv[1:] if each in KINDS] or [*KINDS]
    if "--predict" in sys.argv:
        start_s = probe_start_s()
        kept = [row for row in read_rows() if row.kind not in kinds]
        write_rows(kept + [predict(kind, scheme, start_s) for kind in kinds for scheme in SCHEMES])
        print(f"a start takes {start_s:.2f} s; wrote {ROWS}")
        return
    begun_s, load, rows = time.monotonic(), os.getloadavg()[0], []
    for row in read_rows():
        rows.append(measure(row) if row.kind in kinds else row)
        print(f"{row.kind}, {row.scheme}: {rows[-1].error_pct:+.1f} %", file=sys.stderr, flush=True)
    write_rows(rows)
    print(table_of(rows))
    minutes = (time.monotonic() - begun_s) / 60
    print(f"\n{minutes:.0f} minutes; processes that wanted to run when it began: {load:.1f}")


if __name__ == "__main__":
    main()
