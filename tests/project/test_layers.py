"""Who may import what, where import-linter cannot see it: parts of external packages."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.modules import PRODUCT, ROOT, modules_below, place_of


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


INSIDE = ("sim", "realrun", "reports", "paceline/extras")
"""All but the front door."""


def _imports(path: Path) -> set[str]:
    names = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _importers(module: str) -> set[str]:
    return {
        place_of(path)
        for path in modules_below(*INSIDE)
        if any(name == module or name.startswith(module + ".") for name in _imports(path))
    }


SLOW = {
    "cvxpy", "joblib", "matplotlib", "networkx", "pandas", "pyarrow", "pydoc_data", "rich", "scipy",
    "seaborn", "sklearn",
}  # fmt: skip
"""What may be imported when it is needed: loading it takes long, and most commands do without."""


LATER = {
    ("sim/drivers/lockstep/exact.py", "..event"),  # a user's own scheme has a trial on both drivers
    ("sim/compute/compute_settings.py", ".attached"),  # times of gradients from a record
    ("sim/compute/compute_settings.py", ".traces"),  # times of steps from a file
    ("sim/drivers/job.py", "..training"),  # a run that is scored by measured curves
    ("sim/experiments/choice.py", "..drivers"),  # what cannot run in lockstep
    ("sim/experiments/jobs.py", "distributed"),  # a cluster of Dask
    ("sim/experiments/prepare.py", ".choice"),  # where there is an algorithm to choose
    ("sim/experiments/simulate.py", "..drivers"),  # a run loads its own driver
    ("sim/training/curves/curves.py", ".read"),  # measured curves, in files of many formats
    ("sim/traffic/transfers.py", ".fifo"),  # links that serve what comes first
    ("sim/traffic/transfers.py", ".tcp"),  # stock hosts
    ("sim/schemes/__init__.py", ".user_scheme"),  # a scheme of the user's own
    ("sim/workloads/__init__.py", ".user_task"),  # a task of the user's own
    ("sim/records/folder.py", ".formats"),  # tables that pyarrow reads and writes
}
"""What a module of the product imports when it is needed, although it is the product's own."""


def test_only_slow_libraries_are_imported_inside_functions() -> None:
    """And what most runs do without; the front door loads what a command needs."""
    inside = set()
    for path in modules_below(*INSIDE):
        name = place_of(path)
        if path.name == "command.py" or name == "realrun/__main__.py":
            continue
        (module, *_) = _nodes(path)
        assert isinstance(module, ast.Module)
        blocks = [node for node in module.body if isinstance(node, ast.If | ast.Try)]
        at_top = [*module.body, *(each for node in blocks for each in node.body)]
        for node in set(_nodes(path)) - set(at_top):
            if isinstance(node, ast.Import):
                inside |= {(name, alias.name.split(".")[0]) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inside.add((name, "." * node.level + (node.module or "").split(".")[0]))
    found = {(name, package) for name, package in inside if package not in SLOW}
    assert found == LATER, "import at the top; in an extra, where it takes long, in a file command.py"


def test_the_product_imports_neither_benchmarks_nor_the_makers_of_pages() -> None:
    for path in modules_below(*PRODUCT):
        assert not any(name.split(".")[0] in ("benchmarks", "docs", "tests") for name in _imports(path)), path


def test_the_cluster_driver_shares_what_has_no_clock() -> None:
    shared = {"job", "tasks", "outcome", "membership"}
    for path in (ROOT / "realrun" / "driver").glob("*.py"):
        drivers = {n.split(".")[3] for n in _imports(path) if n.startswith("paceline.sim.drivers.")}
        assert drivers <= shared, path


def test_only_the_virtual_clock_imports_simpy() -> None:
    assert _importers("simpy") == {"sim/traffic/clock.py", "sim/drivers/event.py"}


def test_only_realrun_imports_torch_distributed() -> None:
    assert all(name.startswith("realrun/") for name in _importers("torch.distributed"))


def test_nothing_unpickles_or_evaluates() -> None:
    assert not _importers("pickle")
    for path in modules_below(*INSIDE):
        calls = [n.func for n in _nodes(path) if isinstance(n, ast.Call)]
        names = {f.id for f in calls if isinstance(f, ast.Name)}
        assert not names & {"eval", "exec"}, path


def test_one_console_prints_and_takes_no_markup() -> None:
    """So that no label, name or path of a user is taken for markup, on whatever line it is printed."""
    printing = {
        place_of(path)
        for path in modules_below(*PRODUCT)
        if _imports(path) & {"rich.print", "rich.console.Console", "rich.get_console"}
    }
    assert printing == {"paceline/commands/console.py"}
