"""Published losses with seldom averaging, and losses that the table predicts before they are looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from .published import PublishedRun, published_runs, ratio_at

OPENED: Final = {50: 1.7559, 200: 1.8007}
"""Period -> last loss of ft-diloco's other runs with seed 1337 (63dfa11, ``experiments/m1-h*-s1337``)."""


def study(name: str) -> list[PublishedRun]:
    """The runs of the study whose name begins so."""
    return [run for run in published_runs() if run.study.startswith(name)]


def predicted_loss(runs: Sequence[PublishedRun], period: float) -> float:
    """Final loss at ``period`` between those of ``runs``, of one study, size and number of workers."""
    known = ratio_at(runs, period)
    assert known is not None
    each_step = runs[0].each_step
    return known[0] * (math.log(each_step) if runs[0].unit == "perplexity" else each_step)


def left_out() -> Iterator[tuple[PublishedRun, float, float]]:
    """Inner periods of diloco-swarm, each with its perplexity from its neighbours and from 10 and 200."""
    runs = study("diloco-swarm")
    ends = [runs[0], runs[-1]]
    for run in runs[1:-1]:
        others = [other for other in runs if other is not run]
        yield run, math.exp(predicted_loss(others, run.period)), math.exp(predicted_loss(ends, run.period))


def _table() -> Iterator[str]:
    """A table for each study, and for each outer rate of it."""
    trained: dict[str, dict[str, list[PublishedRun]]] = {}
    for run in published_runs():
        study = f"{run.study} [{run.mark}]; begins from {run.begins}; outer rate {run.outer_rate}"
        numbers = f"{run.parameters / 1e6:,.5g} M | {run.tokens / 1e9:.3g} G"
        start = f"| {run.method} | {numbers} | {run.tokens / run.parameters:.3g} |"
        trained.setdefault(study, {}).setdefault(start, []).append(run)
    for study, rows in trained.items():
        yield f"*{study}*\n"
        yield "| method | parameters | tokens | of a parameter | workers x H: loss against each step |"
        yield "| --- | ---: | ---: | ---: | --- |"
        for start, runs in rows.items():
            losses = (
                f"{run.workers:g} x {run.period:g}: {100 * (run.loss_ratio - 1):+.2f} %" for run in runs
            )
            yield f"{start} {', '.join(losses)} |"
        yield ""


def _predictions() -> Iterator[str]:
    yield "| H | predicted loss | logged | error | error of the period before it |"
    yield "| ---: | ---: | ---: | ---: | ---: |"
    runs = study("ft-diloco")
    for period, logged in OPENED.items():
        predicted = predicted_loss(runs, period)
        before = max((run for run in runs if run.period < period), key=lambda run: run.period)
        errors = (f"{100 * (loss / logged - 1):+.2f} %" for loss in (predicted, before.score))
        yield f"| {period} | {predicted:.4f} | {logged} | {' | '.join(errors)} |"


def _left_out() -> Iterator[str]:
    yield "| H | published perplexity | from neighbours | error of loss | from 10 and 200 | error of loss |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for run, near, far in left_out():
        errors = [f"{100 * (math.log(each) / math.log(run.score) - 1):+.2f} %" for each in (near, far)]
        yield f"| {run.period:g} | {run.score:g} | {near:.2f} | {errors[0]} | {far:.2f} | {errors[1]} |"


def sections() -> str:
    """Sections of the page, in Markdown."""
    table, predictions, swarm = ("\n".join(lines()) for lines in (_table, _predictions, _left_out))
    return f"""\
## Final losses with seldom averaging

What training lost, or gained, by averaging every H steps instead of each step, as published: a perplexity
counts by its logarithm. Between two periods of a study the loss is taken as linear in log H. Tokens a
parameter and a start from a trained model decide as much as the period, so no command looks a loss up here.
*Streaming*: fragments, overlapped by a step, in 4 bits. DiLoCo's own H of 50 to 2,000 is published as
curves alone. The tokens of the scaling laws' smallest model are its 20 a parameter [C].

{table}

Studies disagree by more than periods do, as tokens, data, rates and the batch of the reference differ. So a
row speaks for its study.

**Predicted before it was looked at.** ft-diloco's runs with seed 1337 at two other periods. The predictions
are older in the history than the logged values, and these have no part in the table:

{predictions}

**Left out.** Each period of diloco-swarm from the others:

{swarm}
"""
