"""A simulated scenario in memory: its runs as data frames, for Python and for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paceline.arguments import check_is, read_path
from paceline.sim.config.files import claim_folder, make_temporary_folder
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.sweep.summaries import summarise_each
from paceline.sim.experiments.sweep.sweep_folder import folder_names
from paceline.sim.records import folder as result_folder
from paceline.sim.records.formats import parquet
from paceline.sim.records.rows import Shares
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise_resolved
from paceline.sim.records.summary import SchemeFacts, Summary, Tuned, is_by_step, ranking
from paceline.sim.records.sweeps.content import describe_sweep, tabulate_runs
from paceline.sim.scenario.schema import Scenario, dump

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Study:
    """The result of ``paceline.simulate``.

    Attributes:
        scenario: the resolved scenario.
        runs: one per scheme and seed.
        tuning: each scheme's tuned values, where the scenario has ``tune``.
    """

    scenario: Scenario
    runs: tuple[Run, ...]
    tuning: tuple[Tuned, ...] = ()

    @cached_property
    def totals(self) -> Summary:
        """The summary, as in ``summary.json``."""
        return self._summarise(self.facts)

    @cached_property
    def _without_facts(self) -> Summary:
        """The summary without ``facts``, whose bounds take further simulation."""
        return self._summarise({})

    def _summarise(self, facts: Mapping[str, SchemeFacts]) -> Summary:
        name = self.scenario.name
        return summarise_resolved(self.scenario.model_dump(mode="json"), name, self.runs, self.tuning, facts)

    @cached_property
    def facts(self) -> dict[str, SchemeFacts]:
        """Label -> facts about a scheme, and its bounds on this cluster."""
        return describe_schemes(self.scenario)

    @property
    def winner(self) -> str | None:
        """Label of the scheme with the best paired ratio; None if no scheme got there."""
        return self._without_facts["winner"]

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per scheme, best first: medians over repeats with 95 % intervals, means of the rest."""
        rows = [_frame_row(row) for row in ranking(self._without_facts["summary"], self.winner)]
        frame = pd.DataFrame(rows).set_index("scheme")
        unknown = {
            name: "float64" for name in frame.columns if name.endswith("_s") or name == "ratio_to_best"
        }
        return frame.astype(unknown)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per evaluation: label, scheme, seed, source, step, time_s, bytes_sent and the scores."""
        return parquet.frame_of(parquet.metrics_of(self.runs))

    @cached_property
    def events(self) -> pd.DataFrame:
        """One row per recorded operation: label, seed, source and the fields of ``Event``."""
        return parquet.frame_of(parquet.operations_of(self.runs))

    def save(self, folder: str | Path, force: bool = False) -> None:
        """Write a result folder, for ``paceline report``.

        Raises ``InputError`` if ``folder`` exists (without ``force``), is in use by another command or cannot
        be written.
        """
        text = dump(self.scenario)
        name = self.scenario.name
        out = read_path("folder", folder)
        with claim_folder(out):
            result_folder.write_results(out, text, name, self.runs, force, self.tuning, facts=self.facts)

    def report(self, out: str | Path = "report.html") -> Path:
        """Write a report page of these runs to the file ``out``; return its path.

        An older report is replaced, nothing else. Raises ``InputError`` if ``out`` is no report, or cannot be
        written.
        """
        from paceline.reports import page

        written = read_path("out", out)
        with self._saved() as folder:
            page.build([folder], written)
        return written

    def plot(self, metric: str | None = None) -> Figure:
        """Draw a metric's median per scheme against the clock; None: the target's metric, else the loss.

        A notebook shows it after ``%matplotlib inline``. Raises ``InputError`` if there is no such metric.
        """
        from paceline.reports.paper_files import plot_metric

        check_is("metric", metric, (str, type(None)), "the name of a metric")
        with self._saved() as folder:
            return plot_metric(folder, metric)

    @contextmanager
    def _saved(self) -> Iterator[Path]:
        """Temporary result folder of these runs, during the block."""
        with make_temporary_folder() as parent:
            folder = Path(parent) / "results"
            self.save(folder)
            yield folder

    def __repr__(self) -> str:
        return f"Study({self.scenario.name}: {len(self.runs)} runs; {self.totals['verdict']['text']})"

    def _repr_html_(self) -> str:
        """The card and the ranking as a table, for notebooks."""
        from paceline.reports import tables
        from paceline.reports.card import card

        by_step, rows = is_by_step(self.totals), ranking(self.totals["summary"], self.winner)
        amounts = tables.amount_names(rows, by_step)
        names = ("scheme", tables.decides(by_step), "vs best", *amounts, "status")
        frame = pd.DataFrame([tables.cells(self.totals, row) for row in rows], columns=list(names))
        lines = "<br>".join(f"<b>{name}</b> {html.escape(text)}" for name, text in card(self.totals))
        return f"<p>{html.escape(self.scenario.name)}</p><p>{lines}</p>{frame.to_html(index=False)}"


@dataclass(frozen=True)
class Sweep:
    """The result of ``paceline.sweep``: a study for each setting.

    Attributes:
        settings: values of the grid's keys.
        studies: one per setting.
        ranges: key -> what its values were drawn from, if they were.
    """

    settings: tuple[Mapping[str, Any], ...]
    studies: tuple[Study, ...]
    ranges: Mapping[str, Sequence[Any]] | None = None

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per setting and scheme: the setting's values, and the columns of ``Study.summary``."""
        frames = []
        for setting, study in zip(self.settings, self.studies, strict=True):
            frame = study.summary.reset_index()
            for place, (key, value) in enumerate(setting.items()):
                frame.insert(place, key, [value] * len(frame))
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def winners(self) -> pd.DataFrame:
        """One row per setting: its values, and the winner; None if no scheme got there."""
        rows = zip(self.settings, self.studies, strict=True)
        return pd.DataFrame([{**setting, "winner": study.winner} for setting, study in rows])

    @cached_property
    def totals(self) -> dict[str, Any]:
        """The verdict of each setting and the crossovers, as in ``sweep.json``."""
        return describe_sweep(folder_names(len(self.studies)), self.settings, self._summaries, self.ranges)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per setting, scheme and seed, as in ``runs.parquet``."""
        runs = tabulate_runs(folder_names(len(self.studies)), self.settings, self._summaries)
        frame: pd.DataFrame = runs.to_pandas()
        return frame

    @cached_property
    def _summaries(self) -> list[Summary]:
        each = self.studies
        return summarise_each([x.scenario for x in each], [x.runs for x in each], [x.tuning for x in each])

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per setting, as the command prints it: values, each scheme's time, the second's factor."""
        from paceline.reports import sweep_tables as tables

        return pd.DataFrame(
            tables.sweep_cells(self.totals),
            columns=[*self.settings[0], *tables.labels_of(self.totals), *tables.lead_names(self.totals)],
        )

    def report(self, out: str | Path = "report.html") -> Path:
        """Write the page of the sweep to the file ``out``; return its path. Raises as ``Study.report``."""
        from paceline.reports import sweep_page

        written = read_path("out", out)
        sweep_page.build(self.totals, written)
        return written

    def plot(self) -> Figure:
        """Draw each scheme's time against the last key with numbers. ``InputError``: there is none."""
        from paceline.reports.sweep_page import plot_times

        return plot_times(self.totals)

    def _repr_html_(self) -> str:
        """The settings and crossovers, for notebooks; of draws, what decides."""
        from paceline.reports import sweep_tables as tables

        decides = [self.totals["draws"]["text"]] if "draws" in self.totals else []
        lines = (*decides, *tables.crossover_texts(self.totals))
        texts = "".join(f"<li>{html.escape(text)}</li>" for text in lines)
        return f"{self.table.to_html(index=False)}<ul>{texts}</ul>"

    def __repr__(self) -> str:
        return f"Sweep({len(self.studies)} settings of {', '.join(self.settings[0])})"


def _frame_row(row: Mapping[str, Any]) -> dict[str, Any]:
    time = row["time_to_target_s"]
    return {
        "scheme": row["label"],
        "time_to_target_s": time["median"],
        "time_to_target_low_s": time["low"],
        "time_to_target_high_s": time["high"],
        **{name: row[name]["median"] for name in ("step_s", "ratio_to_best")},
        **{name: row[name] for name in ("wall_clock_s", "iterations", "bytes_sent")},
        **{f"{part}_s": row["time_s"].get(part, 0.0) for part in Shares.__annotations__},
        **{name: row[name] for name in ("runs", "reached", "diverged", "partial")},
        **({"cost": row["cost"]["median"]} if "cost" in row else {}),
    }
