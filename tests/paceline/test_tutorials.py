"""Every snippet of the tutorials runs: files are written, commands and Python carried out in order."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import paceline
from paceline.sim.scenario.schema import parse
from tests.support import warm

ROOT = Path(__file__).parents[2]
TUTORIALS = [
    ROOT / "docs" / "start.md",
    *sorted(ROOT.glob("docs/tutorials/*.md")),
    *sorted(set(ROOT.glob("docs/how-to/*.md")) - {ROOT / "docs" / "how-to" / "more.md"}),
]
IN_THE_LAB = {"import-to-error"}
MEASURED = {*IN_THE_LAB, "cluster"}
"""Pages that show seconds of the machine."""
SNIPPET = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.lab if page.stem in IN_THE_LAB else ())
        for page in TUTORIALS
    ],
)
def test_every_snippet_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And prints what the page shows, where that takes no time of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    done, printed = 0, ""
    shown = page.read_text(encoding="utf-8")
    for measured in re.findall(r"\]\((measured/[^)]+)\)", shown):
        shutil.copy(page.parent / measured, tmp_path)
    try:
        for name, language, text in SNIPPET.findall(shown):
            done += 1
            if name:
                (tmp_path / name).write_text(text, encoding="utf-8")
            elif language == "python":
                _run(tmp_path / f"snippet_{done}.py", text)
            elif language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    _command(shlex.split(line), monkeypatch)
                printed = "\n".join(capfd.readouterr())
            else:
                assert language in ("", "console"), f"a snippet in {language!r} is neither a file nor run"
                if language == "" and page.parent.name != "tutorials" and page.stem not in MEASURED:
                    assert set(_lines(text)) <= {"...", *_lines(printed)}
    finally:
        for made in set(sys.modules) - before:
            if made.startswith(("my_", "snippet_")):
                del sys.modules[made]
    assert done >= 3


def _lines(text: str) -> list[str]:
    """What does not depend on the machine."""
    kept = re.sub(r"(Estimates of processor time)(?s:.)*?(\n\n|\Z)", r"\1\n", text)
    return [line.strip() for line in kept.splitlines()]


def _run(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    __import__(file.stem)


def _command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0] == "torchrun":
        warm.torchrun(*words[1:], monkeypatch=monkeypatch)
        return
    assert words[0] == "paceline"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        paceline.main()
    assert end.value.code == 0, words


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.stem)
def test_scenarios_in_the_documentation_load(page: Path) -> None:
    for name, language, text in SNIPPET.findall(page.read_text(encoding="utf-8")):
        if language == "yaml" and not name and "schemes:" in text and "cluster:" in text:
            assert parse(text).schemes
