"""The commands of one rank under torchrun or Slurm: realrun, validate and probe.

The ranks meet first. Then worker 0 runs the command as on one machine, and the others obey it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from paceline.commands import measure
from paceline.commands.console import (
    AsJson,
    Force,
    Out,
    ProfileFile,
    ScenarioFile,
    SetOption,
    TraceOption,
    check_trace,
    ignore_broken_pipes,
    plain_app,
    say,
)
from paceline.sim.errors import InputError, PacelineError

if TYPE_CHECKING:
    from paceline.realrun.launch.launched_job import JobRanks
    from paceline.sim.scenario.schema import Scenario

_PROGRAM: Final = "torchrun --nproc-per-node N -m paceline.realrun"
_HOW: Final = (
    f"start this with {_PROGRAM} SCENARIO, or let 'paceline realrun --processes' start the processes"
)


def _realrun(
    scenario: ScenarioFile,
    changes: SetOption = None,
    timeout: measure.Timeout = 60.0,
    out: Out = None,
    force: Force = False,
    trace: TraceOption = False,
    as_json: AsJson = False,
) -> None:
    """Measure the scenario's real runs on the ranks of a job."""
    with _job(scenario, changes, timeout, every_rank=True) as (ranks, loaded):
        check_trace(trace, out)
        measure.measure("realrun under torchrun", loaded, ranks, out, force, trace, as_json)


def _probe(
    scenario: ScenarioFile,
    out: measure.MeasuredFile,
    changes: SetOption = None,
    timeout: measure.Timeout = 60.0,
) -> None:
    """Measure transfers, collectives and gradients one by one on the hosts of a job."""
    from paceline.sim.config.files import check_out_file
    from paceline.sim.network.profile import HostKind

    with _job(scenario, changes, timeout) as (ranks, loaded):
        check_out_file(out, measure.MEASURED_MARKS, sources=[scenario])
        measure.measure_hosts(loaded, HostKind(kind="cluster"), ranks, out)


def _validate(
    scenario: ScenarioFile,
    changes: SetOption = None,
    timeout: measure.Timeout = 60.0,
    profile: ProfileFile = None,
    steps: measure.StepsOption = None,
    tolerance: measure.Tolerance = 5.0,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict, measure on the hosts of a job, and compare."""
    from paceline.sim.network.profile import HostKind

    with _job(scenario, changes, timeout) as (ranks, loaded):
        hosts = HostKind(kind="cluster")
        measure.compare(loaded, hosts, lambda probing: ranks, profile, steps, tolerance, out, force, as_json)


_COMMANDS: Final[Mapping[str, Callable[..., None]]] = {"": _realrun, "probe": _probe, "validate": _validate}


@contextmanager
def _job(
    scenario: Path, changes: list[str] | None, timeout_s: float, every_rank: bool = False
) -> Iterator[tuple[JobRanks, Scenario]]:
    """Meet the job's other ranks; worker 0 enters the block, and the others obey it until its end."""
    from paceline.realrun.launch.launched_job import JobRanks, follow, meet_ranks
    from paceline.sim.experiments.prepare import with_units
    from paceline.sim.scenario.schema import load

    store, worker, size, loaded = meet_ranks(
        os.environ, _HOW, lambda: with_units(load(scenario, changes or [])), timeout_s, every_rank
    )
    if worker != 0:
        raise typer.Exit(follow(store, worker, size, timeout_s))
    ranks = JobRanks(store, size, timeout_s)
    status = 1
    try:
        yield ranks, loaded
        status = 0
    except InputError:
        status = 2
        raise
    except typer.Exit as ended:
        status = ended.exit_code
        raise
    finally:
        sys.stdout.flush()
        ranks.end(status)  # last: torchrun ends this rank once another has failed


def _speaks() -> bool:
    """Whether this rank reports input errors: once a host, or where it cannot be told."""
    from paceline.realrun.group.store import read_place

    try:
        read_place(os.environ, "")
    except InputError:
        return True
    return "0" in (os.environ["RANK"], os.environ.get("LOCAL_RANK"))


def main() -> NoReturn:
    """Run this rank; exit status 0 done, 1 the run failed, 2 the input is wrong."""
    os.environ["MPLBACKEND"] = "agg"  # figures go into files, whatever backend is set
    ignore_broken_pipes()
    word = sys.argv[1] if sys.argv[1:] and sys.argv[1] in _COMMANDS else ""
    app = plain_app()
    app.command()(_COMMANDS[word])
    status, text = 1, ""
    try:
        app(sys.argv[1 + bool(word) :], prog_name=f"{_PROGRAM} {word}".rstrip())
    except SystemExit as ended:  # of typer's Exit
        status = int(ended.code or 0)
        text = "".join(getattr(ended.__context__, "__notes__", []))
    except PacelineError as error:
        status = 2 if isinstance(error, InputError) else 1
        from paceline.sim.config.problems import format_message

        text = format_message(error)
        if text and (status == 1 or _speaks()):
            say(text)
    if text and (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):  # torchrun prints it last
        details = {"timestamp": str(int(time.time())), "py_callstack": text}
        Path(file).write_text(json.dumps({"message": {"message": text, "extraInfo": details}}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo
