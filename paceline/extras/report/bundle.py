"""Bundles: the predictions and measurements of ``paceline validate`` as one file to send.

A bundle is JSON, to be read before it is sent: the scenario, probes and factors, all runs with their scores,
errors of the prediction, and versions; the names of hosts and users, addresses and paths are left out
(``anonymise``), and so are the operations of the workers and the messages of failed runs. Hosts, users and
paths get a stand-in; equal names get equal ones, so that shared hosts remain visible.

A received one comes from a stranger. It is data: written out as a result folder in a place of ours, and read
as one, with all its checks. Nothing in it is opened, imported or run.
"""

from __future__ import annotations

import getpass
import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pydantic import Field, TypeAdapter, ValidationError

from paceline.sim.config import yaml_file
from paceline.sim.config.files import as_model, parse_json, read_json, write_atomically
from paceline.sim.config.problems import one_line
from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError, shorten
from paceline.sim.records.comparison import Comparison
from paceline.sim.records.folder import (
    PROBES_FILE,
    PROFILE_FILE,
    SCENARIO_FILE,
    SUMMARY_FILE,
    VALIDATION_FILE,
    read_results,
)
from paceline.sim.records.formats.parquet import metric_names, operations_of, write_columns, write_parquet
from paceline.sim.records.formats.result_files import EVENTS_FILE, METRICS_FILE, write_checksums

BUNDLE_VERSION: Final = 1
MAX_BUNDLE_BYTES: Final = 16 * 2**20
_DIGITS: Final = 9
"""Significant digits of scores and times."""
_MADE_BY: Final = "'paceline report --bundle'"
_COLUMNS: Final = ("label", "scheme", "seed", "source", "step", "time_s", "bytes_sent")


class Bundle(Settings):
    """The file."""

    version: int
    versions: dict[str, str] = Field(description="of what the bundle was made with")
    scenario: dict[str, Any] = Field(description="resolved")
    summary: dict[str, Any] = Field(description="as in summary.json")
    metrics: dict[str, tuple[Any, ...]] = Field(description="evaluations: column -> its cells")
    comparison: dict[str, Any] = Field(description="as in validation.json")
    profile: dict[str, Any] = Field(default={}, description="correction factors; empty where none are kept")
    probes: dict[str, Any] = Field(default={}, description="what these were fitted to; likewise")


def write_bundle(folder: Path, out: Path) -> None:
    """Write the bundle of a ``paceline validate`` folder; replace only a bundle.

    Raises ``InputError`` if the folder is of another kind, or ``out`` is no bundle or cannot be written.
    """
    if out.exists():
        try:
            read_bundle(out)
        except InputError as error:
            why = f"{out} is there already, and it is no bundle: choose another name"
            raise InputError(why) from error
    bundle = make_bundle(folder)
    write_atomically(out, json.dumps(bundle.model_dump(mode="json"), indent=1, allow_nan=False) + "\n")


def make_bundle(folder: Path) -> Bundle:
    """Bundle of a ``paceline validate`` folder; ``InputError`` for another or damaged one."""
    results = read_results(folder)
    if not (folder / VALIDATION_FILE).is_file():
        raise InputError(f"{folder} is no folder of 'paceline validate': it has no {VALIDATION_FILE}")
    scenario = _mapping(folder / SCENARIO_FILE, yaml_file.parse(results.scenario, SCENARIO_FILE).value)
    own_profile, own_probes = folder / PROFILE_FILE, folder / PROBES_FILE
    profile = None
    if own_profile.is_file():
        text = yaml_file.read_text(own_profile)
        profile = _mapping(own_profile, yaml_file.parse(text, str(own_profile)).value)
    documents = {
        "scenario": scenario,
        "summary": json.loads(json.dumps(results.summary)),
        "comparison": _read_json(folder / VALIDATION_FILE),
        "profile": profile or scenario.get("cluster", {}).get("profile") or {},
        "probes": _read_json(own_probes) if own_probes.is_file() else {},
    }
    for each in (*documents["summary"]["runs"], documents["comparison"]):
        each.pop("message", None)  # may quote anything
        each.pop("rows", None)  # operations are left out
    hosts = list(_hosts(documents))
    for each in _measured(documents):  # "vm, x86_64, 2 cores"
        each["machine"] = ", ".join(str(each["machine"]).split(", ")[1:])
    names = stand_ins([*hosts, platform.node()], _users())
    metrics = {name: _cells(results.metrics[name]) for name in (*_COLUMNS, *metric_names(results.metrics))}
    versions = {name: version(name) for name in ("paceline", "torch", "numpy")}
    versions |= {"python": platform.python_version(), "system": f"{sys.platform}, {platform.machine()}"}
    return Bundle(
        version=BUNDLE_VERSION,
        versions=versions,
        metrics={name: tuple(anonymise(cells, names)) for name, cells in metrics.items()},
        **{name: anonymise(document, names) for name, document in documents.items()},
    )


def _users() -> list[str]:
    users = []
    for name in (getpass.getuser, lambda: Path.home().name):
        with suppress(OSError, KeyError, RuntimeError):  # a user without an entry, or without a home
            users.append(name())
    return users


def _hosts(documents: Mapping[str, Any]) -> Iterator[str]:
    """The host names in a bundle's documents, those of the workers first."""
    for run in documents["summary"]["runs"]:
        yield from (machine["host"] for machine in run.get("machines", []))
    cluster = documents["scenario"].get("cluster", {})
    yield from cluster.get("hosts") or {}
    graph = cluster.get("network", {}).get("graph") or {}
    yield from graph.get("hosts", [])
    for link in graph.get("links", []):
        yield from (link["source"], link["target"])
    for each in _measured(documents):
        yield str(each["machine"]).split(", ")[0]


def _measured(documents: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents that name the machine that they were measured on."""
    inside = documents["scenario"].get("cluster", {}).get("profile")
    for each in (documents["profile"], documents["probes"], inside):
        if isinstance(each, dict) and "machine" in each:
            yield each


def _cells(column: pd.Series) -> list[Any]:
    return [
        None if isinstance(cell, float) and cell != cell
        else float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float)
        else cell
        for cell in column.astype(object).tolist()
    ]  # fmt: skip


def _mapping(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it holds no keys")
    document: dict[str, Any] = json.loads(json.dumps(value))
    return document


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _mapping(path, parse_json(yaml_file.read_text(path, MAX_BUNDLE_BYTES, (".json",))))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def read_bundle(path: Path) -> Bundle:
    """Read a bundle without checks of its parts. ``InputError``: damaged, too large, other version."""
    yaml_file.read_bytes(path, MAX_BUNDLE_BYTES, (".json",))
    if path.name in (SUMMARY_FILE, "recommend.json", "sweep.json"):
        raise InputError(f"{path}: is of a result folder; name the folder, {path.parent}")
    return as_model(Bundle, read_json(path, _MADE_BY), path, BUNDLE_VERSION)


def unpack(path: Path, scratch: Path) -> tuple[Path, Bundle]:
    """Write a bundle out below ``scratch``; return its result folder, read once as a check, and the bundle.

    Raises ``InputError`` for other files, and bundles without results.
    """
    bundle = read_bundle(path)
    folder = scratch / (path.stem.strip(".") or "bundle")  # never a parent folder
    folder.mkdir(parents=True)
    comparison = json.dumps(bundle.comparison, allow_nan=False)
    for name, text in (
        (SCENARIO_FILE, yaml_file.write(bundle.scenario)),
        (SUMMARY_FILE, json.dumps(bundle.summary, allow_nan=False)),
        (VALIDATION_FILE, comparison),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    try:
        TypeAdapter(Comparison).validate_json(comparison, strict=True)
    except ValidationError as error:
        raise InputError(f"{path} is damaged: comparison: {error.errors()[0]['msg']}") from error
    try:
        write_columns(folder / METRICS_FILE, bundle.metrics)
        write_parquet(folder / EVENTS_FILE, operations_of([]))
        write_checksums(folder)
        read_results(folder)
    except InputError as error:
        raise InputError(str(error).replace(str(folder), str(path))) from error
    return folder, bundle


def describe_bundle(path: Path, bundle: Bundle) -> str:
    """A sentence about an opened bundle and its limits."""
    versions = ", ".join(f"{name} {text}" for name, text in bundle.versions.items())
    return (
        f"{shorten(path)} is a bundle, made with {one_line(versions, 200)}: figures of whoever sent it, "
        "without the operations of the workers"
    )


LEFT_OUT: Final = "(left out)"
"""Replacement of paths and addresses."""

_SHORTEST: Final = 3
"""Shortest name replaced within longer texts; a shorter one is replaced only as a whole text."""
_FILE_KEYS: Final = frozenset({"file", "folder"})
"""Keys of a scenario whose values are paths, however they look."""
_RATE: Final = re.compile(r"[\d.]*[A-Za-z]{0,6}/(s|byte|step)|[\d.]+/[\d.]+")
"""A unit or a fraction whose slash makes no path: ``Mbit/s``, ``s/byte``, ``1/2``."""
_PATH: Final = re.compile(
    r"(?<![\w/\\])(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.~@+/\\-]+"  # from the root, the home, here, a drive
    r"|[\w.~@+-]+(?:[/\\][\w.~@+-]+)+"
)
_ADDRESS: Final = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,}[0-9a-fA-F]{0,4}(?![\w:])"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
)
_CODE: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:([A-Za-z_]\w*)")
"""``package.module:function``; modules may be named after people and places."""


def stand_ins(hosts: Iterable[str], users: Iterable[str]) -> dict[str, str]:
    """Name -> its replacement; a host is known by its name with and without its domain.

    >>> stand_ins(["node7.example.org", "node8", "node7"], ["ada"])
    {'node7.example.org': 'host-1', 'node7': 'host-1', 'node8': 'host-2', 'ada': 'user'}
    """
    names: dict[str, str] = {}
    for host in dict.fromkeys(filter(None, hosts)):
        short = host.partition(".")[0]
        stand_in = names.get(short) or f"host-{len(set(names.values())) + 1}"
        names |= {host: stand_in, short: stand_in}
    return names | {user: "user" for user in users if user and user not in names}


def anonymise(value: Any, names: Mapping[str, str]) -> Any:
    """Remove ``names`` (from ``stand_ins``), addresses and paths from a JSON value, in texts and in keys."""
    if isinstance(value, str):
        return _clean(value, names)
    if isinstance(value, Mapping):
        return {
            # Other keys are ours, or the scenario's.
            names.get(key) or _without_module(key): (
                LEFT_OUT if key in _FILE_KEYS and isinstance(inner, str) else anonymise(inner, names)
            )
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [anonymise(each, names) for each in value]
    return value


def _without_module(text: str) -> str:
    code = _CODE.fullmatch(text)
    return f"own:{code[1]}" if code else text


def _clean(text: str, names: Mapping[str, str]) -> str:
    if text in names:
        return names[text]
    text = _without_module(text)
    text = _ADDRESS.sub(LEFT_OUT, text)
    text = _PATH.sub(lambda match: match[0] if _RATE.fullmatch(match[0]) else LEFT_OUT, text)
    long = sorted((name for name in names if len(name) >= _SHORTEST), key=len, reverse=True)
    if long:
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, long))})(?!\w)"
        text = re.sub(pattern, lambda match: names[match[0]], text)
    return text
