"""Cut and damaged files of every kind: read, or refused with one message that names the file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from paceline.extras.importers import IMPORTERS
from paceline.extras.importers.readings import ForeignFile
from paceline.sim.errors import InputError
from paceline.sim.foreign import KINDS, decode, foreign_kind
from tests.paceline.extras.importers.maps.samples import ANSWERS
from tests.support.foreign_files import SAMPLES


def damaged(text: str) -> Iterator[str]:
    """The text cut at many places, with other bytes, without lines, with values of other types."""
    draw = random.Random(0)
    content = text.encode()
    places = range(0, len(content), max(1, len(content) // 60))
    yield from (decode(content[:place]) for place in places)
    for place in places:
        junk = bytes([draw.randrange(256) for _ in range(3)])
        yield decode(content[:place] + junk + content[place + 3 :])
    lines = text.splitlines(keepends=True)
    yield from ("".join(lines[:number] + lines[number + 1 :]) for number in range(min(len(lines), 60)))
    for other in ("null", "-1", "1e999", "nan", '"x"', "[]", "{}", "9" * 400, ""):
        for match in list(re.finditer(r"\d+(\.\d+)?", text))[:60]:
            yield text[: match.start()] + other + text[match.end() :]


def test_every_kind_has_a_sample_that_is_known_and_read() -> None:
    assert set(SAMPLES) == set(KINDS) == set(IMPORTERS)
    for kind, text in SAMPLES.items():
        assert foreign_kind(text) == kind
        assert IMPORTERS[kind](ForeignFile(f"{kind}.txt", text, answers=ANSWERS)).notes


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "nccl-tests")) for kind in SAMPLES]
)
def test_damage_is_refused_in_one_line(kind: str) -> None:
    refused = set()
    for text in damaged(SAMPLES[kind]):
        try:
            IMPORTERS[kind](ForeignFile("file.txt", text, answers=ANSWERS))
        except InputError as error:
            message = str(error)
            assert re.match(r"file\.txt(:\d+)?: ", message)
            assert "\n" not in message
            assert len(message) < 400
            refused.add(text)
    assert len(refused) >= 15


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("region-matrix", "eu,80,", "eu,\u0663,"),
        ("ping", "time=40.3", "time=\u0664\u0660.\u0663"),
        ("torch-trace", '"dur": 300', '"dur": -5'),
        ("horovod", '"ts": 190', '"ts": true'),
    ],
)
def test_what_only_looks_like_a_number_is_refused(kind: str, old: str, new: str) -> None:
    assert old in SAMPLES[kind]
    with pytest.raises(InputError, match=r"^file\.txt"):
        IMPORTERS[kind](ForeignFile("file.txt", SAMPLES[kind].replace(old, new, 1), answers=ANSWERS))
