"""Output of nccl-tests (``all_reduce_perf`` and others): text, or JSON of ``-J``.

Formats: NVIDIA/nccl-tests at a0b82b2 (2.19.6), src/util.cu; older texts have "error" for "#wrong", and no
"root" or "Group".

Latency and bandwidth are those with which our own prices of NCCL's collectives last as measured.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from paceline.extras.importers.readings import ForeignFile, PathReading, Readings
from paceline.sim.collectives.algorithm_registry import algorithms
from paceline.sim.collectives.algorithms import Sites, count_ranks
from paceline.sim.collectives.collective import Collective, CollectiveBlock, of_blocks
from paceline.sim.collectives.pipelines import NEWEST_NCCL, NcclHosts, nccl_choice
from paceline.sim.config.files import parse_json
from paceline.sim.config.limits import MAX_MODEL_BYTES, MAX_TIME_S
from paceline.sim.config.units import format_bytes, format_rate, format_seconds
from paceline.sim.errors import shorten
from paceline.sim.network.build import build_network
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.network.transport import NCCL_LAUNCH, TRANSPORTS, TransferModel
from paceline.sim.seeds import Floats
from paceline.sim.traffic.placing import place, price_s

_ALGORITHMS: Final = re.compile(r"NCCL_ALGO(?:=| set by environment to )[\"']?([\w^,:;]+)")
_VERSION: Final = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_PREFIX: Final = re.compile(r"(?m)^ *(?:\[[^\]\n]*\]<\w+>: ?|\d+: )")
"""Which process wrote a line, as mpirun and srun say it."""
_LINES: Final = {
    "rank": re.compile(r"[#\s]*Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+\s+on\s+(\S+)\s+device"),
    "test": re.compile(r"(?!.*concluded).*?\b([a-z_]+)_perf(?:_mpi)?\b"),
    "header": re.compile(r"[#\s]*size\s+count\s+type\s"),
    "end": re.compile(r"[#\s]*Out of bounds values\s*:\s*(\d+)"),
    "row": re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s"),
    "damaged": re.compile(r"(?!.*(?:#|NCCL)).*(?:\s+[-+.e\d]+){3}(?!\S)"),
}
_PASSES: Final = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 0, "sendrecv": 0}
"""Test -> passes around the ring of n ranks: busbw is (n - 1) / n as many times algbw; 0: equal to it."""
_ROUNDING: Final = 0.0051
"""Of printed GB/s."""
_DIGITS: Final = 0.055
"""Relative difference of a row's bandwidth from its bytes over its time, which may have two digits."""
_SPAN: Final = 4
"""Least ratio of the largest to the smallest size from which a latency can be told."""


class _Row(NamedTuple):
    line: int
    num_bytes: int
    reduces_to_all: bool
    time_us: float
    algbw: float
    busbw: float
    wrong: float = 0.0


_Table = tuple[str, list[str], list[_Row]]
"""Name of the test, if said; columns, and rows."""


def read(source: ForeignFile) -> Readings:
    """Latency and bandwidth with which Paceline's own prices of the collectives are those measured.

    Raises:
        InputError: wrong results, a cut file, an unknown collective, or too few sizes.
    """
    text = _PREFIX.sub("", source.text)
    hosts, tables = (_from_json if text.lstrip().startswith("{") else _from_text)(source, text)
    listed = bool(hosts)
    hosts = hosts or _hosts_as_said(source, tables)
    n, gpus = len(hosts), list(Counter(hosts).values())
    if not 2 <= n <= MAX_RANKS or len(set(gpus)) > 1:
        text = f"is of {n} ranks on hosts of {min(gpus)} to {max(gpus)} GPUs: give 2 to {MAX_RANKS} ranks on"
        raise source.refuse(f"{text} equal hosts (processes know of each other if built with MPI=1)")
    timed = [each for test, _, rows in tables for each in _timed(source, test, rows, n)]
    sizes = sorted({each.num_bytes for each in timed})
    given_s = source.answers.latency_s if len(gpus) > 1 else None
    if not sizes or (given_s is None and (len(sizes) < 3 or sizes[-1] < _SPAN * sizes[0])):
        raise source.refuse(
            f"its sizes ({len(sizes)}) cannot tell latency from bandwidth: measure at three or more, the "
            f"largest at least {_SPAN} times the smallest (-b 8 -e 128M -f 4), or say --latency"
        )
    forced, version = _forced(text), _VERSION.search(text)
    known = NcclHosts(tuple(map(int, version[1].split(".")))) if version else NEWEST_NCCL
    fit = fit_collectives(timed, gpus, forced or known, given_s)
    if given_s is None and 1e3 * n * fit.latency_s < min(each.seconds for each in timed):
        raise source.refuse("its times show no latency: measure small sizes too (-b 8), or say --latency")
    off = 100 * np.abs(fit.ratios - 1)
    worst = fit.fitted[int(off.argmax())]
    inside = "; links inside a host: unlimited, a test on one host alone measures them"
    notes: tuple[str, ...] = (
        f"{', '.join(dict.fromkeys(each.operation for each in timed))} among {n} GPUs of {len(gpus)} hosts: "
        f"{len(timed)} times, {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}; "
        f"{'latency as you say, ' if given_s is not None else 'latency and '}bandwidth fitted, beside "
        f"{format_seconds(NCCL_LAUNCH.value)} for a launch{inside if 1 < gpus[0] < n else ''}",
        f"predicted times are off by {np.median(off):.1f} % in the median, at most {off.max():.1f} % "
        f"({worst.operation} of {format_bytes(worst.num_bytes)})",
    )
    if forced:
        notes += (f"by NCCL_ALGO; where training has it too, write collectives: {{all_reduce: {forced}}}",)
    elif len(gpus) == 2 < n and any(each.operation == "all_reduce" for each in timed):
        taken = nccl_choice((tuple(gpus),), sizes[-1], known)
        other = "nccl_tree" if taken == "nccl_ring" else "nccl_ring"
        rate = format_rate(fit_collectives(timed, gpus, other, given_s).bytes_per_s)
        names = [each.removeprefix("nccl_") for each in (taken, other)]
        notes += (
            f"no NCCL_ALGO decides: bandwidth by the {names[0]}, the rule of NCCL {known.era}; by the "
            f"{names[1]} it is {rate}: if that was it, put NCCL_ALGO={names[1]} above the table",
        )
    if not listed:
        notes += ("no list of ranks says where they are: each counts as a host of its own",)
    if len(gpus) == 1:
        return Readings(
            gpus=n, gpu_latency_s=fit.latency_s, gpu_bandwidth_bytes_per_s=fit.bytes_per_s, transport="nccl",
            notes=notes,
        )  # fmt: skip
    a, b = source.ends
    path = PathReading(a, b, latency_s=fit.latency_s, bandwidth_bytes_per_s=fit.bytes_per_s)
    several = gpus[0] if gpus[0] > 1 else None
    return Readings(
        paths=(path,), gpus=several, workers={a if a == b else "": n}, transport="nccl", notes=notes,
        nccl=version and version[1],
    )  # fmt: skip


def _forced(text: str) -> str | None:
    """The all-reduce that NCCL_ALGO leaves; None: it leaves the choice open, or is not said."""
    allowed = {"ring", "tree"}
    for value in _ALGORITHMS.findall(text)[-1:]:
        for part in value.lower().split(";"):
            function, _, names = part.rpartition(":")
            if function in ("", "allreduce"):
                listed = set(names.removeprefix("^").split(","))
                allowed = {"ring", "tree"} - listed if names.startswith("^") else listed & {"ring", "tree"}
    return f"nccl_{allowed.pop()}" if len(allowed) == 1 else None


def _from_text(source: ForeignFile, text: str) -> tuple[list[str], list[_Table]]:
    """The host of each rank, and the tables."""
    hosts, tables, test, complete = dict[int, str](), list[_Table]([("", [], [])]), "", False
    for number, line in enumerate(text.splitlines(), 1):
        kind, match = next(((k, m) for k, each in _LINES.items() if (m := each.match(line))), ("", None))
        if kind == "damaged" and not complete and len(tables) > 1:
            raise source.refuse("is a damaged row: its first words are not size, count and type", number)
        if match is None:
            continue
        if kind == "rank" and (int(match[2] or 0) or hosts.setdefault(int(match[1]), match[3]) != match[3]):
            raise source.refuse("its processes know nothing of each other, or are in groups", number)
        if kind == "row":
            tables[-1][2].append(_row(source, number, line.split(), tables[-1][1]))
        elif kind == "header":
            tables.append((test, line.replace("#wrong", "wrong").replace("#", " ").split(), []))
        elif kind == "end" and int(match[1]):
            raise source.refuse(f"{match[1]} values are wrong", number)
        test = match[1] if kind == "test" else test
        complete = kind == "end" or (complete and kind != "row")
    if sorted(hosts) != list(range(len(hosts))):
        raise source.refuse("has no list of all ranks ('#  Rank  0 ... on HOST device ...')")
    if not complete:
        raise source.refuse("ends before its summary ('# Out of bounds values'): give all of the output")
    return [hosts[rank] for rank in range(len(hosts))], tables[1:]


def _hosts_as_said(source: ForeignFile, tables: Sequence[_Table]) -> list[str]:
    """A host for each rank, by ``--workers``, for a file that has lost its list of ranks."""
    if source.answers.workers is None:
        ratios = [rows[-1].busbw / rows[-1].algbw for _, _, rows in tables if rows and rows[-1].algbw]
        hint = f"; its busbw over algbw is {ratios[-1]:.3g}, of an all-reduce 2 (n - 1) / n" if ratios else ""
        raise source.refuse(f"has no list of ranks ('#  Rank  0 ...'): say how many by --workers{hint}")
    return [f"host {rank}" for rank in range(source.answers.workers)]


def _row(source: ForeignFile, number: int, words: list[str], columns: list[str]) -> _Row:
    """A row; of in-place and out-of-place the latter, which comes first."""
    if "time" not in columns:
        text = "no column 'time' stands above it; CPU time (-C 1) says nothing of the network"
        raise source.refuse(text, number)
    before = columns.index("time")
    start = len(words) - (len(columns) - before + ("timestamp" in columns))
    try:
        to_all = start == before and "none" not in words
        to_all = to_all and not ("root" in columns and int(words[start - 1]) >= 0)
        numbers = [float(each.replace("N/A", "0").replace("_", " ")) for each in words[start : start + 4]]
        if before - 1 <= start <= before:  # some collectives leave their column "redop" empty
            return _Row(number, int(words[0]), to_all, *numbers[: 4 if "wrong" in columns else 3])
    except ValueError:
        pass
    raise source.refuse("its values are not those of the table's header", number)


def _from_json(source: ForeignFile, text: str) -> tuple[list[str], list[_Table]]:
    try:
        document, rows = parse_json(text), []
        config = document["config"]
        each = int(config["nthreads"]) * int(config["ngpus"])  # a process lists its first device only
        hosts = [str(a["hostname"]) for a in config["devices"] for _ in range(min(each, MAX_RANKS + 1))]
        for result in document["results"]:
            of = result["out_of_place"] or result["in_place"]
            numbers = [float(of[key] or 0) for key in ("time", "alg_bw", "bus_bw", "nwrong")]
            to_all = result["redop"] not in ("none", "") and int(result["root"]) < 0
            rows.append(_Row(0, int(result["size"]), to_all, *numbers))
        if wrong := int(document["out_of_bounds"]["count"]):
            raise source.refuse(f"{wrong} values are wrong")
        test = _LINES["test"].match(str(document["args"][0]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise source.refuse(
            f"is no whole JSON file of nccl-tests ({type(error).__name__}: {error})"
        ) from None
    return hosts, [(test[1] if test else "", [], rows)]


def _timed(source: ForeignFile, test: str, rows: Sequence[_Row], n: int) -> list[Timed]:
    """The rows of a table, once it is sure which collective it is of."""
    file = Path(source.name).name
    named = test or next((each for each in _PASSES if each in file), "")
    test = named or "all_reduce"
    if test not in _PASSES:
        raise source.refuse(f"{test}_perf tells nothing; give one of {', '.join(_PASSES)}")
    factor = _PASSES[test] * (n - 1) / n or 1.0
    for row in rows:
        possible = 0 < row.time_us < MAX_TIME_S and row.num_bytes < MAX_MODEL_BYTES
        algbw = row.num_bytes / row.time_us / 1e3 if possible else math.nan
        same = abs(row.busbw - factor * row.algbw) <= (1 + factor) * _ROUNDING + 0.01 * row.busbw
        if row.wrong:
            raise source.refuse(f"{row.wrong:g} values are wrong", row.line)
        if not abs(row.algbw - algbw) <= _ROUNDING + _DIGITS * algbw:
            text = f"{shorten(row.num_bytes)} B in {row.time_us:g} us are {algbw:.3g} GB/s, not {row.algbw:g}"
            raise source.refuse(text, row.line)
        if not named and not (same and row.reduces_to_all):
            raise source.refuse(
                "is of another test or number of ranks: put its command above the table", row.line
            )
        if not same:
            raise source.refuse(f"busbw is not that of {test} of {n} ranks: are all listed?", row.line)
    return [Timed(test, row.num_bytes, row.time_us / 1e6) for row in rows if row.num_bytes]


MAX_RANKS: Final = 256
"""More take minutes to price."""
_ROUNDS: Final = 5
_FITTED: Final = 16
"""Most times that are fitted: of more every k-th by size."""
_STEP: Final = 0.01
"""Relative step of a numerical derivative: prices are linear but for corners."""


class Timed(NamedTuple):
    """A collective's measured time; ``num_bytes`` of all ranks together where each has a part."""

    operation: str
    num_bytes: int
    seconds: float


class LinkFit(NamedTuple):
    """One-way latency, bandwidth, and predicted over measured time of those fitted."""

    latency_s: float
    bytes_per_s: float
    fitted: Sequence[Timed]
    ratios: Floats


AllReduceRule = str | NcclHosts
"""The algorithm of all-reduces, or hosts on which NCCL chooses."""


def fit_collectives(
    timed: Sequence[Timed], gpus: Sequence[int], by: AllReduceRule, latency_s: float | None = None
) -> LinkFit:
    """Fit by least squares of relative errors.

    ``gpus``: of each host. A single host's inner links are fitted, else those between hosts, while inner ones
    are unlimited. ``latency_s``: None: fitted too.
    """
    timed = sorted(timed, key=lambda each: each.num_bytes)
    timed, slowest = timed[:: -(-len(timed) // _FITTED)], timed[-1]
    measured_s = np.array([each.seconds for each in timed])
    known = np.array([latency_s is not None, False])
    guess_s = measured_s.min() / (2 * sum(gpus)) if latency_s is None else latency_s
    point = np.array([guess_s, slowest.seconds / slowest.num_bytes])
    for _ in range(_ROUNDS):
        base_s = prices_s(timed, gpus, point, by)
        moves = [point * np.where(np.arange(2) == k, 1 + _STEP, 1.0) for k in range(2)]
        slopes = np.stack([(prices_s(timed, gpus, each, by) - base_s) / _STEP for each in moves], axis=1)
        slopes = np.where(known, 0.0, slopes) / measured_s[:, None]
        change = np.linalg.lstsq(slopes, 1 - base_s / measured_s, rcond=None)[0]
        point = point * np.clip(1 + change, 0.2, 5.0)
    return LinkFit(float(point[0]), float(1 / point[1]), timed, prices_s(timed, gpus, point, by) / measured_s)


def prices_s(
    timed: Sequence[Timed], gpus: Sequence[int], point: Floats, by: AllReduceRule = NEWEST_NCCL
) -> Floats:
    """Predicted times at ``point``: one-way latency and seconds per byte of the links that are fitted."""
    latency_s, s_per_byte = point.tolist()
    link = {"latency": f"{latency_s!r} s", "bandwidth": f"{8 / s_per_byte!r} bit/s"}
    alone = len(gpus) == 1
    settings = (
        {"latency": "0 s", "host": {"gpus": gpus[0], **link}} if alone else link | {"host": {"gpus": gpus[0]}}
    )
    network = build_network(NetworkSettings.model_validate(settings), sum(gpus))
    model = TRANSPORTS["nccl"].transfer(TransferModel(network))
    members, sites = tuple(range(sum(gpus))), ((tuple(gpus),) if max(gpus) > 1 else (sum(gpus),))
    return np.array([price_s(place(_collective(each, sites, by), members, model)) for each in timed])


def _collective(timed: Timed, sites: Sites, by: AllReduceRule) -> Collective:
    n = count_ranks(sites)
    if timed.operation == "sendrecv":
        return of_blocks(n, [CollectiveBlock(rank, (rank + 1) % n, timed.num_bytes) for rank in range(n)])
    kinds = algorithms(timed.operation, "nccl")
    if timed.operation != "all_reduce":
        by = next(iter(kinds))
    elif isinstance(by, NcclHosts):
        by = nccl_choice(sites, timed.num_bytes, by)
    return kinds[by].build(sites, timed.num_bytes)
