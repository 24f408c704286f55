"""The command line: all commands in one app, and its exit.

Everything heavy is imported inside the commands, so that ``paceline --help`` is quick.
"""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group
from typing_extensions import override

from paceline.commands.console import AsJson, ignore_broken_pipes, plain_app, print_json, say, showing
from paceline.sim.config.registry import Registry
from paceline.sim.errors import InputError, PacelineError

_COLLECT_EVERY: Final = 10_000
"""New objects between garbage collections: at Python's 700, importing torch takes a sixth longer."""

_HELP: Final = 50
"""Most letters of a command's first sentence, as the list of commands shows it."""

_NO_MEMORY: Final = ("can't allocate memory", "bad_alloc")
"""What torch says of it."""


class _Commands(Registry[Any]):
    """Commands by name; a module is imported when one of its commands is run or described."""

    @override
    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if isinstance(command, typer.Typer):
            return get_group(command)
        alone = plain_app()
        alone.command()(command)
        return get_command(alone)


_GROUPS: Final = {
    "Predict": {
        "check": ".predict:check", "simulate": ".predict:simulate", "throughput": ".predict:throughput",
        "report": "paceline.extras.report.command:report",
    },
    "Compare": {
        "sweep": ".predict:sweep", "recommend": "paceline.extras.recommend.command:recommend",
        "explore": "paceline.extras.explore.command:explore",
        "topology": "paceline.extras.topology.command:topology_app",
    },
    "Measure": {
        "validate": ".measure:validate", "realrun": ".measure:realrun", "probe": ".measure:probe",
        "calibrate": ".measure:calibrate", "lab": ".measure:lab_app",
        "netem": "paceline.extras.netem.command:netem", "replay": "paceline.extras.replay.command:replay",
    },
    "Files": {
        "list": ".app:list_names", "new": ".app:new",
        "import": "paceline.extras.importers.command:import_files", "schema": ".app:schema",
        "help": ".app:show_help",
    },
}  # fmt: skip
COMMANDS: Final = _Commands(
    __package__, {name: place for commands in _GROUPS.values() for name, place in commands.items()}
)


@contextmanager
def _telling() -> Iterator[None]:
    """End with a line at an interrupt, of which typer says nothing."""
    try:
        yield
    except KeyboardInterrupt as ended:
        say(f"paceline: interrupted{ended}")
        raise typer.Exit(130) from None


class _App(TyperGroup):
    @override
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast(dict[str, Any], COMMANDS)

    @override
    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _telling():  # typer loads its converters here, for some tenths of a second
            return super().make_context(*arguments, **settings)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name].get_short_help_str(_HELP)) for name in names])

    @override
    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        with _telling(), showing():
            return super().invoke(ctx)


app = plain_app(
    "Which averaging scheme of distributed SGD reaches the target first by the clock, and by how much? First "
    "of all type 'paceline check two-sites', then 'paceline simulate two-sites --out predicted'.",
    completes=True,
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        python = ".".join(map(str, sys.version_info[:3]))
        sys.stdout.write(f"paceline {version('paceline')}, Python {python}, torch {version('torch')}\n")
        raise typer.Exit


@app.callback(cls=_App)
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_versions, help="Show the versions and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def schema() -> None:
    """Print the JSON Schema of scenario files. For editors."""
    from paceline.sim.scenario.ready import SCHEMA

    print_json(json.loads(SCHEMA.read_text(encoding="utf-8")))


def list_names(as_json: AsJson = False) -> None:
    """List names: scenarios, clusters, schemes, tasks. And prices, topologies and documents."""
    from paceline.sim.scenario import ready
    from paceline.sim.schemes import SCHEMES
    from paceline.sim.topology.entry import TOPOLOGIES
    from paceline.sim.workloads import TASKS

    described = {
        kind: {name: ready.describe_scenario(path) for name, path in files.items()}
        for kind, files in (("scenarios", ready.ready_scenarios()), ("clusters", ready.ready_clusters()))
    }
    documents, prices = list(ready.ready_documents()), ready.price_tables()
    names = {"topologies": sorted(TOPOLOGIES), "tasks": sorted(TASKS), "documents": documents}
    if as_json:
        print_json({**described, "schemes": sorted(SCHEMES), **names, "prices": prices})
        return
    forms = json.loads(ready.SCHEMA.read_text(encoding="utf-8"))["$defs"]["SchemeEntry"]["anyOf"]
    described["schemes"] = {form["required"][0]: form["description"] for form in forms if "required" in form}
    described["prices"] = {
        name: " ".join(dict.fromkeys(row["from"] for row in rows)) for name, rows in prices.items()
    }
    for kind, lines in described.items():
        sys.stdout.write(f"{kind}:\n" + "".join(f"  {name}: {line}\n" for name, line in lines.items()))
    for kind, members in names.items():
        sys.stdout.write(f"{kind}: {' '.join(members)}\n")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a scenario or document of 'paceline list'")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")],
) -> None:
    """Copy a ready scenario, tutorial or scheme. With its files; or the notebook."""
    from paceline.sim.scenario.ready import copy_ready

    for path in copy_ready(name, file):
        say(f"wrote {path}")


def show_help(command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND")] = None) -> None:
    """Show the help of a command. As -h behind it does."""
    app([*(command or []), "--help"])


def _end_now() -> None:
    """End a process that an interrupt has not ended; its results are as ``kill -9`` leaves them."""
    if sys.stderr.isatty():
        sys.stderr.write("\33[?25h")  # a progress bar hides the cursor
    say("paceline: interrupted")
    os._exit(130)


def _settle_streams() -> None:
    """Make all streams exist and accept all characters: a shell may close one, or use ASCII."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # its number is free: the next opened file would get it, and what is printed
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    ignore_broken_pipes()


def _run() -> int:
    try:
        with interruptible(_end_now):
            app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except PacelineError as error:
        from paceline.sim.config.problems import format_message

        say(f"paceline: {format_message(error)}")
        return 2 if isinstance(error, InputError) else 1
    except OSError as error:  # of the machine: no disk space, no processes
        if error.errno in (errno.EMFILE, errno.ENFILE):
            say("paceline: too few open files are allowed (ulimit -n)")
            return 2
        where = f": {error.filename}" if error.filename is not None else ""
        say(f"paceline: {error.strerror or error}{where}")
        return 2 if error.errno == errno.ENAMETOOLONG else 1
    except KeyboardInterrupt:  # before a command has begun
        say("paceline: interrupted")
        return 130
    except Exception as error:
        return _end_unforeseen(error)
    return 0


def _end_unforeseen(error: Exception) -> int:
    if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
        say("paceline: the memory of this machine is not enough; use a smaller model or fewer workers")
        return 1
    if sys.flags.dev_mode:
        raise error
    from paceline.sim.config.user_code.call import format_error, format_line

    last = traceback.extract_tb(error.__traceback__)[-1]
    text, where = format_error(error), format_line(last.filename, last.lineno)
    text += "" if text.endswith(where) else where
    how = "(python -X dev -m paceline ... shows where)"
    say(f"paceline: {text}: a mistake in Paceline, please report it {how}")
    return 1


END_S: Final = 1.5
"""Seconds from a signal to the end of a process that has not ended by itself."""


@contextmanager
def interruptible(end: Callable[[], object]) -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` in this block at the first SIGINT or SIGTERM that no outer program handles.

    Where the block lasts ``END_S`` longer (C code, a user's code, much to clean up), a thread calls ``end``.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number in usual if signal.getsignal(number) is usual[number]]
    say = sys.unraisablehook
    signals, noted = socket.socketpair()
    over = threading.Event()

    def interrupt(*_: Any) -> None:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that nobody will await
        raise KeyboardInterrupt

    def say_unless_interrupted(lost: sys.UnraisableHookArgs) -> None:  # in a finalizer, or while modules load
        if lost.exc_type is not KeyboardInterrupt:
            say(lost)

    def watch() -> None:
        with signals:
            while (number := signals.recv(1)) and number[0] not in ours:
                pass
        if number and not over.wait(END_S):
            end()

    threading.Thread(target=watch, daemon=True).start()
    noted.setblocking(False)
    with noted:
        outer = signal.set_wakeup_fd(noted.fileno(), warn_on_full_buffer=False)
        try:
            sys.unraisablehook = say_unless_interrupted
            for number in ours:
                signal.signal(number, interrupt)
            yield
        finally:
            sys.unraisablehook = say
            over.set()
            signal.set_wakeup_fd(outer)
            for number in ours:
                signal.signal(number, usual[number])


def main() -> NoReturn:
    """Run the command line: exit status 0 done, 1 the run failed, 2 the input is wrong, 130 interrupted."""
    gc.set_threshold(_COLLECT_EVERY, *gc.get_threshold()[1:])
    os.environ["MPLBACKEND"] = "agg"  # figures go into files, whatever backend is set
    if not os.environ.get("COLUMNS", "").strip("0"):  # of a shell without a window
        os.environ.pop("COLUMNS", None)
    _settle_streams()
    try:
        Path.cwd()
    except FileNotFoundError:
        say("paceline: the working folder is gone; change into another one")
        sys.exit(2)
    status = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        say(f"paceline: standard output: {error.strerror or error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries it again
        status = status or 1
    sys.exit(status)
