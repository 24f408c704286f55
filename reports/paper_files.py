"""Files for papers: the page's table as ``table.csv`` and ``table.tex``, its figures as PDF, PNG and CSV."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from paceline.sim.config.files import write_folder_atomically
from paceline.sim.errors import InputError, did_you_mean, quote
from paceline.sim.records.folder import REPORT_FILES
from paceline.sim.records.formats.parquet import write_parquet
from paceline.sim.records.intervals import FEWEST
from paceline.sim.records.run import NO_METRICS
from paceline.sim.records.summary import SchemeSummary, is_by_step
from paceline.sim.records.sweeps.content import RUNS_FILE
from paceline.sim.records.verdict import format_factor

from . import words
from .figures.drawing import CSS, Picture, own_style
from .figures.metric_curves import draw_curves
from .folders import ReportSources, read_sources
from .tables import amount_names, amounts, column_unit, decides, deciding_time

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_KEY_LINE_IN, _KEY_LETTER_IN, _KEY_ROW_IN = 0.6, 0.06, 0.18
"""Widths of a line and of a letter in a figure's key, and the height of a row, in letters of 8 points."""
STYLE_FILE: Final = Path(__file__).parent / "style.css"
_PARTS: Final = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
_MARK: Final = "table.csv"
_MIX: Final = re.compile(r"color-mix\(in srgb, (?P<one>\S+), (?P<other>\S+) (?P<percent>[\d.]+)%\)")
_NUMBER: Final = re.compile(r"(> )?(?P<value>[\d,]+(\.\d+)?)(?P<unit> ?[^\d\s★☆]*) ?(?P<mark>[★☆]?)")
_DIGIT, _POINT, _ABOVE = "\ue000", "\ue001", "\ue002 "
_LATEX: Final = str.maketrans(
    {_DIGIT: r"\phantom{0}", _POINT: r"\phantom{.}", _ABOVE[0]: "$>$", "∞": r"$\infty$"}
    | {"★": r"\rlap{$^\star$}", "☆": r"\rlap{$^?$}"}
)
"""What ``to_latex`` would escape or print as another letter."""
_FORMULA_STARTS: Final = (*"=+-@\t\r\n\uff1d\uff0b\uff0d\uff20",)
"""First letters of formulas, also in wide forms: spreadsheets may start programs and open addresses from
such cells (OWASP, "CSV Injection").
"""


def write_files(folder: Path, studies: Sequence[ReportSources], pictures: Sequence[Picture]) -> None:
    """Write the tables of studies and the figures into ``folder``; see ``write_tables``."""
    lines = [_line(study, row) for study in studies for part in study.parts for row in part.rows]
    write_tables(folder, pd.DataFrame(lines), _tex(studies), pictures)


def write_tables(
    folder: Path, table: pd.DataFrame, tex: str, pictures: Sequence[Picture], runs: pa.Table | None = None
) -> None:
    """Write everything into ``folder``, or replace an older one of ours; ``InputError``: impossible.

    ``runs``: of a sweep.
    """
    if folder.exists():
        _check_ours(folder)
    with write_folder_atomically(folder) as new:
        (new / "figures").mkdir()
        write_csv(new / _MARK, table)
        (new / "table.tex").write_text(tex, encoding="utf-8")
        if runs is not None:
            write_parquet(new / RUNS_FILE, (runs.schema, [runs]))
        with own_style({}):
            for picture in pictures:
                _save(picture, new / "figures")


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write ``table`` without its index, an apostrophe before cells that a spreadsheet would execute."""
    table.rename(columns=_defuse).map(_defuse).to_csv(path, index=False)


def _defuse(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell


def _check_ours(folder: Path) -> None:
    if not (folder / _MARK).is_file():
        raise InputError(f"{folder} is there already, and holds no figures of a report: choose another name")
    foreign = sorted({entry.name for entry in folder.iterdir()} - REPORT_FILES)
    if foreign:
        raise InputError(f"{folder} holds {foreign[0]}, which is no part of a report: choose another name")


def _line(study: ReportSources, row: SchemeSummary) -> dict[str, Any]:
    line: dict[str, Any] = {"study": study.title}
    for key, value in row.items():
        if isinstance(value, dict):
            name = key.removesuffix("_s") if key == "time_s" else key
            line |= {f"{name}_{part}": number for part, number in value.items()}
        else:
            line[key] = value
    return line


def _tex(studies: Sequence[ReportSources]) -> str:
    """The table for LaTeX, in the style of booktabs."""
    lines = []
    for study in studies:
        by_step = is_by_step(study.main.results.summary)
        rows = [row for part in study.parts for row in part.rows]
        unit = column_unit(rows, by_step)
        # Of so few repeats the interval is their range, which holds the median in less than 95 % of cases.
        ends = "range from" if {row["runs"] for row in rows} == {FEWEST} else "95 % from"
        for part in study.parts:
            for row in part.rows:
                reached, between = deciding_time(by_step, row, unit)
                low, _, high = between.partition(" to ")
                ratio = row["ratio_to_best"]["median"]
                lines.append(
                    {
                        "study": study.title,
                        "source": part.source,
                        "scheme": row["label"],
                        decides(by_step): reached,
                        ends: low or "-",
                        "to": high or "-",
                        "vs best": "-" if ratio is None else format_factor(ratio),
                        **dict(zip(amount_names([row], by_step), amounts(row, by_step), strict=True)),
                        **({} if by_step else {"reached": f"{row['reached']}/{row['runs']}"}),
                    }
                )
    table = pd.DataFrame(lines).fillna("-")
    if not len(table):
        return "% no runs\n"
    kept = [name for name in table if name not in ("study", "source") or table[name].nunique() > 1]
    compared = sum(len(part.rows) - 1 for study in studies for part in study.parts)
    return f"{render_latex(table[kept])}% {compared} comparisons with the first, each at a level of its own\n"


def render_latex(table: pd.DataFrame) -> str:
    """A table of text cells in the style of booktabs, its numbers aligned by their decimal point."""
    heads, sides, cells = zip(*(_column(str(name), list(table[name])) for name in table), strict=True)
    lines = pd.DataFrame(list(zip(*cells, strict=True)), columns=heads)
    text: str = lines.to_latex(index=False, escape=True, column_format="".join(sides))
    return text.translate(_LATEX)


def _column(name: str, cells: list[str]) -> tuple[str, str, list[str]]:
    """Head, side and cells of a column: numbers in their commonest unit, which stands in the head."""
    numbers = {cell: _NUMBER.fullmatch(cell) for cell in cells if cell not in ("-", "∞")}
    known = [number for number in numbers.values() if number]
    units = Counter(number["unit"] for number in known)
    mixed = len(units) > 1 and not units.keys() <= words.UNIT_SIZES.keys()
    if len(known) < len(numbers) or not known or mixed:
        return name, "l", cells
    unit, values = units.most_common(1)[0][0], {}
    for number in known:
        ratio = words.UNIT_SIZES.get(number["unit"], 1.0) / words.UNIT_SIZES.get(unit, 1.0)
        value = number["value"]
        values[number.string] = value if ratio == 1 else words.digits(float(value.replace(",", "")) * ratio)
    depth = max(len(value.partition(".")[2]) for value in values.values())
    for number in known:
        value = values[number.string]
        lacking = depth - len(value.partition(".")[2])
        padding = _POINT * (lacking == depth > 0) + _DIGIT * lacking
        values[number.string] = f"{_ABOVE * bool(number[1])}{value}{padding}{number['mark']}"
    head = f"{name} ({unit.strip()})" if unit.strip() not in ("", "x") else name
    return head, "r", [values.get(cell, cell) for cell in cells]


def _save(picture: Picture, folder: Path) -> None:
    figure = finish_figure(picture)
    figure.set_layout_engine("none")  # it is laid out, for all formats
    for ending, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        drawn = io.BytesIO()  # on a full disk matplotlib's own writing raises another error
        figure.savefig(drawn, format=ending, dpi=200, metadata=metadata)
        (folder / f"{picture.name}.{ending}").write_bytes(drawn.getvalue())
    write_csv(folder / f"{picture.name}.csv", picture.data)


def finish_figure(picture: Picture) -> Figure:
    """Give a picture's figure its key, and the colours of the light theme, on white; once only."""
    variables = _variables(STYLE_FILE.read_text(encoding="utf-8"))
    table = {stand_in: colour(css, variables) for stand_in, css in {**CSS, **picture.colours}.items()}
    _add_key(picture)
    recolour(picture.figure, table)
    picture.figure.set_facecolor("white")
    return picture.figure


def _add_key(picture: Picture) -> None:
    """Add the key, which is above the figure on the page, to the figure itself."""
    from matplotlib import rc_context
    from matplotlib.lines import Line2D

    if not picture.key:
        return
    lines = [
        Line2D([], [], color=colour, linewidth=2, label=label, dashes=dashes)
        for label, colour, dashes in picture.key
    ]
    width_in, height_in = picture.figure.get_size_inches()
    lengths = [len(label) for label, _, _ in picture.key]

    def needed_in(columns: int) -> float:
        rows = math.ceil(len(lengths) / columns)
        widest = [max(lengths[first : first + rows]) for first in range(0, len(lengths), rows)]
        return sum(_KEY_LINE_IN + _KEY_LETTER_IN * letters for letters in widest)

    columns = next((each for each in (3, 2) if needed_in(each) <= width_in), 1)
    picture.figure.set_size_inches(width_in, height_in + _KEY_ROW_IN * (math.ceil(len(lines) / columns) - 1))
    with rc_context({"text.parse_math": False}):  # dollars in a label are no mathematics
        picture.figure.legend(
            handles=lines, loc="outside upper left", ncols=columns, frameon=False, fontsize=8, handlelength=3
        )


def recolour(figure: Figure, table: Mapping[str, str]) -> None:
    """Replace the stand-in colours of a figure."""
    from matplotlib.text import Text

    figure.draw_without_rendering()  # ticks are made when they are drawn
    for artist in figure.findobj():
        _recolour_one(artist, table)
        if isinstance(artist, Text) and (box := artist.get_bbox_patch()) is not None:
            _recolour_one(box, table)


def _recolour_one(artist: Artist, table: Mapping[str, str]) -> None:
    from matplotlib.colors import to_hex, to_rgba, to_rgba_array

    for name in _PARTS:
        get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
        if get is None or put is None:
            continue
        try:
            known = to_rgba_array(get())
        except (ValueError, TypeError):
            continue
        new = [
            (*to_rgba(table[to_hex(one)])[:3], one[3]) if to_hex(one) in table else tuple(one)
            for one in known
        ]
        if any(tuple(a) != tuple(b) for a, b in zip(new, known, strict=True)):
            put(new if np.ndim(get()) == 2 else new[0])


def _variables(css: str) -> dict[str, str]:
    """The custom properties of a style sheet; the first definition counts, before those of other themes."""
    variables: dict[str, str] = {}
    for name, value in re.findall(r"--([\w-]+):\s*([^;]+);", css):
        variables.setdefault(name, value.strip())
    return variables


def colour(css: str, variables: Mapping[str, str]) -> str:
    """A CSS colour as ``#rrggbb``: a number, a variable, or a mix of two."""
    from matplotlib.colors import to_hex, to_rgb

    if css.startswith("var("):
        return colour(variables[css[6:-1]], variables)
    if mixed := _MIX.fullmatch(css):
        share = float(mixed["percent"]) / 100
        one, other = (to_rgb(colour(mixed[each], variables)) for each in ("one", "other"))
        red, green, blue = ((1 - share) * a + share * b for a, b in zip(one, other, strict=True))
        return to_hex((red, green, blue))
    return css


def plot_metric(folder: Path, metric: str | None) -> Figure:
    """Draw a metric of a result folder's runs against the clock, on white; None: the target's, else the loss.

    Raises ``InputError`` if the folder cannot be read, or has no such metric.
    """
    (study,) = read_sources([folder])
    metrics, target = study.main.results.metrics, study.main.results.summary["target"]
    known = [str(name) for name in metrics if name not in NO_METRICS and metrics[name].notna().any()]
    name = (target["metric"] if target else "train_loss") if metric is None else metric
    if not known:
        raise InputError(f"no loss is known of {study.title}: nothing was trained; its report has the times")
    if name not in known:
        raise InputError(f"metric: there is no {quote(name)}; {did_you_mean(name, known)}")
    return finish_figure(draw_curves(study, name, "time_s"))
