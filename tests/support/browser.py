"""A real browser without a window."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a slow test that needs a browser."""
    missing = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
    marked: Callable[..., None] = pytest.mark.slow(pytest.mark.timeout(600)(missing(test)))
    return marked


def browse(page: Path, folder: Path, *flags: str, fragment: str = "") -> str:
    """Open a page, with its profile in ``folder``; what the browser prints."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={folder / 'profile'}", *flags,
            page.as_uri() + fragment,
        ],
        capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    return done.stdout


def found_in(dumped: str) -> str:
    """Text of the element ``found`` in a dumped page."""
    return dumped.partition('<pre id="found">')[2].partition("</pre>")[0]
