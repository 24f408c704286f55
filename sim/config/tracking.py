"""Progress of loops: who shows it need not know them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")
_watch: ContextVar[Callable[[str, int, int], None]] = ContextVar("_watch", default=lambda *_: None)


@contextmanager
def watched_by(watch: Callable[[str, int, int], None]) -> Iterator[None]:
    """Call ``watch`` in this block with the kind of a loop's items, the number done and that of all."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def track(what: str, items: Sequence[_T]) -> Iterator[_T]:
    """Iterate over ``items``, of the kind ``what``, and have the progress shown."""
    for done, item in enumerate(items):
        _watch.get()(what, done, len(items))
        yield item
