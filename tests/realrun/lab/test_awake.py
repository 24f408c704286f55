"""Keeping processors awake: the request is held, read back, and given up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.realrun.lab import kernel


def test_without_the_device_nothing_is_held(tmp_path: Path) -> None:
    held = kernel.keep_awake(tmp_path / "missing")
    assert held == -1
    assert kernel.wake_latency(held) == "default"


def test_the_request_is_four_bytes_and_is_read_back(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(b"\xff\xff\xff\x7f")
    held = kernel.keep_awake(device)
    assert device.read_bytes() == bytes(4)
    assert kernel.wake_latency(held) == "0 us"
    os.close(held)


@pytest.mark.lab
def test_the_kernel_takes_the_request() -> None:
    held = kernel.keep_awake()
    if held < 0:
        pytest.skip("this machine has no /dev/cpu_dma_latency that this user may write to")
    assert kernel.wake_latency(held) == "0 us"
    os.close(held)
