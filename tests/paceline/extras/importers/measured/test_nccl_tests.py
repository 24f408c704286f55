"""Output of nccl-tests: links by which our own prices are the measured times."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.extras.importers.measured.nccl_tests import Timed, prices_s, read
from paceline.extras.importers.readings import Answers, ForeignFile, Readings
from paceline.sim.errors import InputError
from paceline.sim.foreign import foreign_kind
from tests.support.made_nccl_tests import COLUMNS, json_of, text_of

SIZES = [2**k for k in range(10, 29, 3)]
TWO = ["node-a", "node-b"]


def timed_by(
    operation: str, gpus: Sequence[int], latency_s: float, bytes_per_s: float, sizes: Sequence[int] = SIZES
) -> list[Timed]:
    blank = [Timed(operation, size, 1.0) for size in sizes]
    times_s = prices_s(blank, gpus, np.array([latency_s, 1 / bytes_per_s]))
    return [each._replace(seconds=float(s)) for each, s in zip(blank, times_s, strict=True)]


def read_text(text: str, name: str = "x.txt", answers: Answers = Answers()) -> Readings:  # noqa: B008
    return read(ForeignFile(name, text, answers=answers))


@settings(max_examples=8)
@given(
    st.sampled_from(sorted(COLUMNS.keys() - {"alltoall"})),
    st.sampled_from([(1, 1), (1, 1, 1), (2, 2), (4, 4, 4), (8,)]),
    st.floats(5e-6, 1e-3),
    st.floats(1e8, 5e10),
)
@example("all_reduce", (1, 1), 5e-6, 1e8)
@example("all_reduce", (8,), 0.0002794838365085499, 1e8)  # busbw and 1.75 algbw, each rounded
def test_links_follow_from_times_that_they_make(
    operation: str, gpus: tuple[int, ...], latency_s: float, bytes_per_s: float
) -> None:
    hosts = [f"node-{host}" for host, number in enumerate(gpus) for _ in range(number)]
    text = text_of(hosts, timed_by(operation, gpus, latency_s, bytes_per_s))
    assert foreign_kind(text) == "nccl-tests"
    out = read_text(text)
    assert (out.transport, out.workers) == ("nccl", {"": len(hosts)} if len(gpus) > 1 else None)
    if len(gpus) == 1:
        links = out.gpu_latency_s, out.gpu_bandwidth_bytes_per_s
    else:
        links = out.paths[0].latency_s, out.paths[0].bandwidth_bytes_per_s
    assert links == pytest.approx((latency_s, bytes_per_s), rel=0.02)
    assert out.gpus == (gpus[0] if gpus[0] > 1 else None)
    assert float(re.findall(r"at most ([0-9.]+) %", out.notes[1])[0]) < 2


def test_the_closed_form_of_a_ring_of_two() -> None:
    """Two hosts: a launch, S / B, a latency, and five at the end for payloads of a chunk or more."""
    timed = [Timed("all_reduce", 2**k, 20e-6 + 2**k / 1e8 + 6e-3) for k in range(23, 29)]
    (path,) = read_text(text_of(TWO, timed)).paths
    assert (path.latency_s, path.bandwidth_bytes_per_s) == pytest.approx((1e-3, 1e8), rel=0.02)


def test_json_lists_the_first_device_of_each_process() -> None:
    timed = timed_by("all_gather", (4, 4), 3e-5, 1e9)
    text = json_of(TWO, 4, timed)
    assert foreign_kind(text) == "nccl-tests"
    out = read_text(text)
    assert (out.gpus, out.workers) == (4, {"": 8})
    assert out.paths[0].latency_s == pytest.approx(3e-5, rel=0.01)


def test_several_tests_in_a_text_are_fitted_together() -> None:
    texts = [text_of(TWO, timed_by(each, (1, 1), 4e-5, 1e9)) for each in ("all_reduce", "broadcast")]
    out = read_text("".join(texts))
    assert out.paths[0].latency_s == pytest.approx(4e-5, rel=0.01)
    assert out.notes[0].startswith("all_reduce, broadcast among 2 GPUs of 2 hosts: 14 times")


OLDER = """\
# nThread: 1 nGpus: 1 minBytes: 8388608 maxBytes: 33554432 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#   Rank  0 Pid   1320 on host-1 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   2066 on host-2 device  0 [0x00] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                    in-place
#       size    count   type  redop     time  algbw  busbw  error     time  algbw  busbw  error
#        (B)  (elements)                (us) (GB/s) (GB/s)            (us) (GB/s) (GB/s)
     8388608  2097152  float    sum   8000.0   1.05   1.05  5e-07   8000.1   1.05   1.05  5e-07
    16777216  4194304  float    sum  15600.0   1.08   1.08  5e-07  15600.1   1.08   1.08  5e-07
    33554432  8388608  float    sum  30800.0   1.09   1.09  5e-07  30800.1   1.09   1.09  5e-07
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1.07
"""


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "0: "])
def test_an_older_text_and_what_launchers_add(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\r\n" for line in OLDER.splitlines()) + "node-a:1:2 [0] NCCL INFO done\n\n"
    assert foreign_kind(text) == "nccl-tests"
    (path,) = read_text(text).paths
    assert path.bandwidth_bytes_per_s == pytest.approx(1.104e9, rel=0.01)


def test_a_table_pasted_without_its_marks() -> None:
    timed = timed_by("all_reduce", (1, 1), 4e-5, 1e9)
    whole, bare = text_of(TWO, timed), text_of(TWO, timed).replace("# ", "  ").replace("#\n", "\n")
    assert read_text(bare).paths == read_text(whole).paths


TEXT = text_of(TWO, timed_by("all_reduce", (1, 1), 4e-5, 1e9))
GATHERED = text_of(TWO, timed_by("all_gather", (1, 1), 4e-5, 1e9), named=False)
REFUSED = {
    "wrong values": (
        text_of(TWO, timed_by("all_reduce", (1, 1), 4e-5, 1e9), wrong="3"),
        "3 values are wrong",
    ),
    "a failed check": (TEXT.replace("values : 0 OK", "values : 7 FAILED"), "7 values are wrong"),
    "no summary": (TEXT.split("# Out of")[0], "ends before its summary"),
    "no devices": (TEXT.replace("Rank", "Rang"), "say how many by --workers; its busbw over algbw is 1"),
    "a rank is missing": (TEXT.replace("#  Rank  0", "#  Rang  0"), "no list of all ranks"),
    "one rank": (TEXT.replace("#  Rank  1", "#  Rang  1"), "is of 1 ranks on hosts of 1 to 1 GPUs"),
    "processes alone": (TEXT.replace("Rank  1", "Rank  0"), "know nothing of each other"),
    "groups": (TEXT.replace("Rank  1 Group  0", "Rank  1 Group  1"), "in groups"),
    "no header": (TEXT.replace("size", "length"), "no column 'time'"),
    "CPU time": (TEXT.replace("   time", "cputime"), "CPU time"),
    "a column less": (re.sub(r"(?m) +\S+ +0$", "", TEXT), "not those of the table's header"),
    "no numbers": (
        re.sub(r"float    sum     -1 +\S+", "float sum -1 fast", TEXT),
        "not those of the table's header",
    ),
    "another unit": (re.sub(r"sum     -1 +", "sum -1 1", TEXT), "GB/s, not"),
    "which test": (GATHERED, "put its command above the table"),
    "another test": (
        GATHERED.replace("# nThread", "$ ./alltoall_perf\n# nThread"),
        "alltoall_perf tells nothing; give one of all_reduce",
    ),
    "not that test": (TEXT.replace("all_reduce_perf", "reduce_scatter_perf"), "busbw is not that"),
    "one size": (text_of(TWO, timed_by("all_reduce", (1, 1), 4e-5, 1e9, [2**20])), "or say --latency"),
    "large sizes": (text_of(TWO, timed_by("all_reduce", (1, 1), 0.0, 1e7, SIZES[4:])), "--latency"),
    "unequal hosts": (text_of([*TWO, "node-b"], timed_by("all_reduce", (1,) * 3, 4e-5, 1e9)), "1 to 2 GPUs"),
    "nothing of it": ("# nThread 1 nGpus 1\n", "ends before its summary"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_file_is_refused(why: str) -> None:
    text, message = REFUSED[why]
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_text(text)
    assert re.match(r"x\.txt:([1-9]\d*:)? ", str(error.value))
    assert "\n" not in str(error.value)


def test_a_file_name_tells_the_test() -> None:
    assert read_text(GATHERED, "logs/all_gather.txt").notes[0].startswith("all_gather among 2 GPUs")


def test_a_table_without_its_list_of_ranks_asks_for_their_number() -> None:
    """As logs are often pasted; srun -l puts the rank before each line."""
    bare = "".join(f" 0: {line}\n" for line in TEXT.splitlines() if "Rank" not in line)
    readings = read_text(bare, answers=Answers(workers=2))
    (path,), (same,) = readings.paths, read_text(TEXT).paths
    assert path == same
    assert "each counts as a host of its own" in readings.notes[-1]
    assert foreign_kind(bare.partition("nGpus")[2].partition("\n")[2]) == "nccl-tests"
    with pytest.raises(InputError, match="another test or number of ranks"):
        read_text(bare.replace("all_reduce_perf", ""), answers=Answers(workers=8))


def test_a_latency_of_the_users_makes_up_for_a_size() -> None:
    text = text_of(TWO, timed_by("all_reduce", (1, 1), 4e-5, 1e9, [2**26]))
    (path,) = read_text(text, answers=Answers(latency_s=4e-5)).paths
    assert path.latency_s == 4e-5
    assert path.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.01)


JSON = json_of(TWO, 1, timed_by("all_reduce", (1, 1), 4e-5, 1e9))


@settings(max_examples=80)
@given(st.sampled_from([TEXT, JSON]), st.data())
def test_damage_is_refused_or_changes_nothing_much(text: str, data: st.DataObject) -> None:
    """Cut anywhere, or with letters replaced: one message, or links near those of the whole file."""
    place = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        damaged = text[:place]
    else:
        letters = data.draw(st.text(st.characters(max_codepoint=0x2FF), min_size=1, max_size=3))
        damaged = text[:place] + letters + text[place + len(letters) :]
    with contextlib.suppress(InputError):  # any other error fails the test
        links = read_text(damaged).paths[0]
        assert links.latency_s == pytest.approx(4e-5, rel=0.6)
        assert links.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.3)


@given(
    st.sampled_from(["config", "results", "out_of_bounds"]),
    st.sampled_from([None, [], {}, 1, "x", [None]]),
)
def test_json_of_other_types_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError, match=r"^x\.txt: "):
        read_text(json.dumps(json.loads(JSON) | {key: value}))


def test_a_row_whose_first_words_are_damaged_is_refused_with_its_line() -> None:
    lines = text_of(TWO, timed_by("all_reduce", (1, 1), 4e-5, 1e9)).splitlines()
    rows = [number for number, line in enumerate(lines) if re.match(r" *\d+ +\d+ +float", line)]
    assert len(rows) == len(SIZES)
    for row in rows:
        for old, new in ((r"\d", "x"), (r"\d+ +", "?? "), ("float", "FLOAT"), ("float", "4")):
            changed = [*lines[:row], re.sub(old, new, lines[row], count=1), *lines[row + 1 :]]
            with pytest.raises(InputError, match=f"^x.txt:{row + 1}: "):
                read_text("\n".join(changed))


def test_the_log_of_nccl_between_rows_is_no_damage() -> None:
    lines = text_of(TWO, timed_by("all_reduce", (1, 1), 4e-5, 1e9)).splitlines()
    log = "node-a:41:41 [0] NCCL INFO Channel 00/08 :    0   1   2   3   4   5   6   7"
    assert read_text("\n".join([*lines[:-4], log, *lines[-4:]])) == read_text("\n".join(lines))


RING = (Path(__file__).parents[1] / "cases" / "nccl-two-hosts-ring.log").read_text()
AUTO = RING.replace("-x NCCL_ALGO=RING ", "")
LATENCY = Answers(latency_s=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "by", "says"),
    [
        (RING, "ring", "collectives: {all_reduce: nccl_ring}"),
        (f"host1:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n{AUTO}", "ring", "by NCCL_ALGO"),
        (AUTO.replace("-np", "-x NCCL_ALGO=^tree,nvlstree -np"), "ring", "by NCCL_ALGO"),
        (RING.replace("RING", "broadcast:ring;allreduce:tree"), "tree", "by NCCL_ALGO"),
        (f"NCCL version 2.3.7+cuda10.0\n{AUTO}", "ring", "by the ring, the rule of NCCL before 2.4"),
        (AUTO, "tree", r"by the ring it is 7\d\d\.?\d* Gbit/s: if that was it, put NCCL_ALGO=ring above"),
    ],
)
def test_the_algorithm_between_two_hosts_is_read_or_both_are_said(text: str, by: str, says: str) -> None:
    out = read_text(text, answers=LATENCY)
    low, high = {"ring": (750, 780), "tree": (420, 450)}[by]
    assert low < 8e-9 * (out.paths[0].bandwidth_bytes_per_s or 0) < high
    assert re.search(says, " ".join(out.notes))
    assert out.nccl == ("2.3.7" if "version 2.3.7" in text else None)
