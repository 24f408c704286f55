"""How large files and folders may be: one reason to exist each."""

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
