"""Whether processes still run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def is_alive(process: int) -> bool:
    """No where it has ended, and its parent has not looked yet."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_for_end(processes: Sequence[int], at_most_s: float = 20.0) -> None:
    """Return once all have ended; fails if that takes long, on a busy machine too."""
    until_s = time.monotonic() + at_most_s
    while alive := [process for process in processes if is_alive(process)]:
        assert time.monotonic() < until_s, f"still there: {alive}"
        time.sleep(0.01)
