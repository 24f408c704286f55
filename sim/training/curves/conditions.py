"""Conditions of a curve: what decides which models workers compute, whatever the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...records.verdict import Value

TRAINED: Final = "workload."
"""Beginning of conditions about a task; a scenario without a task says nothing of them."""
_OF_THE_CLOCK: Final = frozenset({"payload", "layer_profile", "timing_only", "curves", "batch_size"})


def conditions_of(scenario: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    """Label -> conditions of a scheme in a resolved scenario, as plain data."""
    trained = not scenario["workload"]["timing_only"]
    workload = {
        key: value
        for key, value in scenario["workload"].items()
        if trained and key not in (*_OF_THE_CLOCK, "optimizer")
    }
    shared = {
        "workers": scenario["cluster"]["workers"],
        "batch_size": scenario["workload"]["batch_size"],
        "evaluate.on": scenario["evaluate"]["on"],
    }
    conditions = {}
    for entry in scenario["schemes"]:
        ((name, options),) = entry.items()
        own = {key: value for key, value in options.items() if key not in ("label", "optimizer")}
        rule = options.get("optimizer") or scenario["workload"]["optimizer"]
        task = {**workload, **({"optimizer": rule} if trained else {})}
        conditions[options["label"]] = {"scheme": name, **shared, **_flat(own), **_flat(task, TRAINED)}
    return conditions


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Value]:
    out: dict[str, Value] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{before}{key}.")
        elif value is not None:
            out[before + key] = value if isinstance(value, bool | int | float | str) else repr(value)
    return out
