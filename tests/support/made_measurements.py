"""Probes of a cluster that is known: the simulator made their durations itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from paceline.realrun.calibration import cluster_probes, fit, probes
from paceline.realrun.calibration.probes import plan_for
from paceline.sim.network.transport import TransferModel
from tests.support.factory import flat_network

NETWORK: dict[str, Any] = {"latency": "5 ms", "bandwidth": "1 Gbit/s"}
TRUE = {
    "overhead_s": 2e-4,
    "added_latency_s": 3e-4,
    "resume_s": 4e-4,
    "efficiency": 0.97,
    "copy_s_per_byte": 4e-10,
}
TWO_SIZES = (64, 1_048_576)


def measurements(
    truth: Mapping[str, float | tuple[float, ...]],
    noise: float = 0.0,
    outliers: int = 0,
    nominal: dict[str, Any] = NETWORK,
    sizes: tuple[int, ...] = (64, 262_144, 1_048_576),
    **changes: Any,
) -> cluster_probes.Measurements:
    """What a cluster with these factors would have measured, five times, with relative noise.

    ``sizes``: of messages, in bytes; uneven shares are known from three on.
    """
    network = flat_network(4, 0.005, 125e6)
    plan = plan_for(network, sizes, 1)
    empty = cluster_probes.Measurements(
        version=cluster_probes.MEASUREMENTS_VERSION, made="2026-01-01T00:00:00+00:00",
        machine="test", software="test",
        hosts=probes.lab_hosts(), settings={"net.ipv4.tcp_wmem": "4096 33554432 33554432"},
        load=(0.0, 0.0),
        switch={}, network=nominal, plan=plan, steps_s=(1e-4, 2e-4, 3e-4),
        durations=(cluster_probes.Duration(trial=0, operation="send", worker=0, part=0, values_s=(1.0,)),),
    )  # fmt: skip
    model = TransferModel(network, announcement=1.0, streams=True, buffer_bytes=33554432.0)
    found, _ = empty.predict(replace(model, **truth))  # type: ignore[arg-type]
    draws = np.random.Generator(np.random.Philox(1))
    durations = tuple(
        cluster_probes.Duration(
            trial=key[0], operation=key[1], worker=key[2], part=key[3],
            values_s=tuple(float(v) for v in value * (1 + noise * draws.standard_normal(5))),
        )
        for key, value in found.items()
    )  # fmt: skip
    spoilt = tuple(
        d.model_copy(update={"values_s": tuple(3 * v for v in d.values_s)})
        if k % 10 == 0 and k < 10 * outliers
        else d
        for k, d in enumerate(durations)
    )
    return empty.model_copy(update={"durations": spoilt, **changes})


@cache
def exact_fit() -> fit.Fit:
    """What calibration makes of exact measurements."""
    return fit.calibrate([measurements(TRUE)])
