"""Result folders that are damaged, or that hold values of other types, though their checksums fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.sandbox import TWICE, Case
from tests.hostile.scenarios import BY_HEART, GOOD, text_of

Damage = Callable[[Path], None]

MISSING: Final = object()
"""In the place of a value: there is none."""
_MANY_ROWS: Final = 500_000
_MANY_TIMES: Final = 40


def set_in_json(path: str, value: Any, name: str = "") -> Damage:
    """Set one value of a JSON file, or take it away (``MISSING``); ``name``: of the file in a folder."""

    def damage(there: Path) -> None:
        file = there / name
        document = json.loads(file.read_text())
        where: Any = document
        *sections, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for section in sections:
            where = where[section]
        if value is MISSING:
            del where[last]
        else:
            where[last] = value
        file.write_text(json.dumps(document))

    return damage


def _set(path: str, value: Any) -> Damage:
    return set_in_json(path, value, "summary.json")


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


def _unfolding(name: str) -> Damage:
    """Have a small file hold gigabytes: its first row, over and over."""

    def damage(folder: Path) -> None:
        rows = pq.read_table(folder / name).take([0] * _MANY_ROWS)
        with pq.ParquetWriter(folder / name, rows.schema, compression="zstd") as writer:
            for _ in range(_MANY_TIMES):
                writer.write_table(rows)

    return damage


def _cut(name: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


def _remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _link(name: str, target: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return damage


def _pipe(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def _folder(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return damage


def _file_for_folder(name: str) -> Damage:
    def damage(folder: Path) -> None:
        shutil.rmtree(folder / name)
        (folder / name).write_text("x")

    return damage


def _sparse(name: str, num_bytes: int) -> Damage:
    """Have a file seem so long, though it takes no room."""

    def damage(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.truncate(num_bytes)

    return damage


SUMMARY: Final[Mapping[str, Damage]] = {
    **{
        f"{path}-{number}": _set(path, value)
        for path, values in {
            "version": (99, 1, "3", None, True, [3], BY_HEART, float("nan")),
            "scenario": (None, 5, ["x"]),
            "runs": (None, {}, "x", [None], [[]], 5),
            "runs.0.label": (None, 5, "other", ["x"], "a\ud800"),
            "runs.0.seed": (None, "3", 1.5, -0.5, float("nan")),
            "runs.0.wall_clock_s": (None, "fast", float("nan"), float("inf"), 10**400),
            "runs.0.time_s": (None, {}, {"compute": None, "communicate": 0, "wait": 0}, [1, 2, 3]),
            "runs.0.time_s.wait": (float("nan"), "x", MISSING),
            "runs.0.iterations": (None, float("nan"), "x"),
            "runs.0.bytes_sent": (None, 1.5, float("inf"), "x"),
            "runs.0.status": ("fine", None, 5),
            "runs.0.source": ("dreamt", None),
            "runs.0.digest": (None, 5, MISSING),
            "runs.0.bracket_s": ("x", [float("nan"), 1.0], 5),
            "runs.0.machines": ([None], [{"host": 5}], "x", {}),
            "runs.0.message": (5, "\udfff"),
            "runs.0.time_to_target_s": (float("nan"), "x"),
            "runs.0.final": (None, {"train_loss": "x"}, {"train_loss": float("nan")}),
            "runs.0.rows": (None, 5, {}, {"evaluations": "3"}),
            "summary": (None, {}, [None], "x", [{}]),
            "summary.0.label": (None, "other", 5),
            "summary.0.runs": (None, -1.5, "x"),
            "summary.0.time_s": (None, {}),
            "summary.0.ratio_to_best": (None, {}, {"median": "x", "low": None, "high": None}),
            "winner": (5,),
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
    "metrics-bytes-loss": _column("metrics.parquet", "train_loss", b"x"),
    "metrics-lists-steps": _column("metrics.parquet", "steps", [[1]]),
    "metrics-mappings-steps": _column("metrics.parquet", "steps", {"a": 1}),
    "metrics-no-columns": _frame("metrics.parquet", lambda frame: frame[[]]),
    "events-null-peer": _column("events.parquet", "peer_s", None),
    "events-text-handle": _column("events.parquet", "handle", "x"),
    "events-number-operation": _column("events.parquet", "operation", 5),
    "metrics-unfold": _unfolding("metrics.parquet"),
    "events-unfold": _unfolding("events.parquet"),
    "scenario-binary": _write("scenario.yaml", bytes(range(256))),
}
ODD: Final[Mapping[str, tuple[str, Damage]]] = {
    "events-of-nobody": ("report", _column("events.parquet", "label", "nobody")),
    "events-of-far-workers": ("replay", _column("events.parquet", "worker", 10**6)),
    "steps-before-the-first": ("replay", _column("metrics.parquet", "steps", [-2, 2, 3, 4])),
}
"""What is of the right types, fits its checksums, and cannot be shown or replayed all the same."""
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


_FILES: Final = (
    "summary.json", "scenario.yaml", "metrics.parquet", "events.parquet", "checksums.sha256",
    "validation.json",
)  # fmt: skip
NO_FILES: Final[Mapping[str, Damage]] = {
    f"{name}-{kind}": damage
    for name in _FILES
    for kind, damage in {
        "pipe": _pipe(name),
        "folder": _folder(name),
        "device": _link(name, "/dev/zero"),
        "terminal": _link(name, "/dev/tty"),
        "to-nothing": _link(name, "nowhere"),
        "to-itself": _link(name, name),
        "memory": _link(name, "/proc/self/mem"),
    }.items()
}  # fmt: skip
"""What stands in the place of a file of results, and is none."""
SIGNED: Final[Mapping[str, Damage]] = {
    **{f"{name}-gone": _remove(name) for name in _FILES[:4]},
    **{f"{name}-cut": _cut(name, 0.5) for name in _FILES[:5]},
    **{f"{name}-longer": _sparse(name, 2**16) for name in _FILES[:5]},
    **{f"{name}-endless": _sparse(name, 2**40) for name in _FILES[:5]},
    **{f"{name}-of-zeros": _write(name, bytes(5000)) for name in _FILES[:5]},
    "checksums-gone": _remove("checksums.sha256"),
    "checksums-empty": _write("checksums.sha256", ""),
    "checksums-words": _write("checksums.sha256", "hello\n"),
    "checksums-binary": _write("checksums.sha256", bytes(range(256))),
    "checksums-of-others": _write("checksums.sha256", f"{'0' * 64}  /etc/passwd\n"),
    "checksums-long-name": _write("checksums.sha256", f"{'0' * 64}  {'x' * 100_000}\n"),
    "other-runs": _twice,
}
"""Damage that the checksums find."""
_INDEX: Final = "parts/index.json"
UNFINISHED: Final[Mapping[str, Damage]] = {
    **{
        f"index-{kind}": damage
        for kind, damage in {
            "pipe": _pipe(_INDEX),
            "folder": _folder(_INDEX),
            "device": _link(_INDEX, "/dev/zero"),
            "gone": _remove(_INDEX),
            "empty": _write(_INDEX, ""),
            "deep": _write(_INDEX, "[" * 100_000),
            "endless": _sparse(_INDEX, 2**40),
            "future": set_in_json("version", 99, _INDEX),
            "other-code": set_in_json("code", "x" * 100_000, _INDEX),
            "other-scenario": set_in_json("scenario", "name: other\n", _INDEX),
        }.items()
    },
    "checksums-pipe": _pipe("parts/checksums.sha256"),
    "checksums-gone": _remove("parts/checksums.sha256"),
    "parts-is-a-file": _file_for_folder("parts"),
}
"""Damage to a folder whose runs are not complete; nothing of it may be gone on with."""
MISSING_PARTS: Final[Mapping[str, Damage]] = {
    f"{name}-{kind}": damage
    for name in _FILES[:5]
    for kind, damage in {
        "pipe": _pipe(f"parts/run-000000/{name}"),
        "gone": _remove(f"parts/run-000000/{name}"),
        "cut": _cut(f"parts/run-000000/{name}", 0.5),
        "endless": _sparse(f"parts/run-000000/{name}", 2**40),
    }.items()
}
"""Damage to a run of such a folder: it is not shown."""


def cases() -> list[Case]:
    """Each kind of damage, for one of the commands that meet it: they say which file or folder is wrong.

    All commands read results by ``read_results``, so they take turns from row to row.
    """
    return [*_damaged(), *_unfinished()]


_SHOWS: Final = (("report", "r", "--out", "p.html"), ("replay", "r"), ("calibrate", "r", "--out", "p.yaml"))
_READS: Final[tuple[tuple[str, ...], ...]] = (*_SHOWS, ("report", "--bundle", "r"))


def _damaged() -> Iterator[Case]:
    for number, (name, damage) in enumerate({**SUMMARY, **TABLES}.items()):
        command, sealed = _SHOWS[number % 2], not name.endswith("endless")
        yield Case(f"{command[0]}-{name}", command, ("r",), damage=damage, sealed=sealed)
    for name, (shown, damage) in ODD.items():
        argv = (shown, "r", "--out", "p.html") if shown == "report" else (shown, "r")
        yield Case(f"{shown}-{name}", argv, ("r",), damage=damage, sealed=True)
    for name, damage in REPLAYED.items():
        yield Case(f"replayed-{name}", ("replay", "r"), ("r",), damage=damage, sealed=True)
    for number, (name, damage) in enumerate(NO_FILES.items()):
        reads = _READS[number % len(_READS)]
        yield Case(f"{'-'.join(reads[:2])}-{name}", reads, ("r",), damage=damage)
    for number, (name, damage) in enumerate(SIGNED.items()):
        reads = _SHOWS[number % len(_SHOWS)]
        yield Case(f"signed-{reads[0]}-{name}", reads, ("r",), damage=damage)


def _unfinished() -> Iterator[Case]:
    scenario: dict[str, str | bytes] = {"s.yaml": text_of(GOOD) + TWICE}
    for name, damage in UNFINISHED.items():
        for command in (("simulate", "s.yaml", "--out", "r"), *_SHOWS[:2]):
            if command[0] == "simulate" or name.startswith(("index-gone", "parts")):
                yield Case(f"unfinished-{command[0]}-{name}", command, ("r",), scenario, damage, "unfinished")
    for name, damage in MISSING_PARTS.items():
        for command in _SHOWS[:2]:
            yield Case(f"part-{command[0]}-{name}", command, ("r",), scenario, damage, "unfinished")
    for name in ("endless", "deep", "gone"):
        yield Case(
            f"simulate-{name}", ("simulate", "s.yaml", "--out", "r"), ("r",), {"s.yaml": text_of(GOOD)},
            damage=SUMMARY[name],
        )  # fmt: skip
