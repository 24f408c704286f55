"""HALoS: local steps, an asynchronous server in each site, and a global server above these.

Each worker sums ``period`` local steps, brings their change, D = (model at the beginning) - x, to its site's
server, and continues from the model there. Both kinds of servers apply changes one by one, with delayed
Nesterov momentum; of N arrivals (``every``), with learning rate h and momentum b:

    t <- t - h D                                       at every arrival
    m <- b m + mean of the last N changes,   t <- t - h N b m       at every N-th, besides

After ``exchange`` arrivals a site's server brings their change to the global server, in the same way, and
takes (1 - alpha) of its own model and alpha of the global one on its arrival. Meanwhile it keeps serving;
one such visit is in flight at a time. The site's server is on the host of the site's first worker, which
begins and ends these visits between its own steps; the global one is on the host of worker 0. With
``compression`` changes to another host are sent encoded, returned models are not; with ``top_k`` the unsent
part joins the sender's next change (error feedback). The metric of ``on: leader`` is the global model. The
running buffers of batch norm have no momentum.

Bytes per step and worker: inside a site one model out and one in over ``period``, except on the server's own
host; between sites one out and one in over ``period`` x ``exchange`` steps of all in a site; outgoing changes
are encoded with a ``compression``. Waits for: the host of the site's server.

Source: Kim et al., HALoS, ICML 2025, and its published code, whose rates are h N here; delayed Nesterov: Liu
et al., arXiv 2401.09135, with c = 0.
"""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field
from torch import Tensor

from paceline.extras.papers.parameter_server import Centre, on_a_server, publishes_leader
from paceline.sim.config.settings import Settings
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import Compression
from paceline.sim.program.worker import Program, Worker
from paceline.sim.schemes.common.held import Held, Sizes, encoded_share
from paceline.sim.schemes.common.inside import unit_groups
from paceline.sim.schemes.common.outer import buffers_in
from paceline.sim.schemes.scheme import Scheme, one_period


class SiteServer(Settings):
    """Delayed Nesterov momentum of the sites' servers."""

    lr: float = Field(default=0.2, gt=0, description="learning rate of each arriving change")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum, applied every N arrivals")
    every: int = Field(default=16, ge=1, description="N: arrivals per application of the momentum")


class GlobalServer(SiteServer):
    """Delayed Nesterov momentum of the global server."""

    lr: float = Field(default=0.15, gt=0, description="learning rate of each arriving change")
    momentum: float = Field(default=0.5, ge=0, lt=1, description="momentum, applied every N arrivals")
    every: int = Field(default=2, ge=1, description="N: arrivals per application of the momentum")


class HalosOptions(Settings):
    """Options of ``halos``."""

    period: int = Field(default=8, ge=1, description="local steps between visits to the site's server")
    exchange: int = Field(
        default=32, ge=1, description="arrivals at a site's server before it visits the global one"
    )
    alpha: float = Field(
        default=0.25, ge=0, le=1, description="weight of the global model when it arrives at a site's server"
    )
    local: SiteServer = Field(default=SiteServer(), description="the sites' servers")
    top: GlobalServer = Field(default=GlobalServer(), description="the global server")
    compression: Compression | None = Field(
        default=None, description="encoding of changes in transit to a server (default: none)"
    )


def held(options: HalosOptions, sizes: Sizes) -> Held:
    """Memory of the host of both servers: model, gradient and first model; models, sums and momenta of the
    servers, and the change of the site's model since its last visit; visits of all others.
    """
    servers = 2 * 1 + 1
    return Held(
        optimizer=sizes.moments, anchors=1 + servers, outer_momentum=2 * 2,
        in_flight=on_a_server(sizes.workers - 1) + encoded_share(options.compression),
    )  # fmt: skip


class DelayedNesterov:
    """A server's update rule for changes that arrive one by one."""

    def __init__(self, worker: Worker, settings: SiteServer) -> None:
        d = worker.start.shape[-1]
        self._settings = settings
        self._moved = d - buffers_in(worker, 0, d)
        self._sum = self._momentum = torch.zeros_like(worker.start[: self._moved])
        self._arrivals = 0

    def step(self, change: Tensor) -> Tensor:
        """The update of the server's model for an arriving change [d]."""
        s = self._settings
        added = -s.lr * change
        self._sum = self._sum + change[: self._moved]
        self._arrivals += 1
        if self._arrivals % s.every == 0:
            self._momentum = s.momentum * self._momentum + self._sum / s.every
            self._sum = torch.zeros_like(self._sum)
            moved = added[: self._moved] - s.lr * s.every * s.momentum * self._momentum
            added = torch.cat([moved, added[self._moved :]])
        return added


class Servers:
    """The server of a worker's site and the global one, as seen by that worker."""

    def __init__(self, worker: Worker, options: HalosOptions) -> None:
        sites = unit_groups(worker.sites or (0,) * worker.size)
        mine = next(site for site in sites if worker.rank in site)
        self._worker, self._options = worker, options
        self._rule, top_rule = (
            DelayedNesterov(worker, settings) for settings in (options.local, options.top)
        )
        encoding = options.compression

        def arrive_at_top(model: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
            moved = model + top_rule.step(change)
            return moved, moved

        self.site = Centre(worker, mine[0], self._arrive, mine, encoding)
        self.top = Centre(worker, 0, arrive_at_top, sorted(site[0] for site in sites), encoding)
        self._arrivals = 0
        self._changed = torch.zeros_like(worker.start)
        self._away: tuple[ops.Handle, ops.Handle] | None = None

    def _arrive(self, model: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        added = self._rule.step(change)
        self._arrivals += 1
        self._changed = self._changed - added
        return model + added, model + added

    async def look_after(self) -> None:
        """Merge an arrived global model, and visit the global server when that is due."""
        if self.site.known is None:
            return
        if self._away is not None and await self._worker.poll(self._away[0]):
            await self.end_visit()
        if self._away is None and self._arrivals >= self._options.exchange:
            change, self._changed = self._changed, torch.zeros_like(self._changed)
            self._arrivals = 0
            if self.top.known is None:
                self._away = await self.top.begin_visit(change)
            else:
                self._merge(await self.top.visit(change))

    async def end_visit(self) -> None:
        """Wait for the global model of a visit in flight, and merge it."""
        if self._away is not None:
            answer, sent = self._away
            self._away = None
            message: ops.Message = await self._worker.wait(answer)
            await self._worker.wait(sent)
            self._merge(message.value)

    def _merge(self, model: Tensor) -> None:
        own = self.site.known
        assert own is not None
        self.site.replace(torch.lerp(own, model, self._options.alpha))


def halos(worker: Worker, options: HalosOptions) -> Program:
    """HALoS: sums of local steps go to a server in each site, and rarely from there to a global one."""
    servers = Servers(worker, options)
    return Program(_steps(worker, options, servers), (*servers.site.services(), *servers.top.services()))


async def _steps(worker: Worker, options: HalosOptions, servers: Servers) -> None:
    x = began = worker.start
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        if (k + 1) % options.period == 0:
            x = began = await servers.site.visit(began - x)
        await servers.look_after()
        await worker.publish(k, x, leader=servers.top.known)
    await servers.end_visit()


HALOS: Final = Scheme(
    "halos", halos, HalosOptions, False, publishes=publishes_leader, cycle=one_period, held=held
)
