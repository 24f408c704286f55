"""YAML with line numbers, read safely.

Scalars follow the core schema of YAML 1.2, so ``on``, ``yes`` and ``no`` are text, ``1e-3`` is a
number and ``12:30`` is not. Lists become tuples. Tags, the core schema's own too, duplicate keys, keys
that are not text, and aliases that unfold without end are errors.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, TypeVar

import yaml
from pydantic import ValidationError
from typing_extensions import override
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..errors import InputError, did_you_mean, quote, shorten
from .problems import KeyPath, explain, join_keys, one_line
from .settings import Settings

YAML_SUFFIXES: Final = (".yaml", ".yml")
MAX_BYTES: Final = 2**20
"""A longer file is not read."""
MAX_VALUES: Final = 100_000
"""How many values a document may have, aliases unfolded."""
MAX_PATH: Final = 400
"""Letters of a path that a message shows."""
MAX_DIGITS: Final = 1000
"""A longer scalar is text, whatever it looks like."""

_HALF_LETTER: Final = re.compile("[\ud800-\udfff]")
"""What no UTF-8 file can hold, and an escape in quotes can name."""
_PREFIX: Final = "tag:yaml.org,2002:"
_PLAIN: Final[tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...]] = tuple(
    (re.compile(pattern), value)
    for pattern, value in (
        (r"~|null|Null|NULL|", lambda text: None),
        (r"true|True|TRUE", lambda text: True),
        (r"false|False|FALSE", lambda text: False),
        (r"[-+]?[0-9]+", int),
        (r"0x[0-9a-fA-F]+", lambda text: int(text, 16)),
        (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
        (r"[-+]?\.(inf|Inf|INF)", lambda text: float(text.replace(".", ""))),
        (r"\.(nan|NaN|NAN)", lambda text: math.nan),
    )
)
"""The core schema: what a plain scalar looks like, and what it means."""


class SourceLine(NamedTuple):
    """A line of a source, from 1; line 0 is the source as a whole."""

    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Document:
    """A value as it was written, and where each part of it stands.

    Attributes:
        value: mappings, tuples, text, numbers, booleans, None.
        places: path -> where that key or list entry was written. The root is ``()``.
    """

    value: Any
    places: Mapping[KeyPath, SourceLine]

    def place(self, at: KeyPath) -> SourceLine:
        """Where ``at`` was written, or the nearest thing around it that was."""
        while at not in self.places:
            at = at[:-1]
        return self.places[at]


class _Loader(yaml.SafeLoader):
    """Composes nodes only; plain scalars stay untyped until ``_scalar``."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    num_nodes = 0

    @override
    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        node: Node | None = super().compose_node(parent, index)
        tag = getattr(event, "tag", None)
        if node is not None and tag is not None:  # else one that says what is the case would not show
            node.tag = tag.replace(_PREFIX, "!!")
        self.num_nodes += 1
        if node is not None and self.num_nodes > 2 * MAX_VALUES:  # keys are nodes too
            raise yaml.MarkedYAMLError(None, None, f"more than {MAX_VALUES} values", node.start_mark)
        return node


def read_text(path: Path, limit: int = MAX_BYTES, suffixes: Sequence[str] = YAML_SUFFIXES) -> str:
    """The text of a file of at most ``limit`` bytes; ``suffixes`` are those of files that a hint may name.

    Raises:
        InputError: there is none, it may not be read, it is too large or not UTF-8.
    """
    content = read_bytes(path, limit, suffixes)
    path = _short_path(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: is not UTF-8 text (byte {error.start})") from None
    return text


_PART_BYTES: Final = 2**20
"""What is read at once of a file that does not say how long it is."""


def read_bytes(path: Path, limit: int, suffixes: Sequence[str] = ()) -> bytes:
    """Return the content of a regular file: devices and pipes, which may never end, are refused unread.

    Args:
        path: of the file.
        limit: the most bytes that it may have.
        suffixes: those of files that a hint may name.

    Raises:
        InputError: there is none, it may not be read, it is no regular file or too large.
    """
    named = _short_path(path)
    try:
        # Without O_NONBLOCK a pipe that nobody writes to would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{named}: is no regular file, but a device or a pipe; name a file")
            content = b""
            while status.st_size <= limit and len(content) <= limit:
                # As much memory as there are bytes is taken, though a kernel's file has more than its size.
                part = file.read(max(status.st_size, _PART_BYTES) + 1)
                if part is None:  # a kernel's file that has nothing to give now
                    raise InputError(f"{named}: is no regular file, but one of the kernel's; name a file")
                if not part:
                    break
                content += part
    except FileNotFoundError:
        raise InputError(f"{named}: there is no such file{_similar_file(path, suffixes)}") from None
    except IsADirectoryError:
        hint = _similar_file(path / "*.yaml") if suffixes else ""
        raise InputError(f"{named}: is a directory, not a file{hint}") from None
    except PermissionError:
        raise InputError(f"{named}: may not be read (permission denied)") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{named}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if status.st_size > limit or len(content) > limit:
        raise InputError(f"{named}: is larger than {limit // 2**20} MiB, which is too much")
    return content


def _short_path(path: Path) -> Path:
    """The path as messages show it: the end of one that is very long."""
    text = str(path)
    return path if len(text) <= MAX_PATH else Path("…" + text[-MAX_PATH:])


def _similar_file(path: Path, suffixes: Sequence[str] = YAML_SUFFIXES) -> str:
    try:
        known = [other.name for other in path.parent.iterdir() if other.suffix in suffixes]
    except OSError:
        return ""
    return f"; {did_you_mean(path.name, known)}" if known else ""


def expand_home(name: str) -> Path:
    """``name`` as a path, in which ``~`` and ``~somebody`` stand for home folders.

    Raises:
        InputError: it begins with that of somebody who is not known, or has none.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise InputError(f"{shorten(name)}: there is no home folder {quote(Path(name).parts[0])}") from None


def parse_value(text: str, source: str) -> Document:
    """Read a value that stands in one line, of a command; its errors have no use for a line number.

    Args:
        text: the value.
        source: what error messages call it.

    Raises:
        InputError: as ``parse``.
    """
    try:
        return parse(text, source)
    except InputError as error:
        raise InputError(str(error).replace(f"{source}:1:", f"{source}:", 1)) from None


def parse(text: str, source: str) -> Document:
    """Read one YAML document.

    Args:
        text: the document.
        source: what error messages call it.

    Raises:
        InputError: the text is no YAML, or holds what this module refuses.
    """
    lines: dict[KeyPath, int] = {}
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            return Document(None, {(): SourceLine(1, source)})
        value = _build(root, (), lines, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        column = f" (column {mark.column + 1})" if mark else ""
        what = error.problem or ""
        what = f"{error.context}, {what}" if what.startswith("but ") else what
        raise InputError(f"{where}: not valid YAML: {what}{column}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{source}:{line}: not valid YAML: a control character stands in the text") from None
    except RecursionError:
        raise InputError(f"{source}: the values are nested too deeply") from None
    return Document(value, {at: SourceLine(line, source) for at, line in lines.items()})


def _build(node: Node, at: KeyPath, lines: dict[KeyPath, int], source: str) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if len(lines) > MAX_VALUES:
        raise InputError(f"{source}:{line}: more than {MAX_VALUES} values; aliases may unfold without end")
    if isinstance(node, ScalarNode):
        return _scalar(node, at, source)
    if isinstance(node, SequenceNode) and node.tag == _PREFIX + "seq":
        return tuple(_build(entry, (*at, number), lines, source) for number, entry in enumerate(node.value))
    if isinstance(node, MappingNode) and node.tag == _PREFIX + "map":
        return _mapping(node, at, lines, source)
    raise InputError(f"{_where(node, at, source)}: {_tag_refused(node)}")


def _mapping(node: MappingNode, at: KeyPath, lines: dict[KeyPath, int], source: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node, at, source) if isinstance(key_node, ScalarNode) else None
        if not isinstance(key, str):
            name = (
                f"'{one_line(key_node.value, 60)}'"
                if isinstance(key_node, ScalarNode)
                else "a list or mapping"
            )
            raise InputError(
                f"{_where(key_node, at, source)}: a key must be text, not {name}; put it in quotes"
            )
        if key in out:
            first = lines[(*at, key)]
            raise InputError(
                f"{_where(key_node, (*at, key), source)}: given twice; it stands on line {first} too"
            )
        lines[(*at, key)] = key_node.start_mark.line + 1
        out[key] = _build(value_node, (*at, key), lines, source)
    return out


def _scalar(node: ScalarNode, at: KeyPath, source: str) -> Any:
    if node.tag != _PREFIX + "str":
        raise InputError(f"{_where(node, at, source)}: {_tag_refused(node)}")
    if _HALF_LETTER.search(node.value):
        raise InputError(f"{_where(node, at, source)}: holds half a letter (a lone surrogate)")
    return node.value if node.style else plain_scalar(node.value)


def plain_scalar(text: str) -> Any:
    """What an unquoted scalar means under the core schema of YAML 1.2."""
    if len(text) > MAX_DIGITS:
        return text
    return next((value(text) for pattern, value in _PLAIN if pattern.fullmatch(text)), text)


def _tag_refused(node: Node) -> str:
    return f"the tag '{one_line(node.tag.replace(_PREFIX, '!!'), 60)}' is not allowed; write plain values"


def _where(node: Node, at: KeyPath, source: str) -> str:
    place = f"{source}:{node.start_mark.line + 1}"
    return f"{place}: {join_keys(at)}" if at else place


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes where YAML 1.1 or our reader would take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> ScalarNode:
    style = None if isinstance(plain_scalar(text), str) else "'"
    return dumper.represent_scalar(_PREFIX + "str", text, style)


def as_plain(value: Any) -> Any:
    """An array or a tensor, or a number of theirs, as lists and numbers; everything else as it is."""
    is_array = hasattr(value, "tolist") and not isinstance(value, type)
    return value.tolist() if is_array else value


def _represent_other(dumper: _Dumper, value: Any) -> Node:
    """What Python programs put into a scenario, apart from what YAML knows by itself."""
    plain = as_plain(value)
    match plain:
        case PurePath() | str():
            plain = str(plain)
        case bool() | None:
            pass
        case int():
            plain = int(plain)
        case float():
            plain = float(plain)
        case Mapping():
            plain = dict(plain)
    if plain is value:
        raise InputError(
            f"holds a value of type {shorten(type(value).__name__)}, which cannot stand in a file; write "
            "text, numbers, lists and mappings"
        )
    return dumper.represent_data(plain)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(object, _represent_other)


def write(value: Any) -> str:
    """Write plain values (finite numbers, text, lists, mappings) so that ``parse`` reads the same.

    Raises:
        InputError: there is something else in it; the message is the end of a sentence.
    """
    try:
        return yaml.dump(
            value, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True, default_flow_style=None
        )
    except RecursionError:
        raise InputError("holds values that are nested too deeply") from None
    except ValueError as error:  # Python writes no number of more than some thousands of digits
        raise InputError(f"holds a value that cannot be written: {error}") from None


_Model = TypeVar("_Model", bound=Settings)


def validate_document(
    model: type[_Model], data: object, source: str, place: Callable[[KeyPath], object] | None = None
) -> _Model:
    """``data`` as ``model``, or one ``InputError`` that names the first thing that is wrong.

    Args:
        model: of the document.
        data: what was read.
        source: what errors call it.
        place: where a key of it was written, if that is known.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = explain(error, model, data)[0]
        raise InputError(f"{source if place is None else place(first.at)}: {first}") from error
