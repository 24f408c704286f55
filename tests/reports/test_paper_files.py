"""What a report leaves beside itself."""

from __future__ import annotations

import os
import re
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgba_array

from paceline.reports import words
from paceline.reports.figures.drawing import CSS, INK, figure, picture
from paceline.reports.figures.metric_curves import draw_curves
from paceline.reports.folders import read_sources
from paceline.reports.page import build
from paceline.reports.paper_files import (
    colour,
    finish_figure,
    recolour,
    render_latex,
    write_csv,
    write_files,
)
from paceline.sim.errors import InputError
from paceline.sim.records.folder import REPORT_FILES, write_results
from tests.support.made_results import SCENARIO, write_made_results
from tests.support.made_runs import made_run, made_scenario


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_made_results(tmp_path_factory.mktemp("results"))


def test_dollars_in_a_legend_are_no_mathematics(tmp_path: Path) -> None:
    with figure(1.0, 1.0) as drawn:
        drawn.subplots().plot([0, 1])
    legend = (("$\\frac$", INK, ()),)
    legend_picture = picture(drawn, "p", pd.DataFrame({"x": [1]}), key=legend)
    write_files(tmp_path / "files", [], [legend_picture])
    assert (tmp_path / "files" / "figures" / "p.png").is_file()


def test_a_spreadsheet_executes_no_label(tmp_path: Path) -> None:
    labels = ["=1+1", "+1", "-1", "@x", "\tx", "plain = 1", "'quoted"]
    write_results(tmp_path / "r", made_scenario("r"), "r", [made_run(label) for label in labels])
    write_files(tmp_path / "files", read_sources([tmp_path / "r"]), [])
    write_csv(tmp_path / "p.csv", pd.DataFrame({"label": labels, "=x": -1.5}))
    safe = ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "plain = 1", "'quoted"]
    assert set(pd.read_csv(tmp_path / "files" / "table.csv")["label"]) == set(safe)
    drawn_data = pd.read_csv(tmp_path / "p.csv")
    assert list(drawn_data["label"]) == safe
    assert list(drawn_data["'=x"]) == [-1.5] * len(labels)


@pytest.mark.slow
def test_tables_and_figures_beside_the_page(folders: Path, tmp_path: Path) -> None:
    files = tmp_path / "r-files"
    files.mkdir()
    (files / "table.csv").write_text("an older one, to be replaced")
    build([folders / "measured"], tmp_path / "r.html", files)
    table = pd.read_csv(files / "table.csv")
    assert list(table["label"]) == ["gossip ring", "all_reduce"]
    assert list(table["time_to_target_s_median"]) == [12.5, 31.0]
    assert "gossip ring & 12.5 &" in (files / "table.tex").read_text()
    assert "all\\_reduce & 31\\phantom{.}\\phantom{0} &" in (files / "table.tex").read_text()
    assert {path.name for path in files.iterdir()} == REPORT_FILES - {"runs.parquet"}  # a sweep's
    names = {path.stem for path in (files / "figures").iterdir()}
    assert {
        "study-1-train_loss-time_s",
        "study-1-waterfall",
        "study-1-map",
        "study-1-timeline-measured",
    } <= names
    for name in names:
        assert (files / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (files / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(files / "figures" / f"{name}.csv"))
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="holds no figures of a report"):
        write_files(tmp_path / "mine", read_sources([folders / "other"]), [])


def test_a_folder_that_holds_more_than_a_report_is_kept(folders: Path, tmp_path: Path) -> None:
    files = tmp_path / "r-files"
    files.mkdir()
    for name in ("table.csv", "notes.txt"):
        (files / name).write_text(f"my {name}")
    with pytest.raises(InputError, match=r"r-files holds notes\.txt, which is no part of a report"):
        write_files(files, read_sources([folders / "other"]), [])
    assert {path.name: path.read_text() for path in files.iterdir()} == {
        "table.csv": "my table.csv",
        "notes.txt": "my notes.txt",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["r-files"]


def test_the_table_for_papers_reads_as_the_one_of_the_page(tmp_path: Path) -> None:
    runs = [made_run("quick", reached_s=0.5), made_run("slow", reached_s=30.0)]
    write_results(tmp_path / "r", SCENARIO, "four", [*runs, made_run("late", reached_s=None, wall_s=60.0)])
    write_results(tmp_path / "none", made_scenario("none"), "none", [made_run("open", reached_s=None)])
    write_files(tmp_path / "files", read_sources([tmp_path / "r", tmp_path / "none"]), [])
    table = (tmp_path / "files" / "table.tex").read_text()
    rows = [[cell.strip() for cell in line.split("&")][1:4] for line in table.splitlines() if "&" in line]
    assert rows == [
        ["scheme", "time to target (ms)", "95 \\% from"],
        ["quick", "500", "-"],
        ["slow", "30,000", "-"],
        ["late", "$>$ 60,000", "-"],
        ["open", "-", "-"],
    ]
    write_files(tmp_path / "files", read_sources([tmp_path / "none"]), [])
    assert "reached" not in (tmp_path / "files" / "table.tex").read_text(), "of no target"


def printed(cell: str) -> str:
    """A cell of a LaTeX table as it is printed: invisible digits are blanks, stars take no room."""
    return re.sub(r"\\rlap\{.*\}", "", re.sub(r"\\phantom\{.\}", " ", cell))


SIZES = st.lists(st.tuples(st.floats(1, 999), st.sampled_from(["kB", "MB", "GB"])), min_size=2)


@given(SIZES)
def test_a_column_for_papers_has_one_unit_and_its_points_below_each_other(
    sizes: list[tuple[float, str]],
) -> None:
    marks = cycle(["", " ★"])
    cells = [f"{words.digits(value)} {unit}{next(marks)}" for value, unit in sizes]
    head, *rows = re.findall(
        r"^sent \((.*)\)|^(\d.*) \\\\$", render_latex(pd.DataFrame({"sent": cells})), re.MULTILINE
    )
    texts = [printed(cell) for _, cell in rows]
    known = [float(text.replace(",", "")) * words.UNIT_SIZES[f" {head[0]}"] for text in texts]
    # Rounded to three digits twice.
    assert known == pytest.approx([value * words.UNIT_SIZES[f" {unit}"] for value, unit in sizes], rel=0.0101)
    assert len({len(text) - text.find(".") for text in texts if "." in text}) <= 1
    assert len({len(text) - len(text.split(".")[0].rstrip()) for text in texts}) == 1


def test_stand_ins_become_colours_of_the_light_theme(folders: Path) -> None:
    study = read_sources([folders / "simulated"])[0]
    drawn = draw_curves(study, "train_loss", "time_s")
    variables = {
        "paper": "#ffffff",
        "ink": "#000000",
        "s1": "color-mix(in srgb, var(--ink), var(--paper) 50%)",
    }
    assert colour("var(--ink)", variables) == "#000000"
    assert colour("var(--s1)", variables) == "#808080"
    recolour(drawn.figure, dict.fromkeys((*CSS, *drawn.colours), "#123456"))
    left = {
        to_hex(value)
        for artist in drawn.figure.findobj()
        for name in ("get_color", "get_facecolor", "get_edgecolor")
        if hasattr(artist, name)
        for value in np.atleast_2d(to_rgba_array(getattr(artist, name)()))
    }
    assert not {each for each in left if each.startswith(("#01f0", "#02f0"))}


def test_letters_that_the_font_does_not_have_lead_to_no_warning(tmp_path: Path) -> None:
    """pytest makes errors of warnings."""
    write_results(tmp_path / "r", made_scenario("s"), "s", [made_run("漢字", reached_s=1.0)])
    sources = read_sources([tmp_path / "r"])
    drawn = draw_curves(sources[0], "train_loss", "time_s")
    assert drawn is not None
    write_files(tmp_path / "files", sources, [drawn])
    assert list((tmp_path / "files" / "figures").glob("*.png"))


def test_a_pipe_is_no_report_to_be_replaced(tmp_path: Path) -> None:
    """Nobody writes to it: reading it would last for ever."""
    write_results(tmp_path / "r", made_scenario("s"), "s", [made_run("a", reached_s=1.0)])
    os.mkfifo(tmp_path / "page.html")
    with pytest.raises(InputError, match=r"page\.html is there already, and it is no report"):
        build([tmp_path / "r"], tmp_path / "page.html")


@pytest.mark.parametrize("letters", [4, 22, 40])
def test_a_key_of_many_labels_is_whole_and_beside_the_axes(letters: int) -> None:
    text = ("gossip topology=one_peer_exponential " * 2)[: letters - 2]
    labels = tuple((f"{number:02}{text}", INK, ()) for number in range(18))
    with figure(4.6, 3.0) as drawn:
        axes = drawn.subplots()
        axes.set_ylabel("time to target (s), log scale")
        made = finish_figure(picture(drawn, "times", pd.DataFrame(), key=labels))
    made.draw_without_rendering()
    (legend,) = made.legends
    key, whole = legend.get_window_extent(), made.bbox
    assert key.x1 <= whole.x1
    assert key.y0 >= axes.bbox.y1
    assert key.y0 >= axes.yaxis.label.get_window_extent().y1
    assert axes.bbox.height >= 1.5 * made.dpi
