"""The task that stands for a language model, in a scenario without a task of its own (docs/proxies.md).

It is ``text-mlp``, long enough for 16 rounds of the longest period, so that periods, optimisers and outer
steps are those of the scenario. All workers together draw ``PROXY_EXAMPLES`` for a step, whose time is that
of the real batch. The target is about 95 % of the fall of all-reduce's loss in 8,000 steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ..config.problems import mistake
from ..records.carry.break_even import FEWEST_ROUNDS
from ..records.rates import RATE
from ..workloads.layers.presets import PRESETS

PROXY: Final = "text-mlp"
PROXY_EXAMPLES: Final = 256
STEPS: Final = 8000
TARGET: Final[Mapping[str, Any]] = MappingProxyType({"metric": "test_loss", "value": 1.8})
RATES: Final = (0.003, 0.006, 0.012)
"""Of AdamW: half, once and twice the rate at which all-reduce ends lowest."""
_SCHEDULE: Final = MappingProxyType({"warmup": "100 steps"})


def with_proxy(data: Any) -> Any:
    """Scenario not validated yet, with the proxy where it has a language model and nothing to train."""
    match data:
        case {"workload": {"layer_profile": profile} as workload} if _is_language_model(
            profile
        ) and workload.keys().isdisjoint(("task", "timing_only", "curves")):
            optimizer = workload.get("optimizer", {})
        case _:
            return data
    named = optimizer if isinstance(optimizer, Mapping) else {}
    if "tune" not in data and optimizer and named.keys().isdisjoint(("adam", "adamw", "muon")):
        text = f"the proxy has rates for AdamW alone; add for example 'tune: {{{RATE}: [0.1, 0.2, 0.4]}}'"
        raise mistake(text, "workload", "optimizer")
    steps = max(STEPS, FEWEST_ROUNDS * max(_periods(data.get("schemes")), default=1))
    trained = {"task": PROXY, "proxy_batch": PROXY_EXAMPLES, **workload}
    if named:
        trained["optimizer"] = {**named, "schedule": dict(_SCHEDULE)}
    return {
        "evaluate": {"every": "40 steps"},
        "stop": {"target": dict(TARGET), "max_iterations": steps},
        "tune": {RATE: list(RATES), "trials": len(RATES)},
        "repeats": 5,
        "events": "none",
        **data,
        "workload": trained,
    }


def _is_language_model(profile: object) -> bool:
    known = isinstance(profile, str) and profile in PRESETS and profile.startswith(("gpt", "llama", "bert"))
    return known or (isinstance(profile, Mapping) and "transformer" in profile)


def _periods(schemes: object) -> Iterable[int]:
    entries = schemes if isinstance(schemes, list | tuple) else ()
    for entry in entries:
        for options in entry.values() if isinstance(entry, Mapping) else ():
            match options:
                case {"period": int(period)}:
                    yield period
