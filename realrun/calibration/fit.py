"""Fit a profile to measurements: factors under which the simulated probes last as long as the real ones.

The simulator itself is the law: the measured programs run on the event driver, and robust least squares
change the factors until the durations agree. Known facts are not fitted: the announcement and the order of
messages in a stream are gloo's, and a socket's buffer was read back where possible.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats
from scipy.optimize import least_squares

from paceline.sim.compute import attached
from paceline.sim.config import files
from paceline.sim.config.files import MAX_JSON_BYTES, parse_json, save_atomically
from paceline.sim.config.user_code.code_files import reading_results
from paceline.sim.config.yaml_file import parse as parse_yaml
from paceline.sim.config.yaml_file import read_text, validate_document
from paceline.sim.errors import InputError
from paceline.sim.network.profile import FACTORS, PROFILE_VERSION, Factor, MeasuredRange, Profile
from paceline.sim.network.transport import TransferModel
from paceline.sim.scenario.schema import Scenario
from paceline.sim.seeds import Floats

from . import cluster_probes
from .probes import MeasuredOperation, Origin
from .training_run import TrainingRun, load_runs

CalibrationData = cluster_probes.Measurements | TrainingRun
"""One set of measurements of a cluster. A run's messages do not begin together, so it does not tell how
uneven they are; its hosts' settings have the size of a socket's buffer.
"""

_FITTED: Final = {
    # size, start, least, most, neutral, usual, added, step
    "overhead_s": (1e-4, 1.0, 0.0, 100.0, 0.0, 10.0, 1.0, 1.0),
    "added_latency_s": (1e-4, 2.0, 0.0, 200.0, 0.0, 10.0, 1.0, 1.0),
    "resume_s": (1e-4, 1.0, 0.0, 100.0, 0.0, 10.0, 1.0, 1.0),
    "efficiency": (1.0, 0.99, 0.5, 1.0, 1.0, 0.1, 0.0, 0.01),
    "copy_s_per_byte": (1e-9, 0.5, 0.0, 100.0, 0.0, 1.0, 1.0, 1.0),
}
"""The jointly fitted factors, each with the size at which it is searched, and in that size: where the search
starts, the least and the most value, the neutral one, its usual distance from that wherever measurements tell
factors apart (a standard deviation), what is added during the search (difference steps scale with the size,
and a factor may be 0), and the scale of a step.
"""

_SIZES, _START, _LEAST, _MOST, _NEUTRAL, _USUAL, _SHIFT, _STEPS = np.array([*_FITTED.values()]).T
_NOISE_FLOOR_S: Final = 1e-4
_NOISE_SHARE: Final = 0.003
"""Least uncertainty of every duration: an absolute part, and a share of it."""
_LEVEL: Final = 0.95
_MOSTLY_PRIOR: Final = 0.5
"""Remaining share of a factor's prior standard deviation above which it was hardly measured."""
PICTURE_MARK: Final = "paceline calibrate"
"""Creator recorded in a picture."""
_QUANTILES: Final = 200
"""Number of equally likely values that stand for a distribution in a profile."""
_YAML_BYTES: Final = 1 << 20
"""Longest text parsed as YAML to recognise it."""


@dataclass(frozen=True)
class Fit:
    """Factors, and how well they explain the measurements.

    Attributes:
        labels: of each fitted duration, human-readable.
        measured_s, fitted_s: the duration as measured, and as simulated with the factors.
        undetermined: a sentence with the reason for each factor left open by the measurements.
    """

    profile: Profile
    labels: tuple[str, ...]
    measured_s: Floats
    fitted_s: Floats
    undetermined: tuple[str, ...]


def calibrate(several: Sequence[CalibrationData]) -> Fit:
    """Fit the factors to one or more sets of measurements of the same kind of hosts.

    The spread of the sets' own factors is the machine's change between occasions: it is added to the
    covariance, since a prediction is about another occasion. Factors left open, as by runs of training alone,
    stay near neutral with a wide interval: a normal prior, no narrower than what is usual.

    Raises ``InputError`` for different kinds of hosts, or too few measurements.
    """
    origins = [m.origin for m in several]
    first = origins[0]
    for other in origins[1:]:
        if other.hosts != first.hosts:
            raise InputError(f"one set of measurements is of a {first.hosts}, another of a {other.hosts}")
    rows = _rows(several)
    probed = _probed(several)
    if probed and len(rows) < 2 * len(_FITTED):
        raise InputError(f"{len(rows)} durations are too few for {len(_FITTED)} factors; probe more")
    each_late = [m.wake_up_delays_s() for m in several]
    late = [value for values in each_late for value in values]
    buffer = _buffer(several)
    known = TransferModel(
        network=several[0].nominal,
        announcement=1.0,
        streams=True,
        buffer_bytes=buffer.value,
        late_s=max(0.0, statistics.median(late)),
    )
    solution = _fit(several, known)
    covariance, freedom = solution.covariance, solution.freedom
    if len(probed) > 1:
        covariance = covariance + np.cov([_fit([m], known).x for m in probed], rowvar=False)
    joint = covariance * np.outer(_SIZES, _SIZES)
    factors = _fitted_factors(solution.x, covariance, freedom, origins)
    factors["buffer_bytes"] = buffer
    # The median's interval, by order statistics.
    ordered, k = sorted(late), int(stats.binom.ppf((1 - _LEVEL) / 2, len(late), 0.5))
    low, high = ordered[max(k - 1, 0)], ordered[min(len(late) - k, len(late) - 1)]
    factors["late_s"] = Factor(
        value=known.late_s, low=max(0.0, min(low, known.late_s)), high=max(high, known.late_s), unit="s",
        measurements=tuple(
            f"{origin.measured_at}: {len(values)} steps of training"
            for origin, values in zip(origins, each_late, strict=True)
        ),
    )  # fmt: skip
    final: dict[str, Any] = {name: factor.value for name, factor in factors.items()}
    model = replace(known, **final)
    ranges = [m.predict(model)[1] for m in several]
    fields = dict(
        version=PROFILE_VERSION,
        made=max(origin.measured_at for origin in origins),
        machine=first.machine,
        software=first.software,
        hosts=first.hosts,
        workers=first.workers,
        factors={name: factors[name] for name in FACTORS},
        covariance=dict(zip(_FITTED, (tuple(row) for row in joint.tolist()), strict=True)),
        range=MeasuredRange(
            smallest_bytes=min(r.smallest_bytes for r in ranges),
            largest_bytes=max(r.largest_bytes for r in ranges),
            in_flight=max(r.in_flight for r in ranges),
        ),
        residual_pct=float(np.median(np.abs(solution.fitted_s / solution.measured_s - 1)) * 100),
        lateness_s=tuple(late),
        unevenness_s=_equally_likely([value for m in several for value in m.deviations_s(model)]),
        uneven_s=_equally_likely([value for m in probed for value in m.uneven_s()]),
        uneven_s_per_byte=_equally_likely([value for m in probed for value in m.uneven_s_per_byte()]),
    )
    profile = validate_document(Profile, fields, "the factors that fit these measurements best")
    labels = tuple(row.label for _, row in rows)
    return Fit(profile, labels, solution.measured_s, solution.fitted_s, _undetermined(solution, profile))


def _fitted_factors(
    values: Floats, covariance: Floats, freedom: int, origins: Sequence[Origin]
) -> dict[str, Factor]:
    """The jointly fitted factors, with intervals."""
    half = float(stats.t.ppf((1 + _LEVEL) / 2, freedom)) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    sources = tuple(f"{origin.measured_at}: {origin.what}" for origin in origins)
    return {
        name: Factor(
            value=float(x) * size,
            low=max(0.0, float(x - h) * size),
            high=float(x + h) * size,
            unit=FACTORS[name],
            measurements=sources,
        )
        for name, size, x, h in zip(_FITTED, _SIZES.tolist(), values, half, strict=True)
    }


def _undetermined(solution: _Solution, profile: Profile) -> tuple[str, ...]:
    """Factors known hardly better than before the measurements, and why."""
    if solution.prior_share is None:
        return ()
    largest = profile.range.largest_bytes
    why = {
        "efficiency": f"messages of at most {largest} bytes hardly take longer for a slower network",
        "copy_s_per_byte": f"messages of at most {largest} bytes are copied in no time",
    }
    others = "the exchanges of these schemes have overhead, latency and resumption together"
    sentences = [
        f"{name} is not determined by these runs: {why.get(name, others)}; it stays near "
        f"{neutral * size:g} {FACTORS[name]}"
        for name, size, neutral, share in zip(
            _FITTED, _SIZES.tolist(), _NEUTRAL.tolist(), solution.prior_share.tolist(), strict=True
        )
        if share > _MOSTLY_PRIOR
    ]
    if not profile.factors["buffer_bytes"].value:
        sentences.append("buffer_bytes is not determined by these runs: nobody recorded what a socket holds")
    return tuple(sentences)


@dataclass(frozen=True)
class _Solution:
    """Factors in their own units of ``_FITTED``, their covariance, and the resulting durations.

    ``prior_share``: remaining share of each factor's prior standard deviation; None without a prior.
    """

    x: Floats
    covariance: Floats
    freedom: int
    measured_s: Floats
    fitted_s: Floats
    prior_share: Floats | None


def _probed(several: Sequence[CalibrationData]) -> list[cluster_probes.Measurements]:
    """Those that suffice to tell all factors apart."""
    return [m for m in several if isinstance(m, cluster_probes.Measurements)]


def _rows(several: Sequence[CalibrationData]) -> list[tuple[CalibrationData, MeasuredOperation]]:
    return [(m, row) for m in several for row in m.rows()]


def _fit(several: Sequence[CalibrationData], known: TransferModel) -> _Solution:
    """Robust least squares over all durations of ``several``."""
    rows = _rows(several)
    measured = np.array([row.median_s for _, row in rows])
    noise = np.array([row.noise_s for _, row in rows])
    scale = np.hypot(np.hypot(_NOISE_FLOOR_S, _NOISE_SHARE * measured), noise)
    complete = bool(_probed(several))

    def fitted(x: Floats) -> Floats:
        values = dict(zip(_FITTED, (x * _SIZES).tolist(), strict=True))
        model = replace(known, **values)
        predictions = {id(m): m.predict(model)[0] for m in several}
        return np.array([predictions[id(m)][row.key] for m, row in rows])

    def residuals(shifted: Floats) -> Floats:
        x = shifted - _SHIFT
        off: Floats = (fitted(x) - measured) / scale
        return off if complete else np.append(off, (x - _NEUTRAL) / _USUAL)

    optimum: Any = least_squares(
        residuals,
        _START + _SHIFT,
        bounds=(_LEAST + _SHIFT, _MOST + _SHIFT),
        loss="soft_l1",
        diff_step=[0.02] * len(_FITTED),
        x_scale=_STEPS,
        ftol=1e-8 if complete else 1e-5,  # nothing to gain along undetermined factors
    )
    spread = 1.4826 * float(np.median(np.abs(residuals(optimum.x)))) if complete else 1.0
    inverse: Floats = np.asarray(np.linalg.pinv(optimum.jac.T @ optimum.jac), np.float64)
    freedom = max(1, len(optimum.jac) - len(_FITTED))
    x = optimum.x - _SHIFT
    covariance = inverse * max(spread, 1e-12) ** 2
    left = None if complete else np.sqrt(np.maximum(np.diag(covariance), 0.0)) / _USUAL
    return _Solution(x, covariance, freedom, measured, fitted(x), left)


def _equally_likely(values: Sequence[float]) -> tuple[float, ...]:
    """A distribution as equally likely values: its quantiles at the middles of equal parts; () of nothing."""
    parts = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return tuple(float(q) for q in np.quantile(values, parts)) if values else ()


def _buffer(several: Sequence[CalibrationData]) -> Factor:
    """The size of a socket's buffer: as set on the hosts, else the largest message that it took at once.

    Hosts have three numbers: the least, the initial, and the largest size.
    """
    for m in several:
        setting = [float(word) for word in m.origin.settings.get("net.ipv4.tcp_wmem", "").split()]
        if len(setting) == 3:
            value, high = setting[1], max(setting[1:])
            source = "the hosts' tcp_wmem, read back"
            return Factor(value=value, low=value, high=high, unit="bytes", measurements=(source,))
    value = max((m.buffered_bytes() for m in _probed(several)), default=0.0)
    return Factor(
        value=value, low=value, high=value, unit="bytes", measurements=("sends to a posted receive",)
    )


def plot(fit: Fit, path: Path) -> None:
    """Measured against fitted durations, as a PNG."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # independent of the user's matplotlibrc
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
        for axis in (axes.xaxis, axes.yaxis):  # 12 and 13, not powers of ten
            axis.set_major_formatter(LogFormatter())
            axis.set_minor_formatter(LogFormatter())
        axes.legend(fontsize="small")
        save_atomically(path, partial(figure.savefig, dpi=120, metadata={"Software": PICTURE_MARK}))


def load_all(path: Path, nominal: Scenario | None, say: Callable[[str], None]) -> Sequence[CalibrationData]:
    """Load the measurements of a file (see ``load``) or of a real run's folder (see ``load_runs``)."""
    if path.is_dir():
        with reading_results(path):
            return load_runs(path, say)
    return [load(path, nominal)]


def load(path: Path, nominal: Scenario | None) -> CalibrationData:
    """Load a file of ``paceline probe`` or ``paceline.attach``; ``nominal``: network of an attached run.

    Raises ``InputError`` if the file is not usable, or the network of its run is unknown.
    """
    if other := _name_other_file(path):
        raise InputError(f"{path}: is {other}")
    data = files.read_json(path, "'paceline probe' or paceline.attach")
    if data.get("kind") != attached.KIND:
        return cluster_probes.validate_measurements(data, path)
    record = files.as_model(attached.AttachedRun, data, path, attached.RECORD_VERSION)
    if nominal is None:
        raise InputError(
            f"{path}: was recorded by paceline.attach; say on what network with --nominal SCENARIO"
        )
    return TrainingRun(record, nominal, path)


def _name_other_file(path: Path) -> str:
    """Kind of a file, and what to give in its place; "" if it may be measurements. ``InputError``:
    unreadable.
    """
    text = read_text(path, MAX_JSON_BYTES, (".json",))
    document: Any = None
    try:
        document = parse_json(text)
    except ValueError:
        if len(text) <= _YAML_BYTES:
            with suppress(InputError):
                document = parse_yaml(text, "").value
    if not isinstance(document, dict):
        return ""
    keys = set(document)
    if {"factors", "residual_pct"} <= keys:
        return "a profile, which 'paceline calibrate' has written already: give it to --profile"
    if {"workload", "schemes"} <= keys or {"cluster", "schemes"} <= keys:
        return "a scenario: measure with 'paceline probe SCENARIO --out MEASURED.json' first"
    if {"summary", "runs"} <= keys:
        return f"the summary of a result folder: give the folder, {path.parent}"
    if {"cells", "decision"} <= keys:
        return f"the comparison of 'paceline validate': give the folder that it lies in, {path.parent}"
    if "bundle" in str(document.get("kind", "")) or "bundle" in keys:
        return "a bundle of 'paceline report --bundle', which has no events: give the folder of the run"
    return ""
