"""Reports: from result folders to tables and one self-contained page."""

from reports.page import build

__all__ = ["build"]
