"""Which number of a run answers a row: seconds of a round of 32,768 examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.runs import chosen
from benchmarks.multi_cloud import AWS, AZURE, EUROPE, MODELS, Fleet, round_s

TITLE: Final = "hivemind across regions and clouds"
UNIT: Final = "s"
BLIND: Final = "no row: all had been read"
FITTED: Final = {"cost of a round beside computing and sending": "one for each model, on A-2"}

_LINKS: Final = {"": None, "europe": EUROPE, "aws": AWS, "azure": AZURE}
_NUMBERS: Final = {model.name: number for number, model in enumerate(MODELS)}


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a round."""
    fleet = Fleet("", int(row["us"]), int(row["elsewhere"]), chosen(_LINKS, row["where"]))
    return round_s(chosen(_NUMBERS, row["model"]), fleet)
