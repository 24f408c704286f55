"""One rank of a real run: ``torchrun --nproc-per-node N -m paceline.realrun SCENARIO [--set ...]``.

The launcher starts its processes here too, with ``--serve``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from paceline.sim.errors import InputError, PacelineError, RunError, shorten

from .launch.parent import end_with_parent

if TYPE_CHECKING:
    from paceline.sim.records.run import Run

_HOW: Final = (
    "start this with torchrun --nproc-per-node N -m paceline.realrun SCENARIO, or let "
    "'paceline realrun --processes' start the processes"
)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node N -m paceline.realrun", description=__doc__.splitlines()[0]
    )
    parser.add_argument("scenario", metavar="SCENARIO", nargs="?", type=Path, help="a scenario file (YAML)")
    parser.add_argument(
        "--set", metavar="dotted.key=value", action="append", default=[], help="change one value"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="write the results to this new folder")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--trace", action="store_true", help="add trace.json to --out")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=60.0, help="how long a wait may last"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _scenario_text(arguments: argparse.Namespace) -> tuple[str, str]:
    """The resolved scenario and "", or "" and why there is none."""
    from paceline.sim.records import folder
    from paceline.sim.scenario.schema import dump, load

    try:
        if arguments.scenario is None:
            raise InputError("name a scenario: torchrun --nproc-per-node N -m paceline.realrun SCENARIO")
        if arguments.trace and arguments.out is None:
            raise InputError("--trace writes into the result folder: add --out DIR")
        if arguments.out is not None:
            folder.check_free(arguments.out, arguments.force)
        return dump(load(arguments.scenario, arguments.set)), ""
    except InputError as error:
        return "", str(error)


def _run(arguments: argparse.Namespace, environment: MutableMapping[str, str]) -> int:
    """Take part in all runs of a scenario under torchrun; returns the exit status. One rank alone prints."""
    from paceline.sim.scenario.schema import parse

    from .group import hosts
    from .group.group import join, leave
    from .group.store import Control, torchrun_store
    from .launch.cells import fingerprint, run_request, run_requests

    store, rank, size = torchrun_store(environment, arguments.timeout, _HOW)
    text, problem = _scenario_text(arguments)
    control = Control(store, rank, size)
    problems = control.meet("scenario", problem, max(arguments.timeout, 300.0))
    if any(problems):
        first, why = next((rank, text) for rank, text in enumerate(problems) if text)
        raise InputError(why if len(set(problems)) == 1 else f"rank {first}: {why}")
    control.agree("arguments", {"a scenario with hash": fingerprint(text)}, arguments.timeout)
    scenario = parse(text)
    if scenario.cluster.workers != size:
        raise InputError(
            f"the scenario has {scenario.cluster.workers} workers, but {size} processes were started"
        )
    if any(straggler.crash for straggler in scenario.cluster.stragglers):
        raise InputError(
            "torchrun ends all processes when one crashes: let 'paceline realrun --processes' or --lab start "
            "them, or leave cluster.stragglers with crash out"
        )
    requests = run_requests(scenario)
    names = control.meet("hosts", hosts.host_name(), arguments.timeout)
    group = join(store, hosts.workers_of(names, scenario.cluster.hosts)[rank], size, arguments.timeout)
    runs: list[Run] = []
    failure: RunError | None = None
    for request in requests:
        run = run_request(group, request, arguments.timeout).run
        if run is not None:
            runs.append(run)
        if group.broken:
            failure = RunError("" if run is None else run.message)
            break
    if runs and (group.rank == 0 or failure):
        _hand_over(arguments, text, scenario.name, runs)
    if failure is not None:
        raise failure
    leave(group)
    return 0


def _hand_over(arguments: argparse.Namespace, text: str, name: str, runs: list[Run]) -> None:
    """Write and print what the runs have given, as the arguments want it."""
    from paceline.sim.experiments.bounds import describe_schemes
    from paceline.sim.records import folder
    from paceline.sim.records.summary import summarise
    from paceline.sim.scenario.schema import parse

    from .driver.clocks import describe_clocks

    facts = describe_schemes(parse(text), with_bounds=False)
    if arguments.out is not None:
        force, trace = arguments.force, arguments.trace
        folder.write_results(arguments.out, text, name, runs, force=force, trace=trace, facts=facts)
    if arguments.json:
        summary = summarise(name, runs, folder.target_of(text), facts=facts)
        sys.stdout.write(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    else:
        for run in runs:
            sys.stderr.write(
                f"{shorten(run.label)}, seed {run.seed}: {run.status}, "
                f"{run.iterations:g} iterations in {run.wall_clock_s:.3f} s\n"
            )
    if sentence := describe_clocks(runs):
        sys.stderr.write(f"{sentence}\n")


def main() -> NoReturn:
    """Run this rank; exit status 0 done, 1 the run failed, 2 the input is wrong."""
    arguments = _arguments(sys.argv[1:])
    if arguments.serve or "TORCHELASTIC_RUN_ID" in os.environ:
        # Other launchers see to that themselves, or are a shell that need not stay.
        end_with_parent(orders=arguments.serve)
    if arguments.serve:
        from .launch.serve import serve

        serve()
    status = 1
    try:
        status = _run(arguments, os.environ)
    except PacelineError as error:
        status = 2 if isinstance(error, InputError) else 1
        if str(error) and (status == 1 or os.environ.get("RANK", "0") == "0"):
            sys.stderr.write(f"{error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo


if __name__ == "__main__":
    main()
