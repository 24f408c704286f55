"""The options that say when an average goes on without those who are late."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...config.settings import Settings
from ...config.units import BoundedSeconds
from ...errors import InputError

Quorum = Annotated[
    int | None,
    Field(
        ge=1,
        description="how many contributions make an average: those that are there first; who is late is left "
        "out; absent: all",
    ),
]
Deadline = Annotated[
    BoundedSeconds | None,
    Field(
        gt=0,
        description="an average is made at the latest this long after the one before, of those who are there "
        "by then, at least one; absent: no limit",
    ),
]


def leaves_out(options: Settings) -> bool:
    """Whether averages go on without those who are late, so that models depend on the clock."""
    return getattr(options, "quorum", None) is not None or getattr(options, "deadline", None) is not None


def check_quorum(options: Settings, members: int, *others: str) -> None:
    """Raise ``InputError`` where a quorum cannot come together, or with options that need everybody.

    Args:
        options: of a scheme.
        members: how many workers contribute to an average.
        others: names of its options that do not go together with these.
    """
    if not leaves_out(options):
        return
    quorum: int | None = getattr(options, "quorum", None)
    mine = "deadline" if quorum is None else "quorum"
    for name in others:
        if getattr(options, name) != type(options).model_fields[name].default:
            raise InputError(f"'{name}' needs everybody's part of every average; leave it or '{mine}' out")
    if quorum is not None and quorum > members:
        raise InputError(f"a quorum of {quorum} is more than the {members} who contribute; write {members}")
