"""Which number of a run answers a row: seconds that three crashes add to the time to a target loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import wall_clock_s

TITLE: Final = "extra seconds of three crashes, DDP and DiLoCo on four A100"
UNIT: Final = "s"
BLIND: Final = "6 of the 10 rows; of H = 500 the number of digits had been seen, its page says how"
GRADES: Final = {"contradicting": "its evaluations are further apart than most differences that it measures"}
FITTED: Final = {"restart of DDP": "42.8 s, on its first seed"}

_SCENARIO: Final = Path(__file__).with_name("four-gpus.yaml")
_CRASHES: Final = 3
_REPLACEMENT: Final = "30 s"
_STEP_TOKENS: Final = 4 * 32 * 512
_EVERY: Final = 100
"""Steps from one of DDP's checkpoints to the next."""
_CHECKPOINT: Final = f"checkpoint={{every: {_EVERY} steps, restart: 42.8 s}}"


def predict(row: Mapping[str, str]) -> float:
    """Extra seconds: replacements, and the work that was lost."""
    step_s, lost_steps = float(row["step_s"]), int(row["lost_tokens"]) / _STEP_TOKENS
    time = f"cluster.compute.time={step_s} s"
    if row["method"] == "ddp":
        faults = _faults(round(lost_steps))
        return wall_clock_s(_SCENARIO, time, faults, _CHECKPOINT) - wall_clock_s(_SCENARIO, time)
    scheme = f"schemes=[diloco: {{period: {row['method'].removeprefix('diloco ')}}}]"
    waits_s = wall_clock_s(_SCENARIO, time, scheme, _faults(0)) - wall_clock_s(_SCENARIO, time, scheme)
    return waits_s + _CRASHES * lost_steps * step_s


def _faults(steps: int) -> str:
    """Crashes that strike this number of steps after a checkpoint."""
    each = [
        f"{{workers: [0], at_step: {_EVERY * crash + steps} steps, back_after: {_REPLACEMENT}}}"
        for crash in range(1, _CRASHES + 1)
    ]
    return f"cluster.faults=[{', '.join(each)}]"
