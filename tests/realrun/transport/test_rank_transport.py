"""Order of what a worker posts for a collective."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from paceline.realrun.transport.backend import Backend
from paceline.realrun.transport.rank_transport import Collectives, StagingBuffers
from paceline.sim.program import operations as ops


class _Posted:
    """Backend that fills what is received with 7 and notes what is posted."""

    concurrent = True

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def exchange(self, receives: Any, make_sends: Any, tag: int) -> Any:
        for buffer, peer in receives:
            buffer.view(torch.float32).fill_(7.0)
            self.log.append(("receive", peer))
        self.log.extend(("send", peer) for _, peer in make_sends())
        return lambda: None


@pytest.mark.parametrize("members", [(4, 9), (9, 4)])
def test_two_members_receive_shards_before_they_send_their_own(members: tuple[int, int]) -> None:
    backend = _Posted()
    collectives = Collectives(4, StagingBuffers(4.0), cast(Backend, backend))
    groups = (members,)
    gather = ops.AllGatherShards(torch.tensor([1.0, 2.0]), 3, groups)
    transfer = collectives.begin(gather, members, 0)
    transfer.wait()
    whole = [1.0, 2.0, 7.0] if members[0] == 4 else [7.0, 7.0, 1.0]
    assert transfer.result().tolist() == whole
    assert backend.log == [("receive", 9), ("send", 9)]
