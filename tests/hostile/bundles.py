"""Files of others that are damaged: bundles, measurements, profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.hostile.folders import MISSING, set_in_json
from tests.hostile.sandbox import Case
from tests.hostile.scenarios import BY_HEART, GOOD, text_of

_LONG: Final = "x" * 2**20
_DEEP: Final[list[Any]] = []
_inner = _DEEP
for _ in range(90):
    _inner.append([])
    _inner = _inner[0]

_NO_MAPPING: Final[tuple[Any, ...]] = (None, 5, "x", [], True)
_NO_NUMBER: Final[tuple[Any, ...]] = (None, "x", [], {}, True, float("nan"), 1e999)
BUNDLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "version": (MISSING, None, 0, 2, 99, "1", 1.5, True, [1], BY_HEART, float("nan")),
    "versions": (MISSING, None, 5, "x", {"paceline": 5}, {"paceline": None}),
    "scenario": (MISSING, *_NO_MAPPING),
    "summary": (MISSING, *_NO_MAPPING, {}, {"version": 99}),
    "summary.version": (MISSING, None, 99, "3", True),
    "summary.scenario": (MISSING, None, 5, []),
    "summary.runs": (MISSING, None, {}, "x", [None], [[]], [{}], 5, _DEEP),
    "summary.runs.0.label": (MISSING, None, 5, "nobody", _LONG),
    "summary.runs.0.seed": (MISSING, None, "0", 1.5),
    "summary.runs.0.source": (MISSING, None, "dreamt"),
    "summary.runs.0.status": (MISSING, None, "fine"),
    "summary.runs.0.wall_clock_s": (MISSING, *_NO_NUMBER),
    "summary.runs.0.iterations": (MISSING, *_NO_NUMBER),
    "summary.runs.0.bytes_sent": (MISSING, *_NO_NUMBER, 1.5),
    "summary.runs.0.time_s": (MISSING, *_NO_MAPPING, {}),
    "summary.summary": (MISSING, None, {}, [None], "x", [{}]),
    "summary.summary.0.label": (MISSING, None, 5, "nobody"),
    "summary.winner": (5, []),
    "summary.target": (5, {}, {"metric": 5, "value": 1}),
    "metrics": (MISSING, *_NO_MAPPING, {}, {"time_s": [1.0]}),
    "metrics.label": (MISSING, None, [], ["x"], 5, "x"),
    "metrics.seed": (MISSING, None, [], ["x"], [0]),
    "metrics.time_s": (MISSING, None, [], ["x"], [1.0]),
    "metrics.time_s.0": (None, "x", [], True),
    "metrics.step.0": (None, "x", 1.5, BY_HEART),
    "metrics.label.0": (None, 5),
    "metrics.source.0": (None, 5),
    "metrics.train_loss.0": ("x", [], {}),
    "comparison": (MISSING, *_NO_MAPPING, {}),
    "comparison.cells": (MISSING, None, 5, [None], [{}]),
    "comparison.cells.0.label": (MISSING, None, 5),
    "comparison.cells.0.error_pct": (MISSING, None, "x"),
    "comparison.decision": (MISSING, *_NO_MAPPING, {}),
    "comparison.warnings": (MISSING, None, 5, [5]),
    "profile": (None, 5, "x", []),
    "probes": (None, 5, "x", []),
    "more": (5,),
}
"""Path in a bundle -> values that cannot be there."""
MEASURED: Final[Mapping[str, tuple[Any, ...]]] = {
    "version": (MISSING, None, 99, "1", True, float("nan")),
    "machine": (MISSING, None, 5, []),
    "hosts": (MISSING, None, "x", {}, {"kind": "dream"}, {"kind": "lab", "queue": "0 s"}),
    "network": (None, 5, [], {}, {"latency": "5"}, {"latency": "nan s"}),
    "plan": (MISSING, None, 5, [], {}),
    "plan.workers": (MISSING, None, 0, -1, "4", BY_HEART, 10**9),
    "plan.trials": (MISSING, None, {}, [None], [{}]),
    "plan.trials.0.kind": (MISSING, None, "dream", 5),
    "plan.trials.0.num_bytes": (MISSING, *_NO_NUMBER, -1, BY_HEART),
    "steps_s": (MISSING, None, "x", ["x"], [float("nan")], [BY_HEART], [-1.0]),
    "durations": (MISSING, None, {}, [None], [{}], []),
    "durations.0.trial": (MISSING, None, -1, 10**6, "0", 1.5),
    "durations.0.worker": (MISSING, None, -1, 10**6, "0"),
    "durations.0.operation": (MISSING, None, 5),
    "durations.0.values_s": (
        MISSING,
        None,
        [],
        ["x"],
        [float("nan")],
        [float("inf")],
        5,
        [-1.0],
        [1e15],
        [0.0, 0.0],
    ),
    "more": (5,),
}
"""Path in a file of probes -> values that cannot be there."""
PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "version": ("~", "99", "'2'", "true", "[2]"),
    "residual_pct": ("~", ".nan", "x", "-1"),
    "hosts": ("~", "5", "{}", "{kind: dream}"),
    "factors": ("~", "5", "[]", "{}", "{x: 1}"),
    "range": ("~", "5", "x"),
    "more": ("5",),
}
"""Key of a profile -> what cannot stand there."""


def _profile(key: str, written: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        kept, dropped = [], False
        for line in file.read_text().splitlines():
            dropped = line.startswith(f"{key}:") or (dropped and line.startswith((" ", "-")))
            if not dropped:
                kept.append(line)
        file.write_text("\n".join([*kept, f"{key}: {written}"]) + "\n")

    return damage


def cases() -> list[Case]:
    """All of them."""
    return list(_cases())


def _cases() -> Iterator[Case]:
    for path, values in BUNDLES.items():
        for number, value in enumerate(values):
            yield Case(
                f"bundle-{path}-{number}", ("report", "bundle.json", "--out", "p.html"), ("bundle.json",),
                damage=set_in_json(path, value), given="bundle.json",
            )  # fmt: skip
    for path, values in MEASURED.items():
        for number, value in enumerate(values):
            yield Case(
                f"probes-{path}-{number}", ("calibrate", "measured.json", "--out", "p.yaml"),
                ("measured.json",), damage=set_in_json(path, value), given="measured.json",
            )  # fmt: skip
    text = text_of(GOOD)
    for key, written in PROFILES.items():
        for number, each in enumerate(written):
            yield Case(
                f"profile-{key}-{number}", ("simulate", "s.yaml", "--profile", "profile.yaml"),
                ("profile.yaml",), {"s.yaml": text}, _profile(key, each), "profile.yaml",
            )  # fmt: skip
