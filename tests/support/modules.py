"""The project's own modules, as files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("paceline", "sim", "realrun", "reports")


def modules_below(*folders: str) -> list[Path]:
    """Every module below ``folders``; ``paceline`` holds links to the other three, which are not followed."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in paths if not any(up.is_symlink() for up in path.parents))


def place_of(path: Path) -> str:
    """Of a module in the repository."""
    return path.relative_to(ROOT).as_posix()
