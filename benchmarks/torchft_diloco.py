"""DiLoCo beside torchft's: the parameters after three outer rounds, and the losses of a longer run, drawn.

    pip install torchft        (0.2.0 was measured)
    python -m benchmarks.torchft_diloco

torchft's own class and hooks run on every replica, each in a thread, over a manager that averages; that the
replicas are up is taken for granted. Model, batches and gradients are those of the simulator's job, so that
what is compared is the scheme: inner and outer steps, fragments, delays and merging.

Writes a section and a picture of docs/papers/diloco.md; without torchft it says so, and ends with status 2.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from benchmarks.papers import MARK, ROOT
from docs.make.page import renewed, save_picture
from paceline.sim.config.files import write_atomically
from paceline.sim.devices import one_thread
from paceline.sim.drivers.job import Job
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import parse
from tests.support.lockstep import run_lockstep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE: Final = ROOT / "docs" / "papers" / "diloco.md"
PICTURE: Final = ROOT / "docs" / "images" / "diloco-torchft.svg"
SECTION: Final = "<!-- Down to the next such line made by: python -m benchmarks.torchft_diloco -->\n"
PERIOD: Final = 20
ROUNDS: Final = 3
"""Outer rounds after which parameters are compared."""
CURVE_ROUNDS: Final = 15
"""Outer rounds of the runs whose losses are drawn."""
BAR: Final = 1e-5
"""Largest relative difference of a worker's parameters."""
INNER: Final[Mapping[str, str]] = {
    "SGD": "{lr: 0.1, momentum: 0.9}",
    "AdamW": "{adamw: {lr: 0.01}}",
}
FORMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "DiLoCo": {},
    "2 fragments": {"fragments": 2},
    "4 fragments, delay 1": {"fragments": 4, "delay": 1},
    "2 fragments, delay 3, alpha 0.5": {"fragments": 2, "delay": 3, "alpha": 0.5},
}
_SCENARIO: Final = """\
name: torchft
seed: 1
workload: {{task: digits-mlp, batch_size: 32, optimizer: {inner}}}
cluster: {{workers: 3, compute: {{time: 1 s}}, network: {{latency: 0 s}}}}
evaluate: {{on: outer, every: {every} steps}}
schemes: [{{diloco: {{period: {period}{options}}}}}]
stop: {{max_iterations: {steps}}}
gradients: looped
"""


def job_of(inner: str, options: Mapping[str, Any], rounds: int) -> Job:
    """The simulator's job of so many outer rounds of each fragment, each applied."""
    scenario = parse(
        _SCENARIO.format(
            inner=inner,
            every=PERIOD,
            period=PERIOD,
            options="".join(f", {key}: {value}" for key, value in options.items()),
            steps=rounds * PERIOD + options.get("delay", 0),
        )
    )
    return prepare(scenario, scenario.schemes[0], scenario.seed)


@dataclass
class Meeting:
    """Where the replicas' values meet: call number -> rank -> what it has brought."""

    replicas: int
    brought: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    arrival: threading.Condition = field(default_factory=threading.Condition)

    def bring(self, call: int, rank: int, value: Tensor) -> None:
        """Bring a value, which is copied."""
        with self.arrival:
            self.brought.setdefault(call, {})[rank] = value.clone()
            self.arrival.notify_all()

    def mean(self, call: int) -> Tensor:
        """The mean of all replicas' values, once all are there."""
        with self.arrival:
            self.arrival.wait_for(lambda: len(self.brought[call]) == self.replicas)
        return torch.stack([self.brought[call][rank] for rank in range(self.replicas)]).mean(0)


class AveragingManager:
    """What torchft's DiLoCo asks of its manager, for replicas that are all up all the time."""

    _use_async_quorum = False

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self._calls = self._step = 0

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> PendingMean:
        """Begin to average a tensor in place."""
        call, self._calls = self._calls, self._calls + 1
        self._meeting.bring(call, self._rank, tensor)
        return PendingMean(lambda: tensor.copy_(self._meeting.mean(call)))

    def current_step(self) -> int:
        """How many outer steps there have been."""
        return self._step

    def should_commit(self) -> bool:
        """Count an outer step; it is always to be done."""
        self._step += 1
        return True

    def start_quorum(self) -> None:
        """Do nothing: everybody is there."""

    def register_state_dict_fn(self, *_: object) -> None:
        """Do nothing: nobody has to catch up."""

    def disallow_state_dict_read(self) -> None:
        """Do nothing: nobody reads."""

    def allow_state_dict_read(self) -> None:
        """Do nothing: nobody reads."""


@dataclass(frozen=True)
class PendingMean:
    """An average under way."""

    finish: Callable[[], object]

    def wait(self) -> bool:
        """Wait for it."""
        self.finish()
        return True


class Piece(nn.Module):
    """A fragment of the model as a module of its own."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value.clone())


@dataclass(frozen=True)
class TorchftRun:
    """What torchft's DiLoCo has come to.

    Attributes:
        finals: each replica's model [d] at the end.
        losses: the training loss of the outer parameters after every period.
    """

    finals: Sequence[Tensor]
    losses: Sequence[float]


def run_torchft(job: Job, adamw: bool) -> TorchftRun:
    """Run torchft's DiLoCo on a job's model and batches, with torch's optimisers at the job's rates."""
    from torchft.local_sgd import DiLoCo

    assert job.problem is not None
    assert job.max_iterations is not None
    steps = range(job.max_iterations)
    workload, batches, options = job.problem.workload, job.problem.batches, job.options.model_dump()
    d = job.start.numel()
    cuts = [part * d // options["fragments"] for part in range(options["fragments"] + 1)]
    meeting, one_gradient = Meeting(job.workers), threading.Lock()
    finals: dict[int, Tensor] = {}
    losses: list[float] = []

    def replica(rank: int) -> None:
        pieces: list[nn.Module] = [Piece(job.start[start:stop]) for start, stop in pairwise(cuts)]
        parameters: list[Tensor] = [parameter for piece in pieces for parameter in piece.parameters()]
        inner: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, lr=0.01)
            if adamw
            else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        )
        outer = options["outer"]
        outers = [torch.optim.SGD(piece.parameters(), **outer) for piece in pieces]
        scheme = DiLoCo(
            AveragingManager(meeting, rank), pieces, inner, outers, sync_every=options["period"],
            fragment_sync_delay=options["delay"], fragment_update_alpha=options["alpha"],
        )  # fmt: skip
        scheme._local_step = -options["delay"]  # counts to the outer steps; ours to the sends before them
        with scheme:
            for k in steps:
                rows = torch.from_numpy(batches.examples(rank, k))
                inner.zero_grad()
                with one_gradient:  # the workload's module is shared
                    loss = workload.loss(torch.cat(parameters), workload.inputs[rows], workload.targets[rows])
                    loss.backward()  # type: ignore[no-untyped-call]
                inner.step()
                if rank == 0 and (k + 1) % PERIOD == 0:
                    kept = [each.original_parameters["value"] for each in scheme._fragments]
                    with one_gradient:
                        losses.append(workload.score(torch.cat(kept))["train_loss"])
        finals[rank] = torch.cat([parameter.detach() for parameter in parameters])

    threads = [threading.Thread(target=replica, args=(rank,)) for rank in range(job.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return TorchftRun([finals[rank] for rank in range(job.workers)], losses)


def difference(inner: str, options: Mapping[str, Any]) -> float:
    """The largest relative difference of a worker's parameters after ``ROUNDS``."""
    job = job_of(INNER[inner], options, ROUNDS)
    theirs = run_torchft(job, inner == "AdamW").finals
    ours = run_lockstep(job)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True))


@dataclass(frozen=True)
class Curves:
    """Training losses of the outer parameters after every period, from the first one on."""

    steps: Sequence[int]
    ours: Sequence[float]
    theirs: Sequence[float]


def curves_of(options: Mapping[str, Any]) -> Curves:
    """The losses of both, with AdamW inside."""
    job = job_of(INNER["AdamW"], options, CURVE_ROUNDS)
    theirs = run_torchft(job, adamw=True).losses
    scores = {each.step: each.metrics["train_loss"] for each in simulate_job(job).evaluations}
    steps = [PERIOD * number for number in range(1, CURVE_ROUNDS + 1)]
    ours = [loss for step in steps if (loss := scores[step]) is not None]
    return Curves(steps, ours, theirs)


def draw(curves: Mapping[str, Curves]) -> Figure:
    """Draw torchft's losses as rings, and ours as lines through them."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    with sns.axes_style("whitegrid"):
        figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    palette = sns.color_palette("colorblind", len(curves))
    for colour, (name, each) in zip(palette, curves.items(), strict=True):
        ax.plot(each.steps, each.ours, color=colour, label=f"{name}, Paceline")
        ax.plot(
            each.steps, each.theirs, "o", color=colour, markerfacecolor="none", markersize=8,
            label=f"{name}, torchft",
        )  # fmt: skip
    ax.set(yscale="log", xlabel="steps per worker", ylabel="training loss of the outer parameters, log scale")
    ax.legend(fontsize=8)
    return figure


def section(apart: Mapping[tuple[str, str], float], curves: Mapping[str, Curves]) -> str:
    """The part of the page about torchft."""
    rows = []
    for form in FORMS:
        cells = [*(apart[form, inner] for inner in INNER), _losses_apart(curves[form])]
        rows.append(f"| {form} | {' | '.join(f'{cell:.1e}' for cell in cells)} |")
    within = "within" if max(apart.values()) <= BAR else "**not within**"
    return "\n".join(
        [
            "\n## Beside torchft\n",
            f"torchft {version('torchft')}'s `DiLoCo` and the simulator, three replicas with the same",
            f"initial model and batches (digits, a period of {PERIOD} steps): the largest relative",
            f"difference of a worker's parameters after {ROUNDS} outer rounds, {within} the bar of {BAR:g};",
            f"and of the losses of {CURVE_ROUNDS} rounds, drawn below.\n",
            f"| form | parameters, {' | parameters, '.join(INNER)} | losses, AdamW |",
            "| --- " + "| ---: " * (len(INNER) + 1) + "|",
            *rows,
            f"\n![Training losses of both against steps](../images/{PICTURE.name})\n\n",
        ]
    )


def _losses_apart(curves: Curves) -> float:
    """The largest relative difference of two curves."""
    return max(abs(a - b) / b for a, b in zip(curves.ours, curves.theirs, strict=True))


def main() -> None:
    """Compare, and renew the section and the picture."""
    if importlib.util.find_spec("torchft") is None:
        sys.stderr.write("torchft is not installed here: pip install torchft; nothing was changed\n")
        raise SystemExit(2)
    with one_thread():
        apart = {
            (form, inner): difference(inner, options) for form, options in FORMS.items() for inner in INNER
        }
        curves = {form: curves_of(options) for form, options in FORMS.items()}
    save_picture(PICTURE, draw(curves))
    head, mark, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    write_atomically(PAGE, renewed(head, SECTION, section(apart, curves)) + mark + rest)
    print(f"renewed {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main()
