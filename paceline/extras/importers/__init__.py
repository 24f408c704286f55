"""Files of other tools, read into a cluster: ``paceline import``.

Each kind of file has one module with a function ``read(source) -> Readings``; ``cluster.py`` makes the
``cluster:`` part of a scenario from all of them. What a text is, ``sim/foreign.py`` tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from paceline.sim.config.registry import Registry

from .readings import ForeignFile, Readings

IMPORTERS: Final[Registry[Callable[[ForeignFile], Readings]]] = Registry(
    __package__,
    {
        "nccl-tests": ".measured.nccl_tests:read",
        "horovod": ".measured.horovod:read",
        "torch-trace": ".measured.torch_trace:read",
        "ping": ".measured.ping:read",
        "iperf3": ".measured.iperf3:read",
        "mtr": ".measured.mtr:read",
        "simgrid": ".maps.simgrid:read",
        "nccl-topology": ".maps.nccl_topology:read",
        "topology-zoo": ".maps.topology_zoo:read",
        "diloco-profile": ".maps.diloco_profile:read",
        "astra-sim": ".maps.astra_sim:read",
        "slurm": ".maps.slurm:read",
        "region-matrix": ".maps.region_matrix:read",
    },
)
"""Readers by the kinds of ``sim/foreign.py``."""
