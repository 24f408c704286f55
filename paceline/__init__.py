"""Predict which averaging scheme of distributed SGD reaches the target loss first by the clock.

User code imports from here alone: ``from paceline import Worker, ops``. Names are imported on first use (PEP
562), so that ``import paceline`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from paceline.api import attach, load, profile_layers, simulate, sweep
    from paceline.commands.app import main
    from paceline.sim.collectives.schedule import Round, Schedule
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
    from paceline.study import Study, Sweep

_HOMES: Final = {
    "load": "paceline.api",
    "simulate": "paceline.api",
    "sweep": "paceline.api",
    "attach": "paceline.api",
    "profile_layers": "paceline.api",
    "main": "paceline.commands.app",
    "Scenario": "paceline.sim.scenario.schema",
    "Study": "paceline.study",
    "Sweep": "paceline.study",
    "Run": "paceline.sim.records.run",
    "Event": "paceline.sim.records.run",
    "Worker": "paceline.sim.program.worker",
    "Program": "paceline.sim.program.worker",
    "Handle": "paceline.sim.program.operations",
    "Pattern": "paceline.sim.program.pattern",
    "Groups": "paceline.sim.program.groups",
    "Scheme": "paceline.sim.schemes.scheme",
    "Settings": "paceline.sim.config.settings",
    "Compression": "paceline.sim.program.encoding",
    "Optimizer": "paceline.sim.program.worker",
    "CompressedAllReduce": "paceline.sim.schemes.common.compressed",
    "Round": "paceline.sim.collectives.schedule",
    "Schedule": "paceline.sim.collectives.schedule",
    "Link": "paceline.sim.network.network",
    "Route": "paceline.sim.network.network",
    "Network": "paceline.sim.network.network",
    "PacelineError": "paceline.sim.errors",
    "InputError": "paceline.sim.errors",
    "RunError": "paceline.sim.errors",
    "SchemeError": "paceline.sim.errors",
    "PeerLost": "paceline.sim.errors",
    "Deadlock": "paceline.sim.errors",
    "ops": "paceline.sim.program.operations",
}
"""Public name -> its module; ``ops`` is that module itself."""

__all__ = [
    "CompressedAllReduce",
    "Compression",
    "Deadlock",
    "Event",
    "Groups",
    "Handle",
    "InputError",
    "Link",
    "Network",
    "Optimizer",
    "PacelineError",
    "Pattern",
    "PeerLost",
    "Program",
    "Round",
    "Route",
    "Run",
    "RunError",
    "Scenario",
    "Schedule",
    "Scheme",
    "SchemeError",
    "Settings",
    "Study",
    "Sweep",
    "Worker",
    "attach",
    "load",
    "main",
    "ops",
    "profile_layers",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'paceline' has no attribute '{name}'")
    module = import_module(home)
    return module if name == "ops" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
