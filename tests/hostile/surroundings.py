"""Odd surroundings: the variables, streams, folders and limits that a shell may leave to a command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.hostile.sandbox import MAX_WALL_S, MESSAGE, MISTAKES, contents

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
    """

    line: str
    status: int = 0
    says: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


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
_ENVIRONMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "dumb-terminal": ("TERM=dumb", "show simulate"), "no-terminal": ("-u TERM", "show"),
    "odd-terminal": ("TERM=nonsense", "show"), "no-colour": ("NO_COLOR=1", "show"),
    "colour": ("FORCE_COLOR=1", "show simulate"), "one-column": ("COLUMNS=1", "show check simulate"),
    "no-columns": ("COLUMNS=0", "show"), "negative-columns": ("COLUMNS=-5", "show"),
    "columns-in-words": ("COLUMNS=many", "show"), "many-columns": ("COLUMNS=1000000", "show"),
    "one-line": ("COLUMNS=1 LINES=1", "show"),
    "plain-c": ("LANG=C LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", "check simulate report"),
    "no-language": ("-u LANG -u LC_ALL", "show"),
    "odd-language": ("LANG=xx_YY.nonsense LC_ALL=xx_YY.nonsense", "show report"),
    "ascii": ("PYTHONIOENCODING=ascii:strict", "check simulate report"),
    "utf-16": ("PYTHONIOENCODING=utf-16", "show simulate"),
    "no-home": ("-u HOME", "simulate"), "home-missing": ("HOME=/nonexistent/home", "report"),
    "home-is-a-device": ("HOME=/dev/null", "simulate report"),
    "temporary-missing": ("TMPDIR=/nonexistent", "simulate report"),
    "temporary-is-a-device": ("TMPDIR=/dev/null", "report"),
    "cache-is-a-device": (
        "XDG_CACHE_HOME=/dev/null XDG_CONFIG_HOME=/dev/null MPLCONFIGDIR=/dev/null", "report"
    ),
    "no-path": ("-u PATH", "simulate report"), "no-user": ("-u USER -u LOGNAME", "simulate"),
    "optimised": ("PYTHONOPTIMIZE=1", "check simulate report"),
    "interpreter-verbose-off": ("PYTHONDONTWRITEBYTECODE=1", "show"),
    "threads-in-words": ("OMP_NUM_THREADS=many", "check simulate"),
    "no-threads": ("OMP_NUM_THREADS=0", "simulate"), "odd-backend": ("MPLBACKEND=nonsense", "report"),
    "gpu-in-words": ("CUDA_VISIBLE_DEVICES=nonsense", "check simulate"),
}  # fmt: skip
"""Name -> arguments of env, and the commands that may look at it; none needs any of it."""

_STREAMS: Final[Mapping[str, Surrounding]] = {
    "output-closed": Surrounding("paceline topology show ring --workers 4 >&-"),
    "errors-closed": Surrounding("paceline topology show ring --workers 4 2>&-"),
    "input-closed": Surrounding("paceline check s.yaml <&-"),
    "all-closed": Surrounding("paceline simulate s.yaml --out new <&- >&- 2>&-", writes=("new",)),
    "all-closed-and-wrong": Surrounding("paceline check nothing.yaml <&- >&- 2>&-", 2),
    "output-full": Surrounding("paceline topology show ring --workers 4 >/dev/full", 1, ("No space left",)),
    "output-full-json": Surrounding("paceline check s.yaml --json >/dev/full", 1, ("No space left",)),
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
            ("json", "simulate s.yaml --out new --json", ("new",)),
            ("replay", "replay r", ()),
            ("schema", "schema", ()),
            ("sweep", "sweep s.yaml --grid seed=1,2 --out new", ("new",)),
        )
    },
    "output-for-reading": Surrounding("paceline list 1</dev/null", 1, ("Bad file descriptor",)),
}
"""Standard streams that are closed, full, or lead to nobody."""

_FOLDERS: Final[Mapping[str, Surrounding]] = {
    "folder-gone": Surrounding(
        'mkdir d && cd d && rmdir ../d && paceline check "$TOP/s.yaml"', 2, ("working folder",)
    ),
    "folder-gone-report": Surrounding(
        'mkdir d && cd d && rmdir ../d && paceline report "$TOP/r"', 2, ("working folder",)
    ),
    "scenario-by-pipe": Surrounding("cat s.yaml | paceline check /dev/stdin", 2, ("/dev/stdin",)),
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
    "report-in-the-style-of-tex": Surrounding(
        "echo text.usetex: True > matplotlibrc; paceline report r",
        0,
        (),
        ("matplotlibrc", "report.html", "report-files"),
    ),
    "report-to-a-full-disk": Surrounding("paceline report r -o /dev/full", 2, ("/dev/full",)),
    "report-into-the-kernel": Surrounding("paceline report r -o /proc/p.html", 2, ("/proc",)),
    "profile-to-a-folder": Surrounding("paceline calibrate r --out .", 2, ("--out",)),
    "profile-in-place-of-a-picture": Surrounding(
        "echo mine > p.png; paceline calibrate r --out p.yaml", 2, ("p.png: is there already",), ("p.png",)
    ),
    "profile-in-place-of-its-source": Surrounding("paceline calibrate s.yaml --out s.yaml", 2, ("s.yaml",)),
    "profile-in-place-of-its-picture": Surrounding("paceline calibrate r --out p.png", 2, ("p.png",)),
    "profile-nowhere": Surrounding("paceline calibrate r --out nowhere/p.yaml", 2, ("nowhere",)),
    "probes-to-a-folder": Surrounding("paceline probe s.yaml --out .", 2, ("--out",)),
    "probes-in-place-of-the-scenario": Surrounding("paceline probe s.yaml --out s.yaml", 2, ("s.yaml",)),
    "probes-to-a-pipe": Surrounding("mkfifo m && paceline probe s.yaml --out m", 2, ("m: is there",), ("m",)),
    "probes-nowhere": Surrounding("paceline probe s.yaml --out nowhere/m.json", 2, ("nowhere",)),
    "graph-to-a-folder": Surrounding(
        "paceline topology search --workers 8 --degree 3 --out .", 2, ("--out",)
    ),
    "graph-nowhere": Surrounding(
        "paceline topology search --workers 8 --degree 3 --out nowhere/g.json", 2, ("nowhere",)
    ),
}
"""Folders that are gone, and what stands in the way of output."""

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
        for name, (arguments, words) in _ENVIRONMENTS.items()
        for word in words.split()
    }
    return {**usual, **_STREAMS, **_FOLDERS, **_LIMITS}


def run_in_shell(surrounding: Surrounding, folder: Path) -> Shell:
    """Run the line in ``folder``."""
    environment = {
        **os.environ, "PYTHONPATH": str(_ROOT), "TOP": str(folder), "OMP_NUM_THREADS": "1",
        "PYTHON": sys.executable,
    }  # fmt: skip
    line = surrounding.line.replace("paceline ", f"{sys.executable} -m paceline ")
    line = line.replace("nobody ", f"{UNPRIVILEGED} ")
    before = contents(folder)
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
    after = contents(folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return Shell(status, out.decode(errors="replace"), err.decode(errors="replace"), changed)


_PROGRESS: Final = re.compile(r"\d+ of \d+ runs, \d+ %|[a-z ]+: [\d,]+ of [\d,]+ settings")
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
