"""What tests of several files share: processes that stay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.reports.figures.drawing import Picture
    from tests.support.cluster_pool import Pool, Pools

# On some processors MKL's kernels for one worker and for a batch of workers add in another order. Tests that
# compare bits are about our arithmetic: let them see the same kernels everywhere, before torch is loaded.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

# How long an example takes is a matter of the machine, and of what else it does.
settings.register_profile("untimed", parent=settings.default, deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is followed for a few cycles only: enough where its exact time is not looked at."""
    from paceline.sim.experiments.costs import bounds, step_cost, tokens

    monkeypatch.setattr(step_cost, "ENOUGH_WORK", 300)
    monkeypatch.setattr(tokens, "ENOUGH_PART_WORK", 300)
    monkeypatch.setattr(bounds, "BOUNDS_WORK", 300)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a report are made and not drawn: enough where only words of its page are looked at."""
    from paceline.reports import paper_files
    from paceline.reports.figures import drawing

    def save(picture: Picture, folder: Path) -> None:
        paper_files.write_csv(folder / f"{picture.name}.csv", picture.data)

    monkeypatch.setattr(paper_files, "_save", save)
    monkeypatch.setattr(drawing.Picture, "svg", property(lambda picture: "<svg></svg>"))


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Processes by their number, for one file; see ``tests.support.cluster_pool``."""
    from tests.support.cluster_pool import Pools

    made = Pools()
    yield made
    made.close()


@pytest.fixture
def four(pools: Pools) -> Pool:
    """Four processes that no failed run has spoilt."""
    return pools.of(4)


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """``paceline realrun --processes`` need not load torch once for every process; see ``support.warm``."""
    from paceline.realrun.launch.processes import Processes
    from tests.support import warm

    defaults = Processes.__init__.__kwdefaults__
    monkeypatch.setattr(Processes.__init__, "__kwdefaults__", {**(defaults or {}), "popen": warm.popen})
