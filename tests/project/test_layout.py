"""How large files, folders and rooms may be: one reason to exist each."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.modules import PRODUCT, modules_below, place_of

MAX_LINES = 500
MAX_LOOSE_FILES = 12
"""In a folder, beside its ``__init__``; the thirteenth opens a folder of its own."""


@pytest.mark.parametrize("folder", [*PRODUCT, "benchmarks", "docs", "tests"])
def test_a_file_is_short(folder: str) -> None:
    lengths = {place_of(path): path.read_bytes().count(b"\n") for path in modules_below(folder)}
    assert lengths
    long = {place: lines for place, lines in lengths.items() if lines > MAX_LINES}
    assert long == {}, f"more than {MAX_LINES} lines: move one reason to change to a file of its own"


def test_a_folder_of_the_product_holds_few_files() -> None:
    modules = [path for path in modules_below(*PRODUCT) if path.name != "__init__.py"]
    loose = Counter(place_of(path.parent) for path in modules)
    assert len(loose) > 20
    full = {folder: files for folder, files in loose.items() if files > MAX_LOOSE_FILES}
    assert full == {}, f"more than {MAX_LOOSE_FILES} files: open a folder for some of them"


ROOMS = {
    "paceline": 773,
    "paceline/commands": 2_063,
    "realrun": 32,
    "realrun/attach": 683,
    "realrun/calibration": 1_777,
    "realrun/driver": 2_384,
    "realrun/group": 1_248,
    "realrun/lab": 1_864,
    "realrun/launch": 1_592,
    "realrun/transport": 1_057,
    "reports": 2_756,
    "reports/explore": 42,
    "reports/figures": 1_341,
    "sim": 510,
    "sim/collectives": 2_198,
    "sim/compute": 962,
    "sim/config": 2_779,
    "sim/drivers": 4_235,
    "sim/experiments": 5_247,
    "sim/faults": 740,
    "sim/importers": 2_117,
    "sim/network": 2_009,
    "sim/program": 1_306,
    "sim/records": 4_697,
    "sim/scenario": 2_005,
    "sim/schemes": 4_211,
    "sim/topology": 3_236,
    "sim/traffic": 3_215,
    "sim/training": 2_559,
    "sim/workloads": 3_163,
}
"""Lines of Python of each room, with the folders below it. Whoever needs more takes something out first."""


def test_a_room_keeps_to_its_lines() -> None:
    lines = Counter[str]()
    for path in modules_below(*PRODUCT):
        parts = place_of(path).split("/")
        room = "/".join(parts[: min(2, len(parts) - 1)])
        lines[room] += path.read_bytes().count(b"\n")
    assert set(lines) == set(ROOMS)
    full = {room: (found, ROOMS[room]) for room, found in lines.items() if found > ROOMS[room]}
    assert full == {}, "(lines, budget): take something out first; only an issue raises a budget"
