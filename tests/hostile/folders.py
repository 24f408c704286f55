"""Result folders that are damaged, foreign, or of another time; without checksums, which find it all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.sandbox import Case
from tests.hostile.scenarios import BY_HEART, GOOD, text_of

Damage = Callable[[Path], None]

_MISSING: Final = object()


def _set(path: str, value: Any) -> Damage:
    """Set one value of ``summary.json``, or take it away."""

    def damage(folder: Path) -> None:
        file = folder / "summary.json"
        document = json.loads(file.read_text())
        where: Any = document
        *sections, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for section in sections:
            where = where[section]
        if value is _MISSING:
            del where[last]
        else:
            where[last] = value
        file.write_text(json.dumps(document))

    return damage


def _twice(folder: Path) -> None:
    """Have every run stand twice in ``summary.json``."""
    file = folder / "summary.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "runs": document["runs"] * 2}))


def _write(name: str, content: str | bytes) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def _frame(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    def damage(folder: Path) -> None:
        frame = pq.read_table(folder / name).to_pandas()
        pq.write_table(pa.Table.from_pandas(change(frame), preserve_index=False), folder / name)

    return damage


def _column(name: str, column: str, value: Any) -> Damage:
    return _frame(name, lambda frame: frame.assign(**{column: [value] * len(frame)}))


def _cut(name: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def _remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _link(name: str, target: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return damage


SUMMARY: Final[Mapping[str, Damage]] = {
    **{
        f"{path}-{number}": _set(path, value)
        for path, values in {
            "version": (99, 1, "3", None, True, [3], BY_HEART, float("nan")),
            "scenario": (None, 5, ["x"]),
            "runs": (None, {}, "x", [None], [[]], 5),
            "runs.0.label": (None, 5, "other", ["x"]),
            "runs.0.seed": (None, "3", 1.5, float("nan"), BY_HEART, 10**400),
            "runs.0.wall_clock_s": (None, "fast", float("nan"), float("inf"), -1.0, 10**400),
            "runs.0.time_s": (None, {}, {"compute": None, "communicate": 0, "wait": 0}, [1, 2, 3]),
            "runs.0.time_s.wait": (float("nan"), "x", _MISSING),
            "runs.0.iterations": (None, float("nan"), "x"),
            "runs.0.bytes_sent": (None, 1.5, float("inf"), "x"),
            "runs.0.status": ("fine", None, 5),
            "runs.0.source": ("dreamt", None),
            "runs.0.digest": (None, 5, _MISSING),
            "runs.0.bracket_s": ([], [1.0], "x", [float("nan"), 1.0], 5),
            "runs.0.machines": ([None], [{"host": 5}], "x"),
            "runs.0.final": (None, {"train_loss": "x"}, {"train_loss": float("nan")}),
            "summary": (None, {}, [None], "x", [{}]),
            "summary.0.label": (None, "other", 5),
            "summary.0.runs": (None, -1.5, "x"),
            "summary.0.time_s": (None, {}),
            "summary.0.ratio_to_best": (None, {}, {"median": "x", "low": None, "high": None}),
            "winner": ("nobody", 5),
            "target": ({}, 5, {"metric": 5, "value": "x"}, {"metric": "x", "value": float("nan")}),
            "equal": (5, {}),
            "tuning": (5, [{}]),
            "verdict": (5, {}, "x"),
        }.items()
        for number, value in enumerate(values)
    },
    "deep": _write("summary.json", '{"version": 3, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "deep-99999": _write("summary.json", "[" * 99_999),
    "deep-inside": _write("summary.json", '{"version": 3, "scenario": ' + '{"a":' * 500 + "1" + "}" * 501),
    "empty": _write("summary.json", ""),
    "list": _write("summary.json", "[]"),
    "latin-1": _write("summary.json", b'{"version": 3, "scenario": "\xe9"}'),
    "many-digits": _write("summary.json", '{"version": ' + "9" * 10_000 + "}"),
    "endless": _link("summary.json", "/dev/zero"),
    "cut": _cut("summary.json", 0.5),
    "gone": _remove("summary.json"),
}  # fmt: skip
TABLES: Final[Mapping[str, Damage]] = {
    **{
        f"{name}-{kind}": damage
        for name, column in (("metrics", "time_s"), ("events", "start_s"))
        for kind, damage in {
            "empty": _write(f"{name}.parquet", ""),
            "text": _write(f"{name}.parquet", "PAR1 hello PAR1"),
            "cut": _cut(f"{name}.parquet", 0.7),
            "gone": _remove(f"{name}.parquet"),
            "endless": _link(f"{name}.parquet", "/dev/zero"),
            "nan": _column(f"{name}.parquet", column, float("nan")),
            "infinite": _column(f"{name}.parquet", column, float("inf")),
            "null": _column(f"{name}.parquet", column, None),
            "words": _column(f"{name}.parquet", column, "soon"),
            "no-seed": _frame(f"{name}.parquet", lambda frame: frame.drop(columns="seed")),
            "text-seed": _column(f"{name}.parquet", "seed", "three"),
            "null-label": _column(f"{name}.parquet", "label", None),
            "number-label": _column(f"{name}.parquet", "label", 5),
            "other": _frame(f"{name}.parquet", lambda frame: pd.DataFrame({"a": [1]})),
        }.items()
    },
    "metrics-text-step": _column("metrics.parquet", "step", "x"),
    "metrics-float-step": _column("metrics.parquet", "step", 1.5),
    "metrics-text-loss": _column("metrics.parquet", "train_loss", "x"),
    "metrics-number-steps": _column("metrics.parquet", "steps", 5),
    "metrics-text-steps": _column("metrics.parquet", "steps", ["x"]),
    "events-text-worker": _column("events.parquet", "worker", "x"),
    "events-negative-worker": _column("events.parquet", "worker", -5),
    "events-far-worker": _column("events.parquet", "worker", 10**6),
    "events-number-operation": _column("events.parquet", "operation", 5),
}
_LONG: Final = "x" * 2**20
_IMPOSSIBLE: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "metrics": {
        "time_s": (-5.0, -1e308, 1e300),
        "step": (-1, 2**62),
        "bytes_sent": (-1, 2**62),
        "label": (_LONG, "", "stranger"),
        "source": ("dreamt", _LONG),
        "seed": (-1, 2**63 - 1, 99),
        "train_loss": (b"x", "x", True),
        "steps": ([-1, 2, 3, 4], [1] * 100_000, [[1]], {"a": 1}),
    },
    "events": {
        "start_s": (-5.0, 1e300),
        "end_s": (-5.0, -1e308),
        "peer_s": ("x", None),
        "bytes": (-1, -(2**62)),
        "worker": (-1,),
        "peer": (-7, 2**31 - 1),
        "handle": (-7, "x"),
        "task": (-1,),
        "step": (-5, 2**31 - 1),
        "operation": (_LONG, ""),
        "label": ("stranger", _LONG),
        "source": ("dreamt",),
    },
}
"""Table -> column -> values that cannot be in it."""
SEALED: Final[Mapping[str, Damage]] = {
    **{
        f"{name}-{column}-{number}": _column(f"{name}.parquet", column, value)
        for name, columns in _IMPOSSIBLE.items()
        for column, values in columns.items()
        for number, value in enumerate(values)
    },
    **{
        f"{path}-{number}": _set(path, value)
        for path, values in {
            "version": (10**9, -1, 3.5),
            "scenario": (_LONG,),
            "runs.0.label": (_LONG,),
            "runs.0.message": (_LONG * 2, 5),
            "runs.0.scheme": (5, _LONG),
            "runs.0.iterations": (-5, 1e300),
            "runs.0.bytes_sent": (-5, 2**70),
            "runs.0.time_s": ({"compute": -1.0, "communicate": 0.0, "wait": 0.0},),
            "runs.0.wall_clock_s": (1e300,),
            "runs.0.time_to_target_s": (-1.0, float("nan"), "x"),
            "runs.0.digest": (_LONG,),
            "runs.0.machines": ([{"host": _LONG}] * 3, {}),
            "runs.0.seed": (-1, 2**63),
            "target": ({"metric": _LONG, "value": 1.0}, []),
            "verdict": ({"text": _LONG}, []),
        }.items()
        for number, value in enumerate(values)
    },
    "twice": _twice,
    "metrics-no-columns": _frame("metrics.parquet", lambda frame: frame[[]]),
    "scenario-binary": _write("scenario.yaml", bytes(range(256))),
}
"""Damage that nobody but its author can tell from results: what is impossible has to show by itself."""
REPLAYED: Final[Mapping[str, Damage]] = {
    "scenario-empty": _write("scenario.yaml", ""),
    "scenario-binary": _write("scenario.yaml", bytes(range(256))),
    "scenario-bomb": _write("scenario.yaml", "a: &a [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '*a'] * 9)}]\n" for i in range(12)
    )),
    "scenario-other": _write("scenario.yaml", text_of({**GOOD, "schemes": "[all_reduce]"})),
    "scenario-fewer-workers": _write(
        "scenario.yaml", text_of(GOOD).replace("workers: 4", "workers: 2")
    ),
    "scenario-more-workers": _write(
        "scenario.yaml", text_of(GOOD).replace("workers: 4", "workers: 6")
    ),
    "scenario-code": _write(
        "scenario.yaml", text_of(GOOD).replace("task: digits-mlp", "task: 'os:system'")
    ),
    "scenario-huge": _write(
        "scenario.yaml", text_of(GOOD).replace("batch_size: 8", f"batch_size: {BY_HEART}")
    ),
    "scenario-endless": _link("scenario.yaml", "/dev/zero"),
    "scenario-gone": _remove("scenario.yaml"),
}  # fmt: skip


def cases() -> list[Case]:
    """Each kind of damage, for the commands that meet it: they say which file or folder is wrong."""
    return list(_cases())


def _cases() -> Iterator[Case]:
    for name, damage in {**SUMMARY, **TABLES}.items():
        for command in (("report", "r", "--out", "p.html"), ("replay", "r")):
            yield Case(f"{command[0]}-{name}", command, ("r",), damage=damage)
            if not name.endswith("endless"):
                yield Case(f"sealed-{command[0]}-{name}", command, ("r",), damage=damage, sealed=True)
    for name, damage in SEALED.items():
        for command in (("report", "r", "--out", "p.html"), ("replay", "r")):
            yield Case(f"resealed-{command[0]}-{name}", command, ("r",), damage=damage, sealed=True)
    for name, damage in REPLAYED.items():
        yield Case(f"replay-{name}", ("replay", "r"), ("r",), damage=damage)
    for name in ("endless", "deep", "gone"):
        yield Case(
            f"simulate-{name}", ("simulate", "s.yaml", "--out", "r"), ("r",), {"s.yaml": text_of(GOOD)},
            damage=SUMMARY[name],
        )  # fmt: skip
