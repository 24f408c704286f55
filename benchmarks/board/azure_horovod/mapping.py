"""Which number of a run answers a row: milliseconds of a step of Horovod's, as in ``threads``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.threads import mapping as threads

TITLE: Final = "ResNets by Horovod on Azure's V100, P100 and P40, four a host, over TCP"
UNIT: Final = "ms"
BLIND: Final = "18 of the 39 rows; the others were, by the cards' rate, and failed, its page says how"
GRADES: Final = {"measured": "one connection's rate by six rows of two hosts, and the speed of a whole host"}
FITTED: Final = {"rate of a TCP connection between Azure's hosts": "4.8 Gbit/s, on six rows"}

_CONNECTION: Final = "4.8 Gbit/s"
"""With the least squares of relative errors on the rows of two hosts with V100 or P100."""
_MODELS: Final = {"resnet-50-v2": "resnet-50", "resnet-101-v2": "resnet-101"}
"""Version 2 has the layers of version 1 in another order."""


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a row."""
    model = _MODELS.get(row["model"], row["model"])
    return threads.predict({**row, "model": model, "card": _CONNECTION})
