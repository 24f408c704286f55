"""What docs/papers/stochastic-reweighted-gradient.md is made of."""

from __future__ import annotations

import torch

from benchmarks.srg import MARK, PAGE, breast_cancer_logistic


def test_the_real_problem_is_as_smooth_as_it_says() -> None:
    workload = breast_cancer_logistic()
    hessian = torch.func.jacrev(torch.func.grad(workload.loss))
    curvatures = [
        torch.linalg.eigvalsh(hessian(workload.start, a[None], y[None])).max()
        for a, y in zip(workload.inputs[:20], workload.targets[:20], strict=True)
    ]
    assert workload.smoothness is not None
    torch.testing.assert_close(torch.stack(curvatures), workload.smoothness[:20])  # at 0 the bound is met


def test_the_page_has_a_real_data_set() -> None:
    assert "| logistic regression, breast cancer (455 examples) |" in PAGE.read_text().partition(MARK)[2]
