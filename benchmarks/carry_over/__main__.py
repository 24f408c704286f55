"""How far the steps of a small proxy carry: docs/proxies.md.

python -m benchmarks.carry_over [TASK...]
"""

from __future__ import annotations

import sys

from benchmarks.carry_over.runs import Table
from benchmarks.carry_over.study import TASKS, Trainer

if __name__ == "__main__":
    trainer = Trainer(Table())
    for task in sys.argv[1:] or TASKS:
        trainer.train(task)
