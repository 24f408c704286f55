"""The list of algorithms, and all-reduces of users."""

from __future__ import annotations

from itertools import product

import pytest

from paceline.sim.collectives.algorithm_registry import ALGORITHMS, Algorithm, algorithms, users_all_reduce
from paceline.sim.network.transport import TRANSPORTS

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "scatter", "broadcast", "barrier")
KNOWN = [rules.name for rules in TRANSPORTS.values()]


@pytest.mark.parametrize(("operation", "transport"), list(product(OPERATIONS, KNOWN)))
def test_every_transport_has_an_algorithm_for_everything(operation: str, transport: str) -> None:
    assert algorithms(operation, transport)


@pytest.mark.parametrize("line", ALGORITHMS, ids=lambda line: f"{line.operation} {line.name}")
@pytest.mark.parametrize("sites", [(5,), (2, 3), ((2, 2), (1,))])
def test_a_line_builds_a_collective_of_all_ranks(line: Algorithm, sites: tuple[int, ...]) -> None:
    """Nobody sends less than its own part of the payload, but the last one of a broadcast."""
    assert line.auto or line.named
    built = line.build(sites, 5_000_000)
    assert built.ranks == len(built.bytes_sent) == 5
    if line.operation in ("all_reduce", "reduce_scatter", "all_gather", "shares", "scatter"):
        assert min(built.bytes_sent) >= 1_000_000
    elif line.operation == "broadcast":
        assert sum(built.bytes_sent) == 4 * 5_000_000
    else:
        assert sum(built.bytes_sent) == 0


def test_messages_of_all_to_all_are_no_circle() -> None:
    """Whatever the order in which a round names its messages, they are posted together."""
    schedule = users_all_reduce("tests.support.own_models:all_to_all")(5, 1000)
    assert [len(rounds) for rounds in schedule.rounds] == [2] * 5
