"""Every error of Paceline.

::

    PacelineError
    ├── InputError        the scenario, the command line or a file is wrong (exit status 2)
    │   └── KeyedError    one key of a scenario that has been read is wrong
    └── RunError          the run failed (exit status 1)
        ├── PeerLost      a worker that others need is gone
        ├── Deadlock      workers wait for each other and none can continue
        └── SchemeError   a scheme used an operation in a way that no driver allows
            └── NotInLockstep  the event driver allows it, the lockstep driver does not

Every error can be rebuilt from its ``args``: SimPy re-raises ``type(e)(*e.args)``.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from typing import Final


class PacelineError(Exception):
    """Root of the tree."""


class InputError(PacelineError):
    """A mistake in the user's input; the message says what, where, and the nearest valid choice."""

    def __str__(self) -> str:
        return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in super().__str__())


class KeyedError(InputError):
    """Something about one key of a scenario that shows only after it has been read.

    Args:
        at: the keys that lead to it, from the top.
        message: what is wrong, without the key.
    """

    def __init__(self, at: tuple[str | int, ...], message: str) -> None:
        super().__init__(at, message)
        self.at = at
        self.message = message

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.at))}: {self.message}"


class RunError(PacelineError):
    """A run could not be carried to its end; ``here_s``: known seconds to simulate a step of it."""

    here_s = float("nan")


class PeerLost(RunError):
    """A peer died while another worker needed it.

    Args:
        rank: the worker that is gone.
        operation: what the worker that noticed was doing.
    """

    def __init__(self, rank: int, operation: str) -> None:
        super().__init__(rank, operation)
        self.rank = rank
        self.operation = operation

    def __str__(self) -> str:
        return f"worker {self.rank} was lost during {self.operation}"


class Deadlock(RunError):
    """Workers wait for each other in a cycle, or for an ended one.

    Args:
        waiting: one line per blocked coroutine: who, and in which operation.
    """

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__(waiting)
        self.waiting = waiting

    def __str__(self) -> str:
        return "no worker can go on: " + "; ".join(self.waiting)


class SchemeError(RunError):
    """A scheme broke a rule of the vocabulary (see ``docs/architecture.md``)."""


class NotInLockstep(SchemeError):
    """A job that the lockstep driver cannot run exactly; the message says why."""


MAX_QUOTED: Final = 80
"""Letters of one value, label or key that a message shows: what is wrong stays in sight beside it."""


def shorten(value: object) -> str:
    """Return ``value`` as text of at most ``MAX_QUOTED`` letters, an ellipsis in place of the rest."""
    try:
        text = str(value)
    except ValueError:  # Python writes no number of more than some thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


def quote(value: object) -> str:
    """Quote and shorten a user's value for a message: ``'gosip'``."""
    return f"'{shorten(value)}'"


_MAX_CHOICES: Final = 1000
"""What a file may have more, of names in a table, say, is not compared: that would take minutes."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint that names the choice nearest to ``word``, small letters or not, or all of them.

    >>> did_you_mean("GOSIP", ["gossip", "local_sgd"])
    "did you mean 'gossip'?"
    >>> did_you_mean("xyz", ["gossip", "local_sgd"])
    'choose from: gossip, local_sgd'
    """
    known = sorted(itertools.islice(choices, _MAX_CHOICES))
    small = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(word.lower(), small, n=1)
    everything = f"choose from: {', '.join(known)}" if known else "there are none"
    return f"did you mean '{small[close[0]]}'?" if close else everything
