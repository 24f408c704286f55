"""The first table of a CSV file, a Markdown text or a saved page."""

from __future__ import annotations

import csv
import re
from html import unescape
from typing import Final, NamedTuple

from paceline.extras.importers.readings import ForeignFile

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
