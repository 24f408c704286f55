"""Tables of a sweep: a line for each setting, and its crossovers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.text import Text

from paceline.sim.config.problems import short_keys, show_value
from paceline.sim.records.carry.break_even import FEWEST_ROUNDS
from paceline.sim.records.sweeps.draws import percent
from paceline.sim.records.verdict import Verdict, format_factor

from . import assumptions, words
from .tables import add_text_row, column_unit, decides, deciding_time, plain_table

LEAD: Final = "second takes"
"""Column of the second's factor."""
_EVEN_AT: Final = "examples of the first over the second's with which they would tie"
_EXPLAINS: Final = "Explains: part of the variance of who is first that an input explains alone"
MAX_SETTINGS_SHOWN: Final = 60
"""Most settings of a sweep in the terminal."""
_SCHEME_WIDTH: Final = 8
"""Letters of a scheme's column at least, in which long labels are broken."""


def render_sweep(answer: Mapping[str, Any]) -> RenderableType:
    """A line for each setting of a sweep: its values, each scheme's time, the second's factor; crossovers."""
    if "draws" in answer:
        return _render_draws(answer)
    rows = sweep_cells(answer)
    decided = dict.fromkeys(decides(each["by_step"]) for each in answer["settings"])
    note = f"{' or '.join(decided).capitalize()}, medians of repeats. ★ first; ☆ ahead, not settled"
    more = [f"{len(rows) - MAX_SETTINGS_SHOWN} more settings: with --out and 'report', or --json"]
    ending = [*more[: len(rows) > MAX_SETTINGS_SHOWN], f"{note}{even_at(answer)}"]
    ending += [settled_in(answer).capitalize(), *crossover_texts(answer)]
    ending += beside_crossovers(answer)
    notes = [*(Text(f"{each}.") for each in ending), Text(" ".join(assumptions.assumed_in(answer)))]
    return Group(_SweepTable(answer, rows[:MAX_SETTINGS_SHOWN]), *notes)


@dataclass(frozen=True)
class _SweepTable:
    """A line for each setting, in as many tables below each other as the schemes need in the terminal."""

    answer: Mapping[str, Any]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        keys, labels = short_keys(list(self.answer["settings"][0]["set"])), labels_of(self.answer)
        heads = [*keys, *labels, *lead_names(self.answer)]
        widths = [
            2 + max(_SCHEME_WIDTH if head in labels else len(head.split()[0]), *map(len, column))
            for head, column in zip(heads, zip(*self.rows, strict=True), strict=True)
        ]
        last = len(keys) + len(labels)
        room = options.max_width - sum(widths[: len(keys)])
        groups: list[list[int]] = [[]]
        for place in range(len(keys), len(heads)):
            if groups[-1] and sum(widths[each] for each in [*groups[-1], place]) > room:
                groups.append([])
            groups[-1].append(place)
        for group in groups:
            table = plain_table()
            for place in (*range(len(keys)), *group):
                name = Text(re.sub(r"(?<=_)| ", "\n", heads[place])) if place >= len(keys) else heads[place]
                side: JustifyMethod = "right" if len(keys) <= place < last else "left"
                table.add_column(name, justify=side, overflow="fold", min_width=widths[place] - 2)
            for cells in self.rows:
                add_text_row(table, *cells[: len(keys)], *(cells[place] for place in group))
            yield table
            yield ""


def labels_of(answer: Mapping[str, Any]) -> list[str]:
    """Labels of a sweep's schemes, in the order of the scenario."""
    return list(dict.fromkeys(row["label"] for each in answer["settings"] for row in each["summary"]))


def lead_names(answer: Mapping[str, Any]) -> list[str]:
    """Names of the last columns of ``sweep_cells``."""
    return [LEAD, "even at"] if _is_race(answer) else [LEAD]


def even_at(answer: Mapping[str, Any]) -> str:
    """About the column "even at"; "" without it."""
    return f"; even at: {_EVEN_AT}" if _is_race(answer) else ""


def _is_race(answer: Mapping[str, Any]) -> bool:
    return any("break_even" in each["verdict"] for each in answer["settings"])


def sweep_cells(answer: Mapping[str, Any]) -> list[list[str]]:
    """A row for each setting of a sweep: its values, the time of each of ``labels_of``, and ``lead_names``.

    A star marks the first, an empty one where that is not settled.
    """
    rows, of_label = [], dict[str, list[Any]]()
    for each in answer["settings"]:
        for row in each["summary"]:
            of_label.setdefault(row["label"], []).append(row)
    units = {label: column_unit(own, answer["settings"][0]["by_step"]) for label, own in of_label.items()}
    for each in answer["settings"]:
        verdict = each["verdict"]
        times = {
            row["label"]: deciding_time(each["by_step"], row, units[row["label"]])[0]
            + (f", {words.cost(row)}" if "cost" in row else "")
            for row in each["summary"]
        }
        if verdict["first"] is not None:
            times[verdict["first"]] += " ★" if each["settled"] else " ☆"
        own = [times.get(label, "-") for label in labels_of(answer)]
        lead = [_behind(verdict), _even(verdict)][: len(lead_names(answer))]
        rows.append([*map(show_value, each["set"].values()), *own, *lead])
    return rows


def _render_draws(answer: Mapping[str, Any]) -> RenderableType:
    texts, table = words_of_draws(answer), plain_table()
    for name in texts["input_names"]:
        table.add_column(name, overflow="fold")
    for cells in texts["inputs"]:
        add_text_row(table, *cells)
    ending = f"{answer['draws']['text']}.", f"{texts['shares']}.", " ".join(assumptions.assumed_in(answer))
    return Group(table, "", *map(Text, ending))


def words_of_draws(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Shares of first places, and a row for each input, the most important first; empty without draws."""
    if "draws" not in answer:
        return {}
    rows, draws = [], answer["draws"]
    for each in draws["inputs"]:
        sides = [each[side] for side in ("below", "above") if side in each]
        cells = [f"{side['first']} {percent(side['share'])}" for side in sides] or ["-", "-"]
        rows.append([each["name"], each["range"], percent(each["index"]), each["threshold"] or "-", *cells])
    shares = ", ".join(f"{each['label']} {percent(each['share'])}" for each in draws["shares"])
    return {
        "shares": f"First in {len(answer['settings'])} draws: {shares}; {settled_in(answer)}. {_EXPLAINS}",
        "input_names": ("input", "possible", "explains", "threshold", "first below", "first above"),
        "inputs": rows,
    }


def beside_crossovers(answer: Mapping[str, Any]) -> list[str]:
    """Steps between numbers of workers, settings without a fault, and doubts, as sentences without a stop."""
    sentences = words.steps_between(answer.get("steps_between", {}))
    settings = answer["settings"]
    free = Counter(
        text.removesuffix(".")
        for each in settings
        for text in words.encoded_for_nothing(each["verdict"]["first"], each["summary"])
    )
    sentences += [f"In {count} of {len(settings)} settings {text}" for text, count in free.items()]
    if short := sum("few_rounds" in each["verdict"] for each in settings):
        sentences.append(
            f"Too short to say in {short} of {len(settings)} settings: below {FEWEST_ROUNDS} rounds of "
            "averages a scheme has hardly begun, which a setting's own folder tells of each"
        )
    if calm := [each["outages"] for each in answer["settings"]].count(0):
        of = f"{calm} of {len(answer['settings'])} settings"
        sentences.append(f"No fault comes before the runs end in {of}: there no checkpoint can save work")
    return sentences


def settled_in(answer: Mapping[str, Any]) -> str:
    """In how many settings the order is settled, and in how many a single repeat cannot tell."""
    single = sum(each["verdict"]["settled"] and not each["settled"] for each in answer["settings"])
    open_ = f"; in {single} by one repeat: how much of that is chance is not known" if single else ""
    return f"settled in {sum(each['settled'] for each in answer['settings'])}{open_}"


def crossover_texts(answer: Mapping[str, Any]) -> list[str]:
    """The settled crossovers of a sweep, and the number of the others, as sentences without a full stop."""
    sure = [each["text"] for each in answer["crossovers"] if each["settled"]]
    open_ = len(answer["crossovers"]) - len(sure)
    others = f"{open_} {'other ' if sure else ''}{'change' if open_ == 1 else 'changes'} of the first"
    return [*sure, *([f"{others}: not settled"] if open_ else [])]


def _behind(verdict: Verdict) -> str:
    """Factor of the second to the first, with its interval."""
    if verdict["factor"] is None:
        return "-"
    interval = verdict["interval"] or ()  # of one number where nothing is random
    ends = " to ".join("∞" if x is None else format_factor(x)[:-1] for x in interval)
    return format_factor(verdict["factor"]) + (f" ({ends})" if len(set(interval)) > 1 else "")


def _even(verdict: Verdict) -> str:
    """Ratio of examples at which the first and the second would tie."""
    ratio = verdict["break_even"]["examples"]["median"] if "break_even" in verdict else None
    return "-" if ratio is None else format_factor(ratio)
