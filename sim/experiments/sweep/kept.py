"""Gradients and scores of trajectories, kept on disk for the next grid.

A file holds the gradients of one scheme under one seed, each with the digest of the models that it was
computed at, and scores of models by their digests. Only what fits is taken from it: the scheme's own code
runs as ever, and asks for a gradient at a point, or for the score of a model; what is known of that very
point is read, and all else is computed. So an entry that is damaged, or of something else, changes no number.

Nothing is kept of the code of users, which may change without a sign of it, nor of what runs on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from ...config.files import save_atomically
from ...config.user_code.call import is_import_path
from ...drivers.job import Job
from ...errors import InputError
from ...records.unfinished import code_version
from ...training.gradients import TrainingProblem
from ...training.scoring import KnownScores, digest
from ...workloads.workload import Evaluated

MAX_TRAJECTORY_BYTES: Final = 256 * 2**20
"""Bytes of gradients beyond which nothing is kept of a trajectory; so much memory may they take as well."""
MAX_CACHE_BYTES: Final = 2 * 2**30
"""Bytes of all files together, beyond which those go that have not been used for longest."""

_DIGEST_BYTES: Final = 32
_ARRAYS: Final = frozenset({"about", "points", "gradients", "losses", "digest"})


def cache_folder() -> Path | None:
    """Where trajectories are kept: below the user's folder for caches (``XDG_CACHE_HOME``); None: nowhere."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".cache"
        except RuntimeError:  # a user without an entry
            return None
    return folder / "paceline" / "trajectories"


@dataclass(eq=False)
class KeptTrajectory:
    """What is known of the gradients and scores of one scheme under one seed.

    Attributes:
        points: digest of the models [n, d] at which a gradient was computed, by its index.
        gradients, losses: [n, d] and [n, 1], by index.
        scores: of a model, by its digest.
        num_new: how many gradients have been added since it was read.
        num_bytes: of all gradients; more than ``MAX_TRAJECTORY_BYTES``: they are no longer kept.
    """

    points: list[bytes] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    num_new: int = 0
    num_bytes: int = 0

    def find(self, index: int, point: bytes) -> Evaluated | None:
        """The gradients of that index, if they were computed at the models of that digest."""
        if index >= len(self.points):
            return None
        if self.points[index] != point:  # it is of something else, and so is what follows
            del self.points[index:], self.gradients[index:], self.losses[index:]
            return None
        return Evaluated(self.gradients[index], self.losses[index])

    def add(self, index: int, point: bytes, evaluated: Evaluated) -> None:
        """Keep the gradients of the next index, if there is room for them."""
        self.num_bytes += evaluated.value.numel() * evaluated.value.element_size()
        if self.num_bytes > MAX_TRAJECTORY_BYTES:
            self.points, self.gradients, self.losses = [], [], []
        elif index == len(self.points):
            self.points.append(point)
            self.gradients.append(evaluated.value)
            self.losses.append(evaluated.loss)
            self.num_new += 1


class _KeptProblem(TrainingProblem):
    """A problem whose gradients are taken from a trajectory, where that has them, and else added to it."""

    def __init__(self, problem: TrainingProblem, trajectory: KeptTrajectory) -> None:
        super().__init__(problem.workload, problem.batches, problem.method)
        self._trajectory = trajectory

    @override
    def gradients_of_all(self, index: int, points: Tensor) -> Evaluated:
        point = bytes.fromhex(digest([points]))
        known = self._trajectory.find(index, point)
        if known is None:
            known = super().gradients_of_all(index, points)
            self._trajectory.add(index, point, known)
        return known


@contextmanager
def keeping(job: Job, known: KnownScores) -> Iterator[TrainingProblem | None]:
    """The job's problem, with what earlier runs have kept; what is new is kept at the end of the block.

    Args:
        job: runs in lockstep within the block.
        known: gets the scores that are known, and has all of them at the end.
    """
    problem = job.problem
    folder = cache_folder()
    if problem is None or folder is None or not _can_be_kept(job):
        yield problem
        return
    about = _about(job, problem)
    path = folder / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.npz"
    trajectory = read_trajectory(path, about) or KeptTrajectory()
    known.of_models.update(trajectory.scores)
    yield _KeptProblem(problem, trajectory)
    if trajectory.num_new or len(known.of_models) > len(trajectory.scores):
        trajectory.scores = known.of_models
        with suppress(InputError):  # a full disk, say: the next grid computes again
            write_trajectory(path, about, trajectory)
    else:
        with suppress(OSError):
            path.touch()


def _can_be_kept(job: Job) -> bool:
    names = [job.task.name if job.task else "", job.scheme.name, *_texts(job.options.model_dump(mode="json"))]
    return job.start.device.type == "cpu" and not any(map(is_import_path, names))


def _texts(value: Any) -> Iterator[str]:
    """All texts within a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _about(job: Job, problem: TrainingProblem) -> str:
    """What decides about a trajectory, as JSON: workload, scheme, seeds, and the code that computes it."""
    return json.dumps(
        {
            "code": code_version(),
            "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
            "workload": _content(problem),
            "method": problem.method,
            "batch_size": problem.batches.batch_size,
            "workers": job.workers,
            "seed": job.seed,
            "scheme": job.scheme.name,
            "options": job.options.model_dump(mode="json"),
            "optimizer": repr(job.optimizer),
            "bytes_per_parameter": job.bytes_per_parameter,
            "sites": job.transfer.network.site_of,
            "hosts": job.transfer.network.node_of,
            "sums_inside": job.sums_inside,
        },
        sort_keys=True,
    )


@lru_cache(maxsize=8)
def _content(problem: TrainingProblem) -> str:
    """A digest of what is trained: task, first model and its score, examples, and which worker has which."""
    workload = problem.workload
    content = hashlib.sha256(f"{workload.task} {sorted(workload.score(workload.start).items())}".encode())
    for tensor in (workload.start, workload.inputs, workload.targets):
        content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.contiguous().numpy().data)
    for shard in problem.batches.shards:
        content.update(np.ascontiguousarray(shard).data)
    return content.hexdigest()


def write_trajectory(path: Path, about: str, trajectory: KeptTrajectory) -> None:
    """Write a trajectory, whole or not at all, and make room for it.

    Raises:
        InputError: it cannot be written.
    """
    arrays: dict[str, NDArray[Any]] = {
        "about": _as_bytes(json.dumps({"about": about, "scores": trajectory.scores})),
        "points": np.frombuffer(b"".join(trajectory.points), np.uint8),
        "gradients": _stacked(trajectory.gradients),
        "losses": _stacked(trajectory.losses),
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path.parent}: {error.strerror}") from error
    written: dict[str, Any] = {**arrays, "digest": _digest(arrays)}
    save_atomically(path, lambda new: np.savez(new, allow_pickle=False, **written))
    _make_room(path)


def read_trajectory(path: Path, about: str) -> KeptTrajectory | None:
    """Read what was written for the same ``about``; None where nothing fits, or something is damaged."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if (
                set(file.files) != _ARRAYS
                or sum(each.file_size for each in file.zip.infolist()) > _MOST_BYTES
            ):
                return None
            arrays = {name: file[name] for name in sorted(_ARRAYS - {"digest"})}
            if not np.array_equal(file["digest"], _digest(arrays)):
                return None
        text = json.loads(arrays["about"].tobytes())
        points = arrays["points"].tobytes()
        number = len(points) // _DIGEST_BYTES
        if text["about"] != about or not number == len(arrays["gradients"]) == len(arrays["losses"]):
            return None
        return KeptTrajectory(
            [points[k * _DIGEST_BYTES : (k + 1) * _DIGEST_BYTES] for k in range(number)],
            list(torch.from_numpy(arrays["gradients"]).unbind()),
            list(torch.from_numpy(arrays["losses"]).unbind()),
            text["scores"],
            num_bytes=arrays["gradients"].nbytes,
        )
    except (
        OSError, ValueError, LookupError, AttributeError, TypeError, EOFError, MemoryError, RuntimeError,
        struct.error, zlib.error, zipfile.BadZipFile,
    ):  # fmt: skip
        return None


_MOST_BYTES: Final = 2 * MAX_TRAJECTORY_BYTES
"""Of a file: a trajectory, its losses and its scores."""


def _as_bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _stacked(tensors: list[Tensor]) -> NDArray[Any]:
    return torch.stack(tensors).numpy() if tensors else np.zeros((0, 0), np.float32)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    sha256 = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha256.update(f"{name} {array.dtype} {array.shape}".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return np.frombuffer(sha256.digest(), np.uint8)


def _make_room(newest: Path) -> None:
    """Remove the files that have not been used for longest, until the others may stay."""
    with suppress(OSError):
        files = [
            (path.stat().st_mtime, path.stat().st_size, path) for path in newest.parent.glob("[!.]*.npz")
        ]
        too_many = sum(size for _, size, _ in files) - MAX_CACHE_BYTES
        for _, size, path in sorted(files):
            if too_many <= 0 or path == newest:
                break
            path.unlink(missing_ok=True)
            too_many -= size
