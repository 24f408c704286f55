"""Column (c) of the validation: computation that lasts as long as it does, two workers on two cores.

Nothing is padded here, so that the compute model has to be measured too: first the duration of gradients
while both workers compute, then every scheme for real, beside the simulation with that distribution.
"""

from __future__ import annotations

import statistics
from typing import Any, Final

from paceline.realrun.calibration.cluster_probes import on_hosts
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes
from paceline.sim.config import yaml_file
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.build import build_network
from paceline.sim.network.network_settings import QueueName, TcpSettings
from paceline.sim.network.profile import Profile
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, parse

WORKERS: Final = 2
STEPS: Final = 30
SEED: Final = 11
_DRAWS: Final = 5
_ALONE: Final = {"local_sgd": {"period": 10**6}}


def scenario(scheme: Any, compute: dict[str, Any]) -> Scenario:
    """Two workers, 2 ms and 400 Mbit/s apart, with a model whose gradient takes some milliseconds."""
    value = {
        "name": "unpadded",
        "seed": SEED,
        "workload": {
            "task": "digits-mlp",
            "hidden": 2048,
            "batch_size": 256,
            "optimizer": {"lr": 0.1},
        },
        "cluster": {
            "workers": WORKERS,
            "compute": compute,
            "network": {"latency": "2 ms", "bandwidth": "400 Mbit/s"},
        },
        "evaluate": {"every": f"{STEPS} steps"},
        "schemes": [scheme],
        "stop": {"max_iterations": STEPS},
        "gradients": "looped",
    }
    return parse(yaml_file.write(value), "unpadded")


def measure(processes: Processes, schemes: dict[str, Any]) -> dict[str, Any]:
    """Durations of gradients (mean and cv), and the wall clock of every scheme; no time in the model."""
    nothing = {"time": "0 s"}
    assert processes.lab
    processes.lab.reconfigure(build_network(scenario(_ALONE, nothing).cluster.network, WORKERS))

    def run(scheme: Any) -> Run:
        (request,) = run_requests(scenario(scheme, nothing))
        return processes.run(request).run

    lasted = [e.end_s - e.start_s for e in run(_ALONE).events if e.operation == "gradient"]
    mean_s = statistics.fmean(lasted)
    return {
        "mean_s": mean_s,
        "cv": statistics.stdev(lasted) / mean_s,
        "wall_s": {name: run(scheme).wall_clock_s for name, scheme in schemes.items()},
    }


def predict(
    measured: dict[str, Any],
    schemes: dict[str, Any],
    profile: Profile,
    tcp: TcpSettings | None = None,
    queue: QueueName = "fair",
) -> dict[str, float]:
    """The wall clock of every scheme with the measured computing times, mean of some draws."""
    compute = {"time": f"{measured['mean_s']!r} s", "jitter": {"lognormal": {"cv": measured["cv"]}}}
    means_s = {}
    for name, scheme in schemes.items():
        whole = on_hosts(scenario(scheme, compute), tcp, queue)
        jobs = [prepare(whole, whole.schemes[0], SEED + k) for k in range(_DRAWS)]
        means_s[name] = statistics.fmean(simulate_job(job, profile=profile).wall_clock_s for job in jobs)
    return means_s
