"""Writes ``docs/benchmarks.md`` and its picture from the blocks of ``benchmarks.speed.run``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pandas as pd

from benchmarks.bars import Bar, Part, at_least
from benchmarks.speed.clock import ClockFigures
from benchmarks.speed.ways import ALONE, GOSSIP, LOCAL, WAYS, Way
from benchmarks.speed.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEAD: Final = """\
# How fast Paceline is

Written by `make bench`; do not edit. {machine}; load {load}.

## Bars

What was to be reached. Rates beside raw `vmap` go by processor time, all else by the wall clock where nothing
else is written.

"""
_COMPARED: Final = """
## Worker-iterations a second, beside peers

A worker-iteration is a step of plain SGD at a real gradient of the digits MLP (64-64-10, 4,810 parameters)
on a batch of 32. One torch thread where nothing else is written, the same torch for all; nobody scores. Every
way has a process of its own, and they do blocks of {steps} steps in turns, {rounds} times after some steps
that are not timed; those whose turn it is not are stopped. Medians of the rates, and of the ratios within a
round, by the wall clock and by processor time (of all processes of a way). That is steadier on a machine that
does something else as well, and "of raw vmap" goes by it. Memory is the most that the process has had
resident (of the gloo processes: together, what they share counted once).

Our drivers also draw batches and durations (cv 0.1), and keep a clock, messages and accounts. gossipy counts
ticks; a worker that receives a model averages and steps. APPFL's `vsim` adds up compute and transfer times of
federated averaging; its many garbage collections have nothing to look through (`gc.freeze()`). A gloo process
per worker has no clock but the wall's: it really sends, and has all cores.

"""

_FACTORS: Final[Mapping[str, float]] = {
    "gossipy": 5.0, "vsim": 5.0, "gloo_gossip": 20.0, "gloo_local_sgd": 20.0,
}  # fmt: skip
"""How many times as fast the lockstep driver has to be."""
_OF_VMAP: Final[Mapping[str, float]] = {
    "lockstep_gossip": 0.85, "lockstep_local_sgd": 0.85, "event_gossip": 0.6, "event_local_sgd": 0.6,
}  # fmt: skip
"""What part of raw vmap's rate has to be reached."""
_OURS: Final = {GOSSIP: "lockstep_gossip", LOCAL: "lockstep_local_sgd", ALONE: "lockstep_local_sgd"}
"""By scheme, who is compared with others."""
_TAIL: Final = """
One bar is a test: lockstep gives what the event driver gives (`tests/sim/drivers/test_lockstep.py`, and for
every form of every scheme `test_lockstep_forms.py`). What needs a GPU is measured by `make gpu`, which writes
`docs/measurements.md`: not yet run.
"""


def _of(blocks: pd.DataFrame, work: Work, steps: int) -> pd.DataFrame:
    """The blocks of this work with so many steps."""
    same = (blocks["workers"] == work.workers) & (blocks["parameters"] == work.parameters)
    return blocks[same & (blocks["steps"] == steps)]


def _ratio(blocks: pd.DataFrame, way: str, other: str, clock: str) -> float | None:
    """Median over rounds of one rate over another, by a column; None where one of them has none."""
    rates = [blocks[blocks["way"] == name].set_index("round")[clock] for name in (way, other)]
    if any(each.empty for each in rates):
        return None
    return float((rates[0] / rates[1]).median())


def _format(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _rates(blocks: pd.DataFrame) -> str:
    lines = [
        "| scheme | by | worker-iterations/s | of raw vmap | lockstep is faster, wall clock | processor time "
        "| memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way in WAYS:
        mine = blocks[blocks["way"] == way.name]
        if mine.empty:
            continue
        lines.append(
            f"| {way.scheme} | {way.label} | {mine['rate'].median():,.0f} | "
            f"{_format(_ratio(blocks, way.name, 'raw_vmap', 'processor_rate'))} | "
            f"{_format(_ratio(blocks, _OURS[way.scheme], way.name, 'rate'))} | "
            f"{_format(_ratio(blocks, _OURS[way.scheme], way.name, 'processor_rate'))} | "
            f"{mine['gib'].max():.2f} GiB |"
        )
    return "\n".join(lines) + "\n"


def bars_of_rates(
    blocks: pd.DataFrame, works: Sequence[Work], steps: int, errors: Mapping[str, str]
) -> list[Bar]:
    """The bars that the comparison has; a way counts in the first of ``works`` in which it took part."""
    bars = []
    for way in WAYS:
        name = f"{way.label}, {way.scheme}"
        if way.name not in _OF_VMAP and way.name not in _FACTORS:
            continue
        if way.name in errors:
            bars.append(Bar(f"lockstep beside {name}", "-", f"not measured: {errors[way.name]}", met=False))
            continue
        work = next(work for work in works if not _rows(blocks, work, steps, way.name).empty)
        same = _of(blocks, work, steps)
        if way.name in _OF_VMAP:
            ratio = _ratio(same, way.name, "raw_vmap", "processor_rate") or 0.0
            bars.append(at_least(f"{name}, of raw vmap", _OF_VMAP[way.name], ratio, "times"))
        else:
            ours = _OURS[way.scheme]
            by_processor = _format(_ratio(same, ours, way.name, "processor_rate"))
            detail = f"by processor time {by_processor} times"
            by_wall = _ratio(same, ours, way.name, "rate") or 0.0
            what = f"lockstep beside {name}, {work.workers} workers"
            bars.append(at_least(what, _FACTORS[way.name], by_wall, "times", detail))
    return bars


def _rows(blocks: pd.DataFrame, work: Work, steps: int, way: str) -> pd.DataFrame:
    same = _of(blocks, work, steps)
    return same[same["way"] == way]


def _table_of_bars(bars: Iterable[Bar]) -> str:
    lines = ["| what | bar | measured | | |", "| --- | ---: | ---: | --- | --- |"]
    lines += [
        f"| {bar.what} | {bar.limit} | {bar.measured} | {'met' if bar.met else '**missed**'} | {bar.detail} |"
        for bar in bars
    ]
    return "\n".join(lines) + "\n"


def _clocks(clocks: Sequence[ClockFigures]) -> str:
    lines = [
        "| what | by | messages/s | time | simulated |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for each in clocks:
        if each.error:
            lines.append(f"| {each.work} | {each.way} | could not be run: {each.error} | | |")
            continue
        lines.append(
            f"| {each.work} | {each.way} | {each.messages / each.seconds:,.0f} | {each.seconds:.3g} s | "
            f"{each.simulated_s:.6g} s |"
        )
    return "\n".join(lines) + "\n"


def write_page(
    machine: str,
    blocks: pd.DataFrame,
    works: Sequence[Work],
    steps: int,
    errors: Mapping[str, str],
    clocks: Sequence[ClockFigures],
    parts: Mapping[str, Part],
) -> str:
    """The page.

    Args:
        machine: what it was measured on, and when.
        blocks: a row each.
        works: of which those with so many ``steps`` are the comparisons.
        steps: of these blocks.
        errors: why a way has none, by name.
        clocks: time alone.
        parts: of the benchmarks of Paceline alone, by their subjects.
    """
    compared = [_of(blocks, work, steps) for work in works]
    text = _HEAD.format(
        machine=machine, load=f"{blocks['load'].median():.1f}"
    )  # fmt: skip
    bars = bars_of_rates(blocks, works, steps, errors)
    text += _table_of_bars([*bars, *(bar for part in parts.values() for bar in part.bars)])
    text += _COMPARED.format(steps=steps, rounds=compared[0]["round"].max() + 1)
    for work, some in zip(works, compared, strict=True):
        text += f"{work.workers} workers:\n\n{_rates(some)}\n"
    for way in WAYS:
        if way.name in errors:
            text += f"\n{way.label} ({way.scheme}) could not be run: {errors[way.name]}\n"
    text += "\n## Growth with workers, parameters and steps\n\n"
    text += "The other two as above; `make bench` leaves the blocks in `out/bench/blocks.csv`.\n\n"
    text += (
        "![worker-iterations a second, and memory, by workers, parameters and steps](images/benchmarks.png)\n"
    )
    text += "\n## Time alone, beside SimGrid\n\nNo gradients. One switch, 10 ms, 8 MB/s, 4 MB, a second of "
    text += "computation; medians of rounds in turns.\n\n"
    text += _clocks(clocks)
    for subject, part in parts.items():
        if part.text:
            text += f"\n## {subject.capitalize()}\n\n{part.text}"
    text += _TAIL
    return text


def draw_growth(blocks: pd.DataFrame, ways: Sequence[Way], base: Work, steps: int) -> Figure:
    """Draw rates and memory by workers, parameters and steps, the other two as in the comparison."""
    import matplotlib.pyplot as plt
    import seaborn as sns
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    names = {way.name: f"{way.label.replace('`', '')}, {way.scheme.split(',')[0]}" for way in ways}
    data = blocks[blocks["way"].isin(names)]
    data = data.assign(by=data["way"].map(names), thousands=data["processor_rate"] / 1000)
    fixed = {"workers": base.workers, "parameters": base.parameters, "steps": steps}
    with sns.axes_style("whitegrid"):
        figure, axes = plt.subplots(
            2, 3, figsize=(10, 6), layout="constrained", sharex="col", sharey="row"
        )  # fmt: skip
    rows = (
        ("thousands", "thousand worker-iterations\nper second of a processor", (0.3, 1, 3, 10, 30)),
        ("gib", "memory at most, GiB", (0.3, 0.5, 1, 2, 3)),
    )
    for column, key in enumerate(fixed):
        others = [name for name in fixed if name != key]
        chosen = data[(data[others] == pd.Series(fixed)[others]).all(axis=1)]
        for row, (value, label, marks) in enumerate(rows):
            ax = axes[row][column]
            sns.lineplot(
                chosen, x=key, y=value, hue="by", hue_order=names.values(), style="by",
                style_order=names.values(), palette="colorblind", markers=True, dashes=False,
                estimator="median", errorbar=None, ax=ax, legend=row == 0 and column == 0,
            )  # fmt: skip
            ax.set(xscale="log", yscale="log", xlabel=key if row else "", ylabel="" if column else label)
            for axis, places in ((ax.xaxis, sorted(chosen[key].unique())), (ax.yaxis, marks)):
                axis.set_major_locator(FixedLocator(places))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    handles, labels = axes[0][0].get_legend_handles_labels()
    axes[0][0].get_legend().remove()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
