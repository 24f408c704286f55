"""The table of schemes, made from their docstrings: ``python -m docs.make.schemes`` renews it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.make.page import first_paragraph
from paceline.sim.config.files import write_atomically
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.scheme import Scheme

PAGE: Final = Path(__file__).parents[1] / "schemes.md"
BEGIN: Final = "<!-- This table is made from docstrings by: python -m docs.make.schemes -->\n\n"
COSTS: Final = re.compile(r"Bytes per step and worker: (.+?)\. Waits for: (.+?)\.(?: |$)")


def renewed(page: str) -> str:
    """The page with its first table, down to an empty line, made anew.

    Raises:
        ValueError: the page has lost the line above the table, or a scheme does not say what it costs.
    """
    head, there, rest = page.partition(BEGIN)
    if not there:
        raise ValueError(f"the page has lost the line {BEGIN!r}")
    return head + BEGIN + "\n".join(_table()) + "\n\n" + rest.partition("\n\n")[2]


def _table() -> Iterator[str]:
    yield "| name | what it does | bytes sent per step and worker | waits for |"
    yield "| --- | --- | --- | --- |"
    for name, scheme in SCHEMES.items():
        cells = (first_paragraph(scheme.program.__doc__).removesuffix("."), *costs(scheme))
        yield " | ".join([f"| `{name}`", *(cell.replace("|", "\\|") for cell in cells)]) + " |"


def costs(scheme: Scheme) -> tuple[str, str]:
    """Bytes and waiting, from the docstring of a scheme's program, or else of its module."""
    program = scheme.program
    for text in (program.__doc__, sys.modules[program.__module__].__doc__):
        if costs := COSTS.search(" ".join((text or "").split())):
            sent, waits_for = costs.groups()
            return sent.replace("``", "`"), waits_for.replace("``", "`")
    raise ValueError(f"say 'Bytes per step and worker: ... Waits for: ...' in the docstring of {scheme.name}")


def main() -> None:
    """Renew the page."""
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
