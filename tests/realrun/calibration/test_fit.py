"""Calibration on durations that the simulator made itself: the factors have to come back."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.realrun.calibration import cluster_probes, probes
from paceline.realrun.calibration import fit as calibrate
from paceline.sim.config import files
from paceline.sim.errors import InputError
from paceline.sim.network import profile as profiles
from paceline.sim.network.build import build_network
from paceline.sim.network.network_settings import NetworkSettings, TcpSettings
from paceline.sim.traffic.sharing import FairSharing
from tests.support.made_measurements import NETWORK, TRUE, TWO_SIZES, exact_fit, measurements


def test_exact_durations_give_exact_factors() -> None:
    fit = exact_fit()
    for name, value in TRUE.items():
        assert fit.profile.factors[name].value == pytest.approx(value, rel=1e-3), name
    assert fit.fitted_s == pytest.approx(fit.measured_s, rel=1e-4)
    assert fit.profile.residual_pct < 0.01
    assert fit.profile.factors["buffer_bytes"].value == 33554432
    assert fit.profile.factors["late_s"].value == 2e-4
    assert (fit.profile.range.smallest_bytes, fit.profile.range.largest_bytes) == (0, 1_048_576)


@pytest.mark.slow
@settings(max_examples=2)
@given(
    overhead_s=st.floats(5e-5, 1e-3),
    added_latency_s=st.floats(5e-5, 1e-3),
    resume_s=st.floats(5e-5, 1e-3),
    efficiency=st.floats(0.8, 0.99),
)
def test_factors_come_back(**truth: float) -> None:
    fit = calibrate.calibrate([measurements({**truth, "copy_s_per_byte": 4e-10})])
    for name, value in truth.items():
        assert fit.profile.factors[name].value == pytest.approx(value, rel=0.02), name


@pytest.mark.slow
def test_probes_of_stock_hosts_are_fitted_with_their_windows() -> None:
    nominal = {**NETWORK, "hosts": "stock", "tcp": {"congestion": "reno"}}
    hosts = probes.lab_hosts(TcpSettings(congestion="reno"))
    probed = measurements(TRUE, nominal=nominal, hosts=hosts)
    tuned = {d.key: d.median_s for d in measurements(TRUE).durations}
    assert max(d.median_s / tuned[d.key] for d in probed.durations) > 1.5
    fit = calibrate.calibrate([probed])
    for name, value in TRUE.items():
        assert fit.profile.factors[name].value == pytest.approx(value, rel=0.05), name
    assert str(fit.profile.hosts) == "lab with stock (congestion reno) hosts and fair queues over gloo"


def test_uneven_shares_come_back() -> None:
    drawn = tuple(float(each) for each in 3e-10 * np.linspace(-1.5, 1.5, 31))
    uneven = measurements({**TRUE, "uneven_s_per_byte": drawn}).uneven_s_per_byte()
    assert len(uneven) == 5 * 5 * 3  # trials, times, messages
    assert np.mean(uneven) == pytest.approx(0, abs=3e-11)
    assert np.std(uneven) == pytest.approx(np.std(drawn) * np.sqrt(2 / 3), rel=0.3)  # less their crowd's mean
    late = tuple(float(each) for each in 1e-4 * np.linspace(-1.5, 1.5, 31))
    uneven_s = measurements({**TRUE, "uneven_s": late}).uneven_s()
    assert len(uneven_s) == 5 * 5 * 3
    assert np.std(uneven_s) == pytest.approx(np.std(late) * np.sqrt(2 / 3), rel=0.3)
    profile = exact_fit().profile
    assert profile.uneven_s == pytest.approx([0.0] * 200, abs=1e-9)
    assert profile.uneven_s_per_byte == pytest.approx([0.0] * 200, abs=1e-13)


@given(st.lists(st.integers(980, 1020), min_size=2, max_size=5))
def test_shares_are_those_that_make_messages_end_so(weights: list[int]) -> None:
    sharing = FairSharing([1.0])
    for weight in weights:
        sharing.start(0.0, (0,), 1.0, math.inf, weight)
    ends_s = [0.0] * len(weights)
    sharing.solve(0.0)
    while (now_s := sharing.next_finish_s) < math.inf:
        for number in sharing.finished(now_s):
            ends_s[number] = now_s
        sharing.solve(now_s)
    mean = sum(weights) / len(weights)
    assert cluster_probes.shares_of(ends_s) == pytest.approx([weight / mean for weight in weights], abs=2e-3)


@cache
def noisy_fit() -> calibrate.Fit:
    return calibrate.calibrate([measurements(TRUE, noise=0.004, outliers=4, sizes=TWO_SIZES)])


@pytest.mark.slow
def test_noise_is_inside_the_interval_and_outliers_do_not_count() -> None:
    fit = noisy_fit()
    for name in ("overhead_s", "added_latency_s", "resume_s", "efficiency"):
        factor = fit.profile.factors[name]
        width = factor.high - factor.low
        assert factor.low - width / 2 <= TRUE[name] <= factor.high + width / 2, name
        assert factor.value == pytest.approx(TRUE[name], rel=0.5), name
        assert factor.measurements
    assert fit.profile.residual_pct < 1


@pytest.mark.slow
def test_several_files_count_together_and_must_be_of_one_kind() -> None:
    fast, slow = (measurements({**TRUE, "added_latency_s": x}) for x in (1e-3, 1.4e-3))
    fit = calibrate.calibrate([fast, slow])
    assert len(fit.labels) == 2 * len(exact_fit().labels)
    factor = fit.profile.factors["added_latency_s"]  # what changes between two occasions is left open
    assert 1e-3 < factor.value < 1.4e-3
    spread_s = np.std([1e-3, 1.4e-3], ddof=1)
    assert factor.high - factor.low >= 2 * 1.96 * spread_s * 0.98
    assert factor.high - factor.low < 2 * 1.96 * spread_s * 2
    with pytest.raises(InputError, match="fifo"):
        calibrate.calibrate([fast, measurements(TRUE, hosts=probes.lab_hosts(queue="fifo"))])


def test_too_few_durations_are_refused() -> None:
    one = measurements(TRUE)
    with pytest.raises(InputError, match="too few"):
        calibrate.calibrate([one.model_copy(update={"durations": one.durations[:3]})])


@pytest.mark.slow
def test_an_unknown_buffer_is_at_least_what_it_took_at_once() -> None:
    fit = calibrate.calibrate([measurements(TRUE, sizes=TWO_SIZES, settings={})])
    found = fit.profile.factors["buffer_bytes"]
    assert (found.value, found.measurements) == (1_048_576, ("sends to a posted receive",))


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    calibrate.plot(exact_fit(), tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


# --- files --------------------------------------------------------------------------------------


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    one = measurements(TRUE)
    files.write_json(one, path)
    assert calibrate.load(path, None) == one
    assert [p.name for p in tmp_path.iterdir()] == ["measured.json"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 7', "is of another version, or of another kind: 7, not 1"),
        ('"version": 1, ', "", "it has no version"),
        ('"load": [0.0', '"load": [NaN', "is damaged: expected value at line 1 column"),
        ('"values_s": [0', '"values_s": [-0', "must be at least 0"),
        ('"made"', '"maid"', "made: is missing"),
        ('"kind": "lab"', '"kind": "moon"', "hosts.kind"),
    ],
)
def test_damaged_measurements_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "measured.json"
    files.write_json(measurements(TRUE), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message) as raised:
        calibrate.load(path, None)
    assert "measured.json" in str(raised.value)


def test_truncated_measurements_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    files.write_json(measurements(TRUE), path)
    path.write_text(path.read_text()[:-200])
    with pytest.raises(InputError, match="damaged"):
        calibrate.load(path, None)


def test_measurements_from_a_file_have_their_network() -> None:
    network = NetworkSettings.model_validate({"latency": "5 ms", "bandwidth": "1 Gbit/s"})
    found = measurements(TRUE).model_copy(update={"network": network.model_dump(mode="json")})
    assert found.nominal == build_network(network, 4)
    again = cluster_probes.Measurements.model_validate_json(json.dumps(found.model_dump(mode="json")))
    assert again.nominal == found.nominal


@pytest.fixture
def profile() -> profiles.Profile:
    return exact_fit().profile


def test_a_profile_is_read_as_it_was_written(tmp_path: Path, profile: profiles.Profile) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(profiles.dump(profile))
    assert profiles.load(path) == profile


def test_a_profile_comes_back_from_json(profile: profiles.Profile) -> None:
    assert profiles.Profile.model_validate_json(profile.model_dump_json()) == profile


def test_drawn_factors_have_the_covariance_of_the_fit(profile: profiles.Profile) -> None:
    names = ["overhead_s", "efficiency"]
    covariance = {"overhead_s": (4e-8, -3e-8), "efficiency": (-3e-8, 9e-8)}
    factors = dict(profile.factors)
    for name, value in zip(names, (1.0, 0.9), strict=True):
        factors[name] = factors[name].model_copy(update={"value": value, "low": value, "high": value})
    known = profile.model_copy(update={"covariance": covariance, "factors": factors})
    drawn = [known.drawn(seed) for seed in range(4_000)]
    values = np.array([[each.factors[name].value for name in names] for each in drawn])
    assert values.mean(axis=0) == pytest.approx([1.0, 0.9], abs=2e-5)
    expected = np.array(list(covariance.values()))
    assert np.cov(values.T) == pytest.approx(expected, abs=5e-9)
    assert known.drawn(3) == drawn[3]
    for name, factor in known.factors.items():
        if name not in names:
            assert drawn[3].factors[name] == factor


def test_drawn_factors_lie_around_the_fitted_ones() -> None:
    known = noisy_fit().profile
    drawn = [known.drawn(seed) for seed in range(200)]
    for name, row in known.covariance.items():
        deviation = float(np.sqrt(row[list(known.covariance).index(name)]))
        mean = np.mean([each.factors[name].value for each in drawn])
        assert mean == pytest.approx(known.factors[name].value, abs=0.25 * deviation), name


def test_drawn_factors_stay_possible(profile: profiles.Profile) -> None:
    wide = profile.model_copy(update={"covariance": {"efficiency": (1.0, 0.0), "resume_s": (0.0, 1.0)}})
    for seed in range(50):
        factors = wide.drawn(seed).factors
        assert 0 < factors["efficiency"].value <= 1
        assert factors["resume_s"].value >= 0
        for factor in factors.values():
            assert factor.low <= factor.value <= factor.high


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "covariance:\n  overhead_s:",
            "covariance:\n  overheads_s:",
            "covariance.overheads_s: there is no factor",
        ),
        ("version: 2", "version: 1", "has version 1, this program reads 2"),
        ("version: 2\n", "", "no version"),
        ("factors:\n", "factor:\n", "is no profile of 'paceline calibrate': .* no factors"),
        ("unit: s\n", "unit: ms\n", "overhead_s.unit: must be 's'"),
        ("  resume_s:", "  resumes_s:", "factors.resumes_s: there is no factor"),
        ("unit: s\n", "unit: s\n    colour: red\n", "unknown key"),
        ("residual_pct:", "residual_pct: .nan #", "residual_pct"),
    ],
)
def test_a_damaged_profile_is_refused(
    tmp_path: Path, profile: profiles.Profile, old: str, new: str, message: str
) -> None:
    text = profiles.dump(profile)
    assert old in text
    path = tmp_path / "profile.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as raised:
        profiles.load(path)
    assert "profile.yaml" in str(raised.value)


def test_a_truncated_profile_is_refused(tmp_path: Path, profile: profiles.Profile) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(profiles.dump(profile)[:400])
    with pytest.raises(InputError, match=r"profile\.yaml"):
        profiles.load(path)


def test_a_profile_of_other_hosts_is_refused(profile: profiles.Profile) -> None:
    profiles.check_hosts(profile, probes.lab_hosts(), "p.yaml")
    with pytest.raises(
        InputError, match="tuned hosts and fair queues over gloo, this is a cluster over gloo"
    ):
        profiles.check_hosts(profile, profiles.HostKind(kind="cluster"), "p.yaml")


def test_leaving_the_measured_range_is_said() -> None:
    measured = profiles.MeasuredRange(smallest_bytes=64, largest_bytes=1000, in_flight=4)
    assert profiles.MessageRange(64, 1000, 4).outside(measured) == ()
    assert len(profiles.MessageRange(63, 1001, 5).outside(measured)) == 3
