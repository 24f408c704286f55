"""What a report leaves beside itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.reports.figures.curves import draw_curves
from paceline.reports.files import write_files
from paceline.reports.folders import read_sources
from paceline.reports.page import build
from paceline.sim.errors import InputError
from paceline.sim.records.folder import write_results
from tests.support.made_runs import made_run


def test_letters_that_the_font_does_not_have_lead_to_no_warning(tmp_path: Path) -> None:
    """pytest makes errors of warnings."""
    write_results(tmp_path / "r", "name: s\n", "s", [made_run("漢字", reached_s=1.0)])
    sources = read_sources([tmp_path / "r"])
    drawn = draw_curves(sources[0], "train_loss", "time_s")
    assert drawn is not None
    write_files(tmp_path / "files", sources, [drawn])
    assert list((tmp_path / "files" / "figures").glob("*.png"))


def test_a_pipe_is_no_report_to_be_replaced(tmp_path: Path) -> None:
    """Nobody writes to it: reading it would last for ever."""
    write_results(tmp_path / "r", "name: s\n", "s", [made_run("a", reached_s=1.0)])
    os.mkfifo(tmp_path / "page.html")
    with pytest.raises(InputError, match=r"page\.html is there already, and it is no report"):
        build([tmp_path / "r"], tmp_path / "page.html")
