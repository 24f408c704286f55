"""Predictions of other people's measurements stay as near as docs/outside.md says."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.outside import ROWS, Row, fit_overhead_s, gloo_reduce, predict_ms, predict_stock_ms, read_rows
from tests.support.critical_path import critical_path_s


def errors_pct(rows: list[Row], overhead_s: float | None = None) -> list[float]:
    return [100 * (predict_ms(row, overhead_s) / row.measured_ms - 1) for row in rows]


def limited(collective: str, transport: str) -> list[Row]:
    rows = [row for row in read_rows(ROWS) if (row.collective, row.transport) == (collective, transport)]
    return [row for row in rows if row.limited]


def test_nccls_all_reduces() -> None:
    errors = errors_pct(limited("all_reduce", "nccl"))
    assert len(errors) == 12
    assert statistics.fmean(map(abs, errors)) < 0.5
    assert max(map(abs, errors)) < 1.0


def test_gloos_broadcasts_and_messages() -> None:
    assert max(map(abs, errors_pct(limited("broadcast", "gloo")))) < 4.0
    short = [row for row in limited("point_to_point", "gloo") if row.latency == "0.05 ms"]
    assert max(map(abs, errors_pct(short))) < 1.5
    assert max(map(abs, errors_pct(limited("point_to_point", "nccl")))) < 2.0


def test_messages_between_stock_hosts() -> None:
    rows = [row for row in read_rows(ROWS) if row.collective == "point_to_point"]
    delayed = [row for row in rows if not row.limited and row.latency != "0.05 ms"]
    assert len(delayed) == 12
    assert max(abs(100 * (predict_stock_ms(row) / row.measured_ms - 1)) for row in delayed) < 15.0


@pytest.mark.slow
def test_gloos_all_reduces_with_a_constant_of_the_smaller_group() -> None:
    rows = limited("all_reduce", "gloo")
    overhead_s, workers = fit_overhead_s(rows)
    assert workers == 4
    errors = errors_pct([row for row in rows if row.workers == 8], overhead_s)
    assert statistics.fmean(map(abs, errors)) < 4.0
    assert max(map(abs, errors)) < 7.0


@pytest.mark.parametrize("collective", ["reduce", "reduce_scatter", "all_gather", "all_to_all"])
@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_other_collectives_take_no_less_than_their_bytes(collective: str, transport: str) -> None:
    row = Row(collective, 3, "1 ms", "1 Gbit/s", transport, "12 MB", 1.0)
    least_ms = {"reduce": 96.0}.get(collective, 64.0)
    assert least_ms < predict_ms(row) < 2.6 * least_ms


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_reduce_matches_its_messages(workers: int) -> None:
    assert critical_path_s(gloo_reduce(workers, 10 * 2**20), 0.0, 2.0**20) > 10 * (workers - 1) / workers
