"""Tables of schemes, and of what to write for them: ``python -m docs.make.schemes`` renews them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from docs.make import page as generated_page
from docs.make.page import first_paragraph
from paceline.extras.recommend.frameworks import ABSENT, FRAMEWORKS, WAYS, Way
from paceline.sim.config.files import write_atomically
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.scheme import Scheme

PAGE: Final = Path(__file__).parents[1] / "schemes.md"
BEGIN: Final = "<!-- This table is made from docstrings by: python -m docs.make.schemes -->\n\n"
ANSWERS: Final = PAGE.with_name("recommend.md")
BEGIN_FRAMEWORKS: Final = "<!-- The rest is made from frameworks.yaml by: python -m docs.make.schemes -->\n"
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


def with_frameworks(page: str) -> str:
    """The page with what to write in frameworks made anew."""
    return generated_page.renewed(page, BEGIN_FRAMEWORKS, "\n" + "\n".join(_ways()) + "\n")


def _ways() -> Iterator[str]:
    yield "| scheme | framework | what to write | beside it |"
    yield "| --- | --- | --- | --- |"
    for way in WAYS:
        cells = (f"`{way.scheme}`", way.framework, f"`{way.write}`", _beside(way))
        yield " | ".join(["", *(cell.replace("|", "\\|") for cell in cells), ""]).strip()
    absent = ", ".join(f"`{name}` ({near})" for name, near in ABSENT.items())
    yield f"\nIn none of them, with the nearest: {absent}.\n"
    for name, each in FRAMEWORKS.items():
        files = sorted({way.source for way in WAYS if way.framework == name})
        listed = ", ".join(f"`{file}`" for file in files)
        yield f"- {name} {each['version']}, read in {listed} ([source]({each['address']}))"


def _beside(way: Way) -> str:
    """Where a row applies, what it has at one value alone, its parts, what comes nearest, its note."""
    needs = [f"`{key}`" + ("" if x == "any" else f" {_or(x)}") for key, x in way.needs.items()]
    fixed = [f"`{key}: {value}`" for key, value in way.fixed.items()]
    parts = [
        f"`{key}`: {_or(texts if isinstance(texts, str) else texts.values())}"
        for key, texts in way.parts.items()
    ]
    near = [f"near `{key}`: {text}" for key, text in way.near.items()]
    return "; ".join([
        *[f"with {', '.join(needs)}"] * bool(needs), *[f"only {', '.join(fixed)}"] * bool(fixed),
        *parts, *near, *filter(None, [way.note]),
    ])  # fmt: skip


def _or(texts: str | Iterable[Any]) -> str:
    written = [texts] if isinstance(texts, str) else [*dict.fromkeys(map(str, texts))]
    return " or ".join(f"`{each.strip()}`" if each else "as it is" for each in written)


def main() -> None:
    """Renew the pages."""
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8")))
    write_atomically(ANSWERS, with_frameworks(ANSWERS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
