"""Reports: from result folders to tables and one self-contained page."""

from .page import build

__all__ = ["build"]
