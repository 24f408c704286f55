"""Hand-made runs for tests of summaries, result folders and reports."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.sim.records.run import Evaluation, Event, Run, Source, Status, TimeShare
from paceline.sim.records.summary import Bounds


def made_run(
    label: str = "all_reduce",
    seed: int = 0,
    *,
    reached_s: float | None = 10.0,
    wall_s: float | None = None,
    steps: int = 100,
    shares: tuple[float, float, float] = (0.5, 0.25, 0.25),
    status: Status = "completed",
    message: str = "",
    source: Source = "simulated",
    scheme: str | None = None,
    events: Sequence[Event] = (),
    num_bytes: int = 1000,
) -> Run:
    """A run of ``steps`` steps, scored at its begin, its middle and its end.

    ``wall_s`` is 10 s, or when the target was reached. ``shares`` are parts of the wall clock. The loss
    falls from 2 to 1 to 0.5, the accuracy rises from 0.1 to 0.5 to 0.95 (or to 0.8 without the target).
    """
    end_s = wall_s if wall_s is not None else reached_s if reached_s is not None else 10.0
    compute, communicate, wait = (share * end_s for share in shares)
    diverged = status == "diverged"
    evaluations = (
        Evaluation(0, 0.0, 0, {"train_loss": 2.0, "test_accuracy": 0.1, "consensus_distance": 0.0}),
        Evaluation(
            steps // 2,
            end_s / 2,
            num_bytes // 2,
            {"train_loss": 1.0, "test_accuracy": 0.5, "consensus_distance": 0.2},
        ),
        Evaluation(
            steps,
            end_s,
            num_bytes,
            {
                "train_loss": None if diverged else 0.5,
                "test_accuracy": 0.8 if reached_s is None else 0.95,
                "consensus_distance": None if diverged else 0.1,
            },
        ),
    )
    return Run(
        scheme=scheme or label,
        label=label,
        seed=seed,
        source=source,
        status=status,
        reached_target=reached_s is not None,
        time_to_target_s=reached_s,
        wall_clock_s=end_s,
        iterations=float(steps),
        bytes_sent=num_bytes,
        time_s=TimeShare(compute, communicate, wait),
        evaluations=evaluations,
        digest="00" * 32,
        events=tuple(events),
        message=message,
    )


def made_bounds(*, waiting: float = 0.25, random: bool = True) -> Bounds:
    """Shares of a scheme that waits for worker 2 in the main."""
    return Bounds(
        compute=0.75 - waiting, waiting=waiting, latency=0.05, bandwidth=0.2, software=0.0,
        waits_for=[2], slow_workers=0.8 * waiting, step_s=0.1, steps=48, random=random,
    )  # fmt: skip


def made_event(worker: int = 0, step: int = 0, operation: str = "gradient", **other: float) -> Event:
    """One event; by default an awaited gradient from 0 s to 1 s."""
    start_s = other.get("start_s", 0.0)
    return Event(
        worker=worker,
        task=int(other.get("task", 0)),
        handle=int(other.get("handle", -1)),
        step=step,
        operation=operation,
        start_s=start_s,
        end_s=other.get("end_s", start_s + 1.0),
        peer_s=other.get("peer_s", start_s),
        bytes=int(other.get("num_bytes", 0)),
        peer=int(other.get("peer", -1)),
    )


def made_scenario(name: str, more: str = "") -> str:
    """The text of a resolved scenario that says nothing of its runs; ``more``: keys on lines of their own."""
    return f"name: {name}\nworkload: {{}}\ncluster: {{}}\nschemes: [any]\n{more}"
