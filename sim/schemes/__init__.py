"""The registry of averaging schemes: name -> program, options, check. Nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from ..config.user_code import is_import_path
from ..errors import InputError
from . import ad_psgd, all_reduce, gossip, leader_sgd, local_sgd, parameter_server, sgp, tracking
from .names import explain_unknown
from .outer import diloco, fedavg, halos, slowmo
from .scheme import Scheme
from .user import user_scheme

SCHEMES: Mapping[str, Scheme] = {
    s.name: s
    for s in (
        Scheme(
            "all_reduce", all_reduce.all_reduce, all_reduce.AllReduceOptions, True, all_reduce.check,
            averages=True, bucket_bytes=all_reduce.bucket_bytes,
        ),
        Scheme(
            "local_sgd", local_sgd.local_sgd, local_sgd.LocalSgdOptions, True, local_sgd.check,
            averages=True, long_run=local_sgd.without_warmup,
        ),
        Scheme(
            "adaptive_local_sgd", local_sgd.adaptive_local_sgd, local_sgd.AdaptiveLocalSgdOptions, True,
            local_sgd.check_adaptive, averages=True, long_run=local_sgd.without_warmup,
        ),
        Scheme(
            "post_local_sgd", local_sgd.post_local_sgd, local_sgd.PostLocalSgdOptions, True, averages=True,
            long_run=local_sgd.switched,
        ),
        Scheme(
            "gossip", gossip.gossip, gossip.GossipOptions, True, gossip.check, averages=False,
            cycle=gossip.cycle,
        ),
        Scheme("sgp", sgp.sgp, sgp.SgpOptions, True, sgp.check, averages=False, cycle=sgp.cycle),
        Scheme("ad_psgd", ad_psgd.ad_psgd, ad_psgd.AdPsgdOptions, False, ad_psgd.check, averages=False),
        Scheme(
            "leader_sgd", leader_sgd.leader_sgd, leader_sgd.LeaderSgdOptions, True, leader_sgd.check,
            check_sites=leader_sgd.check_sites, averages=False,
        ),
        Scheme(
            "easgd", parameter_server.easgd, parameter_server.EasgdOptions, True, parameter_server.check,
            averages=True,
        ),
        Scheme(
            "eamsgd", parameter_server.eamsgd, parameter_server.EamsgdOptions, True, parameter_server.check,
            own_momentum=True, averages=True,
        ),
        Scheme(
            "downpour", parameter_server.downpour, parameter_server.DownpourOptions, False,
            parameter_server.check, averages=False,
        ),
        Scheme(
            "diloco", diloco.diloco, diloco.DilocoOptions, True, diloco.check, averages=True,
            parts=diloco.fragments,
        ),
        Scheme("slowmo", slowmo.slowmo, slowmo.SlowmoOptions, True, averages=True),
        Scheme(
            "gradient_tracking", tracking.gradient_tracking, tracking.TrackingOptions, True,
            tracking.check_tracking, averages=False, cycle=tracking.cycle_tracking,
        ),
        Scheme(
            "choco_sgd", tracking.choco_sgd, tracking.ChocoOptions, True, tracking.check_choco,
            averages=False,
        ),
        Scheme("halos", halos.halos, halos.HalosOptions, False, averages=False, cycle=halos.cycle),
        Scheme("fedavg", fedavg.fedavg, fedavg.FedavgOptions, True, fedavg.check, averages=True),
    )
}  # fmt: skip


def find_scheme(name: str) -> Scheme:
    """The scheme of that name, or the user's at ``package.module:scheme``.

    Raises:
        InputError: no scheme has that name, or the user's cannot be had.
    """
    if is_import_path(name):
        return user_scheme(name)
    if name not in SCHEMES:
        raise InputError(explain_unknown(name, SCHEMES))
    return SCHEMES[name]
