"""Odd surroundings: the variables, streams, folders and limits that a shell may leave to a command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.hostile.sandbox import MAX_WALL_S, MESSAGE, MISTAKES, contents, run

_ROOT: Final = Path(__file__).parents[2]
UNPRIVILEGED: Final = "setpriv --bounding-set=-all --inh-caps=-all"
"""Makes the administrator a user whom the rights of files hold back."""


@dataclass(frozen=True)
class Surrounding:
    """A line for the shell, and what has to come of it.

    Attributes:
        line: ``paceline`` stands for the command, ``nobody`` before it for a user without rights to what is
            here; ``$TOP`` is the folder it starts in, which has ``s.yaml``, a small scenario, and ``r``, its
            results.
        status: of the line.
        says: words on standard error.
        writes: names of what it may leave in the folder.
        forked: it runs in a process that has loaded its modules before.
    """

    line: str
    status: int = 0
    says: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    forked: bool = False


@dataclass(frozen=True)
class Shell:
    """How a line ended: its exit status (None: it hangs), its two streams, and what has changed."""

    status: int | None
    out: str
    err: str
    changed: list[str] = field(default_factory=list)


_COMMANDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "show": ("topology show ring --workers 4", ()),
    "check": ("check s.yaml", ()),
    "simulate": ("simulate s.yaml --out new", ("new",)),
    "report": ("report r", ("report.html", "report-files")),
}
"""A table, a table after training, results with a line of progress, and a page with figures."""
_PLAIN_C: Final = "LANG=C LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"
_ODD_LANGUAGE: Final = "LANG=xx_YY.nonsense LC_ALL=xx_YY.nonsense"
_ASCII: Final = "PYTHONIOENCODING=ascii:strict PYTHONOPTIMIZE=1"
_NO_CACHE: Final = "XDG_CACHE_HOME=/dev/null XDG_CONFIG_HOME=/dev/null MPLCONFIGDIR=/dev/null"
_ENVIRONMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "show": {
        "no-terminal": "-u TERM -u LANG -u LC_ALL COLUMNS=0 PYTHONDONTWRITEBYTECODE=1",
        "dumb-terminal": f"TERM=dumb COLUMNS=-5 {_ODD_LANGUAGE}",
        "odd-terminal": "TERM=nonsense COLUMNS=many NO_COLOR=1",
        "colour": "FORCE_COLOR=1 COLUMNS=1 LINES=1 PYTHONIOENCODING=utf-16",
        "many-columns": "COLUMNS=1000000",
    },
    "check": {
        "plain-c": f"{_PLAIN_C} COLUMNS=1 OMP_NUM_THREADS=many CUDA_VISIBLE_DEVICES=nonsense",
        "ascii": _ASCII,
    },
    "simulate": {
        "plain-c": f"-u HOME {_PLAIN_C} TERM=dumb TMPDIR=/nonexistent OMP_NUM_THREADS=many",
        "ascii": f"-u USER -u LOGNAME {_ASCII} CUDA_VISIBLE_DEVICES=nonsense",
        "colour": "-u PATH FORCE_COLOR=1 COLUMNS=1 PYTHONIOENCODING=utf-16 HOME=/dev/null OMP_NUM_THREADS=0",
    },
    "report": {
        "plain-c": f"{_PLAIN_C} HOME=/nonexistent/home TMPDIR=/nonexistent MPLBACKEND=nonsense",
        "ascii": f"{_ASCII} {_NO_CACHE} HOME=/dev/null",
        "odd-language": f"-u PATH {_ODD_LANGUAGE} TMPDIR=/dev/null",
    },
}  # fmt: skip
"""Command -> name -> arguments of env, of which it needs none; those that hide no other go together."""

_STREAMS: Final[Mapping[str, Surrounding]] = {
    "output-closed": Surrounding("paceline topology show ring --workers 4 >&-"),
    "errors-closed": Surrounding("paceline topology show ring --workers 4 2>&-"),
    "output-of-no-columns": Surrounding(
        "COLUMNS=0 paceline topology show ring --workers 4 >&2", 0, ("spectral gap",)
    ),
    "input-closed": Surrounding("paceline check s.yaml <&-"),
    "all-closed": Surrounding("paceline simulate s.yaml --out new <&- >&- 2>&-", writes=("new",)),
    "all-closed-and-wrong": Surrounding("paceline check nothing.yaml <&- >&- 2>&-", 2),
    "output-full": Surrounding("paceline topology show ring --workers 4 >/dev/full", 1, ("No space left",)),
    "output-full-json": Surrounding(
        "paceline topology show ring --workers 4 --json >/dev/full", 1, ("No space left",)
    ),
    "output-full-list": Surrounding("paceline list >/dev/full", 1, ("No space left",)),
    "output-full-results": Surrounding(
        "paceline simulate s.yaml --out new >/dev/full", 1, ("No space left",), ("new",)
    ),
    "nobody-reads-errors": Surrounding("paceline check nothing.yaml 2>&1 | true"),
    **{
        f"nobody-reads-{name}": Surrounding(
            f"{{ paceline {command}; echo status $? >&2; }} | true", 0, ("status 0",), writes
        )
        for name, command, writes in (
            ("results", "simulate s.yaml --out new", ("new",)),
            ("schema", "schema", ()),
            ("sweep", "sweep s.yaml --grid seed=1,2 --out new", ("new",)),
        )
    },
    "output-for-reading": Surrounding("paceline list 1</dev/null", 1, ("Bad file descriptor",)),
}
"""Standard streams that are closed, full, or lead to nobody."""

_FOLDERS: Final[Mapping[str, Surrounding]] = {
    "report-in-the-style-of-tex": Surrounding(
        "echo text.usetex: True > matplotlibrc; paceline report r",
        0,
        (),
        ("matplotlibrc", "report.html", "report-files"),
    ),
    "folder-gone": Surrounding(
        'mkdir d && cd d && rmdir ../d && paceline check "$TOP/s.yaml"', 2, ("working folder",)
    ),
    "folder-gone-report": Surrounding(
        'mkdir d && cd d && rmdir ../d && paceline report "$TOP/r"', 2, ("working folder",)
    ),
    "scenario-by-pipe": Surrounding("cat s.yaml | paceline check /dev/stdin", 2, ("/dev/stdin",)),
}
"""Folders that are gone, and files that a process finds when it starts."""

_IN_THE_WAY: Final[Mapping[str, Surrounding]] = {
    "scenario-is-a-pipe": Surrounding("mkfifo p && paceline check p", 2, ("p:",), ("p",)),
    "scenario-is-a-socket-folder": Surrounding("paceline check /proc/self/fd", 2, ("/proc/self/fd",)),
    "out-is-a-pipe": Surrounding("mkfifo p && paceline simulate s.yaml --out p", 2, ("p is a file",), ("p",)),
    "out-links-to-nothing": Surrounding(
        "ln -s new p && paceline simulate s.yaml --out p", 0, (), ("p", "new")
    ),
    "out-links-to-itself": Surrounding("ln -s p p && paceline simulate s.yaml --out p", 2, ("p",), ("p",)),
    "out-is-not-to-be-written": Surrounding("paceline simulate s.yaml --out /proc/self/r", 2, ("/proc",)),
    "out-back-out-of-nothing": Surrounding("paceline simulate s.yaml --out x/..", 2, ("no folder x",)),
    "sweep-back-out-of-nothing": Surrounding(
        "paceline sweep s.yaml --grid seed=1,2 --out x/..", 2, ("no folder x",)
    ),
    "report-back-out-of-nothing": Surrounding("paceline report r -o x/../s.yaml", 2, ("no folder x",)),
    "report-to-a-pipe": Surrounding("mkfifo p && paceline report r -o p", 2, ("p is there",), ("p",)),
    "report-to-a-folder": Surrounding("paceline report r -o .", 2, ("folder",)),
    "report-to-the-top": Surrounding("paceline report r -o /", 2, ("folder",)),
    "report-to-nothing": Surrounding("paceline report r -o ''", 2, ("folder",)),
    "report-to-a-full-disk": Surrounding("paceline report r -o /dev/full", 2, ("/dev/full",)),
    "report-into-the-kernel": Surrounding("paceline report r -o /proc/p.html", 2, ("/proc",)),
    "profile-to-a-folder": Surrounding("paceline calibrate r --out .", 2, ("is a folder",)),
    "profile-in-place-of-a-picture": Surrounding(
        "echo mine > p.png; paceline calibrate r --out p.yaml", 2, ("p.png is there already",), ("p.png",)
    ),
    "profile-in-place-of-its-source": Surrounding("paceline calibrate s.yaml --out s.yaml", 2, ("s.yaml",)),
    "profile-in-place-of-its-picture": Surrounding("paceline calibrate r --out p.png", 2, ("p.png",)),
    "profile-nowhere": Surrounding("paceline calibrate r --out nowhere/p.yaml", 2, ("nowhere",)),
    "probes-to-a-folder": Surrounding("paceline probe s.yaml --out .", 2, ("is a folder",)),
    "probes-in-place-of-the-scenario": Surrounding("paceline probe s.yaml --out s.yaml", 2, ("s.yaml",)),
    "probes-to-a-pipe": Surrounding("mkfifo m && paceline probe s.yaml --out m", 2, ("m is there",), ("m",)),
    "probes-nowhere": Surrounding("paceline probe s.yaml --out nowhere/m.json", 2, ("nowhere",)),
    "graph-to-a-folder": Surrounding(
        "paceline topology search --workers 8 --degree 3 --out .", 2, ("--out",)
    ),
    "graph-nowhere": Surrounding(
        "paceline topology search --workers 8 --degree 3 --out nowhere/g.json", 2, ("nowhere",)
    ),
}
"""What stands in the way of input and output: no matter of how a process starts."""

_LIMITS: Final[Mapping[str, Surrounding]] = {
    "few-files": Surrounding("ulimit -n 24; paceline check s.yaml"),
    "few-files-realrun": Surrounding(
        "ulimit -n 24; paceline realrun s.yaml --processes --out new", 2, ("open files", "ulimit -n")
    ),
    "few-files-lab": Surrounding("ulimit -n 24; paceline realrun s.yaml --lab", 2, ("open files",)),
    "few-files-probe": Surrounding("ulimit -n 24; paceline probe s.yaml --out m.json", 2, ("open files",)),
    "no-disk": Surrounding("ulimit -f 0; paceline simulate s.yaml --out new", 2, ("new",)),
    "little-disk": Surrounding("ulimit -f 1; paceline simulate s.yaml --out new", 2, ("new",), ("new",)),
    "little-disk-realrun": Surrounding(
        "ulimit -f 4; paceline realrun s.yaml --processes", 2, ("File too large", "ulimit -f")
    ),
    "little-disk-report": Surrounding("ulimit -f 4; paceline report r", 2, ("report",)),
}
"""What a shell may limit."""


def surroundings() -> dict[str, Surrounding]:
    """All of them, by name."""
    usual = {
        f"{name}-{word}": Surrounding(
            f"env {arguments} paceline {_COMMANDS[word][0]}", 0, (), _COMMANDS[word][1]
        )
        for word, environments in _ENVIRONMENTS.items()
        for name, arguments in environments.items()
    }
    forked = {name: replace(each, forked=True) for name, each in _IN_THE_WAY.items()}
    return {**usual, **_STREAMS, **_FOLDERS, **forked, **_LIMITS}


def run_line(surrounding: Surrounding, folder: Path) -> Shell:
    """Run the line in ``folder``."""
    before = contents(folder)
    status, out, err = (_fork if surrounding.forked else _run_in_shell)(surrounding.line, folder)
    after = contents(folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return Shell(status, out, err, changed)


def _fork(line: str, folder: Path) -> tuple[int | None, str, str]:
    """What comes before the command is for the shell; the command has loaded its modules already."""
    prepare, _, command = line.rpartition("paceline ")
    subprocess.run(["/bin/sh", "-c", f"{prepare} true"], cwd=folder, check=True)
    with tempfile.TemporaryDirectory() as streams:
        ended = run(tuple(shlex.split(command)), folder, Path(streams))
    return ended.status, ended.out, ended.err


def _run_in_shell(line: str, folder: Path) -> tuple[int | None, str, str]:
    environment = {
        **os.environ, "PYTHONPATH": str(_ROOT), "TOP": str(folder), "OMP_NUM_THREADS": "1",
        "PYTHON": sys.executable,
    }  # fmt: skip
    line = line.replace("paceline ", f"{sys.executable} -m paceline ")
    line = line.replace("nobody ", f"{UNPRIVILEGED} ")
    process = subprocess.Popen(
        ["/bin/sh", "-c", line], cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=MAX_WALL_S)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        status = None
    return status, out.decode(errors="replace"), err.decode(errors="replace")


_PROGRESS: Final = re.compile(r"\d+ of \d+ runs, \d+ %|[a-z ]+ [\d,]+ of [\d,]+$")
"""What a line of a long command's progress begins with."""


def find_faults(wanted: Surrounding, ended: Shell) -> list[str]:
    """Say what is wrong with how a line ended; nothing where all is as it should be."""
    if ended.status is None:
        return ["it hangs"]
    faults = [] if ended.status == wanted.status else [f"exit status {ended.status}, not {wanted.status}"]
    if "Traceback" in ended.out + ended.err or "Exception ignored" in ended.err:
        faults.append("a traceback")
    message = [line for line in ended.err.splitlines() if not _PROGRESS.match(line)]
    if wanted.status and len(message) > MISTAKES:
        faults.append(f"{len(message)} lines instead of one message")
    if any(len(line) > MESSAGE for line in ended.err.splitlines()):
        faults.append("a line without end")
    faults += [f"does not say {word!r}" for word in wanted.says if word not in ended.err]
    kept = [name for name in ended.changed if name.split("/")[0] not in wanted.writes]
    return faults + [f"wrote or lost {name}" for name in kept[:5]]
