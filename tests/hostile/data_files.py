"""Files of data that a workload names: damaged, of another form, too large, or in contradiction."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from tests.hostile.sandbox import Case
from tests.hostile.scenarios import BY_HEART, with_value

LIBSVM: Final[Mapping[str, str | bytes]] = {
    "empty": "", "blank": "\n\n", "comment": "# nothing\n", "words": "hello world\n",
    "no-label": "1:0.5 2:0.3\n", "negative": "1 -1:1\n-1 1:2\n",
    "index-beyond-32-bits": "1 1000000000000:1\n-1 1:2\n", "wide": "1 100000000:1\n-1 1:2\n" * 5,
    "digits": "1 " + "9" * 5000 + ":1\n", "twice": "1 1:1 1:2\n-1 1:2\n",
    "nan": "1 1:nan\n-1 1:2\n" * 9, "infinite": "1 1:inf\n-1 1:2\n" * 9, "huge": "1 1:1e400\n-1 1:2\n" * 9,
    "nan-label": "nan 1:1\n-1 1:2\n" * 9, "one-class": "1 1:1\n1 1:2\n" * 9, "no-features": "1\n-1\n" * 20,
    "no-value": "1 1:\n", "no-index": "1 :1\n", "float-index": "1 1.5:1\n", "binary": bytes(range(256)),
    "latin-1": b"1 1:1\xe9\n", "nul": "1 1:1\0\n", "csv": "1,2,3\n4,5,6\n", "device": "->/dev/zero",
}  # fmt: skip
"""What stands in a file where examples in LIBSVM's format should be."""

_HEAD: Final = "layer,parameters,forward_flops\n"
LAYERS: Final[Mapping[str, str | bytes]] = {
    "empty": "", "header": _HEAD, "no-column": "layer,parameters\na,1\n", "words": _HEAD + "a,b,c\n",
    "negative": _HEAD + "a,-1,5\n", "nan": _HEAD + "a,1,nan\n", "infinite": _HEAD + "a,1,inf\n",
    "float": _HEAD + "a,1.5,5\n", "huge": _HEAD + f"a,{BY_HEART},5\n", "much": _HEAD + "a,1,1e300\n",
    "nothing": _HEAD + "a,0,0\n", "no-name": _HEAD + ",1,1\n", "ragged": _HEAD + "a,1\n",
    "more": _HEAD + "a,1,1,1\n", "many": _HEAD + "".join(f"l{k},1,1\n" for k in range(5000)),
    "binary": bytes(range(256)), "terminal": _HEAD + "\x1b[2J,1,1\n", "quote": _HEAD + '"a,1,1\n',
    "both-costs": "layer,parameters,forward_flops,forward [ms],backward [ms]\na,1,5,1,1\n",
    "device": "->/dev/zero",
}  # fmt: skip
"""What stands in a file where a model's layers should be."""

TEXTS: Final[Mapping[str, str | bytes]] = {"empty": "", "letter": "a", "few": "abcdefgh" * 4}
"""What stands in a file where text to learn should be."""

_IMAGES: Final = "m/train-images-idx3-ubyte"
_LABELS: Final = "m/train-labels-idx1-ubyte"
_TEST_IMAGES: Final = "m/t10k-images-idx3-ubyte"
_TEST_LABELS: Final = "m/t10k-labels-idx1-ubyte"
_IDX_BYTES: Final = 8
"""The type of an IDX file's numbers."""


def _idx(shape: tuple[int, ...], data: bytes, kind: int = _IDX_BYTES) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


def _bomb(mebibytes: int) -> bytes:
    """So much of nothing, packed: members, each of a mebibyte."""
    return gzip.compress(bytes(2**20), mtime=0) * mebibytes


MNIST: Final[Mapping[str, str | bytes]] = {
    _IMAGES: _idx((40, 28, 28), bytes(40 * 784)), _LABELS: _idx((40,), bytes(range(10)) * 4),
    _TEST_IMAGES: _idx((10, 28, 28), bytes(7840)), _TEST_LABELS: _idx((10,), bytes(range(10))),
}  # fmt: skip
_PACKED: Final = f"{_IMAGES}.gz"
DAMAGED: Final[Mapping[str, Mapping[str, str | bytes | None]]] = {
    "empty": {_IMAGES: b""}, "floats": {_IMAGES: _idx((40, 28, 28), bytes(40 * 784), 0x0D)},
    "short": {_IMAGES: _idx((40, 28, 28), bytes(100))},
    "overflow": {_IMAGES: _idx((2**32 - 1,) * 3, bytes(100))},
    "wraps": {_IMAGES: _idx((2**31, 2**31, 4), b"")},
    "no-pixels": {_IMAGES: _idx((40, 0, 0), b"")},
    "one-pixel": {_IMAGES: _idx((40, 1, 1), bytes(40)), _TEST_IMAGES: _idx((10, 1, 1), bytes(10))},
    "other-size": {_TEST_IMAGES: _idx((10, 14, 14), bytes(1960))}, "no-labels": {_LABELS: None},
    "fewer-labels": {_LABELS: _idx((39,), bytes(39))},
    "none": {_IMAGES: _idx((0, 28, 28), b""), _LABELS: _idx((0,), b"")},
    "no-test": {_TEST_IMAGES: _idx((0, 28, 28), b""), _TEST_LABELS: _idx((0,), b"")},
    "bomb": {_IMAGES: None, _PACKED: _bomb(600)}, "packed-cut": {_IMAGES: None, _PACKED: _bomb(8)[:1000]},
    "packed-rubbish": {_IMAGES: None, _PACKED: b"x" * 500},
    "packed-other": {_IMAGES: None, _PACKED: gzip.compress(b"hello")},
    "device": {_IMAGES: "->/dev/zero"}, "to-itself": {_IMAGES: "->train-images-idx3-ubyte"},
}  # fmt: skip
"""Files of MNIST in another form, or not there (None)."""
CIFAR: Final[Mapping[str, str | bytes]] = {
    "empty": b"", "cut": bytes(3000), "pickled": b"\x80\x04\x95" + bytes(3070) + b".."
}  # fmt: skip
"""What stands in files where CIFAR-10's records should be."""


def cases() -> list[Case]:
    """All of them: the message names the file."""
    return list(_cases())


def _case(name: str, workload: str, files: Mapping[str, str | bytes], *says: str) -> Case:
    text, _ = with_value("workload", f"{{{workload}, batch_size: 2, optimizer: {{lr: 0.1}}}}")
    return Case(f"data-{name}", ("simulate", "s.yaml", "--out", "r"), says, {"s.yaml": text, **files})


def _cases() -> Iterator[Case]:
    for name, content in LIBSVM.items():
        yield _case(f"libsvm-{name}", "task: svm, file: d.svm", {"d.svm": content}, "s.yaml:", "d.svm")
    for name, content in LAYERS.items():
        text, _ = with_value("workload", "{timing_only: true, layer_profile: p.csv}")
        files: dict[str, str | bytes] = {"s.yaml": text, "p.csv": content}
        yield Case(f"data-layers-{name}", ("check", "s.yaml"), ("s.yaml:", "p.csv"), files)
    for name, content in TEXTS.items():
        yield _case(
            f"text-{name}", "task: text-transformer, file: t.txt, context: 8", {"t.txt": content}, "s.yaml:"
        )
    for name, damage in DAMAGED.items():
        files = {path: each for path, each in {**MNIST, **damage}.items() if each is not None}
        yield _case(f"mnist-{name}", "task: mnist-cnn, folder: m", files, "s.yaml:")
    for name, records in CIFAR.items():
        names = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
        files = {f"c/{each}": records for each in names}
        yield _case(f"cifar-{name}", "task: cifar-cnn7, folder: c", files, "data_batch_1.bin")
