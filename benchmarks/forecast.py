"""How far off `paceline check` is with its forecast of the processor time of `paceline simulate`.

    python -m benchmarks.forecast                       all ready scenarios; writes docs/forecasts.md
    python -m benchmarks.forecast two-sites lab/svm     these, printed alone

Each command has its own process. A scenario that would take more than ``LIMIT_S`` has one repeat, and steps
that fit. A forecast outside the factor is repeated twice; the medians count.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from paceline.sim.scenario.ready import ready_scenarios

LIMIT_S: Final = float(os.environ.get("FORECAST_LIMIT_S", "60"))
FACTOR: Final = 2.0
PAGE: Final = Path("docs/forecasts.md")
HEAD: Final = """\
# Forecasts of `check`

Processor seconds of `paceline simulate`, with its start-up: foretold by `paceline check`, and measured.

| scenario | forecast | measured | ratio | |
| --- | ---: | ---: | ---: | --- |
"""


def main() -> None:
    """Measure, print, and write the page."""
    rows = []
    for name in sys.argv[1:] or sorted(ready_scenarios()):
        rows.append(measure(name))
        print(rows[-1], flush=True)
    if not sys.argv[1:]:
        PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


def measure(name: str) -> str:
    """A row of the table."""
    changes: list[str] = []
    answer = _check(name, changes)
    if _forecast_s(answer) > LIMIT_S:
        rows = [row for row in answer["schemes"] if "steps_at_most" in row]
        each_s = sum(row["simulation_s_per_100_steps"] for row in rows) / 100
        most = min(LIMIT_S / each_s / (1 + answer["trials"]), max(row["steps_at_most"] for row in rows))
        changes = ["repeats=1", f"stop.max_iterations={max(20, int(most))}"]
    pairs: list[tuple[float, float]] = []
    while not pairs or (len(pairs) < 3 and not 1 / FACTOR <= pairs[0][0] / pairs[0][1] <= FACTOR):
        forecast_s = _forecast_s(_check(name, changes))
        before_s = _processor_s()
        _paceline("simulate", name, changes)
        pairs.append((forecast_s, _processor_s() - before_s))
    forecast_s, measured_s = (statistics.median(each) for each in zip(*pairs, strict=True))
    cut = f"cut: {', '.join(changes)}" if changes else ""
    return f"| {name} | {forecast_s:.1f} s | {measured_s:.1f} s | {forecast_s / measured_s:.2f} | {cut} |"


def _forecast_s(answer: dict[str, Any]) -> float:
    expected_s = answer["simulation_s_expected"]
    return float(answer["simulation_s_at_most"] if expected_s is None else expected_s)


def _check(name: str, changes: list[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_paceline("check", name, [*changes, "--forecast", "--json"]))
    return answer


def _paceline(command: str, name: str, changes: list[str]) -> bytes:
    options = [each if each.startswith("--") else f"--set={each}" for each in changes]
    words = [sys.executable, "-m", "paceline", command, name, "--device=cpu", *options]
    return subprocess.run(words, check=True, capture_output=True).stdout


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
