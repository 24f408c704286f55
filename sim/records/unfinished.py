"""Complete runs of a running command, kept one by one so that it can resume after any death.

The result folder of an unfinished command holds ``parts/``: ``index.json``, which identifies the command, and
a result folder for each complete run, written whole or not at all, with its checksums. When all runs are
there, the results replace everything; their bytes do not depend on how often the command was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from ..config.files import claim_folder, remove, remove_unfinished_writes, trying_to, write_folder_atomically
from ..config.yaml_file import read_bytes
from ..errors import InputError, shorten
from . import folder as result_folder
from .formats.result_files import verify_checksums, write_checksums
from .run import Run
from .summary import SUMMARY_VERSION, SchemeFacts, Tuned

PartKind = Literal["run", "trial"]
"""Runs are results; trials were tried before them by ``tune``."""

_PART: Final = re.compile(r"(run|trial)-[0-9]+")


@dataclass(frozen=True)
class Index:
    """Identity of a folder's parts; they serve only a command that agrees in all of it.

    Attributes:
        version: of the records.
        code: see ``code_version``.
        command: with its device: ``simulate on cpu``.
        force: whether the command was allowed to replace older results.
        scenario: the text of the resolved scenario, before ``tune``.
    """

    version: int
    code: str
    command: str
    force: bool
    scenario: str


_INDEX: Final = TypeAdapter(Index)


@dataclass(frozen=True)
class Parts:
    """The complete runs of a command.

    Attributes:
        folder: where they are kept; None: nowhere.
        scenario: the text of the resolved scenario; "" where nothing is kept.
        kept: runs left by an earlier start of the command, by kind and number.
        index: identity of the parts; None where nothing is kept.
        say: called with messages for the user.
        tuning: the schemes' choices before the runs, kept with them.
        facts: label -> facts about a scheme apart from its runs, kept with them.
    """

    folder: Path | None
    scenario: str
    scenario_name: str
    kept: Mapping[tuple[PartKind, int], Run]
    index: Index | None = None
    say: Callable[[str], None] = lambda _: None
    tuning: Sequence[Tuned] = ()
    facts: Mapping[str, SchemeFacts] | None = None

    def num_kept(self, kind: PartKind) -> int:
        """Number of runs of a kind left by an earlier start."""
        return sum(each == kind for each, _ in self.kept)

    def find(self, kind: PartKind, number: int, label: str, seed: int) -> Run | None:
        """Return the kept run of this label and seed, if there is one."""
        run = self.kept.get((kind, number))
        return run if run is not None and (run.label, run.seed) == (label, seed) else None

    def keep(self, kind: PartKind, number: int, run: Run) -> None:
        """Keep a complete run, in place of a failed one; ``InputError`` as for ``check_not_replaced``."""
        if self.folder is not None and self.index is not None and run.status != "partial":
            if not self.stands:
                self.check_not_replaced()
                _begin(self.folder, self.index)
                out = self.folder.parent
                self.say(
                    f"{out} was removed or renamed: runs from here on are kept in a new {out}, and all are "
                    "written there in the end; those from before are where it is now"
                )
            path = self.folder / f"{kind}-{number:06d}"
            tuning = [each for each in self.tuning if each["label"] == run.label]
            result_folder.write_results(
                path, self.scenario, self.scenario_name, [run], True, tuning, facts=self.facts
            )

    @property
    def stands(self) -> bool:
        """Whether the folder exists, and is still the one in which the command was begun."""
        if self.folder is None or self.index is None:
            return False
        try:
            return (self.folder / result_folder.INDEX_FILE).read_bytes() == _format(self.index)
        except OSError:
            return False

    def check_not_replaced(self) -> None:
        """Raise ``InputError`` if something else took the folder's place; call it before results do."""
        if self.folder is None or self.stands:
            return
        out = self.folder.parent
        with trying_to(f"look into {out}"):
            stranger = out.exists() and (not out.is_dir() or next(out.iterdir(), None) is not None)
        if stranger:
            raise InputError(
                f"{out} is not the folder in which this command began: something else has taken its place, "
                "and was left alone; complete runs are kept where that folder is now: move it back, and the "
                "same command goes on"
            )


NOTHING_KEPT: Final = Parts(None, "", "", {})
"""For a command that writes no folder."""


@contextmanager
def open_parts(out: Path, begin: Callable[[], Parts], say: Callable[[str], None]) -> Iterator[Parts]:
    """Keep the runs of a command in ``out``, and resume with those that it has left there before.

    No other command writes to ``out`` meanwhile. Where no run has become complete, nothing is left.
    ``begin`` is ``begin_parts`` for ``out``. ``InputError``: that of ``begin``, or ``out`` is in use.
    """
    with claim_folder(out):
        was_there = out.exists()
        parts = begin()
        if parts.kept:
            say(f"going on with {out}: {parts.num_kept('run')} runs are there")
        with keep_or_forget(out, [parts], was_there):
            yield parts


@contextmanager
def keep_or_forget(out: Path, begun: Sequence[Parts], was_there: bool) -> Iterator[None]:
    """Undo at the end of the block each ``begin_parts`` for ``out`` or a folder in it, if no run is complete.

    Otherwise an interrupt says that runs are kept. ``was_there``: whether ``out`` was, before.
    """

    def any_kept() -> bool:
        paths = (path for each in begun if each.folder for path in each.folder.glob("*"))
        return any(_PART.fullmatch(path.name) for path in paths)

    try:
        yield
    except KeyboardInterrupt as ended:
        if any_kept():
            ended.args = (f"; complete runs are kept in {out} (the same command continues)",)
        raise
    finally:
        if not any_kept():
            for each in begun:
                if each.folder is not None and each.stands:  # else something has replaced it, such as results
                    remove(each.folder)
                    if each.folder.parent != out:
                        _remove_empty(each.folder.parent)
            if not was_there:
                _remove_empty(out)


def begin_parts(
    out: Path,
    command: str,
    scenario_name: str,
    force: bool,
    fits: Callable[[str], object],
    resolve: Callable[[], str],
    say: Callable[[str], None],
) -> Parts:
    """Prepare ``out``, claimed by this process, for a command's complete runs, or find those left there.

    Args:
        command: as in ``Index``.
        force: whether results, or runs of another command, may be replaced.
        fits: whether a resolved scenario is that of this command, as a truth value.
        resolve: makes the text of the resolved scenario; called where there is nothing to resume.
        say: called with messages about damaged runs.

    Raises:
        InputError: ``out`` is taken, or holds unfinished runs of something else.
    """
    folder = out / result_folder.PARTS_FOLDER
    if out.is_dir():
        remove_unfinished_writes(folder)
    index = _read_index(out, force)
    why = "" if index is None else _find_difference(index, command, fits)
    if index is not None and index.force != force:
        why = why or "were begun " + ("with --force" if index.force else "without --force")
    if index is None or (why and force):
        result_folder.check_free(out, force)
        index = Index(SUMMARY_VERSION, code_version(), command, force, resolve())
        was_there = out.exists()
        try:
            _begin(folder, index)
        except InputError:  # for example a full disk
            if not was_there:
                _remove_empty(out)
            raise
        return Parts(folder, index.scenario, scenario_name, {}, index, say)
    if why:
        raise InputError(
            f"{out} holds unfinished runs, but they {why}: nothing was changed; end what was begun, "
            "choose another folder, or replace them with --force"
        )
    return Parts(folder, index.scenario, scenario_name, _read_parts(folder, index, say), index, say)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@cache
def code_version() -> str:
    """Identify the code that decides the bits of a run: a hash of Paceline's, the versions of libraries."""
    package = Path(__file__).parents[2]
    code = hashlib.sha256()
    for room in ("sim", "realrun", "extras/papers"):
        top = (package / room).resolve()  # a link in a checkout
        for path in sorted(top.rglob("*.py")):
            code.update(path.relative_to(top).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{code.hexdigest()[:12]}, torch {version('torch')}, numpy {version('numpy')}"


def _begin(folder: Path, index: Index) -> None:
    with write_folder_atomically(folder) as new:
        (new / result_folder.INDEX_FILE).write_bytes(_format(index))
        write_checksums(new)


def _format(index: Index) -> bytes:
    return (json.dumps(asdict(index), indent=1, ensure_ascii=False) + "\n").encode()


def _read_index(out: Path, force: bool) -> Index | None:
    """Identity of the runs in ``out``; None if there are none, or if they may be replaced unread."""
    if not result_folder.is_unfinished(out):
        return None
    folder = out / result_folder.PARTS_FOLDER
    path = folder / result_folder.INDEX_FILE
    try:
        verify_checksums(folder, [path.name])
        return _INDEX.validate_json(read_bytes(path, result_folder.MAX_SCENARIO_BYTES), strict=True)
    except (InputError, OSError, ValidationError) as error:
        if force:
            return None
        why = error if isinstance(error, InputError) else f"{path} cannot be read"
        raise InputError(f"{why}; choose another folder, or replace it with --force") from error


def _find_difference(index: Index, command: str, fits: Callable[[str], object]) -> str:
    if index.version != SUMMARY_VERSION:
        return f"are records of version {index.version}, and this program writes {SUMMARY_VERSION}"
    if index.command != command:
        return f"were begun by '{shorten(index.command)}', and this is '{command}'"
    if index.code != code_version():
        return f"were begun by other code ({shorten(index.code)}), and this is {code_version()}"
    return "" if fits(index.scenario) else "are of another scenario"


def _read_parts(folder: Path, index: Index, say: Callable[[str], None]) -> dict[tuple[PartKind, int], Run]:
    kept: dict[tuple[PartKind, int], Run] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # the claim is ours, so its writer is dead
            remove(path)
        if not _PART.fullmatch(path.name):
            continue
        kind, _, number = path.name.partition("-")
        try:
            run, results = result_folder.read_part(path)
            if results.scenario != index.scenario:
                raise InputError(f"{path} is of another scenario")
        except InputError as error:
            say(f"{error}; this run is made again")
            remove(path)
        else:
            kept["trial" if kind == "trial" else "run", int(number)] = run
    return kept
