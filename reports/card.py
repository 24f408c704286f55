"""The answer at a glance: who is first, how sure that is, what turns it, and what it rests on.

The same four lines stand in the terminal, on the page and in notebooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from paceline.sim.records.carry.score_error import SPOKEN
from paceline.sim.records.run import Source
from paceline.sim.records.scenario_facts import CURVES, TIME_ALONE
from paceline.sim.records.summary import (
    Summary,
    chance_known,
    is_by_step,
    main_source,
    num_paired,
    verdict_of,
)
from paceline.sim.records.verdict import Verdict, format_factor

from .words import encoded_for_nothing, listed, percent, ranked

LINES: Final = ("First", "How sure", "Turned by", "Rests on")
"""Names of the lines."""


def card(summary: Summary, source: Source | None = None) -> list[tuple[str, str]]:
    """Name and text of each line, for the runs of one source (by default of the first run)."""
    wanted = source or main_source(summary)
    if wanted is None or not ranked(summary, wanted):
        return [(LINES[0], summary["verdict"]["text"])]
    known = verdict_of(summary, wanted)
    texts = known["text"], _sure(summary, wanted, known), _turned(summary, known), _rests(summary, wanted)
    return list(zip(LINES, texts, strict=True))


def render_card(lines: Sequence[tuple[str, str]], of: str = "") -> Table:
    """The lines for the terminal; ``of``: what stands before the first text."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for number, (name, text) in enumerate(lines):
        table.add_row(Text(name, style="dim"), Text(text) if number else Text(f"{of}{text}", style="bold"))
    return table


def _sure(summary: Summary, source: Source, known: Verdict) -> str:
    rows, races = ranked(summary, source), num_paired(summary, source)
    if known["first"] is None or known["second"] is None:
        parts = ["one repeat" if races == 1 else f"{races} repeats"]
    elif races >= 2:
        parts = [f"first in {rows[0]['wins']:g} of {races} repeats"]
    elif chance_known(summary, source):
        parts = ["nothing in the simulation is random"]
    else:
        parts = ["one repeat: chance is not known"]
    if "rates" in known:
        rates = known["rates"]["first"]
        parts = [f"{parts[0]}, {rates.count(known['first'])} of {len(rates)} rates"]
    if "score_error" in known and known["score_error"]["of_time"] > SPOKEN:
        parts.append(f"factor ± {percent(known['score_error']['of_ratio'])} by scores")
    if "few_rounds" in known:
        parts.append("too few rounds")
    failed = [row["label"] for row in rows if row["diverged"] or row["partial"]]
    return "; ".join([*parts, *([f"{listed(failed)} failed"] if failed else [])])


def _turned(summary: Summary, known: Verdict) -> str:
    if is_by_step(summary):
        return "how many steps each scheme needs: give a target, or curves"
    if "break_even" not in known:
        return "not known"
    even = known["break_even"]
    limit, here = even["examples"]["median"], even["here"]["median"]
    texts = []
    if limit:
        now = f" (here {format_factor(here)})" if here else ""
        texts.append(
            f"{known['first']} needing over {format_factor(limit)} {known['second']}'s examples{now}"
        )
    if even["equal_first"] != known["first"]:
        texts.append(f"equal examples: {even['equal_first']} is first")
    return "; ".join(texts) or "not known"


def _rests(summary: Summary, source: Source) -> str:
    transport = summary.get("transport")
    clock = "measured" if source == "measured" else "simulated"
    if transport is not None and transport["name"]:
        hosts = f", {transport['hosts']} hosts" if "hosts" in transport else ""
        clock += f" ({transport['name'].replace('nccl', 'NCCL')} transport{hosts})"
    parts = [clock]
    if summary.get("proxy") == CURVES:
        parts.append("measured curves")
    elif summary.get("proxy") == TIME_ALONE:
        parts.append("nothing trained")
    elif summary["target"] is not None:
        parts.append("a proxy" if "proxy" in summary else "no proxy")
        parts.append("rates tuned" if "tuning" in summary else "rates as given")
    rows = ranked(summary, source)
    if free := [row["label"] for row in rows if encoded_for_nothing(row["label"], rows)]:
        parts.append(f"encoding not timed ({listed(free)})")
    if transport is not None and transport["not_validated"]:
        parts.append("in part not validated")
    if transport is not None and "outside" in transport:
        parts.append(f"such inputs {percent(transport['outside']['mean_pct'] / 100)} off outside")
    return "; ".join(parts)
