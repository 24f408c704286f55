"""Registry of averaging schemes: name -> program, options and checks."""

from __future__ import annotations

from collections.abc import Mapping

from ..config.user_code.call import is_import_path
from ..errors import InputError
from . import ad_psgd, all_reduce, gossip, leader_sgd, local_sgd, parameter_server, sgp, tracking
from .common.compressed import encodes_averages
from .common.names import explain_unknown
from .outer import diloco, fedavg, halos, slowmo
from .quorum.options import leaves_out
from .scheme import Scheme, as_inside_says, if_asynchronous, one_period
from .user import user_scheme

SCHEMES: Mapping[str, Scheme] = {
    s.name: s
    for s in (
        Scheme(
            "all_reduce", all_reduce.all_reduce, all_reduce.AllReduceOptions, True, all_reduce.check,
            averages=True, bucket_bytes=all_reduce.bucket_bytes, held=all_reduce.held,
            depends_on_timing=leaves_out,
            averages_gradients=all_reduce.averages_gradients, encodes=encodes_averages,
        ),
        Scheme(
            "local_sgd", local_sgd.local_sgd, local_sgd.LocalSgdOptions, True, local_sgd.check,
            averages=True, cycle=one_period, long_run=local_sgd.without_warmup, held=local_sgd.held,
            depends_on_timing=leaves_out, encodes=encodes_averages,
        ),
        Scheme(
            "adaptive_local_sgd", local_sgd.adaptive_local_sgd, local_sgd.AdaptiveLocalSgdOptions, True,
            local_sgd.check_adaptive, averages=True, cycle=local_sgd.first_period,
            long_run=local_sgd.without_warmup, held=local_sgd.held_adaptive,
        ),
        Scheme(
            "post_local_sgd", local_sgd.post_local_sgd, local_sgd.PostLocalSgdOptions, True, averages=True,
            cycle=one_period, long_run=local_sgd.switched, held=local_sgd.held_after_switch,
        ),
        Scheme(
            "gossip", gossip.gossip, gossip.GossipOptions, True, gossip.check, averages=False,
            cycle=gossip.cycle, check_network=gossip.check_network, held=gossip.held,
            inside=as_inside_says,
        ),
        Scheme(
            "sgp", sgp.sgp, sgp.SgpOptions, True, sgp.check, averages=False, cycle=sgp.cycle, held=sgp.held,
            depends_on_timing=if_asynchronous,
        ),
        Scheme(
            "ad_psgd", ad_psgd.ad_psgd, ad_psgd.AdPsgdOptions, False, ad_psgd.check, averages=False,
            held=ad_psgd.held,
        ),
        Scheme(
            "leader_sgd", leader_sgd.leader_sgd, leader_sgd.LeaderSgdOptions, True, leader_sgd.check,
            check_network=leader_sgd.check_network, averages=False, cycle=leader_sgd.cycle,
            held=leader_sgd.held, depends_on_timing=if_asynchronous,
        ),
        Scheme(
            "easgd", parameter_server.easgd, parameter_server.EasgdOptions, True, parameter_server.check,
            averages=True, cycle=one_period, held=parameter_server.held_elastic,
            depends_on_timing=if_asynchronous,
        ),
        Scheme(
            "eamsgd", parameter_server.eamsgd, parameter_server.EamsgdOptions, True, parameter_server.check,
            own_momentum=True, averages=True, cycle=one_period, held=parameter_server.held_elastic,
            depends_on_timing=if_asynchronous,
        ),
        Scheme(
            "downpour", parameter_server.downpour, parameter_server.DownpourOptions, False,
            parameter_server.check, averages=False, cycle=one_period, held=parameter_server.held_downpour,
        ),
        Scheme(
            "diloco", diloco.diloco, diloco.DilocoOptions, True, diloco.check, averages=True,
            cycle=one_period, parts=diloco.fragments, check_network=diloco.check_network, held=diloco.held,
            depends_on_timing=leaves_out, encodes=encodes_averages, inside=as_inside_says,
        ),
        Scheme(
            "slowmo", slowmo.slowmo, slowmo.SlowmoOptions, True, averages=True, cycle=one_period,
            held=slowmo.held, encodes=encodes_averages,
        ),
        Scheme(
            "gradient_tracking", tracking.gradient_tracking, tracking.TrackingOptions, True,
            tracking.check_tracking, averages=False, cycle=tracking.cycle_tracking,
            held=tracking.held_tracking,
        ),
        Scheme(
            "choco_sgd", tracking.choco_sgd, tracking.ChocoOptions, True, tracking.check_choco,
            averages=False, held=tracking.held_choco,
        ),
        Scheme(
            "halos", halos.halos, halos.HalosOptions, False, averages=False, cycle=one_period,
            held=halos.held,
        ),
        Scheme(
            "fedavg", fedavg.fedavg, fedavg.FedavgOptions, True, fedavg.check, averages=True,
            cycle=one_period, held=fedavg.held, depends_on_timing=leaves_out, encodes=encodes_averages,
        ),
    )
}  # fmt: skip


def find_scheme(name: str) -> Scheme:
    """Look up a built-in scheme, or a user's ``package.module:scheme``; ``InputError`` if there is none."""
    if is_import_path(name):
        return user_scheme(name)
    if name not in SCHEMES:
        raise InputError(explain_unknown(name, SCHEMES))
    return SCHEMES[name]
