"""Small inputs to which commands gave different answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.experiments.costs import step_cost, tokens
from paceline.sim.scenario.schema import parse


def test_sites_of_unequal_gpus_compute_what_both_together_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step of 848 ms one computes 376 and waits, the other 827: 70.9 %, not 97.5 as the slow one."""
    monkeypatch.setattr(tokens, "UTILISATIONS", ())
    monkeypatch.setattr(step_cost, "ENOUGH_WORK", 1_000)
    text = Path(__file__).with_name("uneven-sites.yaml").read_text(encoding="utf-8")
    found = tokens.throughput(parse(text))["schemes"]
    assert [row["utilisation"] for row in found] == pytest.approx([0.203, 0.669, 0.709], abs=1e-3)
    assert [row["step_s"] for row in found] == pytest.approx([2.967, 0.898, 0.848], rel=1e-3)
