"""Tables for the terminal: a summary, a prediction beside its measurement, and ``paceline throughput``.

The report page formats its cells by these functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.sim.config.units import format_bytes, format_rate, format_seconds
from paceline.sim.records.comparison import Comparison, MeanRow, off_pct
from paceline.sim.records.intervals import DRAWN_RUNS
from paceline.sim.records.money.cost import format_money
from paceline.sim.records.run import BRACKET, Source
from paceline.sim.records.summary import SchemeSummary, Summary, is_by_step, unevenness, verdict_of
from paceline.sim.records.verdict import format_factor

from . import assumptions, words
from .card import card, render_card

AMOUNTS: Final = {False: ("steps to target", "sent to target"), True: ("wall clock", "steps", "sent")}
"""Columns beside the deciding time and the cost: to the target; beside a time per step, of whole runs."""


_METRICS: Final = {
    "time_to_target_s": "time to target",
    "wall_clock_s": "wall clock",
    "iteration_time_s": "one step",
}
"""Names of the compared metrics in the comparison's table."""


def brackets(summary: Summary, keep: str | None) -> list[str]:
    """Sentences about times to the target of unusual uncertainty, for each scheme and source.

    ``keep`` is the scenario's ``evaluate.keep``: where all models are kept, times are exact to a step.
    """
    ends: dict[tuple[str, Source], list[tuple[float, float]]] = {}
    for run in summary["runs"] if keep not in (None, "all") else ():
        low_s, high_s = run.get("bracket_s", (0.0, 0.0))
        if high_s - low_s > BRACKET * high_s:
            ends.setdefault((run["label"], run["source"]), []).append((low_s, high_s))
    widest = {of: min(each, key=lambda ends: ends[0] / ends[1]) for of, each in ends.items()}
    between = {of: " and ".join(map(words.duration, each)) for of, each in widest.items()}
    return [
        f"{label}, {source}: the target was met between {both}; models are kept {keep}."
        for (label, source), both in between.items()
    ]


def render_summary(summary: Summary, why: bool = True) -> RenderableType:
    """One line per scheme (and source, if there are two), best first, and the card.

    Medians over repeats, with their 95 % interval for the deciding time; the shares are of all repeats, and
    so are wall clock, steps and sent where there is no target. ``why``: all else that is known, in sentences.
    """
    sources = list(dict.fromkeys(row["source"] for row in summary["summary"]))
    by_step = is_by_step(summary)
    table = plain_table(gap=1)
    digits = max((len(str(row["runs"])) for row in summary["summary"]), default=1)  # twice in the status
    table.add_column("scheme", overflow="fold", min_width=17 - 2 * digits)
    if len(sources) > 1:
        table.add_column("source", no_wrap=True)
    beside, own = amount_names(summary["summary"], by_step), len(AMOUNTS[by_step])
    names = ["\n".join(name.rsplit(" ", 1)) for name in (decides(by_step), "vs best", *beside[:own])]
    names[-1] += "".join(f"\nand {each.removesuffix(' to target')}" for each in beside[own:])
    for name in (*names, "compute /\ncomm. / wait"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", min_width=11)
    for source in sources:
        mine = words.ranked(summary, source)
        unit = column_unit(mine, by_step)
        settled = verdict_of(summary, source)["settled"]
        for row in mine:
            label, *middle, ending = cells(summary, row, unit)
            middle[own + 1 :] = ["\n".join(middle[own + 1 :])]  # the cost stands under what was sent
            line = [label, *([source] if len(sources) > 1 else []), *middle, shares(row), ending]
            add_text_row(table, *line, style="bold" if settled and row is mine[0] else "")
    if not sources:
        return table
    parts: list[RenderableType] = [table, ""]
    for source in sources:
        parts.append(render_card(card(summary, source), f"{source}: " if len(sources) > 1 else ""))
    for source in sources:
        parts += map(Text, words.failures(summary, source, diverged=True) + warnings(summary, source))
    if why and (sentences := explained(summary)):
        parts += map(Text, ["", *sentences])
    return Group(*parts)


def explained(summary: Summary) -> list[str]:
    """Sentences beside the card: what a step leaves out, and what the order depends on."""
    sources = list(dict.fromkeys(row["source"] for row in summary["summary"]))
    sentences = beside_steps(summary["summary"]) if is_by_step(summary) else []
    for source in sources:
        of_source = f"{source}: " if len(sources) > 1 else ""
        beside = [*words.beside_verdict(summary, source), *filter(None, [words.paired(summary, source)])]
        sentences += [f"{of_source}{each}" for each in beside]
    return sentences


_SAME_SHARES: Final = 1.05
"""Ratio of the fastest worker's steps to the slowest's below which they need no mention."""
_SHOWN_ERROR: Final = 1e-4
"""Relative standard error of a step from which it is."""


def beside_steps(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes under times per step: unequal numbers of steps, encoding, and late contributions left out."""
    sentences, left_out, encoded = [], dict[str, list[str]](), dict[str, list[str]]()
    for row in rows:
        if phrase := row.get("encodes"):
            encoded.setdefault(phrase, []).append(row["label"])
        for phrase in row.get("leaves_out", []):
            left_out.setdefault(phrase, []).append(row["label"])
        shares = [share for share in row.get("step_shares", []) if share is not None]
        if unevenness(shares) < _SAME_SHARES:
            continue
        apart = [each for each in row["average_s"] if each is not None]
        span = (
            f"; a worker's averages are {words.duration(min(apart))} to {words.duration(max(apart))} apart"
            if apart
            else ""
        )
        sentences.append(
            f"{row['label']}: the fastest worker does {100 * max(shares):.2g} % of all steps, the slowest "
            f"{100 * min(shares):.2g} %{span}."
        )
    error = max((row.get("step_error") or 0.0 for row in rows), default=0.0)
    sentences += [f"Standard error of a step: at most {100 * error:.2g} %."] if error >= _SHOWN_ERROR else []
    sentences += [f"Encoded by {words.listed(labels)}: {each}." for each, labels in encoded.items()]
    for phrase, labels in left_out.items():
        of = "" if len(labels) == len(rows) else f" of {words.listed(labels)}"
        sentences.append(f"Left out of a step{of}: {phrase}.")
    return sentences


def warnings(summary: Summary, source: Source) -> list[str]:
    """The cost of faults, and messages of completed runs, a sentence for each scheme."""
    runs = {row["label"]: row["runs"] for row in words.ranked(summary, source)}
    counts: dict[tuple[str, str], int] = Counter(
        (run["label"], run["message"])
        for run in summary["runs"]
        if run["source"] == source and run["status"] == "completed" and run.get("message")
    )
    return words.faults(summary, source) + [
        f"{label}{f' in {times} of {runs[label]} repeats' if runs[label] > 1 else ''}: {message}."
        for (label, message), times in counts.items()
    ]


def add_text_row(table: Table, *cells: str, style: str = "") -> None:
    """Append a row of plain text: rich would take ``[/]`` in a ``str`` for markup."""
    table.add_row(*(Text(cell, style=style) for cell in cells))


def plain_table(gap: int = 2) -> Table:
    """An empty table without lines; ``gap``: blanks between columns."""
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))


def schemes_table(*numbers: str) -> Table:
    """A column of labels and columns of numbers, without rows."""
    table = plain_table()
    table.add_column("scheme", overflow="fold", min_width=14)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def cells(summary: Summary, row: SchemeSummary, unit: tuple[str, float] | None = None) -> list[str]:
    """A scheme's line: its label, deciding time, factor, ``AMOUNTS``, and outcome of repeats."""
    ratio = row["ratio_to_best"]["median"]
    return [
        row["label"],
        "\n".join(part for part in deciding_time(is_by_step(summary), row, unit) if part),
        format_factor(ratio) if ratio is not None else "-",
        *amounts(row, is_by_step(summary)),
        status(summary, row),
    ]


def decides(by_step: bool) -> str:
    """The name of the deciding time."""
    return "time per step" if by_step else "time to target"


def amount_names(rows: Sequence[SchemeSummary], by_step: bool) -> list[str]:
    """The names of ``amounts``."""
    priced = any("cost" in row for row in rows)
    return [*AMOUNTS[by_step], *(["cost of a step" if by_step else "cost to target"] if priced else [])]


def amounts(row: SchemeSummary, by_step: bool) -> tuple[str, ...]:
    """Amounts beside the time: medians until the target was met (``>``: bounds), or means of whole runs."""
    spent = (words.cost(row),) if "cost" in row else ()
    if by_step:
        wall, sent = words.duration(row["wall_clock_s"]), words.size(row["bytes_sent"])
        return wall, f"{row['iterations']:,.0f}", sent, *spent
    least = "" if row["time_to_target_s"]["median"] is not None else "> "
    steps, sent_bytes = (
        (row["at_least_steps"], row["at_least_bytes"])
        if least
        else (row["steps_to_target"], row["bytes_to_target"])
    )
    return (
        "-" if steps is None else f"{least}{steps:,.0f}",
        "-" if sent_bytes is None else f"{least}{words.size(sent_bytes)}",
        *spent,
    )


def shares(row: SchemeSummary) -> str:
    """Compute, communicate and wait in per cent of the wall clock, without an idle end."""
    return (
        " / ".join(words.percent(part).removesuffix(" %") for part in words.spent(row, 1.0).values()) + " %"
    )


def column_unit(rows: Sequence[SchemeSummary], by_step: bool = False) -> tuple[str, float]:
    """The unit for a column of times to target (or their bounds), or of times per step."""
    return words.time_unit(
        row["step_s"]["median"] or 0.0 if by_step else words.run_s(row, by_step=False) for row in rows
    )


def deciding_time(
    by_step: bool, row: SchemeSummary, unit: tuple[str, float] | None = None
) -> tuple[str, str]:
    """The deciding time and its interval ('' for none): the time to the target, else that of a step.

    ``> bound`` stands for a time to target that is censored.
    """
    time = words.deciding(row, by_step)
    if time["median"] is None:
        if by_step or row["at_least_s"] is None:
            return "-", ""
        return f"> {words.duration(row['at_least_s'], unit)}", ""
    text = words.duration(time["median"], unit)
    if time["low"] is None:
        return text, ""
    _, second = unit or words.time_unit([time["median"]])
    high = "∞" if time["high"] is None else words.digits(time["high"] / second)
    return text, f"{words.digits(time['low'] / second)} to {high}"


def status(summary: Summary, row: SchemeSummary) -> str:
    """Outcome of a row's repeats, such as ``reached 4/5, diverged 1/5``; without numbers for one repeat."""
    of = f"/{row['runs']}"
    whole = not row["diverged"] and not row["partial"]
    endings: list[str] = []
    if is_by_step(summary):
        endings = ["completed"] if whole else []
    elif row["runs"] > 1 and row["diverged"] < row["runs"]:
        endings = [f"reached {row['reached']}{of}"]
    elif row["runs"] == 1 and (row["reached"] or whole):
        endings = ["reached" if row["reached"] else "not reached"]
    for name, count in (("diverged", row["diverged"]), ("partial", row["partial"])):
        if count:
            endings.append(name if row["runs"] == 1 else f"{name} {count}{of}")
    return ", ".join(endings)


def render_comparison(comparison: Comparison) -> RenderableType:
    """Predicted beside measured values, whether both computed the same, and a verdict."""
    table = Table("scheme", "seed", "", "predicted", "measured", "error")
    means = [("mean", row) for row in comparison.get("means", [])]
    for seed, cell in [*((str(cell["seed"]), cell) for cell in comparison["cells"]), *means]:
        values = (f"{value:.3f} s" for value in (cell["predicted"], cell["measured"]))
        error = f"{cell['error_pct']:+z.2f} %{_chance(cell)}"
        add_text_row(table, cell["label"], seed, _METRICS[cell["metric"]], *values, error)
    lines = [f"{each['label']}, seed {each['seed']}: {each['says']}" for each in comparison["trajectories"]]
    lines += [*assumptions.assumed(comparison.get("transport")), *comparison["warnings"]]
    lines += [verdict(comparison), *words.validated(comparison)]
    return Group(table, *map(Text, lines))


def _chance(row: MeanRow) -> str:
    """Position of the measured value among simulated ones, if there are any."""
    if "simulated_s" not in row:
        return ""
    low, high = row["simulated_s"]
    side = "outside" if off_pct(row) else "inside"
    return f", {side} what {DRAWN_RUNS} runs give: {low:.3g} to {high:.3g} s"


def verdict(comparison: Comparison) -> str:
    """One line on whether the prediction is to be trusted here."""
    decision = comparison["decision"]
    if comparison["mean_abs_error_pct"] is None:
        return "There is nothing to compare."
    mean, worst = comparison["mean_abs_error_pct"], comparison["max_abs_error_pct"]
    errors = f"{mean:.2f} % off on average, {worst:.2f} % at worst"
    predicted, measured = decision["winner_predicted"], decision["winner_measured"]
    tied = ", in a tie" if decision["tie"] else ""
    if predicted is None or measured is None:
        choice = "no scheme got to the target on both sides"
    elif predicted == measured:
        choice = f"the winner, {measured}, was predicted{tied}"
    else:
        regret = "" if decision["regret_pct"] is None else f", which costs {decision['regret_pct']:z.1f} %"
        choice = f"{predicted} was predicted{tied}, {measured} won{regret}"
    return f"Predicted times are {errors}; {choice}."


def assumed_of(answer: Mapping[str, Any]) -> list[str]:
    """Sentences on what the steps of ``check`` or ``throughput`` assume."""
    known = {row["label"]: row for row in answer["schemes"] if row["problem"] is None}
    exchanges, steps_s = (
        {label: row[key] for label, row in known.items()} for key in ("exchanges", "step_s")
    )
    return assumptions.assumed(answer["transport"], exchanges, steps_s)


def render_throughput(answer: Mapping[str, Any]) -> RenderableType:
    """Tokens per second, utilisation, hours and needed bandwidths of each scheme."""
    per_worker = f" of {answer['gpus_per_worker']} GPUs" if answer["gpus_per_worker"] > 1 else ""
    head = (
        f"{answer['scenario']}: {answer['workers']} workers{per_worker}, {answer['parameters']:,} parameters,"
        f" {answer['tokens_per_step']:,} tokens a step\n{' '.join(assumed_of(answer))}"
    )
    hours = ["hours", "sent"] if answer["tokens"] is not None else []
    fails = ["goodput"] if any(row.get("goodput", 1.0) < 1.0 for row in answer["schemes"]) else []
    times = schemes_table("a step", "tokens/s", "computes", *fails, *hours)
    needs = schemes_table(*(f"{100 * share:g} %" for share in answer["utilisations"]))
    for row in answer["schemes"]:
        if row["problem"] is not None:
            add_text_row(times, row["label"], f"not known: {row['problem']}")
            continue
        needs_s = row["needed_bytes_per_s"]
        needed = ["never" if each is None else format_rate(each) if each else "any" for each in needs_s]
        cells = [f"{row['hours']:,.1f}", format_bytes(row["bytes_sent"])] if hours else []
        rate = "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
        computes = f"{100 * row['utilisation']:.1f} %"
        cells = [f"{100 * row['goodput']:.1f} %" for _ in fails] + cells
        add_text_row(times, row["label"], format_seconds(row["step_s"]), rate, computes, *cells)
        add_text_row(needs, row["label"], *needed)
    if hours:
        times.caption = f"sent: by all workers together, {answer['sent_over']}"
    needs.caption = f"bandwidth {answer['knob']} for this share of the pace without a network"
    beside = [Text(each) for each in beside_steps(answer["schemes"])]
    beside += [Text(_best_checkpoints(row)) for row in answer["schemes"] if row.get("best_checkpoints")]
    lines: list[RenderableType] = [Text(head), "", times, "", *_throughput_costs(answer), *beside, "", needs]
    if answer["tokens"] is not None:
        origin = "by the law below" if answer["tokens_by_scaling_law"] else "as asked for"
        lines += ["", Text(
            f"{answer['tokens']:.3g} tokens ({origin}), loss {answer['loss_by_scaling_law']:.3f}. "
            f"{answer['scaling_law']}"
        )]  # fmt: skip
    return Group(*lines)


def _best_checkpoints(row: Mapping[str, Any]) -> str:
    """How often to write checkpoints under a scheme, and what ten times as many and a tenth leave."""
    best = row["best_checkpoints"]
    shares = [f"{100 * best[key]:.1f} %" for key in ("goodput", "tenfold", "tenth")]
    return (
        f"{row['label']}: the best checkpoint.every is {words.duration(best['every_s'])} "
        f"({best['every_s'] / row['step_s']:,.0f} of its steps), with a goodput "
        f"of {shares[0]}; ten times as many checkpoints leave {shares[1]}, a tenth of them {shares[2]}."
    )


def _throughput_costs(answer: Mapping[str, Any]) -> list[RenderableType]:
    """What steps, hours and tokens cost under each scheme."""
    known = [row for row in answer["schemes"] if row.get("costs")]
    if not known:
        return []
    names = [name for name, amount in known[0]["costs"].items() if amount is not None]
    table = schemes_table("a step\nbilled", *(f"{name}\ncosts" for name in names))
    for row in known:
        amounts_of = (row["costs"][name] for name in names)
        costs = [format_money(each, answer["price"]["currency"]) for each in amounts_of]
        add_text_row(table, row["label"], format_bytes(row["billed_bytes_per_step"]), *costs)
    return [table, *map(Text, words.prices(answer)), ""]
