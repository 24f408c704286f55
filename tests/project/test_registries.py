"""Every name of a registry leads to its entry."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from paceline.sim.config.registry import Registry
from paceline.sim.records.unfinished import code_version
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.topology import TOPOLOGIES, Topology
from paceline.sim.workloads import TASKS
from paceline.sim.workloads.workload import Task

REGISTRIES = [(SCHEMES, Scheme), (TOPOLOGIES, Topology), (TASKS, Task)]


@pytest.mark.parametrize(("registry", "kind"), REGISTRIES)
def test_every_name_leads_to_an_entry_of_that_name(
    registry: Registry[Scheme | Topology | Task], kind: type
) -> None:
    assert registry
    for name, entry in registry.items():
        assert isinstance(entry, kind)
        assert entry.name == name


@pytest.mark.parametrize("registry", [each for each, _ in REGISTRIES])
def test_the_code_of_every_entry_is_in_the_hash_of_the_code(
    registry: Registry[Scheme | Topology | Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it lies: else a half of a run, or a rank, goes together with one of another scheme's code."""
    read_bytes, hashed = Path.read_bytes, set()

    def noted(path: Path) -> bytes:
        hashed.add(path.resolve())
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    code_version.__wrapped__()
    for place in registry._places.values():
        file = import_module(place.partition(":")[0], registry._package).__file__
        assert file is not None
        assert Path(file).resolve() in hashed, place
