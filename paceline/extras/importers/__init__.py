"""Files of other tools, read into a cluster: ``paceline import``.

Each kind of file has one module with a function ``read(source) -> Readings``; ``cluster.py`` makes the
``cluster:`` part of a scenario from all of them. What a text is, ``sim/foreign.py`` tells, and in which room
its reader lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from paceline.sim.config.registry import Registry
from paceline.sim.foreign import KINDS

from .readings import ForeignFile, Readings

IMPORTERS: Final[Registry[Callable[[ForeignFile], Readings]]] = Registry(
    __package__,
    {kind: f".{each.room}.{kind.replace('-', '_')}:read" for kind, each in KINDS.items()},
)
"""Readers by the kinds of ``sim/foreign.py``."""
