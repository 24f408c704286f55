"""Tasks for the processes of a ``cluster_pool``: they behave as the ranks of a job."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore

from paceline.realrun.group.group import Group
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.launched_job import JobRanks, follow
from paceline.sim.errors import RunError
from paceline.sim.scenario.schema import parse

SCENARIO: Final = """
name: small
seed: 3
workload: {{task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {{lr: 0.1}}}}
cluster: {{workers: {workers}, compute: {{time: 5 ms}}, network: {{latency: 1 ms}}}}
evaluate: {{every: 2 steps}}
schemes: [{{gossip: {{topology: ring}}}}]
stop: {{max_iterations: {steps}}}
gradients: looped
"""


def session(group: Group, sizes: list[int], dying: int = -1, when: str = "", steps: int = 6) -> Any:
    """Run once with each number of workers; worker 0 answers with what became of it, others with a status.

    Args:
        group: the process, its store.
        sizes: numbers of workers.
        dying: the rank that ends, -1: none.
        when: "idle" after the first run, "running" during the second one.
        steps: of each run.
    """
    store = PrefixStore("job", group.store)
    if group.rank == dying:
        _die(store, group, when)
    if group.rank != 0:
        try:
            return follow(store, group.rank, group.size, 10.0)
        except RunError as error:
            return str(error)
    ranks = JobRanks(store, group.size, 10.0)
    answers = []
    with ranks:
        for number, workers in enumerate(sizes):
            if when == "idle" and number == 1:
                time.sleep(0.5)
            (request,) = run_requests(parse(SCENARIO.format(workers=workers, steps=steps)))
            try:
                run = ranks.run(request).run
                answers.append([run.status, run.iterations, run.digest, run.message])
            except RunError as error:
                answers.append(["none", 0, "", str(error)])
    ranks.end(3)
    return answers


def _die(store: Any, group: Group, when: str) -> None:
    """End this process in a while, in a thread: it obeys orders until then."""

    def wait() -> None:
        key = f"answers/{max(group.rank, 1)}/0"
        watched = PrefixStore("orders", store)
        while not watched.check([key]):
            time.sleep(0.01)
        time.sleep(0.1 if when == "idle" else 0.6)
        os._exit(9)

    threading.Thread(target=wait, daemon=True).start()
