"""The path of ten files in docs/how-it-works.md: short enough, and each nearly alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
FILES: Final = re.findall(r"^\d+\. `(\S+\.py)`", PAGE, flags=re.MULTILINE)
MOST_LINES: Final = 3_500
WANTED: Final = 6
"""Names from outside the ten that a reader of one file can keep in mind."""


def outside(file: str) -> list[str]:
    """Names that a file imports from modules of the product that are none of the ten."""
    inside = {each.removesuffix(".py").replace("/", ".") for each in FILES}
    package = file.split("/")[:-1]
    found = []
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = ".".join(
                [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            ).strip(".")
            names = [f"{module}.{each.name}" for each in node.names]
            found += [name for name in names if module not in inside and name not in inside]
    return found


def test_ten_files_are_read_in_an_evening() -> None:
    assert len(FILES) == 10
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in FILES)
    assert lines <= MOST_LINES


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_the_path_takes_few_names_from_elsewhere(file: str) -> None:
    names = outside(file)
    assert len(names) <= WANTED, names
