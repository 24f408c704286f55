"""Two reports at one place, and a place that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.reports.page import build
from paceline.sim.config.files import claim
from paceline.sim.errors import InputError
from tests.support.made_results import write_made_results


def test_a_second_report_at_the_same_place_is_refused(tmp_path: Path) -> None:
    results = write_made_results(tmp_path / "results")
    with claim(tmp_path / "r.html"), pytest.raises(InputError, match=r"r\.html is in use: another command"):
        build([results / "timed"], tmp_path / "r.html")
    build([results / "timed"], tmp_path / "r.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "results"]


def test_a_report_makes_no_folder_for_its_page(tmp_path: Path) -> None:
    results = write_made_results(tmp_path / "results")
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        build([results / "timed"], tmp_path / "nowhere" / "r.html")
    assert not (tmp_path / "nowhere").exists()
