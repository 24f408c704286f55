"""``docs/validation.md`` from the rows of a campaign: three columns, never pooled, and what failed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.validation.bundles import committed, section, with_table
from benchmarks.validation.design import MEETING_SCHEMES
from paceline.sim.network.network_settings import HostTuning, QueueName
from paceline.sim.network.profile import Profile
from paceline.sim.records.comparison import kendall_tau

PageRow = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """One promise: a figure, and the most, and the least, that it may be, in per cent."""

    says: str
    value: float
    limit: float
    least: float = 0.0

    @property
    def met(self) -> bool:
        """Whether it was kept."""
        return self.least <= self.value <= self.limit

    @property
    def range(self) -> str:
        """The limits, human-readable."""
        return f"{self.least:g} to {self.limit:g} %" if self.least else f"{self.limit:g} %"


def bars(rows: Sequence[PageRow], hosts: HostTuning = "tuned", queue: QueueName = "fair") -> list[Bar]:
    """The promises, in per cent: three on stock hosts, one with first-in-first-out links, of few cells."""
    if queue == "fifo":
        return [Bar("(a) wall clock, worst cell", _worst(rows, "mechanism_pct"), 8.0)]
    if hosts == "stock":
        return [
            Bar("(a) wall clock, mean", _mean(rows, "mechanism_pct"), 5.0),
            Bar("(a) wall clock, worst cell", _worst(rows, "mechanism_pct"), 12.0),
            *_regret(rows),
        ]
    targets = [row["target_pct"] for row in rows if row["target_pct"] is not None]
    promises = [
        Bar("(a) wall clock, mean", _mean(rows, "mechanism_pct"), 1.5),
        Bar("(a) wall clock, worst cell", _worst(rows, "mechanism_pct"), 5.0),
        Bar("(a) wall clock less computation, mean", _mean(rows, "exchange_pct"), 4.0),
        Bar("(a) wall clock less computation, worst cell", _worst(rows, "exchange_pct"), 12.0),
        Bar("(b) wall clock, mean", _mean(rows, "forecast_pct"), 3.0),
    ]
    meeting = [row for row in rows if row["scheme"] in MEETING_SCHEMES]
    if meeting:
        says = f"(a) wall clock of the {len(meeting)} cells with a centre or several neighbours, mean"
        promises.append(Bar(says, _mean(meeting, "mechanism_pct"), 1.0))
    if targets:
        promises.append(Bar("(b) time to target, mean", statistics.fmean(abs(t) for t in targets), 5.0))
    promises += _regret(rows)
    means = [row["mean_inside"] for row in rows if row["mean_inside"] is not None]
    if means:
        says = f"decided by noise: {len(means)} means of real runs outside 90 % intervals of 30 simulated"
        promises.append(Bar(says, 100 * means.count(False) / len(means), 0.0))
    inside = [each for row in rows for each in row["inside"]]
    if inside:
        says = f"90 % intervals: share of {len(inside)} real runs inside"
        promises.append(Bar(says, 100 * sum(inside) / len(inside), 97.0, 80.0))
    return promises


def _regret(rows: Sequence[PageRow]) -> list[Bar]:
    regrets = [choice.regret_pct for choice in choices(rows)]
    return [Bar("regret of the choice, worst setting", max(regrets), 2.0)] if regrets else []


@dataclass(frozen=True)
class Choice:
    """One setting in which all schemes were run: would the prediction have picked the right one?

    Attributes:
        setting: human-readable.
        predicted, measured: the schemes that first scored the target, on the mean of their runs.
        regret_pct: what the predicted winner's measured time is above the measured winner's.
        tau: Kendall's, of the two rankings.
    """

    setting: str
    predicted: str
    measured: str
    regret_pct: float
    tau: float | None


def choices(rows: Sequence[PageRow]) -> list[Choice]:
    """The settings with all schemes, of which all got to the target on both sides."""
    groups: dict[str, list[PageRow]] = {}
    for row in rows:
        groups.setdefault(" ".join(str(part) for part in row["setting"]), []).append(row)
    most = max((len(group) for group in groups.values()), default=0)
    decisions = []
    for setting, group in groups.items():
        if len(group) < max(most, 2) or any(None in row["targets_s"] for row in group):
            continue
        p, m = ({row["scheme"]: row["targets_s"][side] for row in group} for side in (0, 1))
        best_p, best_m = min(p, key=lambda s: p[s]), min(m, key=lambda s: m[s])
        tau = kendall_tau([p[s] for s in p], [m[s] for s in p])
        decisions.append(Choice(setting, best_p, best_m, 100 * (m[best_p] / m[best_m] - 1), tau))
    return decisions


def met(rows: Sequence[PageRow], hosts: HostTuning = "tuned", queue: QueueName = "fair") -> bool:
    """Whether every promise was kept."""
    return all(bar.met for bar in bars(rows, hosts, queue)) and all(
        row["same_models"] != "**differ**" for row in rows
    )


_FIFO: Final = (
    "Links serve first in, first out: `python -m benchmarks.validation.campaign --queue fifo`. Unless",
    "`--cells` was given, the cells are the twelve with the largest error (a) of the wall clock on the page",
    "with fair queues, of those that are in the design.",
    "",
)


def page(
    rows: Sequence[PageRow],
    alone: PageRow,
    profile: Profile,
    spent_s: float,
    hosts: HostTuning = "tuned",
    queue: QueueName = "fair",
) -> str:
    """The page."""
    real_runs = "eight" if queue == "fifo" else {"tuned": "ten", "stock": "four"}[hosts]
    lines = [
        f"# Validation in the lab: {hosts} hosts{', first-in-first-out queues' if queue == 'fifo' else ''}",
        "",
        *(_FIFO if queue == "fifo" else ()),
        *_method(real_runs, hosts, queue),
        "",
        f"Machine: {profile.machine}; {profile.software}; {profile.hosts}; probed {profile.made}.",
        f"{len(rows)} cells, 30 steps each; this run took {spent_s / 60:.1f} minutes, kept runs apart.",
        "",
        "| promise | limit | found | |",
        "| --- | ---: | ---: | --- |",
    ]
    lines += [
        f"| {b.says} | {b.range} | {b.value:.2f} % | {'met' if b.met else '**missed**'} |"
        for b in bars(rows, hosts, queue)
    ]
    limited = {b.says for b in bars(rows, hosts, queue)}
    without = [b for b in bars(rows) if b.says not in limited] if queue == "fair" else []
    lines += ["", *_more(rows)]
    lines += [f"- Without a limit here: {b.says} {b.value:.2f} %." for b in without]
    lines += ["", "## Cells", ""]
    lines += [
        "| cell | computation | measured | (a) wall | (a) less computation "
        "| (b) wall | (b) to target | floor | same models |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        same = row["same_models"] or "need not"
        lines.append(
            f"| {row['cell']} | {row['share']:.0%} | {row['measured_s']:.2f} s "
            f"| {_pct(row['mechanism_pct'])} | {_pct(row['exchange_pct'])} | {_pct(row['forecast_pct'])} "
            f"| {_pct(row['target_pct'])} | {_pct(row['floor_pct'])} | {same} |"
        )
    lines += ["", *_unpadded(alone)]
    lines += [
        "",
        "## Where the time differs",
        "",
        "Seconds per worker in each operation, predicted / measured, same draws.",
        "",
        "| where | seconds |",
        "| --- | --- |",
    ]
    for row in rows:
        parts = ", ".join(f"{name} {p:.3f} / {m:.3f}" for name, (p, m) in row["operations"].items())
        lines.append(f"| {row['cell']} | {parts} |")
    lines += [
        "",
        "## Factors",
        "",
        "| factor | value | 95 % interval | unit | from |",
        "| --- | ---: | --- | --- | --- |",
    ]
    for name, factor in profile.factors.items():
        source = "; ".join(factor.measurements)
        interval = f"{factor.low:.4g} to {factor.high:.4g}"
        lines.append(f"| {name} | {factor.value:.4g} | {interval} | {factor.unit} | {source} |")
    text = "\n".join(lines)
    return with_table(text, section(committed())) if (hosts, queue) == ("tuned", "fair") else text + "\n"


def _method(real_runs: str, hosts: HostTuning, queue: QueueName) -> list[str]:
    """What is compared; told once, on the page of tuned hosts."""
    if (hosts, queue) != ("tuned", "fair"):
        return [
            "Written by `make validate`; do not edit. Measured and compared as on",
            "[tuned hosts](validation.md), which says what (a), (b) and (c) are, with",
            f"{real_runs} real runs where milliseconds of the machine's own decide which message is first.",
        ]
    return [
        "Written by `make validate`; do not edit. Predicted beside measured, on the lab: real processes and",
        "real TCP over an emulated network on one machine. The factors were fitted to probes at one setting",
        "(4 workers, 5 ms, 1 Gbit/s), four times on the same machine, and to nothing below. Errors",
        "are 100 (predicted / measured - 1).",
        "",
        "(a) *mechanism*: the simulator draws the same computing times as the real run. Where",
        "milliseconds of the machine's own decide which message is first (asynchronous schemes, several",
        f"neighbours behind one pipe), the means of 30 simulated and {real_runs} real runs are compared",
        "(half of these, where computing times are random). *less computation*: the error as a share of",
        "the measured wall clock without the computation on the critical path (asynchronous schemes:",
        "that of the worker that ends last).",
        "",
        "(b) *forecast*: the mean of 30 simulated runs with other draws of computing times, and of the",
        "factors within what the probes leave open, against a real run. The choice is between the",
        "schemes' mean times to the target, on both sides. *floor*: a real run against another one.",
        "",
        "(c) *unpadded*: two workers on two cores, whose computation lasts as long as it does; see below.",
    ]


def _unpadded(alone: PageRow) -> list[str]:
    lines = [
        "## (c) Unpadded computation",
        "",
        "Two workers, 2 ms, 400 Mbit/s, a model of 0.6 MB, 30 steps; one real run each. Gradients took "
        f"{1000 * alone['mean_s']:.1f} ms",
        f"(cv {alone['cv']:.2f}) while both workers computed and nobody sent; the prediction draws from that",
        "distribution. What communication takes from computation on the same cores is not in it.",
        "",
        "| scheme | measured | predicted | error |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, measured_s in alone["wall_s"].items():
        predicted_s = alone["predicted_s"][name]
        error_pct = 100 * (predicted_s / measured_s - 1)
        lines.append(f"| {name} | {measured_s:.2f} s | {predicted_s:.2f} s | {_pct(error_pct)} |")
    return lines


def _more(rows: Sequence[PageRow]) -> list[str]:
    half = [row for row in rows if row["share"] <= 0.5]
    overruns = sum(row["overruns"] for row in rows)
    lines = [
        f"- Computation is at most half of the predicted wall clock in {len(half)} of {len(rows)} cells.",
        f"- Noise floor, real against real, mean absolute: {_mean(rows, 'floor_pct'):.2f} %.",
        f"- Gradients that overran their time by more than 1 %: {overruns}.",
    ]
    lines += [
        f"- All schemes at {c.setting} (workers, ms, Mbit/s, kB, disturbance, ms of computation): "
        f"{c.predicted} predicted, {c.measured} measured first at the target; Kendall's tau "
        + ("none." if c.tau is None else f"{c.tau:.2f}.")
        for c in choices(rows)
    ]
    return lines


def _mean(rows: Sequence[PageRow], name: str) -> float:
    return statistics.fmean(abs(row[name]) for row in rows)


def _worst(rows: Sequence[PageRow], name: str) -> float:
    return max(abs(float(row[name])) for row in rows)


def _pct(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f} %"
