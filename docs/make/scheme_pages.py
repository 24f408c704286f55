"""A page for each scheme, from the docstrings of its program and module: formula, costs, options, source."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Final

from docs.make.formulas import latex
from docs.make.scenario import options_table
from docs.make.schemes import COSTS, costs
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.common.names import OTHER_NAMES
from paceline.sim.schemes.scheme import Scheme

_OWNERS: Final = re.compile(r"(?:[\w ]+\()?((?:``\w+``(?:, )?)+)\)?:")
"""How a paragraph begins that is about some of a module's schemes, down to the next of this kind."""


def scheme_page(scheme: Scheme) -> str:
    """The page in Markdown."""
    sent, waits_for = costs(scheme)
    kind = "synchronous" if scheme.synchronous else "asynchronous"
    about, *more = inspect.cleandoc(scheme.program.__doc__ or "").split("\n\n")
    others = [", ".join(row.names) for row in OTHER_NAMES if re.match(rf"{scheme.name}\b", row.write)]
    prefix = f"schemes[].{scheme.name}."
    parts = [
        f"# {scheme.name}: {_prose(about).partition(':')[0].rstrip('.')}",
        _prose(" ".join([about, *(each for each in more if "Bytes per step" not in each)])),
        f"- Bytes sent per step and worker: {sent}",
        f"- Waits for: {waits_for}",
        f"- Kind: {kind}",
        *([f"- Elsewhere called: {'; '.join(others)}"] if others else []),
        "## Formula",
        "x_i is the model of worker i of n, g_i its gradient, k the step.",
        *_notes(scheme),
        "## Options",
        options_table(scheme.options, prefix).replace(f"| `{prefix}", "| `"),
        "## Further",
        "[All schemes in a table](../../schemes.md), [what faults do to it]"
        "(../../schemes.md#workers-that-fail-and-return), [the optimiser and other keys](../../scenario.md), "
        "[a scheme of your own](../../tutorials/write-a-scheme.md).",
    ]
    return re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", "\n\n".join(parts)) + "\n"


def _notes(scheme: Scheme) -> Iterator[str]:
    """What the module says below its first line, of this scheme."""
    owners: set[str] = set()
    for block in inspect.cleandoc(sys.modules[scheme.program.__module__].__doc__ or "").split("\n\n")[1:]:
        if (match := _OWNERS.match(block)) and (named := set(re.findall(r"\w+", match[1]))) <= set(SCHEMES):
            owners = named
        if owners and scheme.name not in owners:
            continue
        if block.startswith("    "):
            yield "\n\n".join(f"```math\n{latex(line)}\n```" for line in block.splitlines())
        else:
            before, source, after = COSTS.sub("", _prose(block) + " ").partition("Source: ")
            yield before + (f"\n\n**Source.** {after}" if source else "")


def _prose(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
