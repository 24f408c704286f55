"""``make gpu`` without a GPU: its parts at tiny sizes, its page on made-up figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_parts
from benchmarks.gpu_page import MachineFacts, PagePart, page

CPU = torch.device("cpu")


@pytest.mark.parametrize("task", gpu_parts.TASKS)
def test_rates_of_gradients(task: str) -> None:
    found = gpu_parts.gradient_rates(task, CPU, workers=2, batch_size=2, blocks=1, block_s=0.0, images=20)
    assert set(found["rates"]) == {"looped", "batched", "raw vmap", "stacked step", "event driver"}
    assert all(rate > 0 for rate in found["rates"].values())
    assert found["ratios"]["batched / looped"] == found["rates"]["batched"] / found["rates"]["looped"]
    assert found["parameters"] > 0
    assert task != "digits-mlp" or found["parameters"] == 4810


def test_unseen_batch_sizes() -> None:
    def typical(runs: Sequence[Callable[[], Any]], timer: object) -> list[float]:
        assert all(run() is not None for run in runs)
        return [2.0, 5.0, 4.0, 4.0]  # 1 + b seconds, but one in which b = 2 takes longer

    found = gpu_parts.unseen_batch_sizes("digits-mlp", CPU, (1, 4), (2, 3), typical)
    assert found["measured"] == [[1, 2.0], [4, 5.0]]
    (two, predicted, real, error), (three, *_, none) = found["unseen"]
    assert (two, real, three) == (2, 4.0, 3)
    assert predicted == pytest.approx(3.0)
    assert error == pytest.approx(-25.0)
    assert none == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
def test_ranks_that_share_a_device() -> None:
    found = gpu_parts.sharing(CPU, ranks=2, steps=3)
    assert found["difference"] == 0.0
    assert 0 < found["wall_clock_s"] < 60


@pytest.mark.slow
def test_attached_loops_on_a_device() -> None:
    assert set(gpu_parts.attached(CPU, steps=3)["differences"].values()) == {0.0}


@pytest.mark.slow
def test_the_scenario_with_real_gradients_of_resnet_20() -> None:
    tiny = [
        "repeats=1", "workload.batch_size=2", "schemes=[local_sgd: {period: 2}]", "stop={max_iterations: 2}",
        "cluster.workers=2", "cluster.network={latency: 1 ms, bandwidth: 1 Gbit/s}", "evaluate.every=2 steps",
    ]  # fmt: skip
    figures = gpu_parts.scenario_on(CPU, tiny)
    assert (figures["workers"], figures["gradients"]) == (2, 4.0)
    assert figures["gradient_s"] > 0
    assert figures["verdict"].startswith("local_sgd takes ")


def test_without_a_gpu_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "page.md")]) == 2
    assert not list(tmp_path.iterdir())
    assert (
        capsys.readouterr().err
        == "make gpu: this machine has no CUDA device, so there is nothing to measure\n"
    )


def test_the_limits_add_up_to_ten_minutes() -> None:
    assert sum(limit_s for limit_s, _ in gpu_parts.parts(CPU).values()) <= 600


@pytest.mark.parametrize(
    ("code", "found", "error"),
    [
        ("print('noise'); print('{\"a\": 1}')", {"a": 1}, ""),
        ("import sys; sys.exit('at last\\nCUDA error')", None, "CUDA error"),
        ("raise RuntimeError('no device\\nCompile with DSA')", None, "RuntimeError: no device"),
        ("import os; os._exit(3)", None, "exit status 3"),
        ("import time; time.sleep(60)", None, "not done after 0.5 s"),
    ],
)
def test_a_part_that_fails_or_hangs_is_noted(code: str, found: Any, error: str) -> None:
    begin_s = time.monotonic()
    limit_s = 0.5 if error.startswith("not done") else 20.0
    part = gpu.run_part("x", limit_s, [sys.executable, "-c", code], {})
    assert (part.figures, part.error) == (found, error)
    assert part.seconds <= time.monotonic() - begin_s


RATES = {
    "looped": 1000.0,
    "batched": 12345.6,
    "raw vmap": 15000.0,
    "stacked step": 13000.0,
    "event driver": 11000.0,
}
FIGURES = [
    PagePart(
        "gradients digits-mlp",
        {
            "workers": 64, "batch_size": 32, "parameters": 4810, "rates": RATES,
            "ratios": {"batched / looped": 12.3, "stacked step / raw vmap": 0.867},
        },
        "", 10.0,
    ),
    PagePart("gradients resnet-20", None, "not done after 40 s", 40.0),
    PagePart(
        "measured digits-mlp",
        {"measured": [[1, 0.001], [8, 0.002]], "unseen": [[2, 1.0, 1.0, 1.0], [4, 1.0, 1.0, -3.0]]},
        "", 5.0,
    ),
    PagePart(
        "contract 1", {"ranks": 1, "passed": 5, "failed": ["broadcast: said 1"], "refused": ""}, "", 1.0
    ),
    PagePart("contract 2", {"ranks": 2, "passed": 0, "failed": [], "refused": "Duplicate\n GPU"}, "", 1.0),
    PagePart("sharing", {"ranks": 4, "steps": 10, "difference": 1.5e-7, "wall_clock_s": 0.25}, "", 2.0),
    PagePart(
        "scenario resnet-20",
        {
            "workers": 8, "gradient_s": 0.0021, "gradients": 7200.0, "wall_s": 14.4,
            "verdict": "local_sgd first, 1.9x",
        },
        "", 20.0,
    ),
    PagePart("attach", {"ranks": 2, "steps": 20, "differences": {"gossip": 7.1e-8}}, "", 41.4),
]  # fmt: skip


def test_the_page() -> None:
    text = page(MachineFacts("NVIDIA H200, 16 cores", "2026-11-21", "torch 2.11.0"), FIGURES)
    assert "Machine: NVIDIA H200, 16 cores; torch 2.11.0; 2026-11-21; 120 s in all.\n" in text
    for line in (
        "| digits-mlp | 4,810 | 64 | 32 | 1,000 | 12,346 | 15,000 | 13,000 | 11,000 | 12.3 | 0.87 |",
        "- gradients resnet-20 failed: not done after 40 s",
        "| digits-mlp | 1, 8 | 2, 4 | 2.0 % | -3.0 % | 4 |",
        "- 1 rank: 5 cases passed, 1 failed",
        "  - broadcast: said 1",
        "- 2 ranks: NCCL refuses: `Duplicate GPU`",
        "- 4 ranks, gossip on a ring, 10 steps in 0.25 s: "
        "final models within 1.5e-07 of the event driver's on the same GPU (relative)",
        "- 8 workers, 7,200 gradients in 14.4 s (500 a second); alone a gradient takes 2.10 ms",
        "- local_sgd first, 1.9x",
        "- 2 ranks, 20 steps; final models beside those over gloo on the CPU (relative): gossip 7.1e-08",
    ):
        assert f"\n{line}\n" in text
    assert "NaN" not in text


def test_a_page_on_which_everything_failed_has_all_sections() -> None:
    failed = [PagePart(part.name, None, "no luck", 1.0) for part in FIGURES]
    text = page(MachineFacts("m", "d", "v"), failed)
    assert text.count("\n## ") == 6
    assert text.count("failed: no luck") == len(FIGURES)
