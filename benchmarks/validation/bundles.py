"""The table of bundles on ``docs/validation.md``: one row for each file in ``docs/bundles``.

    python -m benchmarks.validation.bundles

renews that table alone; ``make validate`` writes it with the rest of the page. A bundle is what
``paceline report --bundle`` makes of a folder of ``paceline validate``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from paceline.extras.report.bundle import Bundle, unpack
from paceline.sim.config.files import write_atomically
from paceline.sim.errors import InputError

PAGE: Final = Path(__file__).parents[2] / "docs" / "validation.md"
FOLDER: Final = PAGE.parent / "bundles"
HEADING: Final = "## Bundles"

_HEAD: Final = (
    HEADING,
    "",
    "What the owners of clusters have sent, ours first: `paceline validate SCENARIO --out DIR`, then",
    "`paceline report --bundle DIR -o FILE`, which leaves out the names of hosts and users, and paths.",
    "`paceline report FILE` opens one. Errors are of times to the target, wall clocks and steps.",
    "This table is made by `python -m benchmarks.validation.bundles`.",
    "",
    "| bundle | hosts | workers | schemes | mean error | worst | winner predicted / measured | made with |",
    "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |",
)


def section(files: Sequence[Path]) -> list[str]:
    """The lines of the table; each bundle is unpacked once, to see that it can be opened.

    Raises:
        InputError: a file is no bundle.
    """
    return [*_HEAD, *(_row(path, _opened(path)) for path in files)]


def committed() -> list[Path]:
    """The bundles of this repository, in the order of their names: ours begin with ``paceline``."""
    return sorted(FOLDER.glob("*.json"), key=lambda path: (not path.name.startswith("paceline"), path.name))


def with_table(page: str, lines: Sequence[str]) -> str:
    """The page with its last section made anew."""
    head = page.partition(f"{HEADING}\n")[0].rstrip()
    return "\n".join([head, "", *lines]) + "\n"


def _opened(path: Path) -> Bundle:
    with tempfile.TemporaryDirectory() as scratch:
        return unpack(path, Path(scratch) / "bundle")[1]


def _row(path: Path, bundle: Bundle) -> str:
    comparison, profile = bundle.comparison, bundle.profile
    labels = {row["label"] for row in bundle.summary["summary"]}
    decision = comparison["decision"]
    mean, worst = (
        "-" if comparison[key] is None else f"{comparison[key]:.2f} %"
        for key in ("mean_abs_error_pct", "max_abs_error_pct")
    )
    first, measured = decision["winner_predicted"], decision["winner_measured"]
    cells = [
        f"[{path.stem}](bundles/{path.name})",
        "; ".join(_hosts(profile)) or "-",
        str(bundle.scenario["cluster"]["workers"]),
        str(len(labels)),
        mean,
        worst,
        f"{first or '-'} / {measured or '-'}",
        f"torch {bundle.versions.get('torch', '-')}",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _hosts(profile: dict[str, Any]) -> Iterator[str]:
    """The kind of hosts, the machine, and when it was probed."""
    if not profile:
        return
    hosts = profile["hosts"]
    lab = f"lab with {hosts['tuning']} hosts" if hosts["kind"] == "lab" else hosts["kind"]
    yield f"{lab} over {hosts.get('transport', 'gloo')}"
    yield str(profile["machine"])
    yield str(profile["made"])[:10]


def main() -> None:
    """Renew the table."""
    try:
        text = with_table(PAGE.read_text(encoding="utf-8"), section(committed()))
    except InputError as error:
        raise SystemExit(str(error)) from error
    write_atomically(PAGE, text)


if __name__ == "__main__":
    main()
