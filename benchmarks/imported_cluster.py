"""How far a cluster from ``ping`` and ``iperf3`` carries: predictions from it, and real runs in the lab.

    python -m benchmarks.imported_cluster [--probe] [--out FOLDER]

In the lab, set to the network of each of six cells of the validation, both tools run between two
hosts; ``paceline import`` reads what they write. The cell is predicted from that cluster alone, and run.
``--probe`` predicts from the nominal network with a profile of one probe, too. Needs iperf3 and ping.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.validation.campaign import measure_cell
from benchmarks.validation.design import CELLS, DesignPoint
from paceline.realrun.calibration import cluster_probes, fit, probes
from paceline.realrun.lab import Lab
from paceline.realrun.launch.processes import Processes
from paceline.sim.config import yaml_file
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.build import build_network
from paceline.sim.network.profile import Profile
from paceline.sim.records.comparison import error_pct
from paceline.sim.scenario.schema import dump, load

NAMES: Final = (
    "all_reduce-8-2ms-100mbit-1000kB-homogeneous", "one_peer-8-2ms-100mbit-1000kB-homogeneous",
    "local_sgd-4-20ms-400mbit-40kB-homogeneous", "ring-8-2ms-400mbit-4000kB-homogeneous",
    "one_peer-8-50ms-400mbit-4000kB-homogeneous", "all_reduce-8-20ms-100mbit-1000kB-two-sites",
)  # fmt: skip
_PINGS, _SECONDS, _PROBE_REPEATS = 20, 20, 30


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, import, predict, run, and print a row for each cell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imported_cluster", description=__doc__)
    parser.add_argument("--probe", action="store_true", help="predict with a profile, too")
    parser.add_argument("--out", type=Path, help="keep the tools' output in this folder")
    parser.add_argument("--cells", type=int, default=len(NAMES), help="only the first ones")
    arguments = parser.parse_args(argv)
    cells = {cell.name: cell for cell in CELLS}
    chosen = [cells[name] for name in NAMES[: arguments.cells]]
    largest = max(chosen, key=lambda cell: cell.workers)
    lab = Lab(build_network(largest.scenario().cluster.network, largest.workers))
    with tempfile.TemporaryDirectory() as scratch, Processes(lab=lab) as processes:
        out = arguments.out or Path(scratch)
        profile = _probed(processes) if arguments.probe else None
        _row("cell", "imported", "measured", "error", "with a profile", "error")
        for cell in chosen:
            folder = out / cell.name
            folder.mkdir(parents=True, exist_ok=True)
            assert processes.lab
            processes.lab.reconfigure(build_network(cell.scenario().cluster.network, cell.workers))
            imported_s = predict_imported(cell, measure_paths(lab, cell, folder), folder)
            real_s = measure_cell(processes, cell, 0).wall_s
            row = [
                cell.name,
                f"{imported_s:.3f} s",
                f"{real_s:.3f} s",
                f"{error_pct(imported_s, real_s):+.2f} %",
            ]
            if profile is not None:
                probed_s = simulate_job(cell.job(), profile=profile).wall_clock_s
                row += [f"{probed_s:.3f} s", f"{error_pct(probed_s, real_s):+.2f} %"]
            _row(*row)


def measure_paths(lab: Lab, cell: DesignPoint, folder: Path) -> list[str]:
    """Output of both tools for each kind of path of a cell, as arguments of ``paceline import``."""
    sites = cell.scenario().cluster.network.sites
    if sites is None:
        paths: Mapping[str, tuple[int, int]] = {"": (0, 1)}
    else:
        a, b = list(sites)
        paths = {f"{a}-{a}=": (0, 1), f"{a}-{b}=": (0, sites[a])}
    given = []
    for ends, (source, target) in paths.items():
        address = lab.address(target)
        iperf = ["iperf3", "-c", address, "-J", "-t", str(_SECONDS)]
        tests = [["ping", "-c", str(_PINGS), "-i", "0.2", address], iperf]
        if source < target - 1:  # between sites, of several connections too
            tests.append([*iperf, "-P", "4"])
        for number, command in enumerate(tests):
            path = folder / f"{ends.strip('=')}{number}-{command[0]}"
            server = lab.popen(target, ["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
            time.sleep(1)
            with path.open("wb") as file:
                lab.popen(source, command, stdout=file).wait()
            server.kill()
            given.append(f"{ends}{path}")
    return given


def predict_imported(cell: DesignPoint, given: Sequence[str], folder: Path) -> float:
    """Wall clock of a cell over gloo on the cluster that these files make, in seconds."""
    cluster = folder / "cluster.yaml"
    command = [sys.executable, "-m", "paceline", "import", *given, "--workers", str(cell.workers)]
    subprocess.run([*command, "--out", str(cluster)], check=True, stderr=subprocess.DEVNULL)
    document: dict[str, Any] = yaml_file.parse(dump(cell.scenario()), cell.name).value
    own = {key: value for key, value in document["cluster"].items() if key not in ("network", "workers")}
    own |= {"file": cluster.name, "network": {"transport": "gloo"}}
    path = folder / "scenario.yaml"
    path.write_text(yaml_file.write(document | {"cluster": own}), encoding="utf-8")
    scenario = load(path)
    return simulate_job(prepare(scenario, scenario.schemes[0], scenario.seed)).wall_clock_s


def _probed(processes: Processes) -> Profile:
    setting, kind = cluster_probes.standard(None), probes.lab_hosts(None)
    return fit.calibrate([cluster_probes.measure(processes, kind, setting, repeats=_PROBE_REPEATS)]).profile


def _row(*cells: str) -> None:
    sys.stdout.write("  ".join(f"{cell:>16}" for cell in cells) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
