"""Conditions of a curve: what decides which models workers compute, whatever the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...records.verdict import Value

TRAINED: Final = "workload."
"""Beginning of conditions about a task; a scenario without a task says nothing of them."""
_NO_CONDITIONS: Final = frozenset(
    {"payload", "layer_profile", "timing_only", "curves", "batch_size", "accumulate"}
)


def conditions_of(scenario: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    """Label -> conditions of a scheme in a resolved scenario, as plain data."""
    workload, conditions = scenario["workload"], {}
    for ((name, options),) in (entry.items() for entry in scenario["schemes"]):
        task = {**workload, "optimizer": options.get("optimizer") or workload["optimizer"]}
        under = {
            "scheme": name,
            "workers": scenario["cluster"]["workers"],
            "batch_size": workload["batch_size"] * workload.get("accumulate", 1),
            "evaluate.on": scenario["evaluate"]["on"],
            **{key: value for key, value in options.items() if key not in ("label", "optimizer")},
        }
        if not workload["timing_only"]:
            under |= {TRAINED + key: value for key, value in task.items() if key not in _NO_CONDITIONS}
        conditions[options["label"]] = {
            key: value if isinstance(value, int | float | str) else repr(value)
            for key, value in under.items()
        }
    return conditions
