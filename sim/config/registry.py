"""Registries by name, whose entries are imported when they are looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from typing_extensions import override

_T = TypeVar("_T")


class Registry(Mapping[str, _T]):
    """Entries by name, each in a module that is imported when the entry is looked up.

    Args:
        package: what begins with a dot is relative to it; extras are not.
        places: name -> ``.module:ATTRIBUTE``; ``tests/project/test_registries.py`` looks up all.
    """

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self._package = package
        self._places = places

    @override
    def __getitem__(self, name: str) -> _T:
        module, _, attribute = self._places[name].partition(":")
        entry: _T = getattr(import_module(module, self._package), attribute)
        return entry

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    @override
    def __len__(self) -> int:
        return len(self._places)
