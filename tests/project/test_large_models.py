"""Published tables on large models stay as near as docs/papers/large-models.md says."""

from __future__ import annotations

import pytest

from benchmarks.large_models import das, elsewhere, iterations, low_communication


def test_streaming_dilocos_bandwidths() -> None:
    exact, near = low_communication.score()
    assert exact >= 55
    assert near >= 72
    assert low_communication.score(payload=1.0)[0] == 19


@pytest.mark.parametrize("method", low_communication.HOURS_AT_1_GBIT)
def test_hours_at_1_gbit_with_nothing_fitted(method: str) -> None:
    published = low_communication.HOURS_AT_1_GBIT[method]
    for alone, there in zip(low_communication.HOURS_ALONE, published, strict=True):
        assert low_communication.hours_at_1_gbit(method, alone, 1.0) == pytest.approx(there, rel=0.05)


@pytest.mark.parametrize("method", low_communication.CALCULATED_METHODS)
@pytest.mark.parametrize("gbit", low_communication.GBIT)
def test_a_calculators_closed_form(method: str, gbit: float) -> None:
    _, trained = low_communication.CALCULATED_METHODS[method]
    simulated = low_communication.simulated_utilisation(method, gbit)
    assert simulated == pytest.approx(trained.utilisation(gbit * 1e9), rel=0.01)


def test_what_intellect_1_loses_to_its_all_reduces() -> None:
    for seconds, published in low_communication.INTELLECT.values():
        utilisation = 100 * low_communication.INNER_S / (low_communication.INNER_S + seconds)
        assert utilisation == pytest.approx(published, abs=0.2)


def test_bandwidths_of_a_table_that_nothing_was_recovered_from() -> None:
    exact, near, _ = elsewhere.score_6()
    assert exact >= 43
    assert near >= 84
    assert elsewhere.score_6(payload=1.0)[0] == 2


@pytest.mark.parametrize("nodes", [8, 4, 2])
def test_all_reduces_over_ethernet_with_the_link_fitted_on_16_nodes(nodes: int) -> None:
    ours = elsewhere.all_reduce_s("Ethernet", nodes, elsewhere.fitted_gbit("Ethernet"))
    assert 1000 * ours == pytest.approx(elsewhere.ALL_REDUCE_MS["Ethernet", nodes][0], rel=0.06)


@pytest.mark.parametrize("run", das.SPEED_UPS, ids=lambda run: f"{run.model}-{run.nodes}")
def test_speed_ups_of_synchronous_sgd(run: das.SpeedUp) -> None:
    assert run.predicted == pytest.approx(run.published, rel=0.15)


def test_what_a_cloud_loses() -> None:
    least, most = das.CLOUD_LOSS
    assert least - 0.04 <= das.cloud_loss() <= most + 0.04
    assert sum(das.cloud_losses().values()) == pytest.approx(das.cloud_loss())


@pytest.mark.parametrize("network", iterations.NETWORKS)
def test_adpsgds_least_and_largest_speed_up(network: str) -> None:
    """Of the two models for CIFAR-10, with one computing time, fitted on the least one at 10 Gbit/s."""
    least, most = iterations.SPEED_UP_RANGE[network]
    for model in iterations.TRAINED[:2]:
        ours = model.speed_up(iterations.fitted_computing_s(), iterations.NETWORKS[network])
        assert least - 0.005 <= ours <= most + 0.005


def test_all_reduces_of_sgps_table() -> None:
    row = iterations.FITTED_ROWS[0]
    compute_s, bandwidth = iterations.fitted(row)
    for nodes, published in iterations.STEP_S[row.scheme].items():
        simulated = row.iterations().step_s(nodes, compute_s, bandwidth)
        assert simulated == pytest.approx(published, rel=0.05)
