"""What commands import: nothing that they do not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = """\
name: one-step
workload: {{task: {task}, batch_size: 32, optimizer: {{lr: 0.1}}}}
cluster:
  workers: {workers}
  compute: {{time: 10 ms}}
  network: {{latency: 1 ms, bandwidth: 1 Gbit/s}}
schemes: [{scheme}]
stop: {{max_iterations: 1}}
"""
SLOW = (
    "cvxpy", "joblib", "jinja2", "matplotlib", "networkx", "pandas", "pyarrow", "scipy.linalg",
    "scipy.optimize", "scipy.sparse", "scipy.stats", "seaborn", "sklearn", "torch._dynamo", "torch._inductor",
)  # fmt: skip
NOT_NAMED = {
    "commands.measure", "extras.topology.command", "sim.drivers.lockstep.lockstep_driver",
    "sim.experiments.choice",
    "sim.experiments.costs.bounds", "sim.schemes.all_reduce", "sim.schemes.sgp", "sim.schemes.user_scheme",
    "sim.topology.graphs.random", "sim.topology.matcha", "sim.workloads.tasks.text",
    "sim.workloads.user_task",
}  # fmt: skip
"""The product's own modules that gossip on a ring does without on the event driver."""
IMPORTED = """
import sys
from paceline.commands.app import app
app(sys.argv[1:], standalone_mode=False)
print("modules:", *sys.modules)
"""


def imported(*arguments: str) -> set[str]:
    """The modules of a process that has done a command."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("modules:")[2].split())


@pytest.mark.slow
@pytest.mark.parametrize(("task", "workers"), [("digits-mlp", 4), ("digits-mlp", 8), ("quadratic", 4)])
def test_a_simulation_imports_nothing_that_it_does_not_need(tmp_path: Path, task: str, workers: int) -> None:
    """With 8 workers or more a gradient's operations are counted, to choose how gradients are evaluated."""
    scenario = tmp_path / "one-step.yaml"
    scenario.write_text(SCENARIO.format(task=task, workers=workers, scheme="all_reduce"), encoding="utf-8")
    assert not imported("simulate", str(scenario)).intersection(SLOW)


@pytest.mark.slow
def test_gossip_imports_no_plots_and_no_tables(tmp_path: Path) -> None:
    scenario = tmp_path / "one-step.yaml"
    gossip = "gossip: {topology: ring}"
    scenario.write_text(SCENARIO.format(task="quadratic", workers=4, scheme=gossip), encoding="utf-8")
    modules = imported("simulate", str(scenario), "--engine", "event")
    assert not modules.intersection({"matplotlib", "seaborn", "pandas", "sklearn", "networkx", "scipy.stats"})
    own = {name.removeprefix("paceline.") for name in modules if name.startswith("paceline.")}
    assert {"sim.schemes.gossip", "sim.drivers.event", "sim.topology.graphs.named"} <= own
    assert not own & NOT_NAMED


def test_the_command_line_itself_imports_no_torch() -> None:
    assert not imported("--help").intersection({"torch", "numpy", "pandas"})


@pytest.mark.parametrize(
    "command", [["list"], ["list", "--json"], ["new", "two-sites", "my.yaml"], ["schema"], ["help", "check"]]
)
def test_commands_that_look_up_import_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    assert not imported(*command).intersection({"torch", "pandas"})
