"""Reports: from result folders to tables, one self-contained page, and bundles that can be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .page import build

__all__ = ["build"]


def __getattr__(name: str) -> Any:
    # Tables and words are wanted without pages, and figures are slow to import.
    if name != "build":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from .page import build

    return build
