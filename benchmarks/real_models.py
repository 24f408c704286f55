"""Real models of 0.1, 1 and 10 million parameters: processor time beside a plain loop, and memory.

    python -m benchmarks.real_models [--write]

A language model trains for ten steps of 16 workers (8 of the largest), with two batches of four sequences to
a gradient, all-reduce, AdamW and clipping: once by hand, one worker after the other, and once by ``simulate``
on both drivers, from start to scores. Each is a process of its own with one thread; its imports count.
``--write`` renews the table of ``docs/how-to/own-model.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from docs.make.page import renewed
from paceline.sim.config.files import write_atomically

PAGE: Final = Path("docs/how-to/own-model.md")
MARK: Final = "<!-- What follows is made by: python -m benchmarks.real_models --write -->\n"
STEPS, BATCH, PARTS, LENGTH, LETTERS, HEADS = 10, 4, 2, 64, 64, 4
MODELS: Final = {"0.1 million": (48, 3, 16), "1 million": (128, 5, 16), "10 million": (384, 5, 8)}
"""Width, layers, and workers."""
ENGINES: Final = ("by hand", "lockstep", "event")


class Layer(nn.Module):
    """Causal attention and a perceptron, each beside what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Values [batch, length, width] after this layer."""
        batch, length, width = x.shape
        parts = self.parts(self.first(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).reshape(batch, length, width))
        deeper: Tensor = x + self.perceptron(self.second(x))
        return deeper


class Language(nn.Module):
    """Letters in, scores of the next letter out."""

    def __init__(self, width: int, layers: int, symbols: int = LETTERS) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(symbols, width), nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.scores = nn.Linear(width, symbols)

    def forward(self, letters: Tensor) -> Tensor:
        """Scores [batch, length, letters] of the next letter."""
        scores: Tensor = self.scores(self.layers(self.letters(letters) + self.places.weight))
        return scores


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next letters."""
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def build(width: int = 128, layers: int = 5) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], Any]:
    """The task: model, loss, and 4,000 sequences in which each letter follows from the one before."""
    starts, rises = torch.arange(4000).unsqueeze(1), torch.arange(4000).unsqueeze(1) % 7 + 1
    letters = (starts + rises * torch.arange(LENGTH + 1)) % LETTERS
    pairs = letters[:, :-1].contiguous(), letters[:, 1:].contiguous()
    split = {"train": tuple(each[:3600] for each in pairs), "test": tuple(each[3600:] for each in pairs)}
    return Language(width, layers), loss, split


def by_hand(width: int, layers: int, workers: int) -> None:
    """Ten steps in a plain loop, one worker after the other."""
    torch.manual_seed(0)
    model, criterion, data = build(width, layers)
    inputs, targets = data["train"]
    rule = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        rule.zero_grad()
        for _ in range(workers * PARTS):
            some = torch.randint(len(inputs), (BATCH,))
            share = criterion(model(inputs[some]), targets[some]) / (workers * PARTS)
            torch.autograd.backward(share)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()


def simulated(width: int, layers: int, workers: int, engine: Any) -> None:
    """Ten steps on a clock, with scores at the beginning and the end."""
    from paceline.sim.experiments.prepare import resolve
    from paceline.sim.experiments.simulate import simulate
    from paceline.sim.scenario.schema import parse

    text = f"""
name: real-model
workload:
  task: benchmarks.real_models:build
  width: {width}
  layers: {layers}
  batch_size: {BATCH}
  accumulate: {PARTS}
  optimizer: {{adamw: {{lr: 0.001}}, clip: 1.0}}
cluster:
  workers: {workers}
  compute: {{time: 200 ms, jitter: {{lognormal: {{cv: 0.1}}}}}}
  network: {{latency: 5 ms, bandwidth: 1 Gbit/s}}
schemes: [all_reduce]
stop: {{max_iterations: {STEPS}}}
evaluate: {{every: {STEPS} steps}}
"""
    list(simulate(resolve(parse(text), torch.device("cpu")), engine=engine))


def measured(name: str, engine: str) -> dict[str, float]:
    """Processor seconds and peak GiB of a process for one model and engine."""
    command = [sys.executable, "-m", "benchmarks.real_models", "--one", name, engine]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    taken: dict[str, float] = json.loads(printed.splitlines()[-1])
    return taken


def run_one(name: str, engine: str) -> None:
    """Run here, and print what this process took."""
    torch.set_num_threads(1)
    model = MODELS[name]
    if engine == "by hand":
        by_hand(*model)
    else:
        simulated(*model, engine)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"processor_s": used.ru_utime + used.ru_stime, "peak_gib": used.ru_maxrss / 2**20}))


def table() -> str:
    """The table of all models and engines, in Markdown."""
    lines = [
        f"| model | {' | '.join(f'{each}: processor time, peak memory' for each in ENGINES)} |",
        f"| --- |{' --- |' * len(ENGINES)}",
    ]
    for name in MODELS:
        rows = [measured(name, engine) for engine in ENGINES]
        cells = [
            f"{row['processor_s']:.1f} s ({row['processor_s'] / rows[0]['processor_s']:.2f}), "
            f"{row['peak_gib']:.2f} GiB"
            for row in rows
        ]
        lines.append(f"| {name}, {MODELS[name][2]} workers | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure everything, or one of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_models")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "ENGINE"), help="run one, and say what it took")
    parser.add_argument("--write", action="store_true", help=f"renew {PAGE}")
    arguments = parser.parse_args()
    if arguments.one:
        run_one(*arguments.one)
        return
    text = table()
    if arguments.write:
        write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, text))


if __name__ == "__main__":
    main()
