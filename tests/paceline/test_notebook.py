"""The notebook: its cells run in order, and nothing that they showed is kept in the file."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-steps.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, without lines for IPython; returns what a notebook would show of it."""
    lines = ["" if line.startswith("%") else line for line in source.splitlines()]
    body = ast.parse("\n".join(lines)).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_nothing_that_was_shown_is_in_the_file() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = {
        cell["id"]: run_cell("".join(cell["source"]), names) for cell in CELLS if cell["cell_type"] == "code"
    }
    assert "local_sgd first, 3.4x as fast as gossip, by 2 repeats" in shown["simulate"]._repr_html_()
    assert len(shown["plot"].axes) == 1
    assert (shown["why"]["time_to_target_s"] > 0).all()
    assert (shown["what-if"] < 1).all()
    assert shown["report"] == Path("first-steps.html")
    assert (tmp_path / "first-steps.html").stat().st_size > 10_000
