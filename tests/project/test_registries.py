"""Every name of a registry leads to its entry."""

from __future__ import annotations

import pytest

from paceline.sim.config.registry import Registry
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.topology import TOPOLOGIES, Topology
from paceline.sim.workloads import TASKS
from paceline.sim.workloads.workload import Task


@pytest.mark.parametrize(("registry", "kind"), [(SCHEMES, Scheme), (TOPOLOGIES, Topology), (TASKS, Task)])
def test_every_name_leads_to_an_entry_of_that_name(
    registry: Registry[Scheme | Topology | Task], kind: type
) -> None:
    assert registry
    for name, entry in registry.items():
        assert isinstance(entry, kind)
        assert entry.name == name
