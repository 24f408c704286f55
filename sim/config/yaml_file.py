"""Safe YAML reader with line numbers.

Scalars follow the core schema of YAML 1.2, so ``on``, ``yes`` and ``no`` are text, ``1e-3`` is a
number and ``12:30`` is not. Lists become tuples. Tags (even those of the core schema), duplicate keys,
keys that are not text, and aliases that unfold without end are errors.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import yaml
from pydantic import ValidationError
from typing_extensions import override
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..errors import InputError, did_you_mean, quote, shorten
from .problems import KeyPath, explain, join_keys, one_line, refuse_foreign
from .settings import Settings

YAML_SUFFIXES: Final = (".yaml", ".yml")
MAX_BYTES: Final = 2**20
MAX_VALUES: Final = 100_000
"""Values in a document, aliases unfolded."""
MAX_PATH: Final = 400
"""Letters of a path in a message."""
MAX_DIGITS: Final = 1000
"""A longer scalar is text, whatever it looks like."""

_TABS: Final = re.compile(r"[\t ]+(?=[#\r\n\0])|(?<=[:,])[\t ]+")
_TABS_IN_BRACKETS: Final = re.compile(r"[\t ]+")
_PREFIX: Final = "tag:yaml.org,2002:"
_PLAIN: Final[tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...]] = tuple(
    (re.compile(pattern), value)
    for pattern, value in (
        (r"~|null|Null|NULL|", lambda text: None),
        (r"true|True|TRUE", lambda text: True),
        (r"false|False|FALSE", lambda text: False),
        (r"[-+]?[0-9]+", int),
        (r"0o[0-7]+", lambda text: int(text, 8)),
        (r"0x[0-9a-fA-F]+", lambda text: int(text, 16)),
        (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
        (r"[-+]?\.(inf|Inf|INF)", lambda text: float(text.replace(".", ""))),
        (r"\.(nan|NaN|NAN)", lambda text: math.nan),
    )
)
"""Core schema: patterns of plain scalars and their values."""


class SourceLine(NamedTuple):
    """A line of a source, from 1; line 0 is the source as a whole."""

    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed value, and the line of each key or list entry by its path; the root is ``()``."""

    value: Any
    places: Mapping[KeyPath, SourceLine]

    def place(self, at: KeyPath) -> SourceLine:
        """Line of ``at``, or of the nearest part around it."""
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
        if node is not None and tag is not None:  # else a tag that states the default would not show
            node.tag = tag.replace(_PREFIX, "!!")
        self.num_nodes += 1
        if node is not None and self.num_nodes > 2 * MAX_VALUES:  # keys are nodes too
            raise yaml.MarkedYAMLError(None, None, f"more than {MAX_VALUES} values", node.start_mark)
        return node

    @override
    def scan_to_next_token(self) -> None:
        at = None
        while at != self.pointer:
            at, pattern = self.pointer, _TABS_IN_BRACKETS if self.flow_level else _TABS
            if tabs := pattern.match(self.buffer, at):  # which PyYAML refuses
                self.forward(len(tabs[0]))
            super().scan_to_next_token()


def read_text(
    path: Path, limit: int = MAX_BYTES, suffixes: Sequence[str] = YAML_SUFFIXES, foreign: bool = False
) -> str:
    """Read a file of at most ``limit`` bytes as UTF-8; raises as ``read_bytes``.

    Files of other tools are refused by name, unless ``foreign``.
    """
    content = read_bytes(path, limit, suffixes)
    if not foreign:
        refuse_foreign(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = f"is not UTF-8 text (byte {error.start})"
        raise InputError(f"{_short_path(path)}:{line}: {text}") from None


def read_bytes(path: Path, limit: int, suffixes: Sequence[str] = ()) -> bytes:
    """Read a regular file of at most ``limit`` bytes; refuse devices and pipes, which may never end.

    Raises ``InputError``, with a hint at files with ``suffixes``, if missing, unreadable, too large or
    irregular.
    """
    named = _short_path(path)
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            return _read_regular(file, named, limit)
    except FileNotFoundError:
        raise InputError(f"{named}: there is no such file{_similar_file(path, suffixes)}") from None
    except IsADirectoryError:
        hint = _similar_file(path / "*.yaml") if suffixes else ""
        raise InputError(f"{named}: is a directory, not a file{hint}") from None
    except PermissionError:
        raise InputError(f"{named}: may not be read (permission denied)") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{named}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _read_regular(file: BinaryIO, named: Path, limit: int) -> bytes:
    status = os.fstat(file.fileno())
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{named}: is no regular file, but a device or a pipe; name a file")
    if status.st_size > limit:
        raise InputError(f"{named}: is larger than {limit // 2**20} MiB, which is too much")
    return file.read()


def _short_path(path: Path) -> Path:
    text = str(path)
    return path if len(text) <= MAX_PATH else Path("…" + text[-MAX_PATH:])


def _similar_file(path: Path, suffixes: Sequence[str] = YAML_SUFFIXES) -> str:
    try:
        known = [other.name for other in path.parent.glob("[!.]*") if other.suffix in suffixes]
    except OSError:
        return ""
    return f"; {did_you_mean(path.name, known)}" if known else ""


def expand_home(name: str) -> Path:
    """Expand ``~`` and ``~somebody`` in ``name``; ``InputError`` if that user or home folder is unknown."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise InputError(f"{shorten(name)}: there is no home folder {quote(Path(name).parts[0])}") from None


def parse_value(text: str, source: str) -> Document:
    """Parse a value given in one line of a command, as ``parse`` does; its errors name no line number."""
    try:
        return parse(text, source)
    except InputError as error:
        raise InputError(str(error).replace(f"{source}:1:", f"{source}:", 1)) from None


def parse(text: str, source: str) -> Document:
    """Parse one YAML document, called ``source`` in errors; ``InputError`` for what this module refuses."""
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
            scalar = isinstance(key_node, ScalarNode)
            name = f"'{one_line(key_node.value, 60)}'" if scalar else "a list or mapping"
            where = _where(key_node, at, source)
            raise InputError(f"{where}: a key must be text, not {name}; put it in quotes")
        if key in out:
            where, first = _where(key_node, (*at, key), source), lines[(*at, key)]
            raise InputError(f"{where}: given twice; it stands on line {first} too")
        lines[(*at, key)] = key_node.start_mark.line + 1
        out[key] = _build(value_node, (*at, key), lines, source)
    return out


def _scalar(node: ScalarNode, at: KeyPath, source: str) -> Any:
    if node.tag != _PREFIX + "str":
        raise InputError(f"{_where(node, at, source)}: {_tag_refused(node)}")
    try:  # JSON escapes both halves of a letter; one alone no UTF-8 file can hold
        text = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise InputError(f"{_where(node, at, source)}: holds half a letter (a lone surrogate)") from None
    return text if node.style else plain_scalar(text)


def plain_scalar(text: str) -> Any:
    """Value of an unquoted scalar under the core schema of YAML 1.2."""
    if len(text) > MAX_DIGITS:
        return text
    return next((value(text) for pattern, value in _PLAIN if pattern.fullmatch(text)), text)


def _tag_refused(node: Node) -> str:
    return f"the tag '{one_line(node.tag.replace(_PREFIX, '!!'), 60)}' is not allowed; write plain values"


def _where(node: Node, at: KeyPath, source: str) -> str:
    place = f"{source}:{node.start_mark.line + 1}"
    return f"{place}: {join_keys(at)}" if at else place


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or our reader would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> ScalarNode:
        style = None if isinstance(plain_scalar(text), str) else "'"
        return self.represent_scalar(_PREFIX + "str", text, style)


def as_plain(value: Any) -> Any:
    """Convert an array, a tensor or a number of theirs to lists and numbers; keep everything else."""
    is_array = hasattr(value, "tolist") and not isinstance(value, type)
    return value.tolist() if is_array else value


def _represent_other(dumper: _Dumper, value: Any) -> Node:
    """Represent Python objects in a scenario that YAML does not know by itself."""
    plain = as_plain(value)
    kinds: Any = ((PurePath, str), (str, str), (bool, bool), (int, int), (float, float), (Mapping, dict))
    plain = next((make(plain) for kind, make in kinds if isinstance(plain, kind)), plain)
    if plain is value:
        raise InputError(
            f"holds a value of type {shorten(type(value).__name__)}, which cannot stand in a file; write "
            "text, numbers, lists and mappings"
        )
    return dumper.represent_data(plain)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_multi_representer(object, _represent_other)


def write(value: Any) -> str:
    """Write plain values (finite numbers, text, lists, mappings) so that ``parse`` reads the same.

    Raises ``InputError`` for anything else; the message is the end of a sentence.
    """
    try:
        return yaml.dump(
            value, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True, default_flow_style=None
        )
    except RecursionError:
        raise InputError("holds values that are nested too deeply") from None
    except ValueError as error:  # Python refuses to write a number of thousands of digits
        raise InputError(f"holds a value that cannot be written: {error}") from None


_Model = TypeVar("_Model", bound=Settings)


def validate_document(
    model: type[_Model], data: object, source: str, place: Callable[[KeyPath], object] | None = None
) -> _Model:
    """Validate ``data`` as ``model``; one ``InputError`` names the first mistake.

    ``source`` is the document's name in errors; ``place`` looks up the line of a key, if known.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = explain(error, model, data)[0]
        raise InputError(f"{source if place is None else place(first.at)}: {first}") from error
