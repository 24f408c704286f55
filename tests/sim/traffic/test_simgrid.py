"""Shared links end flows when SimGrid does, an implementation of others."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simgrid_oracle import Sharing, differences, draw, is_installed, ours_s

PLATFORMS = 10


def test_drawn_flows_share_links() -> None:
    """The comparison can fail: most flows are not alone, and the other sharing ends them otherwise."""
    longer, otherwise = [], []
    for seed in range(PLATFORMS):
        platform = draw(seed, "rtt")
        weighted_s, plain_s = ours_s(platform, "rtt"), ours_s(platform, "max_min")
        for flow, end_s, plain_end_s in zip(platform.flows, weighted_s, plain_s, strict=True):
            route = platform.network.route(flow.source, flow.destination)
            rate = min(platform.network.links[link].bandwidth_bytes_per_s for link in route.links)
            alone_s = route.latency_s + flow.num_bytes / rate
            longer.append((end_s - flow.start_s) / alone_s)
            otherwise.append(abs(plain_end_s - end_s) / (end_s - flow.start_s))
    assert np.median(longer) > 1.5
    assert np.quantile(otherwise, 0.75) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["max_min", "rtt"])
def test_flows_end_when_simgrid_ends_them(sharing: Sharing) -> None:
    if not is_installed():
        pytest.skip("needs SimGrid for the system's Python: apt-get install python3-simgrid")
    assert np.abs(differences(sharing, range(PLATFORMS))).max() < 1e-6
