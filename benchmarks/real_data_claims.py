"""Claims about graphs, leaders, adaptive periods and push-sum again, with a transformer on text.

It reads the King James Bible, whose books are shared out whole (``pip install 'paceline[data]'``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.claim import Claim, Paper, PaperStudy
from benchmarks.outer_claims import TOLERANCE

_KJV: Final = ("workload.text=kjv",)

_MORE: Final = (
    *_KJV,
    "cluster.workers=16",
    "schemes.8={gossip: {topology: torus, label: torus}}",
    "tune={optimizer.lr: [0.03]}",
)
"""Twice as many workers, enough for a torus, with the learning rate that all chose before."""

_GRAPHS: Final = "8 workers"
_MORE_GRAPHS: Final = "16 workers"
_LEADERS: Final = "leaders"
_PERIODS: Final = "periods"
_PUSH: Final = "push-sum"


def _about_graphs(study: str) -> Sequence[Claim]:
    """One peer a step beside the others, by the scores of the workers' own models."""
    return (
        Claim(
            f"{study}: one-peer ends where static does or better, within 1 %",
            "test_loss", (study, "one-peer"), (study, "static"), at_most=1 + TOLERANCE,
        ),
        Claim(
            f"{study}: one-peer ends where all-reduce does, within 1 %",
            "test_loss", (study, "one-peer"), (study, "all_reduce"), at_most=1 + TOLERANCE,
        ),
        *(
            Claim(
                f"{study}: one-peer ends at a lower loss than {rival}",
                "test_loss", (study, "one-peer"), (study, rival), at_most=1.0,
            )
            for rival in ("ring", "grid", "hypercube", "random matching", "half-random")
        ),
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
        Claim(
            f"{study}: and is 1.14 to 1.95 times as fast as FULLSGD",
            "time per step", (study, "FULLSGD"), (study, "ADPSGD"), at_least=1.14, at_most=1.95,
        ),
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

REAL_DATA: Final = Paper(
    (
        PaperStudy(_GRAPHS, "graphs", _KJV, front=("test_loss", "falling")),
        PaperStudy(_MORE_GRAPHS, "graphs", _MORE, front=("test_loss", "falling")),
        PaperStudy(_LEADERS, "leaders", _KJV),
        PaperStudy(_PERIODS, "periods", _KJV),
        PaperStudy(_PUSH, "push", _KJV),
    ),
    (
        *_about_graphs(_GRAPHS),
        *_about_graphs(_MORE_GRAPHS),
        *_ABOUT_LEADERS,
        *about_periods(_PERIODS, _PERIODS),
        *_ABOUT_PUSH,
    ),
)
