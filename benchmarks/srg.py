"""SRG's sampling and noise: the figures of docs/papers/stochastic-reweighted-gradient.md.

    python -m benchmarks.srg

The noise is the mean squared distance of independent chains from the optimum, over the second half of the
steps, begun there, at a constant learning rate. Sampling is timed on a table whose keys have all been
visited: a draw and a change of a weight, the median of repeats in turn.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.papers import shown
from docs.make.page import renewed
from paceline.extras.papers.tasks.svm import SvmOptions
from paceline.sim.config.files import write_atomically
from paceline.sim.devices import one_thread
from paceline.sim.records.intervals import of_median
from paceline.sim.seeds import Floats
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads import find_task
from paceline.sim.workloads.partition import Batches
from paceline.sim.workloads.sampler import Coupling, Sampler, SamplerSettings, WeightedKeys
from paceline.sim.workloads.tasks.logistic import LogisticOptions
from paceline.sim.workloads.workload import Workload

PAGE: Final = Path(__file__).parent.parent / "docs" / "papers" / "stochastic-reweighted-gradient.md"
MARK: Final = "<!-- What follows is made by: python -m benchmarks.srg -->\n"
CHAINS: Final = 64
REAL_L2: Final = 0.01
"""Weight of the penalty on the real data: chains forget where they began within half of their steps."""
NEWTON_STEPS: Final = 20
TIMED: Final = 20_000
"""Draws and changes that are timed at once."""
REPEATS: Final = 9
SIZES: Final = (1_000, 1_000_000)


def one_dimensional(curvature: Floats) -> Workload:
    """f_i = L_i (x - a_i)^2 / 2 with a_n = 1 and all other a_i = 0."""
    centres = np.zeros(len(curvature))
    centres[-1] = 1.0
    examples = torch.from_numpy(np.stack([curvature, centres], 1)).float()

    def loss(x: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0.5 * (inputs[:, 0] * (x - inputs[:, 1]).square()).mean()

    return Workload(
        "one-dimensional", torch.zeros(1), loss, examples, torch.zeros(len(examples)), None, (("x", 0, 1),),
        lambda x: {}, smoothness=examples[:, 0],
    )  # fmt: skip


def stationary_noise(
    workload: Workload, settings: dict[str, Any], optimum: torch.Tensor, lr: float, chains: int, steps: int
) -> float:
    """Mean squared distance from the optimum [d] of SGD with a sampler."""
    shards = (np.arange(len(workload.inputs)),) * chains
    smoothness = None if workload.smoothness is None else workload.smoothness.double().numpy()
    sampler = Sampler(SamplerSettings.model_validate(settings), shards, 1, 3, smoothness)
    problem = TrainingProblem(workload, Batches(shards, 1, 3), "batched", sampler)
    x, total = optimum.expand(chains, -1), 0.0
    for k in range(steps):
        x = x - lr * problem.gradients_of_all(k, x).value
        if k >= steps // 2:
            total += (x - optimum).square().sum(1).mean().item()
    return total / (steps - steps // 2)


def second_moment(norms: Floats, p: Floats) -> float:
    """Of the weighted gradient, drawn by p [n], for gradients of these norms [n]."""
    return float((norms**2 / p).sum() / len(norms) ** 2)


def noise_rows() -> list[str]:
    """A row for each problem: predicted and measured noise of SRG over that of SGD, and SRG+ over SRG."""
    rows = []
    for n, steps in ((20, 300), (100, 2000)):
        workload = one_dimensional(np.ones(n))
        norms = np.array([1 / n] * (n - 1) + [(n - 1) / n])
        p = 0.5 / n + 0.5 * norms / norms.sum()
        predicted = second_moment(norms, p) / second_moment(norms, np.full(n, 1 / n))
        rows.append(_row(f"n = {n}, equal L", workload, torch.tensor([1 / n]), predicted, 0.05, steps))
    n = 20
    curvature = np.array([n - 1.0] + [(n - 1) / (n * (n - 2))] * (n - 2) + [1 / n])
    optimum = curvature[-1] / curvature.sum()
    norms = curvature * optimum
    norms[-1] = curvature[-1] * (1 - optimum)
    q = norms / norms.sum()
    sgd = second_moment(norms, np.full(n, 1 / n))
    predicted = second_moment(norms, 0.5 / n + 0.5 * q) / sgd
    by_v = second_moment(norms, 0.5 * Coupling(curvature).v + 0.5 * q) / sgd
    workload = one_dimensional(curvature)
    rows.append(
        _row(
            f"n = {n}, L from 1/n to n - 1",
            workload,
            torch.tensor([optimum]).float(),
            predicted,
            0.02,
            600,
            by_v,
        )
    )
    return [*rows, _logistic_row(), _real_row()]


def _logistic_row() -> str:
    """100 digits, l2 = 0.1: strongly convex, so that the optimum is found by gradient descent."""
    task = find_task("logistic")
    whole = task.build(LogisticOptions(l2=0.1), 1)
    assert whole.smoothness is not None
    workload = replace(
        whole, inputs=whole.inputs[:100], targets=whole.targets[:100], smoothness=whole.smoothness[:100]
    )
    gradient = torch.func.grad(workload.loss)
    x = workload.start
    for _ in range(3000):
        x = x - 0.2 * gradient(x, workload.inputs, workload.targets)
    norms = np.array([
        gradient(x, workload.inputs[i : i + 1], workload.targets[i : i + 1]).norm().item() for i in range(100)
    ])  # fmt: skip
    q, n = norms / norms.sum(), len(norms)
    v = Coupling(whole.smoothness[:100].double().numpy()).v
    sgd = second_moment(norms, np.full(n, 1 / n))
    predicted, by_v = (second_moment(norms, 0.5 * each + 0.5 * q) / sgd for each in (1 / n, v))
    return _row("logistic regression, 100 digits", workload, x, predicted, 0.01, 500, by_v, chains=32)


def breast_cancer_logistic() -> Workload:
    """Logistic regression on scikit-learn's breast cancer data, examples of length 1, l2-regularised."""
    whole = find_task("svm").build(SvmOptions(data="breast_cancer"), 1)
    inputs = whole.inputs / whole.inputs.norm(dim=1, keepdim=True)

    def loss(x: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        fit = torch.nn.functional.softplus(-targets * (inputs @ x)).mean()
        return fit + 0.5 * REAL_L2 * x.square().sum()

    return replace(whole, inputs=inputs, loss=loss, smoothness=torch.full((len(inputs),), 0.25 + REAL_L2))


def _real_row() -> str:
    """All training examples; the optimum by Newton's method.

    At a small learning rate the mean squared distance of SGD is proportional to the trace of H^-1 C, with H
    the Hessian at the optimum and C the covariance of the estimate: the second moment of the gradients in the
    norm of H^-1, drawn by their own norms.
    """
    workload = breast_cancer_logistic()
    inputs, targets = workload.inputs.double(), workload.targets.double()
    gradient = torch.func.grad(workload.loss)
    hessian = torch.func.jacrev(gradient)
    x = workload.start.double()
    for _ in range(NEWTON_STEPS):
        x = x - torch.linalg.solve(hessian(x, inputs, targets), gradient(x, inputs, targets))
    each = torch.stack([gradient(x, a[None], y[None]) for a, y in zip(inputs, targets, strict=True)])
    norms = each.norm(dim=1).numpy()
    weighed = (each * torch.linalg.solve(hessian(x, inputs, targets), each.T).T).sum(1).sqrt().numpy()
    n = len(norms)
    p = 0.5 / n + 0.5 * norms / norms.sum()
    predicted = second_moment(weighed, p) / second_moment(weighed, np.full(n, 1 / n))
    name = f"logistic regression, breast cancer ({n} examples)"
    return _row(name, workload, x.float(), predicted, 0.2, 8000, chains=32)


def _row(
    name: str, workload: Workload, optimum: torch.Tensor, predicted: float, lr: float, steps: int,
    plus: float | None = None, chains: int = CHAINS,
) -> str:  # fmt: skip
    kinds: dict[str, dict[str, Any]] = {
        "SGD": {"srg": {"theta": 1.0}},
        "SRG": {"srg": {}},
        "SRG+": {"srg_plus": {}},
    }
    noise = {
        kind: stationary_noise(workload, settings, optimum, lr, chains, steps)
        for kind, settings in kinds.items()
    }
    cells = [name, f"{noise['SGD']:.3g}", f"{predicted:.3f}", f"{noise['SRG'] / noise['SGD']:.3f}"]
    cells += [f"{predicted if plus is None else plus:.3f}", f"{noise['SRG+'] / noise['SGD']:.3f}"]
    return f"| {' | '.join(cells)} |"


def full_table(number: int) -> WeightedKeys:
    """So many keys, all visited, of weights between 1/2 and 3/2."""
    keys = WeightedKeys(number)
    for key, weight in enumerate(np.random.default_rng(0).uniform(0.5, 1.5, number).tolist()):
        keys.change(key, weight)
    return keys


def draw_s(keys: WeightedKeys, seed: int) -> float:
    """Seconds of the processor for a draw and a change."""
    uniforms, weights = np.random.default_rng(seed).uniform(size=(2, TIMED)).tolist()
    begin_s = time.process_time()
    for uniform, weight in zip(uniforms, weights, strict=True):
        keys.change(keys.draw(uniform), weight)
    return (time.process_time() - begin_s) / TIMED


def draws_s() -> list[tuple[float, ...]]:
    """Seconds of a draw and a change for each of ``SIZES``, measured in turns."""
    tables = [full_table(size) for size in SIZES]
    return [tuple(draw_s(keys, repeat) for keys in tables) for repeat in range(REPEATS)]


def drawing() -> str:
    """The page's part about the time of a draw."""
    rounds = draws_s()
    small, large = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratio = of_median([after / before for before, after in rounds])
    assert ratio["median"] is not None
    return (
        "## Drawing and refreshing\n\n"
        f"{SIZES[0]:,} examples: {1e6 * small:.1f} µs; {SIZES[1]:,}: {1e6 * large:.1f} µs; {shown(ratio)} "
        f"times as long (bar: at most 3): {'met' if ratio['median'] <= 3 else 'missed'}. Medians of "
        f"{REPEATS} rounds in turns, {TIMED:,} draws and changes each.\n"
    )


def page() -> str:
    """The generated part of the page."""
    head = (
        "problem",
        "noise of SGD",
        "SRG over SGD, predicted",
        "measured",
        "SRG+ over SGD, predicted",
        "measured",
    )
    return "\n".join([
        "\n## Noise around the optimum\n",
        f"| {' | '.join(head)} |\n| --- " + "| ---: " * 5 + "|",
        *noise_rows(),
        "\nPredicted are ratios of second moments at the optimum with an exact table, theta = 1/2; for "
        "breast cancer in the norm of the inverse Hessian.\n",
        drawing(),
    ])  # fmt: skip


def main() -> None:
    """Measure, and renew the page."""
    with one_thread():
        write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, page()))
    print(f"renewed {PAGE}")


if __name__ == "__main__":
    main()
