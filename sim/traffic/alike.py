"""Flows on classes of like blocks: one flow for all blocks of a class, one link for all links of a class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from typing_extensions import override

from ..collectives.classes import Classes, find_classes
from ..collectives.collective import Collective
from ..collectives.pricing import BlockCosts
from ..network.transfer import TransferModel, route_pairs
from .clock import Clock
from .flows import Flows, Piece
from .rendezvous import Transfer
from .sharing import FairSharing
from .transfers import Transfers

_NO_TAG: Final = ("alike", 0, 0)
"""Tag of blocks whose receives are posted ahead: it is never looked up."""


@dataclass(frozen=True, eq=False)
class Alike:
    """A collective on hosts of a network, in classes of like blocks.

    Attributes:
        classes: of its blocks.
        model: how its messages travel.
        costs: of the block of each class.
        peak: [classes] largest bytes per second of a block.
    """

    classes: Classes
    model: TransferModel
    costs: BlockCosts
    peak: list[float]

    def flows(self, clock: Clock, transfers: AlikeTransfers, finished: Callable[[Any], None]) -> Flows:
        """The collective as ``Flows`` among classes of ranks."""
        c = self.classes.collective
        open_classes = c.ranks

        def end(owner: Any) -> None:
            nonlocal open_classes
            open_classes -= 1
            if not open_classes:
                del transfers.alike[flows]
            finished(owner)

        flows = Flows(c, tuple(range(c.ranks)), self.model, self.costs, clock, transfers, _NO_TAG, end)
        transfers.alike[flows] = self
        return flows


def find_alike(
    c: Collective, ready: tuple[int, ...], members: tuple[int, ...], model: TransferModel, costs: BlockCosts
) -> Alike | None:
    """Find the classes of a collective; None where few blocks are alike, or shares of links are uneven.

    Args:
        c: its rank i is ``members[i]``.
        ready: [ranks] equal numbers for ranks that join together.
        members: hosts.
        model: how messages travel.
        costs: of the blocks.
    """
    if not model.shares_evenly or c.rendezvous or len(c.post_rank) > c.ranks or not c.messages:
        return None
    routes = route_pairs(c.source, c.destination, members, model)
    classes = find_classes(
        c,
        np.array(ready),
        np.stack([costs.latency_s, routes.bytes_per_s]),
        routes.links,
        np.array(model.bandwidths_bytes_per_s),
    )
    if classes is None:
        return None
    one = classes.one
    of_one = BlockCosts(
        costs.piece_s[one], costs.latency_s[one], costs.back_s[one], costs.overhead_s, costs.announcements
    )
    return Alike(classes, model, of_one, routes.bytes_per_s[one].tolist())


class AlikeTransfers(Transfers):
    """Transfers of collectives with the same classes of links as a ``first`` one.

    Attributes:
        alike: of all collectives in flight, by their flows.
    """

    def __init__(self, clock: Clock, model: TransferModel, first: Alike) -> None:
        super().__init__(clock, model)
        self._links = first.classes
        self._sharing = FairSharing(first.classes.bandwidths)
        self.alike: dict[Flows, Alike] = {}

    def can_take(self, other: Alike) -> bool:
        """Whether a collective has the same classes of links."""
        ours, theirs = self._links, other.classes
        return ours.bandwidths == theirs.bandwidths and bool((ours.of_link == theirs.of_link).all())

    @override
    def _plan_route(self, source: int, destination: int, transfer: Transfer) -> None:
        piece = transfer.sender
        assert isinstance(piece, Piece)
        of, block = self.alike[piece.flows], piece.block
        weight = of.classes.weight[block]
        transfer.source, transfer.destination, transfer.weight = source, destination, weight
        transfer.latency_s, transfer.links = float(of.costs.latency_s[block]), of.classes.links[block]
        transfer.num_bytes, transfer.cap = transfer.num_bytes * weight, of.peak[block] * weight
