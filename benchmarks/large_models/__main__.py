"""Models too large to be trained here: their layers, and published tables beside what follows from ours.

    python -m benchmarks.large_models [--out docs/papers/large-models.md]

Nothing is measured: the page has the same figures on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from paceline.sim.config.files import write_atomically
from paceline.sim.workloads.layers.presets import PRESETS

from . import das, elsewhere, iterations, low_communication, seldom_averaging

PAGE: Final = Path(__file__).parents[2] / "docs" / "papers" / "large-models.md"


def _models() -> Iterator[str]:
    yield "| model | layers | parameters | forward, per example | inputs |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for name, build in PRESETS.items():
        layers = build()
        parameters = sum(layer.parameters for layer in layers)
        flops = sum(layer.forward_flops for layer in layers)
        own = f"{parameters:,} | {_operations(flops)} | {layers[0].inputs:,}"
        yield f"| `{name}` | {len(layers)} | {own} |"


def _operations(flops: float) -> str:
    return f"{flops / 1e12:,.1f} Tflop" if flops >= 1e12 else f"{flops / 1e9:.4g} Gflop"


def page() -> str:
    """The page, in Markdown."""
    models = "\n".join(_models())
    return f"""\
# Large models: layers, and published tables

Made by `python -m benchmarks.large_models`; nothing is measured, so the figures are the same on every
machine. **[S]** and **[O]** were read in a source, **[M]** is from memory, **[C]** and **[D]** were derived.

![Published numbers and those from here, table by table](images/large-models.svg)

Published numbers and those from here (`python -m docs.make.pairs`): 1 is a match.

## Layers of known models

`workload: {{layer_profile: NAME}}`: from the shapes of their layers; parameters and operations are tested
against published counts (`tests/sim/workloads/layers`). An example is an image, a frame of speech, or a
sequence.

{models}

{das.sections()}
{iterations.sections()}
{low_communication.sections()}
{seldom_averaging.sections()}
{elsewhere.sections()}"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_models", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="the page to write")
    write_atomically(parser.parse_args().out, page())


if __name__ == "__main__":
    main()
