"""How far the steps of a small proxy carry: docs/proxies.md.

    python -m benchmarks.carry_over [TASK...] [--page]

Trains the tasks (all, unless some are named), writes predictions before those of the held-out one, and
renews the page. Finished runs of the table are not repeated; with --page it trains nothing.
"""

from __future__ import annotations

import argparse

from benchmarks.carry_over import noise
from benchmarks.carry_over.page import write_page, write_predictions
from benchmarks.carry_over.runs import Table
from benchmarks.carry_over.study import HELD_OUT, REFERENCE, TASKS, Trainer


def main() -> None:
    """Train, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carry_over")
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--page", action="store_true", help="train nothing")
    given = parser.parse_args()
    if unknown := set(given.tasks) - set(TASKS):
        parser.error(f"unknown task {', '.join(sorted(unknown))}; choose from {', '.join(TASKS)}")
    trainer = Trainer(Table())
    for task in () if given.page else given.tasks or TASKS:
        if task == HELD_OUT:
            trainer.train(task, (REFERENCE,))
            noise.measure(trainer.table, task)
            write_predictions(trainer.table)
        trainer.train(task)
        noise.measure(trainer.table, task)
    write_page(trainer.table)


if __name__ == "__main__":
    main()
