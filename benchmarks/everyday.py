"""What everyday commands take of a processor, beside `import torch`: medians of interleaved rounds.

    python -m benchmarks.everyday             all of them
    python -m benchmarks.everyday COMMAND...  some, such as 'check two-sites'

User and system time of a command with all its processes, as multiples of `import torch` in the same round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from benchmarks.bars import Bar, Part, at_most, print_bars
from benchmarks.checking import processor_s

ROUNDS: Final = 3
BESIDE: Final = "import torch"
DEMO: Final = "simulate four-regions, and report"
LIMITS: Final = {
    "list": 0.35, "new two-sites": 0.35, "check two-workers": 1.6, "check two-sites": 2.5,
    "check llm/four-sites": 2.5, "check four-regions": 4.0, "check one-rack": 4.0, "check campus": 4.0,
    "check leaf-spine": 4.0, "check unsteady-cloud": 6.0, "throughput llm/four-sites": 6.0, DEMO: 11.5,
}  # fmt: skip
"""Command -> times `import torch`; of the demo 15 s where that takes 1.3 s."""
IN_FOLDER: Final = {
    "new two-sites": ("new two-sites {0}/mine.yaml",),
    DEMO: ("simulate four-regions --out {0}/run", "report {0}/run --out {0}/report.html"),
}
"""What is run where files are written."""


def main() -> None:
    """Measure and print."""
    print_bars(measure_bars(sys.argv[1:] or LIMITS))


def measure() -> Part:
    """All commands, for the page."""
    return Part(tuple(measure_bars(LIMITS)))


def measure_bars(commands: Collection[str]) -> Iterator[Bar]:
    """A bar for each command; the first round fills caches, and does not count."""
    return bars_of([_round_s(commands) for _ in range(ROUNDS + 1)][1:])


def _round_s(commands: Collection[str]) -> dict[str, float]:
    """Processor seconds of `import torch` and of each command."""
    seconds = {BESIDE: _taken_s(["-c", BESIDE])}
    for command in commands:
        with tempfile.TemporaryDirectory() as folder:
            lines = [each.format(folder) for each in IN_FOLDER.get(command, (command,))]
            seconds[command] = sum(_taken_s(["-m", "paceline", *line.split()]) for line in lines)
    return seconds


def _taken_s(arguments: Sequence[str]) -> float:
    # Compiled, as a user has it: torch comes compiled as well.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before_s = processor_s()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    return processor_s() - before_s


def bars_of(rounds: Sequence[Mapping[str, float]]) -> Iterator[Bar]:
    """A bar for each command: the median over the rounds of its multiple of `import torch`.

    Args:
        rounds: command -> processor seconds, that of ``BESIDE`` among them.
    """
    for command in [each for each in rounds[0] if each != BESIDE]:
        multiple = statistics.median(each[command] / each[BESIDE] for each in rounds)
        detail = f"{statistics.median(each[command] for each in rounds):.2f} s"
        what = f"`paceline {command}` beside `{BESIDE}`, processor"
        yield at_most(what, LIMITS[command], multiple, "times", detail)


if __name__ == "__main__":
    main()
