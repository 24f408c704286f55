"""Pictures of the numbers that two pages of papers compare: ``python -m docs.make.pairs`` draws them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docs.make.claims import PAPERS
from docs.make.page import save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGES: Final = ("large-models", "stochastic-reweighted-gradient")
_EXPECTED: Final = re.compile(r"published$|(?:.*, )?predicted$")
_OURS: Final = ("simulated", "ours", "measured")
_NUMBER: Final = re.compile(r"([\d,]*\.?\d+(?:e-?\d+)?)(?: (\S+))?")


def pairs_of(page: str) -> dict[str, list[tuple[float, float]]]:
    """Heading -> pairs of a published or predicted number and that from here, of tables that have both."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading = re.split(r" [(\[]|, ", section.partition("\n")[0])[0]
        for table in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE):
            header, _, *rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()]
            left = next((i for i, name in enumerate(header) if _EXPECTED.match(name)), None)
            right = next((i for i, name in enumerate(header) if name in _OURS), None)
            if left is None or right is None:
                continue
            numbers = [(_NUMBER.match(row[left]), _NUMBER.match(row[right])) for row in rows]
            known = [(_value(a[1]), _value(b[1])) for a, b in numbers if a and b and a[2] == b[2]]
            pairs.setdefault(heading, []).extend(known)
    return pairs


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def draw_pairs(pairs: dict[str, list[tuple[float, float]]]) -> Figure:
    """Draw each pair as its ratio over the expected number: 1 is a match."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for heading, numbers in pairs.items():
        axes.plot([a for a, _ in numbers], [b / a for a, b in numbers], "o", markersize=4, label=heading)
    axes.axhline(1, color="#555555", linewidth=0.8)
    axes.set(
        xscale="log", xlabel="published or predicted, in the unit of its table", ylabel="here, over that"
    )
    axes.xaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Draw the pictures."""
    for name in PAGES:
        page = Path(PAPERS / f"{name}.md").read_text(encoding="utf-8")
        save_picture(PAPERS / "images" / f"{name}.svg", draw_pairs(pairs_of(page)))


if __name__ == "__main__":
    main()
