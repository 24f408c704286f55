"""One rank of a real run: ``torchrun --nproc-per-node N -m paceline.realrun SCENARIO [--set ...]``.

The launcher starts its processes here too, with ``--serve``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
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
    parser.add_argument(
        "scenario", metavar="SCENARIO", nargs="?", type=Path, help="a scenario file, or a ready one's name"
    )
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
    from paceline.sim.scenario.schema import dump, load

    try:
        if arguments.scenario is None:
            raise InputError("name a scenario: torchrun --nproc-per-node N -m paceline.realrun SCENARIO")
        if arguments.trace and arguments.out is None:
            raise InputError("--trace writes into the result folder: add --out DIR")
        return dump(load(arguments.scenario, arguments.set)), ""
    except InputError as error:
        return "", str(error)


def _run(arguments: argparse.Namespace, environment: MutableMapping[str, str]) -> int:
    """Take part in all runs of a scenario under torchrun; returns the exit status. One rank alone prints."""
    from paceline.sim.experiments.bounds import describe_schemes
    from paceline.sim.records import folder
    from paceline.sim.records.unfinished import NOTHING_KEPT
    from paceline.sim.scenario.schema import dump, over_transport, parse

    from .group import hosts
    from .group.group import join, leave
    from .group.store import Control, check_timeout, torchrun_store
    from .launch.cells import fingerprint, keep_runs, run_request, run_requests

    check_timeout("--timeout", arguments.timeout)
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
    with ExitStack() as stack:
        parts, problem = NOTHING_KEPT, ""
        if group.rank == 0:  # --out is on its machine
            try:
                command = "realrun under torchrun"
                parts = stack.enter_context(
                    keep_runs(scenario, command, arguments.out, arguments.force, _say)
                )
            except InputError as error:
                problem = str(error)
        there = [
            parts.find("run", number, scenario.schemes[request.entry].label, request.seed)
            for number, request in enumerate(requests)
        ]
        kept = [run is not None for run in there]
        answers = control.meet("runs", {"problem": problem, "kept": kept}, max(arguments.timeout, 300.0))
        if problems := [answer["problem"] for answer in answers if answer["problem"]]:
            raise InputError(problems[0])
        kept = [any(column) for column in zip(*(answer["kept"] for answer in answers), strict=True)]
        runs: list[Run] = []
        for number, request in enumerate(requests):
            run = there[number] if kept[number] else run_request(group, request, arguments.timeout).run
            if run is not None:
                runs.append(run)
                if group.rank == 0 and not kept[number]:
                    parts.keep("run", number, run)
            if group.broken:
                _print_runs(arguments, text, scenario.name, runs)
                raise RunError("" if run is None else run.message)
        if group.rank == 0:
            if arguments.out is not None:
                trace, facts = arguments.trace, describe_schemes(scenario, with_bounds=False)
                measured = dump(over_transport(scenario, scenario.cluster.backend))
                folder.write_results(
                    arguments.out, measured, scenario.name, runs, force=True, trace=trace, facts=facts
                )
            _print_runs(arguments, text, scenario.name, runs)
    leave(group)
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _print_runs(arguments: argparse.Namespace, text: str, name: str, runs: list[Run]) -> None:
    """Print what the runs have given, as the arguments want it; nothing where there are none."""
    from paceline.sim.experiments.bounds import describe_schemes
    from paceline.sim.records import folder
    from paceline.sim.records.summary import summarise
    from paceline.sim.records.transport import transport_of
    from paceline.sim.scenario.schema import dump, over_transport, parse

    from .driver.clocks import describe_clocks

    if not runs:
        return
    facts = describe_schemes(parse(text), with_bounds=False)
    if arguments.json:
        scenario = parse(text)
        measured = dump(over_transport(scenario, scenario.cluster.backend))
        transport = transport_of(measured)
        summary = summarise(name, runs, folder.target_of(text), facts=facts, transport=transport)
        sys.stdout.write(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    else:
        for run in runs:
            _say(
                f"{shorten(run.label)}, seed {run.seed}: {run.status}, "
                f"{run.iterations:g} iterations in {run.wall_clock_s:.3f} s"
            )
    if sentence := describe_clocks(runs):
        _say(sentence)


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
        once_a_host = "0" in (os.environ.get("RANK", "0"), os.environ.get("LOCAL_RANK"))
        from paceline.sim.config.problems import format_message

        text = format_message(error)
        if text and (status == 1 or once_a_host):
            sys.stderr.write(f"{text}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo


if __name__ == "__main__":
    if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  (sys.path holds text)
        del sys.path[0]  # "python -m" has put it there; it supplies what a scenario names, and nothing else
    main()
