"""Names files of other tools by their text, wherever one is given in place of ours."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class ForeignKind(NamedTuple):
    """A kind of file.

    Attributes:
        what: the noun in messages: "output of ping".
        pattern: is in the first ``HEAD`` letters of each such file.
    """

    what: str
    pattern: re.Pattern[str]


HEAD: Final = 20_000

KINDS: Final = {
    "ping": ForeignKind("output of ping", re.compile(r"(?m)^(PING|Pinging) \S+")),
}
"""By the name that ``paceline import --kind`` takes."""


def foreign_kind(text: str) -> str | None:
    """The kind of a foreign text; None for one that is ours or unknown."""
    head = text[:HEAD]
    return next((kind for kind, each in KINDS.items() if each.pattern.search(head)), None)
