"""Options shared by the commands, and their output to the user."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TextIO, cast

import typer
from typing_extensions import Buffer, override

from paceline.sim.config.tracking import WATCH, set_within
from paceline.sim.errors import InputError, shorten

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from paceline.sim.records.run import Run
    from paceline.sim.records.summary import SchemeFacts, Tuned
    from paceline.sim.records.unfinished import PartKind
    from paceline.sim.scenario.schema import Scenario

_HELP_WIDTH: Final = 100
LINES_APART_S: Final = 10.0
"""Seconds between two lines of progress where standard error is no terminal."""

SHOWN_AFTER_S: Final = 2.0
"""Seconds after which a command that has not answered shows its progress."""

_SCENARIO: Final = "a scenario file (YAML), or the name of a ready one ('paceline list')"
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help=_SCENARIO)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="dotted.key=value", help="change one value of the scenario; repeatable"),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="write the results to this new folder")
]
Force = Annotated[bool, typer.Option("--force", help="replace the output if it exists")]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="FILE", help="what to write; absent: report.html, or with --bundle bundle.json"
    ),
]
TraceOption = Annotated[
    bool, typer.Option("--trace", help="add trace.json to --out, for Chrome's tracing page and Perfetto")
]


def plain_app(help: str | None = None, completes: bool = False) -> typer.Typer:
    """An app with plain help, which shows flags alike in all versions of typer."""
    return typer.Typer(
        name="paceline",
        help=help,
        no_args_is_help=help is not None,
        add_completion=completes,
        rich_markup_mode=None,
        context_settings={"max_content_width": _HELP_WIDTH, "help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )


_output: ContextVar[TextIO | None] = ContextVar("_output", default=None)
"""Destination of the JSON object, in a command that prints one."""
_hide: ContextVar[Callable[[], None]] = ContextVar("_hide", default=lambda: None)
"""Ends what ``showing`` shows."""


def _reserve_output(context: typer.Context, wanted: bool) -> bool:
    """Reserve standard output for the JSON object: prints of the user's own code go to standard error."""
    if wanted and not context.resilient_parsing:
        token = _output.set(sys.stdout)
        context.call_on_close(lambda: _output.reset(token))
        context.with_resource(redirect_stdout(sys.stderr))
    return wanted


Why = Annotated[bool, typer.Option("--why", help="say all that is known beside the answer")]
AsJson = Annotated[
    bool,
    typer.Option("--json", callback=_reserve_output, help="print one JSON object on standard output"),
]
OnLab = Annotated[
    bool,
    typer.Option(
        "--lab", help="on the scenario's network, emulated on this machine; absent: on its loopback"
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="PROFILE.yaml", help="correction factors, from 'paceline calibrate'"),
]
Device = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda", help="where gradients are computed")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", metavar="N", help="number of runs in parallel (default: all cores)"),
]
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask", metavar="ADDRESS", help="runs on the workers of this Dask scheduler, not on this machine"
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|event|lockstep",
        help="what moves the virtual clock: events one by one, or all workers in lockstep where that is "
        "exact (auto: wherever it is)",
    ),
]


def terminal(stderr: bool = False) -> Console:
    """A console for plain text: users' names are neither markup nor emoji codes."""
    from rich.console import Console

    if not stderr:
        _hide.get()()
    return Console(stderr=stderr, markup=False, emoji=False)


@contextmanager
def watching(scenario: Scenario) -> Iterator[Countdown]:
    """Show progress of a scenario's runs, and of tracked loops, on standard error: percentage, time left.

    On a terminal as a line that changes, elsewhere as a line now and then (``LINES_APART_S``) and at the end.
    """
    _hide.get()()
    progress, console = Countdown(scenario), terminal(stderr=True)
    if not console.is_terminal:
        latest_s, apart_s = time.monotonic(), LINES_APART_S
        write: Callable[[str], object] = say
        if console.is_jupyter:  # one output, which changes
            cell = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
            write, apart_s = (lambda line: cell.update({"text/plain": line}, raw=True)), 0.5

        def show(line: str, share: float) -> None:
            nonlocal latest_s
            if time.monotonic() - latest_s >= apart_s:
                latest_s = time.monotonic()
                write(line)

        progress.show = show
        with set_within(WATCH, progress.on_loop):
            yield progress
        write(progress.line())
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("preparing", total=1.0)
        progress.show = lambda line, share: bar.update(shown, description=line, completed=share)
        with set_within(WATCH, progress.on_loop):
            yield progress


@contextmanager
def showing() -> Iterator[None]:
    """Show tracked loops on standard error until a command answers, if it takes long, on a terminal."""
    if not (sys.stderr.isatty() and (console := terminal(stderr=True)).is_interactive):
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
    shown, begin_s = bar.add_task("preparing"), time.monotonic()
    timer = threading.Timer(SHOWN_AFTER_S, bar.start)

    def watch(what: str, done: int, number: int) -> None:
        nonlocal begin_s
        begin_s = begin_s if done else time.monotonic()
        left = _time_left(begin_s, done / number, 0.0)
        bar.update(shown, description=f"{what} {done + 1} of {number}, {100 * done / number:.0f} %{left}")

    timer.start()
    with ExitStack() as stack, set_within(WATCH, watch):
        stack.callback(_hide.reset, _hide.set(stack.close))
        for end in (bar.stop, timer.join, timer.cancel):  # the last one first
            stack.callback(end)
        yield


class Countdown:
    """Progress of a scenario's runs; called with a label and a mean number of steps during a run here.

    Such a run counts in part: its steps over those of the scheme's run before it, or over the limit.

    Attributes:
        show: called with a line and the completed share, 0 to 1.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.show: Callable[[str, float], None] = lambda line, share: None
        self._limit = scenario.stop.max_iterations
        self._form, self._runs, self._before, self._done = "preparing", 0, 0, 0
        self._here: tuple[str, int] | None = None
        self._typical: dict[str, int] = {}
        self._begin_s = time.monotonic()

    def __call__(self, label: str, steps: int) -> None:
        """Note the mean number of steps of the run in this process."""
        self._here = label, steps
        self._update()

    def on_loop(self, what: str, done: int, number: int) -> None:
        """Show a tracked loop."""
        self.show(f"{what} {done + 1:,} of {number:,}", done / number)

    def begin(self, kind: PartKind, runs: int, done: int = 0) -> None:
        """Begin ``runs`` runs of a kind, ``done`` of which are complete from before."""
        self._form = "{} of {} runs" if kind == "run" else "tuning {} of {}"
        self._runs, self._before, self._done = runs, done, done
        self._here, self._begin_s = None, time.monotonic()
        self._update()

    def complete(self, label: str) -> None:
        """Count a complete run."""
        self._done += 1
        if self._here is not None and self._here[0] == label:
            self._typical[label] = self._here[1]
            self._here = None
        self._update()

    def _update(self) -> None:
        self.show(self.line(), self.share)

    @property
    def share(self) -> float:
        """Completed share of all runs."""
        label, steps = self._here or ("", 0)
        whole = self._typical.get(label, self._limit)
        return (
            min((self._done + (min(steps / whole, 0.99) if whole else 0.0)) / self._runs, 1.0)
            if self._runs
            else 0.0
        )

    def line(self) -> str:
        """Runs done, percentage, time left, and the run in this process."""
        text = self._form.format(self._done, self._runs)
        if self._runs:
            left = _time_left(self._begin_s, self.share, self._before / self._runs)
            text += f", {100 * self.share:.0f} %{left}"
        if self._here is not None:
            of_limit = f" of {self._limit}" if self._limit else ""
            text += f"; {shorten(self._here[0])}: step {self._here[1]}{of_limit}"
        return text


def _time_left(begin_s: float, share: float, before: float) -> str:
    """``, about 5 min left``, at a share of the work, ``before`` of which was done at ``begin_s``."""
    if not before < share < 1.0:
        return ""
    left_s = (time.monotonic() - begin_s) * (1.0 - share) / (share - before)
    return f", about {clock_time(left_s)} left"


def clock_time(seconds: float) -> str:
    """A rounded time for planning: ``40 s``, ``5 min``, ``2 h 10 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def print_json(value: Any) -> None:
    """Print one JSON object on standard output."""
    print_result(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_answer(answer: Any, as_json: bool, render: Callable[[Any], RenderableType]) -> None:
    """Print a command's answer, as JSON or rendered."""
    if as_json:
        print_json(answer)
    else:
        terminal().print(render(answer))


def print_result(text: str) -> None:
    """Write a command's result to standard output, also where ``--json`` reserves it."""
    _hide.get()()
    (_output.get() or sys.stdout).write(text)


def say(text: str) -> None:
    """Print on standard error, if it is open; names of files may hold anything."""
    from paceline.sim.config.problems import printable

    with suppress(OSError, ValueError, AttributeError):  # closed by the user's code; None without a console
        sys.stderr.write("\n".join(map(printable, text.split("\n"))) + "\n")


def load_scenario(path: Path, changes: Sequence[str] | None = None) -> Scenario:
    """Load a scenario with each range at its middle, and say so. Raises as ``paceline.load``."""
    from paceline.sim.scenario.schema import load

    loaded = load(path, changes or [])
    say_middle(path, changes or [])
    return loaded


def say_middle(scenario: object, changes: Sequence[str]) -> None:
    """Say which values stand for the ranges of a scenario, if it has any."""
    from paceline.sim.config.problems import short_keys
    from paceline.sim.scenario.ranges import ranges_of

    ranges = ranges_of(scenario, changes)
    pairs = zip(short_keys(list(ranges)), ranges.values(), strict=True)
    if named := ", ".join(f"{name} {each.at(0.5)} ({each.text})" for name, each in pairs):
        say(f"at the middle of what is possible: {named}; 'paceline sweep' draws from all of it")


def check_trace(trace: bool, out: Path | None) -> None:
    """Refuse a trace without a folder to write it to."""
    if trace and out is None:
        raise InputError("--trace writes into the result folder: add --out DIR")


def hand_over(
    scenario: Scenario,
    runs: list[Run],
    out: Path | None,
    as_json: bool,
    trace: bool,
    tuning: Sequence[Tuned] = (),
    facts: Mapping[str, SchemeFacts] | None = None,
    recommendation: Mapping[str, Any] | None = None,
    why: bool = True,
) -> None:
    """Write the results in place of ``out``'s content, print them, and fail if a run failed.

    ``facts``: absent: of the schemes, without their bounds.
    ``recommendation``: plain values to add, whose ``text`` is printed.
    ``why``: all sentences about the numbers, not the card alone.
    """
    from paceline.reports import assumptions, words
    from paceline.reports.tables import brackets, render_summary
    from paceline.sim.records.summarise import summarise_resolved
    from paceline.sim.scenario.schema import dump

    text = dump(scenario)
    if facts is None:
        from paceline.sim.experiments.costs.bounds import describe_schemes

        facts = describe_schemes(scenario, with_bounds=False)
    summary = summarise_resolved(text, scenario.name, runs, tuning, facts)
    if out is not None and runs:
        from paceline.sim.records import folder as result_folder

        answer = json.dumps(recommendation, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        added = {} if recommendation is None else {result_folder.RECOMMENDATION_FILE: answer}
        result_folder.write_results(out, text, scenario.name, runs, True, tuning, trace, facts, added)
        say(f"wrote {out}")
    if as_json:
        print_json(summary if recommendation is None else summary | {"recommendation": recommendation})
    else:
        terminal().print(render_summary(summary, why))
        beside = [
            *assumptions.transport(summary),
            *words.prices(summary),
            *filter(None, [summary.get("proxy")]),
            *words.tuning(summary),
        ]
        sentences = [
            *(beside if why else ()),
            *words.gradients(summary),
            *brackets(summary, scenario.evaluate.keep),
            *(recommendation or {}).get("text", ()),
        ]
        for sentence in sentences:
            terminal().print(sentence, highlight=False)
    end_failed(runs)


def end_failed(runs: Sequence[Run]) -> None:
    """Name the runs that failed, and end with status 1 if there are any."""
    failed = [run for run in runs if run.status == "partial"]
    for run in failed:
        say(f"{shorten(run.label)}, seed {run.seed}: {run.message}")
    if failed:
        raise typer.Exit(1)


class _Pipe(io.FileIO):
    """Take all output, also after its reader has gone."""

    @override
    def write(self, text: Buffer, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            return memoryview(text).nbytes


def ignore_broken_pipes() -> None:
    """Let this process end as if all it says were read, where a standard stream is a pipe (``| head -1``)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        try:
            stream.flush()
            number = stream.fileno()
            piped = stat.S_ISFIFO(mode := os.fstat(number).st_mode) or stat.S_ISSOCK(mode)
        except OSError:  # it is closed, or takes nothing
            continue
        if piped:
            pipe, at_once = _Pipe(number, "wb", closefd=False), stream.write_through  # python -u
            outlasting = io.TextIOWrapper(
                cast(BinaryIO, pipe) if at_once else io.BufferedWriter(pipe),
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=at_once,
            )
            setattr(sys, name, outlasting)
