"""docs/api.md names everything public, as the code has it; its examples, and those of all docstrings, run."""

from __future__ import annotations

import doctest
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import paceline
from docs.make import api

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
HOMES = {"paceline": "", "sim": "sim.", "realrun": "realrun.", "reports": "reports."}
EXAMPLES = sorted(
    "paceline." + within + ".".join(path.relative_to(ROOT / top).with_suffix("").parts)
    for top, within in HOMES.items()
    for path in (ROOT / top).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_the_page_is_up_to_date() -> None:
    page = api.PAGE.read_text(encoding="utf-8")
    assert page == api.renewed(page), "run: python -m docs.make.api"


def test_every_public_name_and_every_method_of_a_worker_is_there() -> None:
    headings = re.findall(r"^#{3,4} `([\w.]+)`$", api.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(name for name in headings if "." not in name) == sorted(paceline.__all__)
    methods = {f"Worker.{name}" for name in vars(paceline.Worker) if not name.startswith("_")}
    assert methods - set(headings) == {
        f"Worker.{name}"
        for name in (
            "sites",
            "hosts",
            "element_bytes",
            "sums_inside",
            "evaluation_s",
            "every",
            "first_step",
            "kept",
        )
    }  # attributes


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_of_docstrings_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(import_module(module))
    assert found.failed == 0
    assert found.attempted > 0


def test_examples_are_where_they_teach_most() -> None:
    shown = re.split(r"^### ", api.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    with_example = {part.split("`")[1] for part in shown[1:] if "\n>>> " in part}
    assert {"load", "simulate", "Worker", "Handle", "Pattern", "Network", "Schedule"} <= with_example


def test_functions_of_ones_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILE.findall(api.PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    study = paceline.simulate(tmp_path / "my_parts.yaml", progress=False)
    assert [(run.label, run.status, run.iterations) for run in study.runs] == [
        ("alone", "completed", 6), ("gossip", "completed", 6),
    ]  # fmt: skip
