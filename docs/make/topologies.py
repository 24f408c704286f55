"""The tables of topologies and weights, from the code: ``python -m docs.make.topologies`` renews them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from docs.make import page as generated_page
from paceline.sim.config.files import write_atomically
from paceline.sim.topology import TOPOLOGIES
from paceline.sim.topology.entry import FILE, Topology, topology_named
from paceline.sim.topology.plan import RULES

PAGE: Final = Path(__file__).parents[1] / "topologies.md"
BEGIN: Final = (
    "<!-- The tables down to the end are made from the code by: python -m docs.make.topologies -->\n"
)


def renewed(page: str) -> str:
    """The page with its tables made anew; what stands above them is kept."""
    return generated_page.renewed(page, BEGIN, "\n" + "\n".join(_sections()))


def _sections() -> Iterator[str]:
    yield "## Graphs\n"
    yield "| name | workers n | others heard in a step | directed | graph | options | source |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for _, topology in sorted(TOPOLOGIES.items()):
        yield _graph_row(topology)
    yield _graph_row(topology_named(FILE))
    yield "\n## Weights\n"
    yield "| name | weights | source |"
    yield "| --- | --- | --- |"
    for name, rule in RULES.items():
        if not name.startswith("lazy_"):
            about, source = _about(rule)
            yield f"| `{name}` | {about} | {source} |"
    yield ""


def _graph_row(topology: Topology) -> str:
    about, source = _about(topology.build)
    options = "; ".join(
        f"`{key}`: {field.description}"
        + ("" if field.is_required() or field.default is None else f" ({field.default})")
        for key, field in topology.options.model_fields.items()
    )
    directed = "maybe" if topology.name == FILE else "yes" if topology.directed else "no"
    cells = [f"`{topology.name}`", topology.workers, topology.degree, directed, about, options, source]
    return "| " + " | ".join(cells) + " |"


def _about(function: Callable[..., Any]) -> tuple[str, str]:
    """What a docstring says, and its source."""
    text = " ".join(inspect.cleandoc(function.__doc__ or "").partition("Raises:")[0].split())
    about, _, source = text.replace("``", "`").replace("|", "\\|").partition("Source: ")
    return about.strip(), source.strip().rstrip(".")


def main() -> None:
    """Renew the page."""
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
