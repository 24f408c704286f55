"""The ways that are compared: ours, the limits of what can be reached, and peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MANY: Final = 1_000_000


@dataclass(frozen=True)
class Way:
    """One way to do worker-iterations.

    Attributes:
        name: as its program knows it.
        label: on the page.
        program: module that serves its blocks.
        module: of the peer, which has to be installed; "" where nothing has.
        scheme: what is averaged with whom, human-readable.
        most_workers: with more it is not measured: a block would take minutes.
    """

    name: str
    label: str
    program: str
    module: str
    scheme: str
    most_workers: int = MANY

    @property
    def peer(self) -> bool:
        """Whether it runs in the peers' environment."""
        return self.program == PEERS


OURS: Final = "benchmarks.speed.ours"
PEERS: Final = "benchmarks.speed.peers"
GOSSIP: Final = "one-peer gossip"
LOCAL: Final = "local SGD, averaged every 10 steps"
ALONE: Final = "gradients alone"

WAYS: Final = (
    Way("lockstep_gossip", "Paceline, lockstep", OURS, "", GOSSIP),
    Way("event_gossip", "Paceline, event driver", OURS, "", GOSSIP, 1024),
    Way("gossipy", "gossipy", PEERS, "gossipy", GOSSIP, 256),
    Way("gloo_gossip", "a gloo process per worker", PEERS, "", GOSSIP, 64),
    Way("lockstep_local_sgd", "Paceline, lockstep", OURS, "", LOCAL),
    Way("event_local_sgd", "Paceline, event driver", OURS, "", LOCAL, 1024),
    Way("vsim", "APPFL vsim", PEERS, "appfl", LOCAL, 256),
    Way("gloo_local_sgd", "a gloo process per worker", PEERS, "", LOCAL, 64),
    Way("raw_vmap", "raw `torch.func.vmap`", OURS, "", ALONE),
    Way("plain_loop", "plain `backward()` loop", OURS, "", ALONE, 256),
)
