"""Pages of the documentation whose lower part a program makes; what people write stands above a mark."""

from __future__ import annotations


def renewed(page: str, mark: str, generated: str) -> str:
    """``page`` with everything below the line ``mark`` made anew.

    Raises:
        ValueError: the page has lost that line.
    """
    head, there, _ = page.partition(mark)
    if not there:
        raise ValueError(f"the page has lost the line {mark!r}")
    return head + mark + generated
