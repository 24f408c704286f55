"""The surface and the core's size change with a reason, in the commit that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import freeze
from tests.support.modules import ROOT

RENEW = (
    "run: python -m tests.project.freeze, and say in the commit's body what that replaces ('Surface: ...')"
)


def test_the_surface_is_that_of_the_file() -> None:
    assert freeze.surface() == freeze.SURFACE_FILE.read_text(encoding="utf-8").splitlines(), RENEW


def test_the_core_does_not_grow() -> None:
    found, most = freeze.sizes()["core"], freeze.size_limit()
    assert found <= most, (
        f"{found - most} statements too many: take a concept out, or {RENEW.replace('Surface', 'Size')}"
    )
    assert found > 10_000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""Text."""', 0),
        ("a = b = 1", 1),
        ("a, b = 1, 2", 2),
        ("a = 1 if b else 2", 2),
        ("if x:\n    pass", 2),
        ("if (a := 1): pass", 3),
        ("[a for a in b]", 1),
        ("[a for a in b if a for c in d]", 3),
    ],
)
def test_packing_hides_no_statement(text: str, number: int) -> None:
    assert freeze.statements(text) == number


def test_extras_are_where_they_are_said_to_be() -> None:
    gone = [each for each in freeze.EXTRAS[1:] if not (ROOT / each).exists()]
    assert gone == []


def test_a_commit_without_a_reason_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = tmp_path / "size.txt"

    def commit(content: str, message: str) -> None:
        frozen.write_text(content)
        freeze.git(tmp_path, "add", ".")
        freeze.git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", message)

    freeze.git(tmp_path, "init", "-q")
    for number, message in enumerate(["Freeze", "Grow\n\nSize: +1, a key", "Grow in silence"]):
        commit(str(number), message)
    monkeypatch.setattr(freeze, "TRAILERS", {frozen: "Size:"})
    (found,) = freeze.silent_commits()
    assert "Grow in silence" in found
