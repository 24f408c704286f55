"""From measurements to a profile: which factors make the simulator's probes last as long as the real ones.

The simulator itself is the law: the very programs that were measured run on the event driver, and robust
least squares change the factors until the durations agree. What is known is not fitted: the announcement and
the order of messages in a stream are how gloo works, and a socket's buffer was read back where it could be.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import least_squares

from realrun import probes
from realrun.probe import Duration, Key, Measurements, durations
from sim.drivers.event import EventDriver
from sim.errors import InputError
from sim.job import TransferModel
from sim.profile import FACTORS, VERSION, Factor, Measured, Profile
from sim.whole_file import save_whole

_FITTED: Final = {
    "overhead_s": 1e-4,
    "added_latency_s": 1e-4,
    "resume_s": 1e-4,
    "efficiency": 1.0,
    "copy_s_per_byte": 1e-9,
}
"""The factors that are fitted together, with the size at which each is looked for."""

_START: Final = (1.0, 2.0, 1.0, 0.99, 0.5)
_FLOOR_S: Final = 1e-4
_SHARE: Final = 0.003
_LEVEL: Final = 0.95
_VALUES: Final = 200
_SMALL_BYTES: Final = 65_536

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """What calibration found.

    Attributes:
        profile: the factors.
        labels: of each duration that was fitted.
        measured_s, fitted_s: what it was, and what the simulator makes of it.
    """

    profile: Profile
    labels: tuple[str, ...]
    measured_s: Floats
    fitted_s: Floats


def predict(measurements: Measurements, model: TransferModel) -> tuple[dict[Key, float], Measured]:
    """What the simulator says that each operation of the plan takes, and the range of its messages."""
    plan = measurements.plan.model_copy(update={"repeats": 1})
    job = probes.job_of(plan, replace(model, network=measurements.nominal()))
    driver = EventDriver(job, [job.program(rank) for rank in range(job.workers)], job.scorer())
    outcome = driver.run()
    found = {key: values[0] for key, values in durations(outcome.events, len(plan.trials)).items()}
    traffic = driver.traffic
    assert traffic is not None
    return found, Measured(
        smallest_bytes=int(traffic.smallest_bytes),
        largest_bytes=int(traffic.largest_bytes),
        in_flight=traffic.in_flight,
    )


def calibrate(several: Sequence[Measurements]) -> Fit:
    """Fit the factors to one or more sets of measurements of the same kind of hosts.

    Several sets are fitted together. How far each set's own factors are from one another is how much the
    machine changes between one occasion and the next: it is added to the covariance, because a prediction is
    about another occasion.

    Raises:
        InputError: they are about different kinds of hosts, or too few.
    """
    first = several[0]
    for other in several[1:]:
        if other.hosts != first.hosts:
            raise InputError(f"one set of measurements is of a {first.hosts}, another of a {other.hosts}")
    rows = _rows(several)
    if len(rows) < 2 * len(_FITTED):
        raise InputError(f"{len(rows)} durations are too few for {len(_FITTED)} factors; probe more")
    late = [value for m in several for value in m.steps_s]
    buffer = _buffer(several)
    known = TransferModel(
        network=first.nominal(),
        announcement=1.0,
        streams=True,
        buffer_bytes=buffer.value,
        late_s=max(0.0, statistics.median(late)),
    )
    found = _fit(several, known)
    covariance, freedom = found.covariance, found.freedom
    if len(several) > 1:
        covariance = covariance + np.cov([_fit([m], known).x for m in several], rowvar=False)
    half = float(stats.t.ppf((1 + _LEVEL) / 2, freedom)) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    sizes = np.array(list(_FITTED.values()))
    joint = covariance * np.outer(sizes, sizes)
    sources = tuple(f"{m.made}: probes of {m.plan.workers} workers" for m in several)
    factors = {
        name: Factor(
            value=float(x) * size,
            low=max(0.0, float(x - h) * size),
            high=float(x + h) * size,
            unit=FACTORS[name],
            measurements=sources,
        )
        for (name, size), x, h in zip(_FITTED.items(), found.x, half, strict=True)
    }
    factors["buffer_bytes"] = buffer
    low, high = _median_interval(late)
    factors["late_s"] = Factor(
        value=known.late_s, low=max(0.0, min(low, known.late_s)), high=max(high, known.late_s), unit="s",
        measurements=tuple(f"{m.made}: {len(m.steps_s)} steps of training" for m in several),
    )  # fmt: skip
    final: dict[str, Any] = {name: factor.value for name, factor in factors.items()}
    model = replace(known, **final)
    ranges = [predict(m, model)[1] for m in several]
    profile = Profile(
        version=VERSION,
        made=max(m.made for m in several),
        machine=first.machine,
        software=first.software,
        hosts=first.hosts,
        workers=first.plan.workers,
        factors={name: factors[name] for name in FACTORS},
        covariance=dict(zip(_FITTED, (tuple(row) for row in joint.tolist()), strict=True)),
        range=Measured(
            smallest_bytes=min(r.smallest_bytes for r in ranges),
            largest_bytes=max(r.largest_bytes for r in ranges),
            in_flight=max(r.in_flight for r in ranges),
        ),
        residual_pct=float(np.median(np.abs(found.fitted_s / found.measured_s - 1)) * 100),
        lateness_s=tuple(late),
        unevenness_s=_alike(_deviations(several)),
    )
    labels = tuple(f"{_kind(m, d)} {d.operation}" for m, d in rows)
    return Fit(profile, labels, found.measured_s, found.fitted_s)


@dataclass(frozen=True)
class _Found:
    """Factors in their own units of ``_FITTED``, how sure they are, and the durations that they give."""

    x: Floats
    covariance: Floats
    freedom: int
    measured_s: Floats
    fitted_s: Floats


def _rows(several: Sequence[Measurements]) -> list[tuple[Measurements, Duration]]:
    return [(m, d) for m in several for d in m.durations if d.operation != "gradient"]


def _fit(several: Sequence[Measurements], known: TransferModel) -> _Found:
    """Robust least squares over all durations of ``several``."""
    rows = _rows(several)
    measured = np.array([d.median_s for _, d in rows])
    scale = np.array([_scale(d) for _, d in rows])

    def fitted(x: Floats) -> Floats:
        values = dict(zip(_FITTED, (x * np.array(list(_FITTED.values()))).tolist(), strict=True))
        model = replace(known, **values)
        predictions = {id(m): predict(m, model)[0] for m in several}
        return np.array([predictions[id(m)][d.key] for m, d in rows])

    def residuals(x: Floats) -> Floats:
        off: Floats = (fitted(x) - measured) / scale
        return off

    found: Any = least_squares(
        residuals,
        np.array(_START),
        bounds=([0.0, 0.0, 0.0, 0.5, 0.0], [100.0, 200.0, 100.0, 1.0, 100.0]),
        loss="soft_l1",
        diff_step=[0.02] * len(_FITTED),
        x_scale=np.array([1.0, 1.0, 1.0, 0.01, 1.0]),
    )
    covariance, freedom = _covariance(found.jac, residuals(found.x))
    return _Found(found.x, covariance, freedom, measured, fitted(found.x))


def _alike(values: Sequence[float]) -> tuple[float, ...]:
    """A distribution as equally likely values: its quantiles at the middles of equal parts."""
    return tuple(float(q) for q in np.quantile(values, (np.arange(_VALUES) + 0.5) / _VALUES))


def _deviations(several: Sequence[Measurements]) -> list[float]:
    """By how much small exchanges differ from their medians."""
    return [
        value - d.median_s
        for m in several
        for d in m.durations
        if d.operation in ("receive", "mix") and m.plan.trials[d.trial].num_bytes <= _SMALL_BYTES
        for value in d.values_s
    ]


def _kind(measurements: Measurements, duration: Duration) -> str:
    trial = measurements.plan.trials[duration.trial]
    return f"{trial.kind} {trial.num_bytes}"


def _scale(duration: Duration) -> float:
    """How far off a fitted duration may be before it counts: noise of the median, and a share of it."""
    return float(np.hypot(np.hypot(_FLOOR_S, _SHARE * duration.median_s), duration.mad_s))


def _buffer(several: Sequence[Measurements]) -> Factor:
    """What a socket holds: as the hosts have it, else the largest message that was taken off at once."""
    first = several[0]
    setting = first.settings.get("net.ipv4.tcp_wmem", "").split()
    if len(setting) == 3:
        value = float(setting[1])
        return Factor(
            value=value, low=value, high=value, unit="bytes", measurements=("the hosts' tcp_wmem, read back",)
        )
    largest = 0.0
    for m in several:
        for d in m.durations:
            trial = m.plan.trials[d.trial]
            network = m.nominal()
            rate = min((link.bandwidth_bytes_per_s for link in network.links), default=float("inf"))
            if trial.kind == "ready" and d.operation == "send" and d.median_s < 0.5 * trial.num_bytes / rate:
                largest = max(largest, float(trial.num_bytes))
    return Factor(
        value=largest, low=largest, high=largest, unit="bytes", measurements=("sends to a posted receive",)
    )


def _covariance(jacobian: Floats, residuals: Floats) -> tuple[Floats, int]:
    """Of the fitted values, from the linearised fit, and the degrees of freedom left."""
    freedom = max(1, len(residuals) - jacobian.shape[1])
    spread = 1.4826 * float(np.median(np.abs(residuals)))
    inverse: Floats = np.asarray(np.linalg.pinv(jacobian.T @ jacobian), np.float64)
    return inverse * max(spread, 1e-12) ** 2, freedom


def _median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median, by order statistics."""
    ordered = sorted(values)
    k = int(stats.binom.ppf((1 - _LEVEL) / 2, len(ordered), 0.5))
    return ordered[max(k - 1, 0)], ordered[min(len(ordered) - k, len(ordered) - 1)]


def plot(fit: Fit, path: Path) -> None:
    """Measured against fitted durations, as a PNG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure = Figure(figsize=(6.4, 6.4), layout="constrained")
        axes = figure.subplots()
        kinds = [label.split()[0] for label in fit.labels]
        for kind in dict.fromkeys(kinds):
            mine = np.array([k == kind for k in kinds])
            axes.loglog(fit.measured_s[mine] * 1e3, fit.fitted_s[mine] * 1e3, "o", markersize=4, label=kind)
        ends = [min(fit.measured_s) * 1e3, max(fit.measured_s) * 1e3]
        axes.loglog(ends, ends, color="0.5", linewidth=1)
        axes.set(
            xlabel="measured [ms]", ylabel="fitted [ms]", title=f"{fit.profile.hosts}, {fit.profile.made}"
        )
        axes.legend(fontsize="small")
        save_whole(path, partial(figure.savefig, dpi=120))
