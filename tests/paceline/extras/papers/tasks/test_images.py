"""Tasks on images: the files of data sets, digits that are enlarged, the residual network."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.extras.papers.tasks.images import (
    ImageOptions,
    enlarge_digits,
    read_cifar,
    read_mnist,
    resnet20,
)
from paceline.sim.errors import InputError
from paceline.sim.workloads import TASKS
from paceline.sim.workloads.modules import flatten
from paceline.sim.workloads.tasks import digits
from tests.support.factory import make_job, simulated


def write_idx(path: Path, array: np.ndarray[Any, Any], packed: bool = False) -> None:
    data = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


def write_mnist(folder: Path) -> np.ndarray[Any, Any]:
    images = np.random.default_rng(1).integers(0, 256, (24, 28, 28)).astype(np.uint8)
    labels = (np.arange(24) % 10).astype(np.uint8)
    write_idx(folder / "train-images-idx3-ubyte", images[:20], packed=True)
    write_idx(folder / "train-labels-idx1-ubyte", labels[:20])
    write_idx(folder / "t10k-images-idx3-ubyte", images[20:])
    write_idx(folder / "t10k-labels-idx1-ubyte", labels[20:])
    return images


def write_cifar(folder: Path, fine: bool = False) -> np.ndarray[Any, Any]:
    records = np.random.default_rng(1).integers(0, 256, (24, 3074 if fine else 3073)).astype(np.uint8)
    records[:, 1 if fine else 0] = np.arange(24) % 10
    if fine:
        (folder / "train.bin").write_bytes(records[:20].tobytes())
        (folder / "test.bin").write_bytes(records[20:].tobytes())
    else:
        for k in range(5):
            (folder / f"data_batch_{k + 1}.bin").write_bytes(records[4 * k : 4 * k + 4].tobytes())
        (folder / "test_batch.bin").write_bytes(records[20:].tobytes())
    return records


def test_mnist_files(tmp_path: Path) -> None:
    images = write_mnist(tmp_path)
    (train, labels), (test, test_labels) = read_mnist(str(tmp_path))
    assert np.array_equal(train.numpy()[:, 0], images[:20])
    assert np.array_equal(test.numpy()[:, 0], images[20:])
    assert labels.tolist() == [k % 10 for k in range(20)]
    assert test_labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("fine", [False, True], ids=["10", "100"])
def test_cifar_files(tmp_path: Path, fine: bool) -> None:
    records = write_cifar(tmp_path, fine)
    (train, labels), (test, test_labels) = read_cifar(str(tmp_path))
    pixels = records[:, 2 if fine else 1 :].reshape(-1, 3, 32, 32)
    assert np.array_equal(torch.cat([train, test]).numpy(), pixels)
    assert torch.cat([labels, test_labels]).tolist() == [k % 10 for k in range(24)]


@pytest.mark.parametrize("task", ["mnist-cnn", "cifar-cnn7", "cifar-resnet20"])
def test_image_tasks_train(task: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_cifar(tmp_path)
    job = make_job(
        "gossip", {"topology": "ring"}, task=task, task_options={"folder": str(tmp_path)}, workers=2,
        max_iterations=2, batch_size=4, lr=0.01, method="looped", every=2,
    )  # fmt: skip
    run = simulated(job)
    assert run.status == "completed"
    assert {*TASKS[task].metrics, "consensus_distance"} <= set(run.evaluations[-1].metrics)
    assert TASKS[task].facts(ImageOptions(folder=str(tmp_path)), 1).num_examples == 20


def test_enlarged_digits_have_the_form_of_cifar() -> None:
    (inputs, _), _ = digits.examples()
    images = enlarge_digits(inputs[:5])
    assert images.shape == (5, 3, 32, 32)
    assert torch.equal(images[:, 0, ::4, ::4].flatten(1), inputs[:5])
    assert torch.equal(images[:, 2, 3::4, 3::4].flatten(1), inputs[:5])


def test_resnet_20_has_its_number_of_parameters() -> None:
    """0.27 million (He et al., 2016, table 6)."""
    module = resnet20(3, 10)
    convolutions = sum(p.numel() for p in module.parameters() if p.dim() == 4)
    assert convolutions == 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    assert flatten(module).numel() == convolutions + 2 * (7 * 16 + 6 * 32 + 6 * 64) + 650


def test_wrong_files_are_named(tmp_path: Path) -> None:
    def said(read: Callable[[str], Any]) -> str:
        with pytest.raises(InputError) as caught:
            read(str(tmp_path))
        return str(caught.value).replace(str(tmp_path), "DIR")

    assert said(read_mnist) == "DIR/train-images-idx3-ubyte: there is no such file"
    assert said(read_cifar) == "DIR/data_batch_1.bin: there is no such file"
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    assert said(read_mnist) == f"{'DIR'}/train-labels-idx1-ubyte: holds 19 bytes of data; its head says (20,)"
    labels.write_bytes(b"hello")
    assert said(read_mnist) == "DIR/train-labels-idx1-ubyte: is not an IDX file of bytes in 1 dimensions"
    write_idx(labels, np.zeros(3, np.uint8))
    assert said(read_mnist) == "DIR: 20 images have 3 labels"
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip")
    assert "cannot be read: Not a gzipped file" in said(read_mnist)
    (tmp_path / "data_batch_1").write_bytes(b"")
    assert said(read_cifar) == "DIR: is the Python version, which is pickled; get the binary version"
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(100))
    text = "has 100 bytes, which is not a whole number of records of 3073"
    assert said(read_cifar) == f"DIR/data_batch_1.bin: {text}"
