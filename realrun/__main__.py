"""One rank of a job: ``torchrun --nproc-per-node N -m paceline.realrun [validate | probe] SCENARIO``.

Without a command word the scenario's real runs are made; ``validate`` and ``probe`` do on the job's hosts
what those commands of ``paceline`` do on one machine. The launcher starts its processes here too, with
``--serve``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from paceline.sim.config.standard_streams import ignore_broken_pipes
from paceline.sim.config.user_code.child_process import end_with_parent
from paceline.sim.errors import InputError, PacelineError, RunError, shorten

if TYPE_CHECKING:
    from paceline.sim.records.run import Run
    from paceline.sim.scenario.schema import Scenario

    from .group.job_store import JobStore
    from .group.store import Control

_HOW: Final = (
    "start this with torchrun --nproc-per-node N -m paceline.realrun SCENARIO, or let "
    "'paceline realrun --processes' start the processes"
)


_COMMANDS: Final = ("validate", "probe")
_TO_READ_S: Final = 300.0
"""Time limit for a rank to read a scenario, or earlier runs, while the others wait; a rank without signs of
life has --timeout.
"""


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    command = argv[0] if argv[:1] and argv[0] in _COMMANDS else ""
    parser = argparse.ArgumentParser(
        prog=" ".join(filter(None, ["torchrun --nproc-per-node N -m paceline.realrun", command])),
        description=__doc__.splitlines()[0],
    )
    parser.set_defaults(command=command, serve=False, trace=False)
    parser.add_argument(
        "scenario", metavar="SCENARIO", nargs="?", type=Path, help="a scenario file, or a ready one's name"
    )
    parser.add_argument(
        "--set", metavar="dotted.key=value", action="append", default=[], help="change one value"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=60.0, help="how long a wait may last"
    )
    if command == "probe":
        parser.add_argument(
            "--out", metavar="MEASURED.json", type=Path, required=True, help="the file to write"
        )
        return parser.parse_args(argv[1:])
    parser.add_argument("--out", metavar="DIR", type=Path, help="write the results to this new folder")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    if command == "validate":
        parser.add_argument(
            "--profile", metavar="PROFILE.yaml", type=Path, help="correction factors; absent: probe first"
        )
        parser.add_argument(
            "--steps", metavar="N", type=int, help="compare N steps instead of running to the target"
        )
        parser.add_argument(
            "--tolerance", metavar="PERCENT", type=float, help="how far off a scheme may be (default: 5)"
        )
        return parser.parse_args(argv[1:])
    parser.add_argument("--trace", action="store_true", help="add trace.json to --out")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _scenario_text(arguments: argparse.Namespace) -> tuple[str, str]:
    """The resolved scenario and "", or "" and an error text."""
    from paceline.sim.experiments.prepare import with_units
    from paceline.sim.scenario.schema import dump, load

    try:
        if arguments.scenario is None:
            raise InputError("name a scenario: torchrun --nproc-per-node N -m paceline.realrun SCENARIO")
        if arguments.trace and arguments.out is None:
            raise InputError("--trace writes into the result folder: add --out DIR")
        return dump(with_units(load(arguments.scenario, arguments.set))), ""
    except InputError as error:
        return "", str(error)


@dataclass(frozen=True)
class _Meeting:
    """A rank's knowledge after all ranks of the job have met.

    Attributes:
        store, control: of the job.
        size: number of ranks.
        text: the resolved scenario, alike on all of them.
        scenario: ``text``, parsed.
    """

    store: JobStore
    control: Control
    size: int
    text: str
    scenario: Scenario

    def worker(self, timeout_s: float) -> int:
        """Agree with the others on each rank's worker number."""
        from .group import hosts

        names = self.control.meet("hosts", hosts.host_name(), timeout_s)
        return hosts.workers_of(names, self.scenario.cluster.hosts)[self.control.rank]


def _meet(arguments: argparse.Namespace, environment: MutableMapping[str, str]) -> _Meeting:
    """Meet the other ranks of the job, and check that all have the same scenario."""
    from paceline.sim.scenario.schema import parse

    from .group.life import SignsOfLife
    from .group.store import Control, check_timeout, torchrun_store
    from .launch.cells import fingerprint

    check_timeout("--timeout", arguments.timeout)
    store, rank, size = torchrun_store(environment, arguments.timeout, _HOW)
    control = Control(store, rank, size, life=SignsOfLife(store, rank, arguments.timeout, "rank"))
    text, problem = _scenario_text(arguments)
    problems = control.meet("scenario", problem, max(arguments.timeout, _TO_READ_S))
    if any(problems):
        first, why = next((rank, text) for rank, text in enumerate(problems) if text)
        raise InputError(why if len(set(problems)) == 1 else f"rank {first}: {why}")
    control.agree("arguments", {"a scenario with hash": fingerprint(text)}, arguments.timeout)
    scenario = parse(text)
    if scenario.cluster.workers > size or not (arguments.command or scenario.cluster.workers == size):
        raise InputError(
            f"the scenario has {scenario.cluster.workers} workers, but {size} processes were started"
        )
    if any(straggler.crash for straggler in scenario.cluster.stragglers):
        raise InputError(
            "torchrun ends all processes when one crashes: let 'paceline realrun --processes' or --lab start "
            "them, or leave cluster.stragglers with crash out"
        )
    return _Meeting(store, control, size, text, scenario)


def _command(arguments: argparse.Namespace, environment: MutableMapping[str, str]) -> int:
    """Take part in ``validate`` or ``probe`` under torchrun; returns the exit status."""
    from paceline.sim.records.comparison import DEFAULT_TOLERANCE_PCT

    from .calibration.job_commands import ValidateOptions, probe_job_hosts, validate_on_job
    from .launch.job import JobRanks, follow

    job = _meet(arguments, environment)
    worker = job.worker(arguments.timeout)
    if worker != 0:
        return follow(job.store, worker, job.size, arguments.timeout)
    ranks = JobRanks(job.store, job.size, arguments.timeout)
    status = 1
    try:
        if arguments.command == "probe":
            status = probe_job_hosts(ranks, job.scenario, arguments.out, _say)
        else:
            tolerance_pct = DEFAULT_TOLERANCE_PCT if arguments.tolerance is None else arguments.tolerance
            options = ValidateOptions(
                arguments.profile, arguments.steps, tolerance_pct, arguments.out, arguments.force,
                arguments.json,
            )  # fmt: skip
            status = validate_on_job(ranks, job.scenario, options, _say)
    except InputError:
        status = 2
        raise
    finally:
        sys.stdout.flush()
        ranks.end(status)  # last: torchrun ends this rank once another has failed
    return status


def _run(arguments: argparse.Namespace, environment: MutableMapping[str, str]) -> int:
    """Take part in all runs of a scenario under torchrun; returns the exit status. One rank alone prints."""
    from paceline.sim.experiments.costs.bounds import describe_schemes
    from paceline.sim.records import folder
    from paceline.sim.records.unfinished import NOTHING_KEPT
    from paceline.sim.scenario.schema import dump, over_transport

    from .group.group import join, leave
    from .launch.cells import keep_runs, run_request, run_requests

    job = _meet(arguments, environment)
    control, text, scenario = job.control, job.text, job.scenario
    requests = run_requests(scenario)
    group = join(job.store, job.worker(arguments.timeout), job.size, arguments.timeout)
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
        answers = control.meet("runs", {"problem": problem, "kept": kept}, max(arguments.timeout, _TO_READ_S))
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
                parts.check_not_replaced()
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
    from paceline.sim.experiments.costs.bounds import describe_schemes
    from paceline.sim.records.summarise import summarise_resolved
    from paceline.sim.scenario.schema import dump, over_transport, parse

    from .driver.clocks import describe_clocks

    if not runs:
        return
    facts = describe_schemes(parse(text), with_bounds=False)
    if arguments.json:
        scenario = parse(text)
        measured = dump(over_transport(scenario, scenario.cluster.backend))
        summary = summarise_resolved(measured, name, runs, facts=facts)
        sys.stdout.write(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    else:
        for run in runs:
            _say(
                f"{shorten(run.label)}, seed {run.seed}: {run.status}, "
                f"{run.iterations:g} iterations in {run.wall_clock_s:.3f} s"
            )
    if sentence := describe_clocks(runs):
        _say(sentence)


def _speaks(environment: Mapping[str, str]) -> bool:
    """Whether this rank reports input errors: once a host, or where it cannot be told."""
    from .group.store import read_place

    try:
        read_place(environment, "")
    except InputError:
        return True
    return "0" in (environment["RANK"], environment.get("LOCAL_RANK"))


def main() -> NoReturn:
    """Run this rank; exit status 0 done, 1 the run failed, 2 the input is wrong."""
    arguments = _arguments(sys.argv[1:])
    if arguments.serve or "TORCHELASTIC_RUN_ID" in os.environ:
        # Other launchers do so themselves, or are a shell that need not stay.
        end_with_parent(orders=arguments.serve)
    if arguments.serve:
        from .launch.serve import serve

        serve()
    ignore_broken_pipes()
    status = 1
    try:
        status = (_command if arguments.command else _run)(arguments, os.environ)
    except PacelineError as error:
        status = 2 if isinstance(error, InputError) else 1
        from paceline.sim.config.problems import format_message

        text = format_message(error)
        if text and (status == 1 or _speaks(os.environ)):
            sys.stderr.write(f"{text}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo


if __name__ == "__main__":
    if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  (sys.path holds text)
        del sys.path[0]  # put there by "python -m"; it serves only for modules named in a scenario
    main()
