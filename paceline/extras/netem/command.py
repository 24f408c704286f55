"""``paceline netem``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.commands.console import ScenarioFile, SetOption, load_scenario, print_result
from paceline.sim.errors import InputError


def netem(
    scenario: ScenarioFile,
    changes: SetOption = None,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="A,B,...", help="IPv4 addresses by rank; absent: $HOST0, ..."),
    ] = None,
    interface: Annotated[
        str, typer.Option("--interface", metavar="NAME", help="the hosts' network device")
    ] = "eth0",
    host: Annotated[
        int | None, typer.Option("--host", metavar="RANK", min=0, help="only the commands of this host")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="only the commands that undo it")] = False,
) -> None:
    """Print tc commands that emulate the network. A cluster in one place plays the scenario's with them."""
    from paceline.extras.netem import tc
    from paceline.sim.network.build import build_network

    cluster = load_scenario(scenario, changes).cluster
    n = cluster.workers
    network = build_network(cluster.network, n)
    named = tc.validate_addresses(hosts, n) if hosts else [f"$HOST{rank}" for rank in range(n)]
    scripts = tc.scripts(network, named, tc.validate_interface(interface))
    if host is not None and host >= n:
        raise InputError(f"--host {host}: ranks go from 0 to {n - 1}")
    chosen = scripts if host is None else scripts[host : host + 1]
    print_result(tc.render(chosen, named, undo))
