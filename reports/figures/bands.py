"""Several repeats as one curve with a band."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

_POINTS: Final = 300
_LOW, _HIGH = 0.1, 0.9


def bands(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Median and band over the repeats of one scheme, up to where half of them have ended.

    Scores in between two evaluations are interpolated. A repeat that has ended keeps its last score. The band
    goes from the 10 % to the 90 % quantile of the repeats; of five it holds nearly all.

    Args:
        frame: columns ``seed``, ``x`` (ascending for each seed) and ``metric``.

    Returns:
        Columns ``x``, ``low``, ``median``, ``high``; empty where nothing is known.
    """
    known = frame[frame[metric].notna()]
    repeats = [mine for _, mine in known.groupby("seed", sort=True)]
    if not repeats:
        return pd.DataFrame(columns=["x", "low", "median", "high"])
    end = float(np.median([mine["x"].iloc[-1] for mine in repeats]))
    grid = np.unique(np.append(known["x"].to_numpy()[known["x"] <= end], end))
    if len(grid) > _POINTS:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, _POINTS).round().astype(int))]
    values = np.stack([np.interp(grid, mine["x"], mine[metric]) for mine in repeats])
    low, median, high = np.quantile(values, [_LOW, 0.5, _HIGH], axis=0)
    return pd.DataFrame({"x": grid, "low": low, "median": median, "high": high})
