"""``make bench``: measure Paceline beside its peers, in turns, and write ``docs/benchmarks.md``.

    python -m benchmarks.speed.run

Every way has a process of its own with one torch thread, and all of them do a block in turn, so that what
else the machine does meets all of them. Blocks as data are in ``out/bench/blocks.csv``. A quarter of an hour
on a quiet machine.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pandas as pd
import torch

from benchmarks.bars import Part
from benchmarks.speed.alone import NAMES, measure_alone
from benchmarks.speed.children import Child, ChildError
from benchmarks.speed.clock import measure_clocks
from benchmarks.speed.environment import prepare_peers
from benchmarks.speed.page import draw_growth, write_page
from benchmarks.speed.ways import WAYS, Way
from benchmarks.speed.work import Work
from paceline.sim.config.files import save_atomically, write_atomically

PAGE: Final = Path("docs/benchmarks.md")
PICTURE: Final = Path("docs/images/benchmarks.png")
BLOCKS: Final = Path("out/bench/blocks.csv")
BASE: Final = Work(workers=64, hidden=64)
BLOCKS_OF_BASE: Final = ((100, 5), (30, 3), (10, 3))
"""Steps of a block, and how often every way has its turn; the first is the comparison."""
FEW: Final = Work(workers=16, hidden=64)
"""The comparison again where a batch of workers gains less, and processes crowd less."""
BLOCKS_OF_GROWTH: Final = ((100, 2),)
GROWTH: Final = (Work(256, 64), Work(1024, 64), Work(64, 16), Work(64, 256))
GROWING: Final = ("lockstep_gossip", "event_gossip", "gossipy", "vsim", "raw_vmap")


def measure(
    work: Work, blocks: Sequence[tuple[int, int]], ways: Sequence[Way], python: Path
) -> tuple[list[dict[str, object]], dict[str, str]]:
    """Let ways do their blocks in turns.

    Args:
        work: n and the width of the model.
        blocks: steps of a block, and how often every way has its turn.
        ways: that take part.
        python: of the peers' environment.

    Returns:
        A row for each block, and why a way did none, by name.
    """
    say(f"{work.workers} workers, {work.parameters:,} parameters, {len(ways)} ways")
    children: dict[Way, Child] = {}
    rows: list[dict[str, object]] = []
    errors: dict[str, str] = {}
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."}
    with ExitStack() as stack:
        for way in ways:
            interpreter = str(python) if way.peer else sys.executable
            arguments = way.name, str(work.workers), str(work.hidden)
            children[way] = Child([interpreter, "-m", way.program, *arguments], environment)
            stack.callback(children[way].close)
        for way, child in list(children.items()):
            try:
                child.wait_until_ready()
            except ChildError as error:
                errors[way.name] = str(error)
                del children[way]
        for steps, rounds in blocks:
            for number in range(rounds):
                for way, child in list(children.items()):
                    try:
                        done = child.run(steps)
                    except ChildError as error:
                        errors[way.name] = str(error)
                        del children[way]
                        continue
                    iterations = work.workers * steps
                    rows.append({
                        "way": way.name, "workers": work.workers, "parameters": work.parameters,
                        "steps": steps, "round": number, "seconds": done.seconds,
                        "processor_s": done.processor_s, "gib": done.gib, "rate": iterations / done.seconds,
                        "processor_rate": iterations / done.processor_s, "load": os.getloadavg()[0],
                    })  # fmt: skip
    return rows, errors


def machine() -> str:
    """Processor, cores, versions, date and load, human-readable."""
    lines = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if Path("/proc/cpuinfo").exists()
        else []
    )
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    processor = names[0] if names else platform.machine()
    return f"{processor}, {os.cpu_count()} cores; {versions}; {datetime.now(UTC).date().isoformat()}"


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{text}\n")


def measure_ways(python: Path, missing: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """The comparison, and how it changes with steps, workers and parameters; ``missing`` as of the peers."""
    ways = [way for way in WAYS if way.module not in missing]
    rows, errors = measure(BASE, BLOCKS_OF_BASE, _among(ways, BASE, {}), python)
    few, failed = measure(FEW, BLOCKS_OF_BASE[:1], _among(ways, FEW, errors), python)
    rows += few
    errors |= failed | {way.name: missing[way.module] for way in WAYS if way.module in missing}
    for work in GROWTH:
        growing = [way for way in _among(ways, work, errors) if way.name in GROWING]
        rows += measure(work, BLOCKS_OF_GROWTH, growing, python)[0]
    return pd.DataFrame(rows), errors


def _among(ways: Sequence[Way], work: Work, errors: Mapping[str, str]) -> list[Way]:
    """The ways that can take part with so many workers."""
    return [way for way in ways if work.workers <= way.most_workers and way.name not in errors]


def main() -> None:
    """Measure, and write page, picture and data."""
    blocks, errors = measure_ways(*prepare_peers())
    BLOCKS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(BLOCKS, blocks.to_csv(index=False))
    say("time alone")
    clocks = measure_clocks()
    parts: dict[str, Part] = {}
    for name, subject in NAMES.items():
        say(subject)
        parts[subject] = measure_alone(name)
    text = write_page(machine(), blocks, (BASE, FEW), BLOCKS_OF_BASE[0][0], errors, clocks, parts)
    growing = [way for way in WAYS if way.name in GROWING]
    figure = draw_growth(blocks, growing, BASE, BLOCKS_OF_BASE[0][0])
    save_atomically(PICTURE, lambda new: figure.savefig(new, dpi=90))
    write_atomically(PAGE, text)
    say(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
