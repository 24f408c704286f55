"""Values of a block, and progress of loops: who shows it need not know them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

_T = TypeVar("_T")
WATCH: Final[ContextVar[Callable[[str, int, int], None]]] = ContextVar("WATCH", default=lambda *_: None)
"""Called with the kind of a loop's items, the number done and that of all."""


@contextmanager
def set_within(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Give ``variable`` a value in this block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def track(what: str, items: Sequence[_T]) -> Iterator[_T]:
    """Iterate over ``items``, of the kind ``what``, and have the progress shown."""
    for done, item in enumerate(items):
        WATCH.get()(what, done, len(items))
        yield item
