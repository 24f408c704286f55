"""Region matrix: a row and a column per place, with latencies, bandwidths, or both in a cell.

Nothing is guessed: units, the kind of latency and the direction stand in the cells, in the words around the
table, or in the user's answers. The table is the first of a CSV file, a Markdown text or a saved page.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from typing import Final, NamedTuple, TypeVar

from paceline.extras.importers.readings import ForeignFile, PathReading, Quantity, Readings, Unit, read_unit
from paceline.sim.errors import quote

_T = TypeVar("_T")
_MISSING: Final = re.compile(r"(?i)[-\u2013\u2014\u2212.·*x\s]*|n/?a|nan|none|null|self")
_NUMBER: Final = re.compile(
    r"((?:(?<![0-9.,])[-+])?[0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµμ]+(?:/s(?:ec)?(?![a-zA-Z]))?)?"
)
_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_UNIT_WORD: Final = re.compile(
    r"(?<![A-Za-z])(?:[nuµμm]s|(?:msec|millisecond|microsecond|second)s?|(?<=[\[(])s(?:ec)?(?=[\])])"
    r"|[kKMGTmg]?i?(?:[bB]its?|[bB]|Bytes?)(?:ps|/s|/sec))(?![A-Za-z])"
)
_OTHER: Final[dict[Quantity, Quantity]] = {"latency": "bandwidth", "bandwidth": "latency"}
_WORD: Final[dict[Quantity, re.Pattern[str]]] = {
    "latency": re.compile(r"(?i)\b(latenc(y|ies)|delays?|rtts?|ping|round[- ]?trips?)\b"),
    "bandwidth": re.compile(r"(?i)\b(bandwidths?|throughputs?|rates?)\b"),
}
_LATENCY_IS: Final = {
    "round-trip": re.compile(r"(?i)\b(rtts?|round[- ]?trips?|ping)\b"),
    "one-way": re.compile(
        r"(?i)\b(one[- ]?way|halved|half\W+(of\W+)?(the\W+)?(rtt|round|ping))|(rtts?|trips?)\W*/\s*2\b"
    ),
}
_MEANINGS: Final = {"--latency-is": "what its latencies are", "--rows": "which way each number goes"}
_SENDS, _RECEIVES = r"(?:from|sources?|src|senders?|sends?)", r"(?:to|dest\w*|dst|receivers?|receives?)"
_ROWS: Final = {
    sense: re.compile(
        rf"(?i)\b{row}\s*[\\/|,]+\s*{column}\b|\brows?\W+(?:(?:is|are|the)\W+)*{row}\b"
        rf"|\bcolumns?\W+(?:(?:is|are|the)\W+)*{column}\b|\A{row}\Z|\bfrom\s+{sent}s?\s+to\s+{received}s?\b"
    )
    for sense, row, column, sent, received in (
        ("send", _SENDS, _RECEIVES, "row", "column"),
        ("receive", _RECEIVES, _SENDS, "column", "row"),
    )
}


class _Cell(NamedTuple):
    """Numbers of a cell, with the units beside them."""

    line: int
    numbers: list[tuple[float, Unit | None]]


_Cells = Mapping[tuple[str, str], _Cell]
"""By row and column."""


def read(source: ForeignFile) -> Readings:
    """Paths between places; ``InputError`` where the table leaves open what its numbers are."""
    table = first_table(source)
    head = next((n for n, row in enumerate(table.rows) if sum(map(bool, row.cells[1:])) > 1), None)
    if head is None:
        raise source.refuse("has no table with a row and a column per region")
    title = [cell for row in table.rows[:head] for cell in row.cells]
    (line, header), rows = table.rows[head], table.rows[head + 1 :]
    names = [_split(cell)[1] for cell in header[1:]]
    while not names[-1]:
        names.pop()
    own_units = [f"({unit})" for unit, _ in map(_split, header[1:]) if unit]
    ends = [row.cells[0] for row in rows if row.cells[0] not in names and not any(row.cells[1:])]
    words = "\n".join([table.words, *title, header[0], *own_units, *ends]).replace("_", " ")
    rows = [row for row in rows if row.cells[0] not in ends]
    firsts = [row.cells[0] for row in rows]
    for group in (names, firsts):
        if twice := [name for name, times in Counter(group).items() if times > 1 or not name]:
            raise source.refuse(f"has two rows or columns {quote(twice[0])}, or one without a name", line)
    if not set(names) & set(firsts):
        raise source.refuse("is no matrix of regions: no row has the name of a column", line)
    cells = {}
    width = max(len(header), min(len(row.cells) for row in rows))  # 1,5 in CSV is a cell more
    for row in rows:
        if any(row.cells[len(names) + 1 :]) or len(row.cells) > width:
            raise source.refuse(f"has {len(row.cells)} cells, the header has {len(names) + 1}", row.line)
        for name, text in zip(names, row.cells[1:], strict=False):
            itself = name == row.cells[0] and re.fullmatch(r"[0.]+\s*\w*", text)
            if not itself and not _MISSING.fullmatch(text):
                cells[row.cells[0], name] = _Cell(row.line, _numbers(source, row.line, name, text))
    places = {name: n for n, name in enumerate(dict.fromkeys([*names, *firsts]))}
    return _as_readings(source, [words, header[0]], cells, places)


def _split(cell: str) -> tuple[str, str]:
    """Unit in brackets at the end of a column's name, and the name."""
    match = re.fullmatch(r"(.+?)\s*[\[(]([^])]+)[\])]", cell)
    return (match[2], match[1]) if match and read_unit(match[2]) else ("", cell)


def _numbers(source: ForeignFile, line: int, name: str, cell: str) -> list[tuple[float, Unit | None]]:
    matches = list(_NUMBER.finditer(cell))
    if not 1 <= len(matches) <= 2 or not re.fullmatch(r"[\s/|;,()\[\]]*", _NUMBER.sub("", cell)):
        raise source.refuse(f"column {quote(name)}: {quote(cell)} is not one number, or two", line)
    numbers = []
    for match in matches:
        number, unit = match[1], read_unit(match[2] or "")
        if match[2] and unit is None:
            raise source.refuse(f"{quote(cell)} has an unknown unit; write for example ms or Mbit/s", line)
        if unit is not None and unit.quantity == "bandwidth" and _THOUSANDS.fullmatch(number):
            number = number.replace(",", "")
        try:
            value = float(number)
        except ValueError:
            raise source.refuse(
                f"{quote(cell)} is no number; write decimals with a point, and thousands without a comma",
                line,
            ) from None
        if not 0 < value < math.inf:
            raise source.refuse(f"{quote(cell)} is not above 0; leave out what was not measured", line)
        numbers.append((value, unit))
    return numbers


def _only(values: Iterable[_T]) -> _T | None:
    """The one value that there is; None where there is none, or a second one."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else None


def _units_in(words: str) -> list[Unit]:
    return [unit for match in _UNIT_WORD.finditer(words) if (unit := read_unit(match[0]))]


def _slots(source: ForeignFile, words: str, cells: _Cells) -> list[Quantity]:
    """What the first number of each cell is, and the second."""
    count = len(next(iter(cells.values())).numbers)
    for cell in cells.values():
        if len(cell.numbers) != count:
            raise source.refuse("has one number in some cells, and two in others", cell.line)
    own = [{unit.quantity for cell in cells.values() if (unit := cell.numbers[n][1])} for n in range(count)]
    first, second = (_only(each) for each in (own[0], own[-1]))
    if any(len(each) > 1 for each in own) or (count == 2 and first and first == second):
        raise source.refuse("has cells of other kinds: write the latency first, then the bandwidth, in each")
    units = dict.fromkeys(unit.quantity for unit in _units_in(words))
    places = {what: match.start() for what, word in _WORD.items() if (match := word.search(words))}
    named = sorted(places, key=places.__getitem__)
    if count == 1:
        answers = (what for what in _WORD if getattr(source.answers, f"{what}_unit"))
        if what := first or _only(answers) or _only([*units, *named]):
            return [what]
        raise source.refuse(
            "does not say what its numbers are: add --latency-unit ms or --bandwidth-unit Mbit/s"
        )
    what = first or (
        _OTHER[second] if second else _only(next(iter(each)) for each in (units, named) if len(each) > 1)
    )
    if what is None:
        raise source.refuse("has two numbers in a cell: write their units beside them, as 12 ms / 1.1 Gbit/s")
    return [what, _OTHER[what]]


def _common_unit(source: ForeignFile, words: str, quantity: Quantity) -> Unit:
    """Unit of the numbers without one."""
    answer = getattr(source.answers, f"{quantity}_unit")
    unit = read_unit(answer) if answer else _only(u for u in _units_in(words) if u.quantity == quantity)
    if unit is None or unit.quantity != quantity:
        example = "ms" if quantity == "latency" else "Mbit/s"
        raise source.refuse(f"has no unit of its {quantity}: add --{quantity}-unit {example}")
    return unit


def _as_readings(
    source: ForeignFile, words: Sequence[str], cells: _Cells, places: Mapping[str, int]
) -> Readings:
    """Paths of all cells, in seconds and bytes per second."""
    pairs = {frozenset(pair) for pair in cells if pair[0] != pair[1]}
    one_sided = [(a, b) for a, b in cells if (b, a) not in cells]
    if not pairs:
        raise source.refuse("has no number between two regions")
    if one_sided and len(one_sided) < len(pairs):
        (a, b), line = one_sided[0], cells[one_sided[0]].line
        raise source.refuse(f"has a number in row {a}, column {b}, but none in row {b}, column {a}", line)
    notes = ["half of a table: the way back is alike"] if one_sided else []
    values: dict[Quantity, dict[tuple[str, str], float]] = {"latency": {}, "bandwidth": {}}
    directed = False
    for n, quantity in enumerate(_slots(source, words[0], cells)):
        bare = any(cell.numbers[n][1] is None for cell in cells.values())
        common = _common_unit(source, words[0], quantity) if bare else None
        halved = (
            quantity == "latency"
            and _choice(source, words, "--latency-is", source.answers.latency_is, _LATENCY_IS) == "round-trip"
        )
        column = values[quantity]
        for pair, cell in cells.items():
            number, unit = cell.numbers[n][0], cell.numbers[n][1] or common
            column[pair] = number * (unit.size if unit else 1.0) * (0.5 if halved else 1.0)
        directed |= not halved and any(column.get((b, a), value) != value for (a, b), value in column.items())
        what = "half of the round trips" if halved else "that"
        notes += [f"{quantity}: {what} of the table{f', in {common.name}' if common else ''}"]
    rows = _choice(source, words, "--rows", source.answers.rows, _ROWS) if directed else "send"
    notes += [f"direction: rows {rows}"] if directed else []
    paths: dict[tuple[str, str], PathReading] = {}
    for a, b in cells:
        there, back = ([each.get(pair) for each in values.values()] for pair in ((a, b), (b, a)))
        alike = there == back or (b, a) not in cells
        ends = (b, a) if rows == "receive" or (alike and places[a] > places[b]) else (a, b)
        paths[ends] = PathReading(*ends, there[0], bandwidth_bytes_per_s=there[1], both_ways=alike)
    ordered = sorted(paths.values(), key=lambda path: (places[path.source], places[path.target]))
    return Readings(paths=tuple(ordered), notes=tuple(notes))


def _choice(
    source: ForeignFile,
    words: Sequence[str],
    option: str,
    answer: str | None,
    patterns: Mapping[str, re.Pattern[str]],
) -> str:
    """The answer to an option, or what the words around a table say."""
    written = _only(kind for kind, pattern in patterns.items() if any(map(pattern.search, words)))
    if answer or written:
        return answer or written or ""
    choices = " or ".join(f"{option} {kind}" for kind in patterns)
    raise source.refuse(f"does not say {_MEANINGS[option]}: add {choices}")


_MARKDOWN_RULE: Final = re.compile(r"(?m)^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*$")
_FORMATTING: Final = re.compile(r"\[([^]]*)\]\([^)]*\)|\*+|`+")
"""Links, emphasis and code in Markdown."""
_NO_TEXT: Final = re.compile(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->")
_INNERMOST_TABLE: Final = re.compile(r"(?is)<table\b(?:(?!<table\b).)*?</table\s*>")
_SPANNING: Final = re.compile(r"(?i)\b(row|col)span\s*=\s*[\"']?(?!1\b)")


class TableRow(NamedTuple):
    """Cells of a row, without blanks around them, and its line in the file."""

    line: int
    cells: list[str]


class TextTable(NamedTuple):
    """The rows of a table, and the text around it."""

    rows: list[TableRow]
    words: str


def first_table(source: ForeignFile) -> TextTable:
    """The first table; ``InputError`` where there is none, or it is damaged."""
    text = source.text.replace("\r\n", "\n")
    if re.search(r"(?i)<table\b", text):
        table = _from_html(source)
    elif rule := _MARKDOWN_RULE.search(text):
        table = _from_markdown(text, text.count("\n", 0, rule.start()))
    else:
        table = _from_csv(source)
    rows = [TableRow(line, [" ".join(cell.split()) for cell in cells]) for line, cells in table.rows]
    return TextTable([row for row in rows if any(row.cells)], table.words)


def _from_csv(source: ForeignFile) -> TextTable:
    lines = source.text.splitlines()
    delimiters = [each for each in "\t;," if any(line.count(each) > 1 for line in lines)]
    if not delimiters:
        raise source.refuse("has no table: neither CSV, nor Markdown, nor HTML")
    kept = ("" if line.startswith("#") else line for line in lines)
    cells = csv.reader(kept, delimiter=delimiters[0], skipinitialspace=True, strict=True)
    try:
        rows = [TableRow(cells.line_num, row) for row in cells]
    except csv.Error as error:
        raise source.refuse(f"is no CSV: {error}", cells.line_num) from None
    return TextTable(rows, "\n".join(line for line in lines if line.startswith("#")))


def _from_markdown(text: str, rule: int) -> TextTable:
    lines = _FORMATTING.sub(r"\1", text).splitlines()
    top = max(rule - 1, 0)
    end = next((n for n in range(rule + 1, len(lines)) if "|" not in lines[n]), len(lines))
    bare = {n: re.sub(r"^\s*\||(?<!\\)\|\s*$", "", lines[n]) for n in range(top, end) if n != rule}
    rows = [TableRow(n + 1, re.split(r"(?<!\\)\|", line)) for n, line in bare.items()]
    around = [line for line in [*lines[:top], *lines[end:]] if not line.lstrip().startswith("|")]
    return TextTable(rows, "\n".join(around))


def _from_html(source: ForeignFile) -> TextTable:
    text = _NO_TEXT.sub(lambda match: "\n" * match[0].count("\n"), source.text)
    for table in _INNERMOST_TABLE.finditer(text):
        caption, *rest = re.split(r"(?i)(?=<tr\b)", table[0])
        line, rows = text.count("\n", 0, table.start()) + 1 + caption.count("\n"), []
        for row in rest:
            cells = [_plain(cell) for cell in re.split(r"(?i)<t[dh]\b[^>]*>", row)[1:]]
            if len(cells) > 2 and _SPANNING.search(row):
                raise source.refuse("has a cell over several rows or columns; write each by itself", line)
            rows.append(TableRow(line, cells))
            line += row.count("\n")
        if sum(len(row.cells) > 1 for row in rows) > 1:
            outside = re.sub(r"(?is)<table\b.*</table\s*>", " ", text)
            return TextTable(rows, "\n".join((_plain(outside), _plain(caption))))
    raise source.refuse("has no whole table with rows and columns")


def _plain(markup: str) -> str:
    return unescape(re.sub(r"<[^>]*>", " ", markup))
