"""Writes ``docs/measurements.md`` from the figures of the parts of ``benchmarks/gpu.py``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HEAD = """\
# Measurements on a GPU

Written by `make gpu`; do not edit. What failed stands here with its error.

Machine: {machine}; {versions}; {date}; {seconds:.0f} s in all.
"""

_GRADIENTS = """
## Gradients

Gradients a second, one thread on the host, medians of interleaved blocks. *looped*: one worker after the
other; *batched*: all in one `torch.func.vmap`, with their batches chosen; *raw vmap*: without; *stacked step*
and *event driver*: whole steps of local SGD between two averagings. Bars: batched at least 10 times looped
(digits-mlp), a stacked step at least 0.85 of raw vmap.

| task | parameters | workers | batch | looped | batched | raw vmap | stacked step | event driver | \
batched / looped | stacked step / raw vmap |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""

_MEASURED = """
## `compute: measured` at batch sizes that were not measured

Median times of one gradient, by CUDA events. Bar: within 5 %.

| task | measured at | predicted at | mean absolute error | worst | at |
| --- | --- | --- | ---: | ---: | ---: |
"""

_CONTRACT = """
## The drivers' contract on NCCL

Several ranks share the machine's GPUs: a NCCL_HOSTID for each, and the socket transport.

"""

_SHARING = """
## Several gloo ranks on one GPU

"""

_SCENARIO = """
## The scenario `resnet-20`

Real gradients of ResNet-20 on the GPU, under a virtual clock, one repeat:
[the file](../scenarios/resnet-20.yaml).

"""

_ATTACH = """
## `paceline.attach` on a GPU

A user's loop on each rank, models on the shared GPU, values over NCCL (SGP's messages over gloo).

"""


@dataclass(frozen=True)
class MachineFacts:
    """What the figures are about, human-readable."""

    machine: str
    date: str
    versions: str


@dataclass(frozen=True)
class PagePart:
    """One part: its figures, or (where they are None) why there are none; and how long it took."""

    name: str
    figures: Mapping[str, Any] | None
    error: str
    seconds: float


def page(facts: MachineFacts, parts: Sequence[PagePart]) -> str:
    """The page, with every part in its section."""
    text = _HEAD.format(
        machine=facts.machine, versions=facts.versions, date=facts.date, seconds=sum(p.seconds for p in parts)
    )
    sections = (
        ("gradients ", _GRADIENTS, _gradients), ("measured ", _MEASURED, _measured),
        ("contract ", _CONTRACT, _contract), ("sharing", _SHARING, _sharing),
        ("scenario ", _SCENARIO, _scenario), ("attach", _ATTACH, _attach),
    )  # fmt: skip
    for start, head, write in sections:
        mine = [part for part in parts if part.name.startswith(start)]
        lines = [line for part in mine if part.figures is not None for line in write(part, part.figures)]
        failed = [f"- {part.name} failed: {part.error}" for part in mine if part.figures is None]
        gap = [""] if lines and failed else []
        text += head + "".join(f"{line}\n" for line in [*lines, *gap, *failed])
    return text


def _gradients(part: PagePart, figures: Mapping[str, Any]) -> Iterator[str]:
    rates, ratios = figures["rates"], figures["ratios"]
    ways = " | ".join(
        f"{rates[way]:,.0f}" for way in ("looped", "batched", "raw vmap", "stacked step", "event driver")
    )
    yield (
        f"| {part.name.partition(' ')[2]} | {figures['parameters']:,} | {figures['workers']} "
        f"| {figures['batch_size']} | {ways} | {ratios['batched / looped']:.1f} "
        f"| {ratios['stacked step / raw vmap']:.2f} |"
    )


def _measured(part: PagePart, figures: Mapping[str, Any]) -> Iterator[str]:
    errors = {size: error for size, _, _, error in figures["unseen"]}
    worst = max(errors, key=lambda size: abs(errors[size]))
    yield (
        f"| {part.name.partition(' ')[2]} | {', '.join(str(size) for size, _ in figures['measured'])} "
        f"| {', '.join(str(size) for size in errors)} | {statistics.fmean(map(abs, errors.values())):.1f} % "
        f"| {errors[worst]:+.1f} % | {worst} |"
    )


def _contract(part: PagePart, figures: Mapping[str, Any]) -> Iterator[str]:
    ranks = f"{figures['ranks']} rank" + ("s" if figures["ranks"] > 1 else "")
    if figures["refused"]:
        yield f"- {ranks}: NCCL refuses: `{' '.join(figures['refused'].split())}`"
        return
    yield f"- {ranks}: {figures['passed']} cases passed, {len(figures['failed'])} failed"
    for line in figures["failed"]:
        yield f"  - {line}"


def _sharing(part: PagePart, figures: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"- {figures['ranks']} ranks, gossip on a ring, {figures['steps']} steps in "
        f"{figures['wall_clock_s']:.2f} s: final models within {figures['difference']:.1e} of the event "
        "driver's on the same GPU (relative)"
    )


def _scenario(part: PagePart, figures: Mapping[str, Any]) -> Iterator[str]:
    rate = figures["gradients"] / figures["wall_s"]
    yield (
        f"- {figures['workers']} workers, {figures['gradients']:,.0f} gradients in {figures['wall_s']:.1f} s "
        f"({rate:,.0f} a second); alone a gradient takes {1e3 * figures['gradient_s']:.2f} ms"
    )
    yield f"- {figures['verdict']}"


def _attach(part: PagePart, figures: Mapping[str, Any]) -> Iterator[str]:
    each = ", ".join(f"{scheme} {value:.1e}" for scheme, value in figures["differences"].items())
    yield (
        f"- {figures['ranks']} ranks, {figures['steps']} steps; final models beside those over gloo on the "
        f"CPU (relative): {each}"
    )
