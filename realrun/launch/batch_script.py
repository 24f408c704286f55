"""A batch script that runs a scenario on a Slurm cluster: one process a worker, one GPU each on NCCL."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import Scenario

_SCRIPT = """\
#!/bin/bash
# {name}: {workers} workers on {nodes} of the cluster's nodes, by 'paceline {command} --slurm'.
# Submit it with sbatch from this folder; add --partition, --account and --time as your cluster wants them.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks={workers}
#SBATCH --ntasks-per-node={per_node}
#SBATCH --cpus-per-task=2
{gpus}
set -euo pipefail
# Rank 0 is the first task of the first node. Jobs that share a node must not share a port.
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR MASTER_PORT=$((15000 + SLURM_JOB_ID % 40000)) OMP_NUM_THREADS=1
# Only ranks that know it can take part; see docs/trust.md.
export PACELINE_SECRET=${{PACELINE_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}}
srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  exec "$0" -P -m paceline.realrun "$@"
' {python} {arguments}
"""

_GPUS = """\
#SBATCH --gpus-per-task=1
# Every process sees all GPUs of its node, so that NCCL can copy between them; LOCAL_RANK is its own.
#SBATCH --gpu-bind=none
"""


def script(
    scenario: Scenario, path: Path, per_node: int, options: Sequence[str] = (), command: str = "realrun"
) -> str:
    """The script for ``sbatch``, which runs the current Python.

    Args:
        path: the scenario's file as the nodes see it.
        per_node: processes on each node (on NCCL its GPUs).
        options: of ``python -m paceline.realrun``, added behind the file.
        command: ``realrun`` or ``validate``.

    Raises:
        InputError: a node would run no process, or one fewer than the others.
    """
    workers = scenario.cluster.workers
    if per_node < 1:
        raise InputError(f"--per-node {per_node}: a node runs at least one process")
    per_node = min(per_node, workers)
    if workers % per_node:
        fits = max(number for number in range(1, per_node) if workers % number == 0)
        raise InputError(f"--per-node {per_node}: does not divide {workers} workers; write {fits}, say")
    words = [] if command == "realrun" else [command]
    return _SCRIPT.format(
        command=command,
        name=scenario.name,
        workers=workers,
        nodes=workers // per_node,
        per_node=per_node,
        gpus=_GPUS if scenario.cluster.backend == "nccl" else "",
        python=shlex.quote(sys.executable),
        arguments=shlex.join([*words, str(path), *options]),
    )
