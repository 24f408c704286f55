"""Predict which averaging scheme of distributed SGD reaches the target loss first by the clock.

User code imports from here alone: ``from paceline import Worker, ops``. Names are imported on first use (PEP
562), so that ``import paceline`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from paceline.api import attach, load, profile_layers, simulate, sweep, topology_plan
    from paceline.commands.app import main
    from paceline.extras.replay.model import model_at
    from paceline.sim.collectives.collective import Round, Schedule
    from paceline.sim.config.settings import Settings
    from paceline.sim.errors import Deadlock, InputError, PacelineError, PeerLost, RunError, SchemeError
    from paceline.sim.network.network import Link, Network, Route
    from paceline.sim.program import operations as ops
    from paceline.sim.program.encoding import Compression
    from paceline.sim.program.groups import Groups
    from paceline.sim.program.operations import Handle
    from paceline.sim.program.pattern import Pattern
    from paceline.sim.program.worker import Optimizer, Program, Worker
    from paceline.sim.records.run import Event, Run
    from paceline.sim.scenario.schema import Scenario
    from paceline.sim.schemes.common.compressed import CompressedAllReduce
    from paceline.sim.schemes.scheme import Scheme
    from paceline.sim.topology.entry import TopologyEntry
    from paceline.study import Study, Sweep

_NAMES: Final = {
    "paceline.api": ("load", "simulate", "sweep", "attach", "profile_layers", "topology_plan"),
    "paceline.commands.app": ("main",),
    "paceline.extras.replay.model": ("model_at",),
    "paceline.sim.scenario.schema": ("Scenario",),
    "paceline.study": ("Study", "Sweep"),
    "paceline.sim.records.run": ("Run", "Event"),
    "paceline.sim.program.worker": ("Worker", "Program", "Optimizer"),
    "paceline.sim.program.operations": ("Handle", "ops"),
    "paceline.sim.program.pattern": ("Pattern",),
    "paceline.sim.program.groups": ("Groups",),
    "paceline.sim.schemes.scheme": ("Scheme",),
    "paceline.sim.topology.entry": ("TopologyEntry",),
    "paceline.sim.config.settings": ("Settings",),
    "paceline.sim.program.encoding": ("Compression",),
    "paceline.sim.schemes.common.compressed": ("CompressedAllReduce",),
    "paceline.sim.collectives.collective": ("Round", "Schedule"),
    "paceline.sim.network.network": ("Link", "Route", "Network"),
    "paceline.sim.errors": ("PacelineError", "InputError", "RunError", "SchemeError", "PeerLost", "Deadlock"),
}
"""Module -> its public names; ``ops`` is that module itself."""
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "CompressedAllReduce", "Compression", "Deadlock", "Event", "Groups", "Handle", "InputError", "Link",
    "Network", "Optimizer", "PacelineError", "Pattern", "PeerLost", "Program", "Round", "Route", "Run",
    "RunError", "Scenario", "Schedule", "Scheme", "SchemeError", "Settings", "Study", "Sweep",
    "TopologyEntry", "Worker", "attach", "load", "main", "model_at", "ops", "profile_layers", "simulate",
    "sweep", "topology_plan",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute '{name}'")
    module = import_module(home)
    return module if name == "ops" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
