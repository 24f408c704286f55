"""Output of nccl-tests (``all_reduce_perf`` and others): text, or JSON of ``-J``.

Formats: NVIDIA/nccl-tests at a0b82b2 (2.19.6), src/util.cu; older texts have "error" for "#wrong", and no
"root" or "Group".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ...config.files import parse_json
from ...config.units import format_bytes, format_seconds
from ...network.transport import NCCL_LAUNCH
from ..readings import ForeignFile, PathReading, Readings
from .collective_fit import MAX_RANKS, OPERATIONS, Timed, fit_collectives

_PREFIX: Final = re.compile(r"(?m)^(?:\[[^\]\n]*\]<\w+>: ?|\d+: )")
"""Which process wrote a line, as mpirun and srun say it."""
_LINES: Final = {
    "rank": re.compile(r"[#\s]*Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+\s+on\s+(\S+)\s+device"),
    "test": re.compile(r"(?!.*concluded).*?\b([a-z_]+)_perf(?:_mpi)?\b"),
    "header": re.compile(r"[#\s]*size\s+count\s+type\s"),
    "end": re.compile(r"[#\s]*Out of bounds values\s*:\s*(\d+)"),
    "row": re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s"),
}
_WRONG: Final = "{} values are wrong, so that its times say nothing"
_ROUNDING: Final = 0.0051
"""Of printed GB/s."""
_DIGITS: Final = 0.055
"""Relative difference of a row's bandwidth from its bytes over its time, which has few digits."""
_SPAN: Final = 4
"""Least ratio of the largest to the smallest size from which a latency can be told."""


class _Test(NamedTuple):
    """How a test prints a collective: does it sum, has it a root, and busbw / algbw of n ranks."""

    sums: bool
    rooted: bool
    factor: Callable[[int], float]


_TESTS: Final = {
    "all_reduce": _Test(True, False, lambda n: 2 * (n - 1) / n),
    "reduce_scatter": _Test(True, False, lambda n: (n - 1) / n),
    "all_gather": _Test(False, False, lambda n: (n - 1) / n),
    "alltoall": _Test(False, False, lambda n: (n - 1) / n),
    "broadcast": _Test(False, True, lambda n: 1.0),
    "reduce": _Test(True, True, lambda n: 1.0),
    "sendrecv": _Test(True, False, lambda n: 1.0),
}


class _Row(NamedTuple):
    line: int
    num_bytes: int
    sums: bool
    root: int | None
    time_us: float
    algbw: float
    busbw: float
    wrong: float


class _Table(NamedTuple):
    test: str
    columns: list[str]
    rows: list[_Row]


def read(source: ForeignFile) -> Readings:
    """Latency and bandwidth with which Paceline's own prices of the collectives are those measured.

    Raises:
        InputError: wrong results, a cut file, an unknown collective, or too few sizes.
    """
    text = _PREFIX.sub("", source.text)
    hosts, tables = (_from_json if text.lstrip().startswith("{") else _from_text)(source, text)
    gpus = list(Counter(hosts).values())
    if not 2 <= len(hosts) <= MAX_RANKS:
        text = (
            "build nccl-tests with MPI=1, or give it several GPUs (-g)"
            if hosts[1:] == []
            else "measure among fewer"
        )
        raise source.refuse(f"is of {len(hosts)} ranks, not of 2 to {MAX_RANKS}: {text}")
    if len(set(gpus)) > 1:
        raise source.refuse(f"its hosts have {min(gpus)} to {max(gpus)} GPUs; measure with as many on each")
    return _fitted(source, [each for table in tables for each in _timed(source, table, len(hosts))], gpus)


def _fitted(source: ForeignFile, timed: Sequence[Timed], gpus: Sequence[int]) -> Readings:
    n, sizes = sum(gpus), sorted({each.num_bytes for each in timed})
    given_s = source.answers.latency_s if len(gpus) > 1 else None
    if not sizes or (given_s is None and (len(sizes) < 3 or sizes[-1] < _SPAN * sizes[0])):
        raise source.refuse(
            f"its sizes ({len(sizes)}) cannot tell latency from bandwidth: measure at three or more, the "
            f"largest at least {_SPAN} times the smallest (-b 8 -e 128M -f 4), or say --latency"
        )
    fit = fit_collectives(timed, gpus, given_s)
    if given_s is None and 1e3 * n * fit.latency_s < min(each.seconds for each in timed):
        raise source.refuse("its times show no latency: measure small sizes too (-b 8), or say --latency")
    off = 100 * np.abs(fit.ratios - 1)
    worst = fit.fitted[int(off.argmax())]
    tests = ", ".join(dict.fromkeys(each.operation for each in timed))
    notes = [
        f"{tests} among {n} GPUs of {len(gpus)} hosts: {len(timed)} times, {format_bytes(sizes[0])} to "
        f"{format_bytes(sizes[-1])}; {'latency as you say, ' if given_s is not None else 'latency and '}"
        f"bandwidth fitted, beside {format_seconds(NCCL_LAUNCH.value)} for a launch",
        f"predicted times are off by {np.median(off):.1f} % in the median, at most {off.max():.1f} % "
        f"({worst.operation} of {format_bytes(worst.num_bytes)})",
    ]
    link = {"latency_s": fit.latency_s, "bandwidth_bytes_per_s": fit.bytes_per_s}
    if len(gpus) == 1:
        inner = {f"gpu_{key}": value for key, value in link.items()}
        return Readings(gpus=n, transport="nccl", notes=tuple(notes), **inner)  # type: ignore[arg-type]
    if gpus[0] > 1:
        notes.append("links inside a host: taken as unlimited; a test on one host alone measures them")
    path = PathReading(*(source.ends or ()), **link)  # type: ignore[arg-type]
    inside = gpus[0] if gpus[0] > 1 else None
    return Readings(paths=(path,), gpus=inside, workers={"": n}, transport="nccl", notes=tuple(notes))


def _from_text(source: ForeignFile, text: str) -> tuple[list[str], list[_Table]]:
    """The host of each rank, and the tables."""
    hosts, tables, test, complete = dict[int, str](), [_Table("", [], [])], "", False
    for number, line in enumerate(text.splitlines(), 1):
        kind, match = next(((k, m) for k, each in _LINES.items() if (m := each.match(line))), ("", None))
        if match is None:
            continue
        if kind == "rank" and (int(match[2] or 0) or hosts.setdefault(int(match[1]), match[3]) != match[3]):
            raise source.refuse("its processes know nothing of each other, or are in groups", number)
        if kind == "end" and int(match[1]):
            raise source.refuse(_WRONG.format(match[1]), number)
        if kind == "row":
            tables[-1].rows.append(_row(source, number, line.split(), tables[-1].columns))
        elif kind == "header":
            tables.append(_Table(test, line.replace("#wrong", "wrong").replace("#", " ").split(), []))
        test = match[1] if kind == "test" else test
        complete = kind == "end" or (complete and kind != "row")
    if sorted(hosts) != list(range(len(hosts) or 1)):
        raise source.refuse("has no list of all ranks ('#  Rank  0 ... on HOST device ...')")
    if not complete:
        raise source.refuse("ends before its summary ('# Out of bounds values'): give all of the output")
    return [hosts[rank] for rank in range(len(hosts))], tables[1:]


def _row(source: ForeignFile, number: int, words: list[str], columns: list[str]) -> _Row:
    """A row; of in-place and out-of-place the latter, which comes first."""
    if "time" not in columns:
        text = "no column 'time' stands above it; CPU time (-C 1) says nothing of the network"
        raise source.refuse(text, number)
    before = columns.index("time")
    start = len(words) - (len(columns) - before + ("timestamp" in columns))
    if not before - 1 <= start <= before:
        raise source.refuse(f"{len(words)} values in a row, {len(columns)} in its header", number)
    try:
        time_us, algbw, busbw = map(float, words[start : start + 3])
        wrong = float(words[start + 3].replace("N/A", "0")) if columns[before + 3] == "wrong" else 0.0
        root = int(words[start - 1]) if "root" in columns else None
        sums = start == before and "none" not in words
        return _Row(number, int(words[0]), sums, root, time_us, algbw, busbw, wrong)
    except (ValueError, IndexError):
        raise source.refuse("a row with something else than numbers", number) from None


def _from_json(source: ForeignFile, text: str) -> tuple[list[str], list[_Table]]:
    try:
        document = parse_json(text)
        config, rows = document["config"], []
        each = int(config["nthreads"]) * int(config["ngpus"])  # a process lists its first device only
        hosts = [
            str(device["hostname"]) for device in config["devices"] for _ in range(min(each, MAX_RANKS + 1))
        ]
        for result in document["results"]:
            of, sums = result["out_of_place"] or result["in_place"], result["redop"] not in ("none", "")
            numbers = [float(of[key] or 0) for key in ("time", "alg_bw", "bus_bw", "nwrong")]
            rows.append(_Row(0, int(result["size"]), sums, int(result["root"]), *numbers))
        if wrong := int(document["out_of_bounds"]["count"]):
            raise source.refuse(_WRONG.format(wrong))
        test = _LINES["test"].match(str(document["args"][0]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise source.refuse(
            f"is no whole JSON file of nccl-tests ({type(error).__name__}: {error})"
        ) from None
    return hosts, [_Table(test[1] if test else "", [], rows)]


def _timed(source: ForeignFile, table: _Table, n: int) -> list[Timed]:
    """The rows of a table, once it is sure which collective it is of."""
    for row in table.rows:
        expected = row.num_bytes / row.time_us / 1e3 if row.time_us > 0 else math.inf
        if row.wrong:
            raise source.refuse(_WRONG.format(f"{row.wrong:g}"), row.line)
        if not abs(row.algbw - expected) <= _ROUNDING + _DIGITS * expected:
            text = f"{row.num_bytes} bytes in {row.time_us:g} us are {expected:.3g} GB/s, not {row.algbw:g}"
            raise source.refuse(text, row.line)
    alike = [name for name, test in _TESTS.items() if all(_fits(row, test, n) for row in table.rows)]
    line, file = table.rows[0].line if table.rows else 0, Path(source.name).name
    test = table.test or next((name for name in sorted(_TESTS, key=len, reverse=True) if name in file), "")
    if not test and len(alike) != 1 and "all_reduce" not in alike:
        which = " or ".join(f"{name}_perf" for name in alike) or "a known test"
        raise source.refuse(f"says not of which test it is, {which}: put its command above the table", line)
    test = test or alike[0]
    if test not in OPERATIONS:
        text = f"{test}_perf: of this test nothing can be told; give one of {', '.join(OPERATIONS)}"
        raise source.refuse(text, line)
    if test not in alike:
        raise source.refuse(f"busbw is not that of {test} among {n} ranks: are all of them listed?", line)
    return [Timed(test, row.num_bytes, row.time_us / 1e6) for row in table.rows if row.num_bytes]


def _fits(row: _Row, test: _Test, n: int) -> bool:
    same = row.sums == test.sums and (row.root is None or (row.root >= 0) == test.rooted)
    return same and abs(row.busbw - test.factor(n) * row.algbw) <= 2 * _ROUNDING + 0.01 * row.busbw
