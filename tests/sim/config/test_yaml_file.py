import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config import yaml_file
from paceline.sim.config.yaml_file import SourceLine, read_bytes
from paceline.sim.errors import InputError


def test_values_follow_yaml_1_2_and_places_are_lines() -> None:
    found = yaml_file.parse(
        "on: yes\na:\n  - 1e-3\n  - [no, ~, 0x1F, 0o17, 010, 12:30]\nb: {c: '5', d: -.5}\n", "f"
    )
    assert found.value == {
        "on": "yes",
        "a": (0.001, ("no", None, 31, 15, 10, "12:30")),
        "b": {"c": "5", "d": -0.5},
    }
    assert found.place(("on",)) == SourceLine(1, "f")
    assert found.place(("a",)) == SourceLine(2, "f")
    assert found.place(("a", 0)) == SourceLine(3, "f")
    assert found.place(("a", 1, 5)) == SourceLine(4, "f")
    assert found.place(("b", "d")) == SourceLine(5, "f")
    assert found.place(("b", "missing", "key")) == SourceLine(5, "f")
    assert str(found.place(("missing",))) == "f:1"


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "a: 1\nb: 2\na: 3": "f:3: a: given twice; it stands on line 1 too",
    "x: {a: 1, a: 2}": "f:1: x.a: given twice; it stands on line 1 too",
    "x:\n  a: !!python/object/apply:os.system ['true']": (
        "f:2: x.a: the tag '!!python/object/apply:os.system' is not allowed; write plain values"
    ),
    "a: !mine 5": "f:1: a: the tag '!mine' is not allowed; write plain values",
    "a: !!str 5 ms": "f:1: a: the tag '!!str' is not allowed; write plain values",
    "a: ! 5 ms": "f:1: a: the tag '!' is not allowed; write plain values",
    "a: !!seq [5]": "f:1: a: the tag '!!seq' is not allowed; write plain values",
    "a: !!map {b: 5}": "f:1: a: the tag '!!map' is not allowed; write plain values",
    "!!str a: 5": "f:1: the tag '!!str' is not allowed; write plain values",
    "a: &x !!str b\nc: *x": "f:1: a: the tag '!!str' is not allowed; write plain values",
    "a: !!int '5'": "f:1: a: the tag '!!int' is not allowed; write plain values",
    "x: &a [*a]": "f: the values are nested too deeply",
    "[" * 5000: "f: the values are nested too deeply",
    LAUGHS: "f:1: more than 100000 values; aliases may unfold without end",
    "a: [1\nb: 2": "f:2: not valid YAML: expected ',' or ']', but got ':' (column 2)",
    "a: b: c": "f:1: not valid YAML: mapping values are not allowed here (column 5)",
    "a:\n\tb: 1": "f:2: not valid YAML: found character '\\t' that cannot start any token (column 1)",
    "a: *x": "f:1: not valid YAML: found undefined alias 'x' (column 4)",
    "a: 1\n--- \nb: 1": (
        "f:2: not valid YAML: expected a single document in the stream, but found another document (column 1)"
    ),
    "a: 1\nb: \x01": "f:2: not valid YAML: a control character stands in the text",
    "1: 2": "f:1: a key must be text, not '1'; put it in quotes",
    "a: {true: 2}": "f:1: a: a key must be text, not 'true'; put it in quotes",
    "? [a]\n: 2": "f:1: a key must be text, not a list or mapping; put it in quotes",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        yaml_file.parse(text, "f")
    assert str(caught.value) == message


def test_aliases_within_reason_are_fine() -> None:
    found = yaml_file.parse("a: &a {b: 1}\nc: *a", "f")
    assert found.value == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_number_with_thousands_of_digits_is_text() -> None:
    assert yaml_file.parse("9" * 10_000, "f").value == "9" * 10_000


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12),
    st.sampled_from(
        ["on", "yes", "1e5", "0x1", "12:30", "~", "", "010", "1_0", "2024-01-01", "=", "<<", "*a", "!t"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=6), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_with_tuples(entry) for entry in value)
    return {key: _with_tuples(entry) for key, entry in value.items()} if isinstance(value, dict) else value


@settings(max_examples=40)
@given(VALUES)
def test_what_is_written_reads_the_same_here_and_in_yaml_1_1(value: Any) -> None:
    text = yaml_file.write(value)
    assert yaml_file.parse(text, "f").value == _with_tuples(value)
    assert yaml.safe_load(text) == value


@settings(max_examples=40)
@given(VALUES, st.booleans())
def test_json_with_tabs_and_with_every_letter_escaped_reads_the_same(value: Any, escaped: bool) -> None:
    text = json.dumps(value, indent="\t", ensure_ascii=escaped)
    assert yaml_file.parse(text, "f").value == _with_tuples(value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def said(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            yaml_file.read_text(path)
        return str(caught.value)

    (tmp_path / "mine.yaml").write_text("a: 1")
    assert (
        said(tmp_path / "mime.yaml")
        == f"{tmp_path}/mime.yaml: there is no such file; did you mean 'mine.yaml'?"
    )
    assert said(tmp_path) == f"{tmp_path}: is a directory, not a file; did you mean 'mine.yaml'?"
    assert said(tmp_path / "no" / "x.yaml") == f"{tmp_path}/no/x.yaml: there is no such file"
    assert said(tmp_path / "mine.yaml" / "x") == f"{tmp_path}/mine.yaml/x: cannot be read: Not a directory"
    (tmp_path / "latin").write_bytes("a: 1\nb: é".encode("latin-1"))
    assert said(tmp_path / "latin") == f"{tmp_path}/latin:2: is not UTF-8 text (byte 8)"
    (tmp_path / "large").write_bytes(b"#" * (yaml_file.MAX_BYTES + 1))
    assert said(tmp_path / "large") == f"{tmp_path}/large: is larger than 1 MiB, which is too much"


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)  # root, who may run the tests, is never refused
    with pytest.raises(InputError, match=r"x.yaml: may not be read \(permission denied\)"):
        yaml_file.read_text(tmp_path / "x.yaml")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa: 1")
    assert yaml_file.read_text(tmp_path / "x") == "a: 1"


def test_reading_takes_as_much_memory_as_there_is_to_read(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"abc")
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / "small", 4 * 2**30) == b"abc"
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    (tmp_path / "long").write_bytes(bytes(3 * 2**20))
    assert len(read_bytes(tmp_path / "long", 3 * 2**20)) == 3 * 2**20
    with pytest.raises(InputError, match="larger than 2 MiB"):
        read_bytes(tmp_path / "long", 2 * 2**20)
