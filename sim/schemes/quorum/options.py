"""The options for averages without stragglers: ``quorum`` and ``deadline``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ...config.units import BoundedSeconds
from ...errors import InputError

Quorum = Annotated[
    int | None,
    Field(
        ge=1,
        description="average as soon as this many workers have contributed (default: all)",
    ),
]
Deadline = Annotated[
    BoundedSeconds | None,
    Field(
        gt=0,
        description="average at the latest this long after the previous one, over the contributions so far, "
        "at least one (default: no limit)",
    ),
]


def leaves_out(options: Any) -> bool:
    """Whether averages leave out stragglers, so that results depend on timing."""
    return options.quorum is not None or options.deadline is not None


def check_quorum(options: Any, members: int, **others: bool) -> None:
    """Raise ``InputError`` where a quorum of ``members`` is out of reach, or beside one of the ``others``.

    These are options by name, with whether they are given, that need all workers in every average.
    """
    if not leaves_out(options):
        return
    quorum = options.quorum
    mine = "deadline" if quorum is None else "quorum"
    for name, given in others.items():
        if given:
            raise InputError(f"'{name}' needs everybody's part of every average; leave it or '{mine}' out")
    if quorum is not None and quorum > members:
        raise InputError(f"a quorum of {quorum} is more than the {members} who contribute; write {members}")
