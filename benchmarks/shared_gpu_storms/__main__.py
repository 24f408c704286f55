"""Four storms, predicted and measured.

python -m benchmarks.shared_gpu_storms
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.shared_gpu_storms.storm import (
    EVALUATION_S,
    PERIOD,
    RELAUNCH_S,
    SETUP_S,
    STEP_S,
    Event,
    Storm,
)
from docs.make.page import renewed
from paceline import simulate
from paceline.sim.config.files import write_atomically

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "README.md"
MARK: Final = "<!-- Below: python -m benchmarks.shared_gpu_storms -->\n"
WARMUP_S: Final = 90.0


class Outcome(NamedTuple):
    """What a storm comes to; seconds are medians over its kills.

    ``apart``: the efficiency with a GPU for each replica, simulated; None: nobody was left with a model.
    """

    kills: int
    efficiency: float
    closed_form: float
    survivor_s: float
    victim_s: float
    apart: float | None


def schedule(name: str) -> list[Event]:
    """The faults of a storm."""
    with (HERE / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return [
            Event(float(at_s), fault, int(number)) for at_s, fault, number in list(csv.reader(stream))[1:]
        ]


def outcome(name: str, *, checkpoints: bool) -> Outcome:
    """Run a storm; its window ends with its last fault, as the source has it."""
    events = schedule(name)
    window_s = events[-1].at_s
    storm = Storm(events, WARMUP_S, checkpoints=checkpoints)
    storm.run(window_s + 2 * WARMUP_S)
    calm = Storm([], WARMUP_S, checkpoints=False)
    calm.run(window_s)
    first_s, last_s = calm.commits[0][0], calm.commits[-1][0]
    calm_per_s = len(calm.commits) / (last_s - first_s)
    committed = sum(0 <= moment_s <= window_s for moment_s, _ in storm.commits)
    kills = [kill for kill in storm.kills if kill[0] <= window_s]
    lost_s = PERIOD / 2 * STEP_S[True] / 2 + EVALUATION_S[False]
    return Outcome(
        len(kills),
        committed / window_s / calm_per_s,
        1 - len(kills) * lost_s / window_s,
        _median_wait_s(kills, storm.commits, of_victim=False),
        _median_wait_s(kills, storm.commits, of_victim=True),
        _with_a_gpu_each(kills, window_s),
    )


def _with_a_gpu_each(kills: Sequence[tuple[float, int]], window_s: float) -> float | None:
    back_s = RELAUNCH_S + SETUP_S + EVALUATION_S[True]
    faults = ", ".join(
        f"{{workers: [{number}], at: {at_s} s, back_after: {back_s} s, detect: 5 s}}"
        for at_s, number in kills
    )
    changes = [f"cluster.faults=[{faults}]", f"stop.max_time={window_s} s"]
    (run,) = simulate(HERE / "a-gpu-each.yaml", changes=changes, jobs=1, progress=False).runs
    if run.faults is None or run.wall_clock_s < window_s:
        return None
    return 1 - (run.faults["down_s"] + run.faults["repeated_s"]) / run.wall_clock_s


def _median_wait_s(
    kills: Sequence[tuple[float, int]], commits: Sequence[tuple[float, int]], *, of_victim: bool
) -> float:
    waits = [
        next(moment_s for moment_s, who in commits if moment_s > at_s and (who == victim) == of_victim) - at_s
        for at_s, victim in kills
    ]
    return statistics.median(waits)


def table() -> str:
    """All storms, in Markdown; measured values in brackets."""
    lines = [
        "| storm | checkpoints | kills | step efficiency | closed form | a GPU each | survivor | victim |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    with (HERE / "measured.csv").open(encoding="utf-8", newline="") as stream:
        for name, checkpoints, measured_pct, survivor_s, victim_s in list(csv.reader(stream))[1:]:
            each = outcome(name, checkpoints=checkpoints == "yes")
            lines.append(
                f"| {name} | {checkpoints} | {each.kills} "
                f"| {100 * each.efficiency:.1f} % ({measured_pct} %) "
                f"| {100 * each.closed_form:.1f} % | {f'{100 * each.apart:.1f} %' if each.apart else ''} "
                f"| {each.survivor_s:.0f} s ({survivor_s} s) "
                f"| {each.victim_s:.0f} s ({victim_s} s) |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Renew the page."""
    text = table()
    sys.stdout.write(text)
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, "\n" + text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
