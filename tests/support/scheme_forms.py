"""Every scheme in its forms: the one list of them that all tests take.

Whoever adds a scheme adds its forms here. Then its bytes (``tests/contract/test_all_schemes.py``) and its
memory (``tests/sim/schemes/common/test_held.py``) are tried, that no step waits for a device, and that both
drivers and real processes do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import pytest

from paceline.sim.errors import InputError
from paceline.sim.schemes import SCHEMES

Options = dict[str, Any]

WORKERS, STEPS, SIZE = 6, 60, 6144
EIGHT_BITS: Options = {"compression": {"qsgd": {"bits": 8, "bucket": 64}}}
FOUR_BITS: Options = {"compression": {"qsgd": {"bits": 4, "bucket": 64}}}
A_TENTH: Options = {"compression": {"top_k": {"share": 0.1}}}
BF16: Options = {"compression": {"bf16": True}}
FP16: Options = {"compression": {"fp16": True}}

FEW_STEPS: Options = {
    "period": 2, "initial_period": 2, "exchange": 2, "warmup": 2, "switch_at": 3, "calibration": 3,
}  # fmt: skip
"""Values of options with which a scheme has something to do in a few steps."""


@dataclass(frozen=True)
class Form:
    """A scheme with options.

    Args:
        models_sent: by a worker in a step, of ``WORKERS`` in ``STEPS``; None: it depends on the clock.
        alike: another form differs from it by little, so that only long tests need it.
        rule: its optimiser, as a scenario writes it (default: SGD).
    """

    scheme: str
    options: Options
    models_sent: float | None
    alike: bool = False
    rule: Options = field(default_factory=dict)

    def __str__(self) -> str:
        said = {
            key: " ".join(given) if key == "compression" else given for key, given in self.options.items()
        }
        return " ".join([self.scheme, *(f"{key}={value}" for key, value in said.items()), *self.rule])

    @property
    def synchronous(self) -> bool:
        """Whether its models do not depend on the clock."""
        scheme = SCHEMES[self.scheme]
        return scheme.in_step(scheme.options(**self.options))

    @property
    def momentum(self) -> float:
        """That its optimiser may have."""
        return 0.0 if SCHEMES[self.scheme].own_momentum else 0.9

    @property
    def encoded(self) -> bool:
        """Whether codes travel, which workers add up in an order of their own, not a library."""
        return bool({"qsgd", "top_k"} & set(self.options.get("compression", ())))

    def fits(self, workers: int) -> bool:
        """Whether n workers can do it."""
        scheme = SCHEMES[self.scheme]
        try:
            scheme.check(scheme.options(**self.options), workers)
        except InputError:
            return False
        return True

    def of_payload(self, part: str) -> Options:
        """Options for a payload without layers, in parts of that size."""
        if self.scheme == "sharded":
            return self.options | {"unit": part}
        return self.options | ({"bucket": part} if self.options.get("overlap") is True else {})

    def in_few_steps(self, step_s: float = 1.0) -> Options:
        """Options with which it has something to do in a few steps that take so long."""
        kept = {"period"} if "delay" in self.options else set()
        few = self.options | {key: FEW_STEPS[key] for key in self.options.keys() & FEW_STEPS.keys() - kept}
        return few | ({"deadline": f"{2.5 * step_s} s"} if "deadline" in few else {})


# A ring's all-reduce is 2 (n - 1)/n models, a broadcast (n - 1)/n, a visit to a centre one there and one back
# but for its host.
RING, TREE = 2 * (WORKERS - 1) / WORKERS, (WORKERS - 1) / WORKERS
IN_8, IN_4 = 8 / 32 + 1 / 64, 4 / 32 + 1 / 64
"""Of its bytes that a compressed value has: 8 or 4 bits for 32, and a norm for each bucket."""
ALIKE = True
_RING: Options = {"topology": "ring"}
_PEER: Options = {"topology": "one_peer_exponential"}
_MATCHING: Options = {"topology": "random_matching"}
_MIXED: Options = {"momentum": "mixed"}
_FIRST: Options = {"order": "combine_while_adapting"}
_ROUND: Options = {"round": "25 ms"}
_HALVES: Options = {"period": 4, "fragments": 2, "delay": 1}

FORMS: tuple[Form, ...] = (
    Form("all_reduce", {}, RING),
    Form("all_reduce", {"overlap": True}, RING),
    Form("all_reduce", {"overlap": True, "bucket": "2600 B"}, RING, ALIKE),
    Form("all_reduce", {"overlap": True, "send_order": "ready_first"}, RING),
    Form("all_reduce", {"overlap": True, "next_forward": True}, RING),
    Form("all_reduce", {"overlap": True, "send_order": "ready_first", "next_forward": True}, RING, ALIKE),
    Form("all_reduce", {"part_reduce": True}, RING),
    Form("all_reduce", {"buffers": f"{4 * SIZE} B"}, RING + TREE),
    Form("all_reduce", EIGHT_BITS, RING * IN_8),
    Form("all_reduce", A_TENTH, (WORKERS - 1) * 2 / 10, ALIKE),
    Form("all_reduce", BF16, RING / 2, ALIKE),
    Form("all_reduce", FP16, RING / 2, ALIKE),
    Form("all_reduce", {"outer": {"period": 2}}, RING),
    Form("all_reduce", {"outer": {"period": 2}, "overlap": True, "next_forward": True}, RING, ALIKE),
    Form("all_reduce", {"quorum": 3}, None),
    Form("sharded", {}, 3 * TREE + TREE / STEPS),  # the last model is gathered at the end
    Form("sharded", {"shard": "optimizer"}, RING),
    Form("sharded", {"shard": "gradients", "prefetch": 0, "unit": "4 kB"}, RING, ALIKE),
    Form("sharded", {"reshard": False, "prefetch": 2}, 2 * TREE + TREE / STEPS, ALIKE),
    Form("local_sgd", {"period": 4}, RING / 4),
    Form("local_sgd", {"period": 4, **_MIXED}, 2 * RING / 4),
    Form("local_sgd", {"period": 4, "warmup": 20}, RING * (20 + 10) / STEPS),
    Form("local_sgd", {"period": 4, "warmup": 20, **_MIXED}, 2 * RING * (20 + 10) / STEPS, ALIKE),
    Form("local_sgd", {"period": 4, **EIGHT_BITS}, RING / 4 * IN_8),
    Form("local_sgd", {"period": 4, **_MIXED, **FOUR_BITS}, 2 * RING / 4 * IN_4, ALIKE),
    Form("local_sgd", {"period": 4, **A_TENTH}, (WORKERS - 1) / 4 * 2 / 10, ALIKE),
    Form("local_sgd", {"period": 4, **_MIXED, **BF16}, RING / 4, ALIKE),
    Form("local_sgd", {"period": 4, **_MIXED, **FP16}, RING / 4, ALIKE),
    Form("local_sgd", {"period": 4, "quorum": 3, "deadline": "5 s"}, None),
    Form("adaptive_local_sgd", {"initial_period": 4, "calibration": STEPS}, RING / 4),
    Form("post_local_sgd", {"switch_at": 20, "period": 4}, RING * (20 + 10) / STEPS),
    Form("local_sgd", {"period": 4, "warmup": 4, **_ROUND}, RING * (4 + 14) / STEPS, ALIKE),
    Form("local_sgd", {"period": 4, "quorum": 3, "deadline": "5 s", **_ROUND}, None, ALIKE),
    Form("adaptive_local_sgd", {"initial_period": 4, "calibration": STEPS, **_ROUND}, RING / 4, ALIKE),
    Form("post_local_sgd", {"switch_at": 20, "period": 4, **_ROUND}, RING * (20 + 10) / STEPS, ALIKE),
    Form("gossip", _RING, 2),
    Form("gossip", {**_RING, **_FIRST}, 2),
    Form("gossip", {**_RING, **_MIXED}, 4),
    Form("gossip", {**_RING, **_FIRST, **_MIXED}, 4),
    Form("gossip", {**_RING, "global_period": 4}, (3 * 2 + RING) / 4),
    Form("gossip", _PEER, 1),
    Form("gossip", {**_PEER, "global_period": 4}, (3 * 1 + RING) / 4, ALIKE),
    Form("gossip", _MATCHING, 1),
    Form("gossip", {**_MATCHING, **_MIXED}, 2, ALIKE),
    Form("gossip", {**_MATCHING, **_FIRST, "global_period": 4}, (3 * 1 + RING) / 4, ALIKE),
    Form("gossip", {"topology": "complete", "weights": "metropolis"}, WORKERS - 1, ALIKE),
    Form("gossip", {"topology": "static_exponential"}, 3, ALIKE),
    Form("gossip", {**_RING, **EIGHT_BITS}, 2 * IN_8),
    Form("gossip", {**_PEER, **_MIXED, **FOUR_BITS}, 2 * IN_4, ALIKE),
    Form("gossip", {**_PEER, **_FIRST, **BF16}, 1 / 2, ALIKE),
    Form("sgp", {"topology": "star"}, TREE * 2),
    Form("sgp", {"topology": "star", "biased": True}, TREE * 2),
    Form("sgp", {"topology": "star", "overlap": 1}, TREE * 2, ALIKE),
    Form("sgp", {"topology": "star", "overlap": 1, "asynchronous": True}, TREE * 2, ALIKE),
    Form("sgp", {"topology": "static_exponential"}, 3, ALIKE),
    Form("sgp", _PEER, 1, ALIKE),
    Form("sgp", {**_PEER, "overlap": 1}, 1),
    Form("sgp", {**_PEER, "overlap": 2}, 1),
    Form("sgp", {**_PEER, "asynchronous": True}, 1),
    Form("sgp", {**_PEER, "asynchronous": True, "overlap": 1}, 1, ALIKE),
    Form("ad_psgd", {}, 1),
    Form("leader_sgd", {"period": 4}, TREE / 4),
    Form("leader_sgd", {"period": 4, "loss_window": 3}, TREE / 4, ALIKE),
    Form("leader_sgd", {"period": 4, "asynchronous": True}, TREE / 4),
    Form("leader_sgd", {"period": 2, "groups": 2, "global_period": 4}, (2 / 3) / 2 + TREE / 4),
    Form("leader_sgd", {"period": 2, "groups": 2, "global_period": 4, "spread": 0.1},
         (2 / 3) / 2 + TREE / 4, ALIKE),
    Form("leader_sgd", {"period": 2, "groups": 2, "global_period": 4, "asynchronous": True}, None),
    Form("easgd", {"period": 4}, RING / 4),
    Form("easgd", {"period": 4, "spread": 0.2}, RING / 4, ALIKE),
    Form("easgd", {"period": 4, "pull": 0.5}, RING / 4, ALIKE),
    Form("easgd", {"period": 4, "asynchronous": True}, RING / 4),
    Form("easgd", {"period": 4, "asynchronous": True, "host": 3}, RING / 4, ALIKE),
    Form("eamsgd", {"period": 4}, RING / 4),
    Form("eamsgd", {"period": 4, "spread": 0.1}, RING / 4, ALIKE),
    Form("eamsgd", {"period": 4, "asynchronous": True}, RING / 4),
    Form("eamsgd", {"period": 4, "asynchronous": True, "host": 2}, RING / 4, ALIKE),
    Form("downpour", {"period": 4}, RING / 4),
    Form("diloco", {"period": 4}, RING / 4),
    Form("diloco", {"period": 4, "fragments": 2}, RING / 4),
    Form("diloco", {**_HALVES, "alpha": 0.5}, RING / 4),
    Form("diloco", {"period": 4, **EIGHT_BITS}, RING / 4 * IN_8),
    Form("diloco", {**_HALVES, "alpha": 0.5, **FOUR_BITS}, RING / 4 * IN_4, ALIKE),
    Form("diloco", {"period": 4, **A_TENTH}, (WORKERS - 1) / 4 * 2 / 10),
    Form("diloco", {**_HALVES, **A_TENTH}, (WORKERS - 1) / 4 * 2 / 10, ALIKE),
    Form("diloco", {"period": 4, "delay": 1, **EIGHT_BITS}, RING / 4 * IN_8, ALIKE),
    Form("diloco", {**_HALVES, **FP16}, RING / 4 / 2, ALIKE),
    Form("diloco", {"period": 4, "delay": 1, **FP16}, RING / 4 / 2, ALIKE),
    Form("diloco", {"period": 4, "deadline": "5 s"}, None),
    Form("diloco", {"period": 4, **_ROUND}, RING / 4),
    Form("diloco", {**_HALVES, **_ROUND}, RING / 4, ALIKE),
    Form("diloco", {"period": 4, "deadline": "5 s", **_ROUND}, None, ALIKE),
    Form("slowmo", {"period": 4}, RING / 4),
    Form("slowmo", {"period": 4, **_ROUND}, RING / 4, ALIKE),
    Form("slowmo", {"period": 4, **_MIXED}, 2 * RING / 4),
    Form("slowmo", {"period": 4, **EIGHT_BITS}, RING / 4 * IN_8, ALIKE),
    Form("slowmo", {"period": 4, **BF16}, RING / 4 / 2, ALIKE),
    Form("gradient_tracking", _RING, 4),
    Form("gradient_tracking", _PEER, 2),
    Form("gradient_tracking", {**_RING, **FOUR_BITS}, 4 * IN_4, ALIKE),
    Form("gradient_tracking", {**_PEER, **EIGHT_BITS}, 2 * IN_8, ALIKE),
    Form("choco_sgd", {**_RING, "gamma": 0.5}, 2),
    Form("choco_sgd", {**_RING, "gamma": 0.1, **A_TENTH}, 2 * 2 / 10),
    Form("choco_sgd", {**_RING, "gamma": 0.5, **EIGHT_BITS}, 2 * IN_8, ALIKE),
    Form("halos", {"period": 4, "exchange": 4}, RING / 4),
    Form("halos", {"period": 4, "exchange": 4, **EIGHT_BITS}, RING / 4 * (IN_8 + 1) / 2),
    Form("halos", {"period": 4, "exchange": 4, **A_TENTH}, RING / 4 * (2 / 10 + 1) / 2),
    Form("fedavg", {"period": 4}, RING / 4),
    Form("fedavg", {"period": 4, "participation": 0.5}, (2 * (3 - 1) / 6 + TREE) / 4),
    Form("fedavg", {"period": 4, "participation": 0.5, **BF16}, (2 * (3 - 1) / 6 / 2 + TREE) / 4, ALIKE),
    Form("fedavg", {"period": 4, "participation": 0.5, "quorum": 1}, None),
    Form("fedavg", {"period": 4, "participation": 0.5, **_ROUND}, (2 * (3 - 1) / 6 + TREE) / 4, ALIKE),
    Form("fedavg", {"period": 4, "participation": 0.5, "quorum": 1, **_ROUND}, None, ALIKE),
)  # fmt: skip

MUON: Options = {"muon": {"lr": 0.02, "adamw": {"lr": 0.003}}}
CLIPPED: Options = {"adamw": {"lr": 0.003}, "clip": 0.5}

RULED: tuple[Form, ...] = (
    Form("all_reduce", {}, None, rule=MUON),
    Form("all_reduce", {"outer": {"period": 2}}, None, rule=CLIPPED),
    Form("diloco", {"period": 4}, None, rule=MUON),  # MuLoCo
    Form("diloco", {**_HALVES, "alpha": 0.5}, None, rule=MUON),
    Form("diloco", {"period": 4}, None, rule=CLIPPED),
    Form("gossip", {**_RING, **_MIXED}, None, rule=MUON),
    Form("gossip", {**_RING, **_MIXED}, None, rule={"tests.support.own_rules:Lion": {"lr": 0.01}}),
    Form("ad_psgd", {}, None, rule=MUON),
)
"""Forms with other optimisers than SGD."""

INSIDE: tuple[Form, ...] = (
    Form("gossip", {"topology": "complete", "inside": "hosts"}, None),
    Form("sgp", {"topology": "one_peer_exponential", "inside": "hosts"}, None),
    Form("sgp", {"topology": "star", "inside": "hosts", "overlap": 2}, None),
    Form("diloco", {"period": 4, "inside": "hosts"}, None),
    Form("diloco", {"period": 4, "inside": "hosts", "overlap": True}, None),
    Form("sharded", {"inside": "hosts"}, None),
)
"""Forms for networks with hosts or sites, whose workers are one."""

DISTINCT: tuple[Form, ...] = tuple(form for form in FORMS if not form.alike)
SYNCHRONOUS: tuple[Form, ...] = tuple(form for form in FORMS if form.synchronous)
ASYNCHRONOUS: tuple[Form, ...] = tuple(form for form in FORMS if not form.synchronous)


def named(forms: Iterable[Form]) -> list[Any]:
    """Forms as parameters of a test; those that are like others are slow."""
    return [_case((form,), form.alike, str(form)) for form in forms]


def one_each(forms: Sequence[Form]) -> list[Any]:
    """Forms as parameters of a test; slow but for the first of each scheme."""
    firsts = {form.scheme: form for form in reversed(list(forms))}
    return [_case((form,), form is not firsts[form.scheme], str(form)) for form in forms]


def in_turn(forms: Iterable[Form], ways: Sequence[Any], slow: Sequence[Any] = ()) -> list[Any]:
    """Forms and ways as parameters of a test: each form in one of ``ways``, in turn, as ``named``.

    A form that is like no other also goes, as a slow test, in the others of ``ways``, or, where there are
    ``slow`` ones, in that which stands there in the same place.
    """
    return [
        _case((form, way), form.alike or way is not quick, f"{form}-{way}")
        for form, quick, long in zip(forms, cycle(ways), cycle(slow or [None]), strict=False)
        for way in ([quick] if form.alike else [quick, long] if slow else ways)
    ]


def _case(values: tuple[Any, ...], slow: bool, name: str) -> Any:
    return pytest.param(*values, id=name, marks=[pytest.mark.slow] if slow else [])
