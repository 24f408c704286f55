"""Runs one benchmark of Paceline alone, in a process of its own, and hands its part of the page over.

python -m benchmarks.speed.alone NAME
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Final

from benchmarks.bars import Bar, Part

NAMES: Final[Mapping[str, str]] = {
    "messages": "time alone",
    "collectives": "all-reduce beside local SGD",
    "startup": "start-up",
    "everyday": "everyday commands",
    "checking": "`paceline check`",
    "cores": "all cores",
    "grid": "a grid of networks",
    "records": "records",
    "memory": "memory",
    "event_profile": "where the event driver's time goes",
}
"""Module of this folder's parent, which has ``measure() -> Part`` -> what it is about."""


def measure_alone(name: str) -> Part:
    """Measure one of them; where it fails, a bar that says so."""
    # As a user has it, who lets Python keep what it has compiled: torch comes compiled as well.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.alone", name], check=False, capture_output=True, text=True,
        env={**environment, "PYTHONPATH": "."},
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Part((Bar(NAMES[name], "-", f"could not be measured: {lines[-1]}", met=False),))
    part = json.loads(done.stdout.splitlines()[-1])
    return Part(tuple(Bar(**bar) for bar in part["bars"]), part["text"])


def main() -> None:
    """Measure the one that is named."""
    part: Part = import_module(f"benchmarks.{sys.argv[1]}").measure()
    sys.stdout.write(f"\n{json.dumps(asdict(part))}\n")


if __name__ == "__main__":
    main()
