"""``validate`` and ``probe`` on the ranks of a job: worker 0 runs the command, the others obey it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from paceline.sim.config.files import claim_folder, make_temporary_folder, write_json
from paceline.sim.errors import InputError, PacelineError
from paceline.sim.network.profile import HostKind
from paceline.sim.records import folder as result_folder
from paceline.sim.scenario.schema import Scenario

from ..driver.clocks import describe_clocks
from ..lab.lab import python_environment
from ..launch.job import JobRanks
from . import fit, validate
from .measure import measure
from .validate import Say

_HOSTS = HostKind(kind="cluster")


@dataclass(frozen=True)
class ValidateOptions:
    """The options of ``validate`` under torchrun and Slurm; as those of ``paceline validate``."""

    profile: Path | None
    steps: int | None
    tolerance_pct: float
    out: Path | None
    force: bool
    as_json: bool


def probe_job_hosts(ranks: JobRanks, scenario: Scenario, out: Path, say: Say) -> int:
    """Measure the network of a job's hosts, and write the measurements to ``out``; returns the exit status.

    Raises:
        InputError: there is nothing to measure, or the file cannot be written.
        RunError: a run failed.
    """
    check_probed(scenario)
    say("probing these hosts")
    measurements = measure(ranks, _HOSTS, scenario)
    write_json(measurements, out)
    say(f"wrote {out}")
    return 0


def check_probed(scenario: Scenario) -> None:
    """Raise ``InputError`` if a scenario's network cannot be probed."""
    if scenario.cluster.workers < 2:
        raise InputError("a probe needs at least two workers")
    if scenario.cluster.backend != "gloo":
        raise InputError(
            f"probes are of gloo: over {scenario.cluster.backend} there are no factors to fit yet, and "
            "predictions take the constants of network.transport; leave cluster.backend out to probe gloo"
        )


def validate_on_job(ranks: JobRanks, scenario: Scenario, options: ValidateOptions, say: Say) -> int:
    """Predict and measure on a job's hosts, and compare; returns the exit status, as ``paceline validate``.

    Raises:
        InputError: the scenario cannot be run for real, the profile is of other hosts, or ``out`` is taken.
        RunError: there is no real run at all.
    """
    validate.check_options(scenario, options.steps, options.tolerance_pct)
    with ExitStack() as stack:
        if options.out is not None:
            stack.enter_context(claim_folder(options.out))
            if result_folder.lacks_page(options.out):
                _report(options.out, show=False)
                say(f"the page of {options.out} was missing, and is there now")
            result_folder.check_free(options.out, options.force)
            out = options.out
        else:
            out = Path(stack.enter_context(make_temporary_folder())) / "validated"
        probes = None
        with ranks:
            factors = validate.profile_for(scenario, options.profile, _HOSTS)
            if scenario.cluster.backend != "gloo":
                if factors is not None:
                    raise InputError(
                        f"the profile is of gloo, and cluster.backend is {scenario.cluster.backend}: leave "
                        "one of them out"
                    )
                say(f"nothing is fitted over {scenario.cluster.backend}: its packaged constants predict")
            elif factors is None:
                check_probed(scenario)
                say("no --profile: probing these hosts first")
                probes = measure(ranks, _HOSTS, scenario)
                factors = fit.calibrate([probes]).profile
            outcome = validate.validate(scenario, ranks, factors, options.steps, say, options.tolerance_pct)
        validate.write(outcome, out, options.force, factors, probes)
        _report(out, show=not options.as_json)
        if options.out is not None:
            say(f"wrote {options.out}")
    comparison = outcome.comparison
    if options.as_json:
        sys.stdout.write(json.dumps(comparison, indent=2, allow_nan=False) + "\n")
    if sentence := describe_clocks(outcome.measured):
        say(sentence)
    if comparison["message"]:
        say(comparison["message"])
    say(comparison["verdict"]["text"])
    return validate.exit_status(outcome)


def _report(out: Path, show: bool) -> None:
    """Write the page by the command line, whose code this side does not know, and print the comparison."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "report", str(out), "--out", str(out / result_folder.REPORT_FILE)],
        env=python_environment(),
        stdin=subprocess.DEVNULL,
        stdout=None if show else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,  # survives the signal that ends a job
    )
    if done.returncode != 0:
        raise PacelineError(f"{out} is written, but no page: {done.stderr.strip()}")
