"""The page of all public names, made from their docstrings: ``python -m docs.make.api`` renews it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel

import paceline
from docs.make import page as generated_page
from paceline.sim.config.files import write_atomically

PAGE: Final = Path(__file__).parents[1] / "api.md"
BEGIN: Final = "<!-- What follows, down to the end, is made from docstrings by: python -m docs.make.api -->\n"

_SECTIONS: Final = {
    "Running": ("paceline.api", "paceline.commands.app", "paceline.sim.scenario", "paceline.study"),
    "What happened": ("paceline.sim.records",),
    "Schemes": (
        "paceline.sim.program",
        "paceline.sim.schemes",
        "paceline.sim.config",
        "paceline.sim.topology",
    ),
    "Collectives and networks": ("paceline.sim.collectives", "paceline.sim.network"),
    "Errors": ("paceline.sim.errors",),
}
"""Heading -> the modules, or the packages of those, whose public names stand below it."""
_HEADING: Final = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")
_ITEM: Final = re.compile(r"(\w[\w, ]*): (.*)")


def renewed(page: str) -> str:
    """The page with its lower part made anew; what stands above it is kept."""
    return generated_page.renewed(page, BEGIN, "\n" + "\n".join(_lines()))


def _lines() -> Iterator[str]:
    """All sections.

    Raises:
        ValueError: a public name belongs to no section.
    """
    left = set(paceline.__all__)
    for heading, homes in _SECTIONS.items():
        yield f"## {heading}\n"
        for name, home in paceline._HOMES.items():
            if any(home == each or home.startswith(each + ".") for each in homes):
                left.remove(name)
                yield from _entry(name, getattr(paceline, name), home)
    if left:
        raise ValueError(f"no section for {sorted(left)}")


def _entry(name: str, thing: Any, home: str) -> Iterator[str]:
    yield f"### `{name}`\n"
    if isinstance(thing, ModuleType):
        yield from _module(name, thing)
    elif isinstance(thing, type):
        yield from _class(name, thing)
    elif inspect.isfunction(thing):
        yield _code(_signature(name, thing))
        yield from _paragraphs(thing.__doc__)
    else:
        yield _code(f"{name} = {_written(name, home)}")
        yield from _paragraphs(_below(name, home))


def _class(name: str, kind: type) -> Iterator[str]:
    if dataclasses.is_dataclass(kind):
        yield _code(_signature(name, kind))
    yield from _paragraphs(kind.__doc__)
    if issubclass(kind, BaseModel) and kind.model_fields:
        fields = kind.model_fields.items()
        yield "\n".join(f"- `{key}`: {field.description}" for key, field in fields if field.description)
        yield ""
    described_above = getattr(kind, "__dataclass_fields__", ())
    for member, value in vars(kind).items():
        if (
            member.startswith("_")
            or member in described_above
            or (issubclass(kind, BaseModel) and not callable(value))
        ):
            continue
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(value):
            yield f"#### `{name}.{member}`\n"
            yield _code(_before(value) + _signature(member, value))
            yield from _paragraphs(value.__doc__)
        elif described := getattr(value, "fget", getattr(value, "func", None)):
            yield f"#### `{name}.{member}`\n"
            yield from _paragraphs(described.__doc__)


def _before(method: Callable[..., Any]) -> str:
    """What a call begins with."""
    if inspect.isasyncgenfunction(method):
        return "async for ... in "
    return "await " if inspect.iscoroutinefunction(method) else ""


def _module(name: str, module: ModuleType) -> Iterator[str]:
    """The operations of a module, one row each."""
    yield from _paragraphs(module.__doc__)
    yield f"| `{name}.` | gives | |"
    yield "| --- | --- | --- |"
    others = []
    for member, value in vars(module).items():
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        if member in paceline.__all__ or not dataclasses.is_dataclass(value):
            continue
        replies = [get_args(base) for base in getattr(value, "__orig_bases__", ())]
        if not replies:
            others.append((member, value))
            continue
        if isinstance(replies[0][0], TypeVar):  # the root of them all
            continue
        reply = re.sub(r"\b(?:\w+\.)+", "", _type_name(replies[0][0]))
        about = " ".join(" ".join(_paragraphs(value.__doc__)).split()).replace("|", "\\|")
        signature = _signature(member, value).replace("\n    ", "").replace(",\n)", ")").replace("|", "\\|")
        yield f"| `{signature}` | {'' if reply == 'NoneType' else f'`{reply}`'} | {about} |"
    yield ""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.AnnAssign):
            member = ast.unparse(node.target)
            yield f"#### `{name}.{member}`\n"
            yield from _paragraphs(_below(member, module.__name__))
    for member, value in others:
        yield f"#### `{name}.{member}`\n"
        yield from _class(member, value)


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("|", "\\|")


def _signature(name: str, function: Callable[..., Any]) -> str:
    """As it is written in the source, without ``self``; on several lines where it is long."""
    signature = inspect.signature(function)
    parameters = [_with_source(p) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    result = signature.return_annotation
    if isinstance(function, type):
        result = inspect.Signature.empty
    plain = str(signature.replace(parameters=parameters, return_annotation=result)).replace("'", '"')
    plain = re.sub(r'(: |-> )"([^"]*)"', r"\1\2", plain)
    plain = _without_addresses(plain)
    if len(name + plain) <= 100:
        return name + plain
    rows = [re.sub(r'^(\*?\w+: )"(.*?)"( = |$)', r"\1\2\3", str(p).replace("'", '"')) for p in parameters]
    star = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if star is not None:
        rows.insert(star, "*")
    end = "" if result is inspect.Signature.empty else f" -> {result}".replace("'", "")
    return f"{name}(\n    " + ",\n    ".join(map(_without_addresses, rows)) + f",\n){end}"


class _Source(str):
    """Source code, printed as it is."""

    __repr__ = str.__str__


def _with_source(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose default, if that is a lambda, is its source."""
    if getattr(parameter.default, "__name__", "") != "<lambda>":
        return parameter
    return parameter.replace(
        default=_Source(inspect.getsource(parameter.default).partition(" = ")[2].strip())
    )


def _without_addresses(written: str) -> str:
    """Defaults as a reader would write them: a made value as dots, a function by its name alone."""
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", written.replace("<factory>", "..."))


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n"


def _paragraphs(docstring: str | None) -> Iterator[str]:
    """A docstring as Markdown: its headings as lists, its examples as code."""
    for block in inspect.cleandoc(docstring or "").split("\n\n"):
        first, _, rest = block.partition("\n")
        if block.startswith(">>> "):
            yield _code(block, "pycon")
        elif block.startswith("    "):
            yield _code(textwrap.dedent(block), "")
        elif match := _HEADING.fullmatch(first):
            below = textwrap.dedent(rest)
            listed = match[1] in ("Args", "Attributes", "Raises")
            yield f"{match[1]}:\n"
            yield _plain("\n".join(_items(below)) if listed else " ".join(below.split())) + "\n"
        elif block != "::":
            yield _plain(" ".join(block.split())) + "\n"


def _items(text: str) -> Iterator[str]:
    """A bullet for every entry below a heading; lines that are indented go on with it."""
    rows: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            rows[-1] += " " + line.strip()
        else:
            rows.append(line)
    for row in rows:
        match = _ITEM.fullmatch(row)
        yield f"- `{match[1]}`: {match[2]}" if match else f"- {row}"


def _plain(text: str) -> str:
    return text.replace("``", "`").removesuffix(" ::")


def _assignment(name: str, home: str) -> tuple[ast.expr, ast.stmt]:
    """What a module assigns to a name, and the statement behind that."""
    body = ast.parse(inspect.getsource(import_module(home))).body
    for here, behind in pairwise(body):
        if isinstance(here, ast.Assign | ast.AnnAssign) and here.value is not None:
            target = here.target if isinstance(here, ast.AnnAssign) else here.targets[0]
            if ast.unparse(target) == name:
                return here.value, behind
    raise ValueError(f"{home} does not define {name}")


def _written(name: str, home: str) -> str:
    return ast.unparse(_assignment(name, home)[0])


def _below(name: str, home: str) -> str:
    """The string below an assignment that says what it is."""
    behind = _assignment(name, home)[1]
    assert isinstance(behind, ast.Expr)
    return str(ast.literal_eval(behind.value))


def main() -> None:
    """Renew the page."""
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
