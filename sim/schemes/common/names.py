"""Names of the averaging schemes in papers and tools, and their names here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...config.problems import answer_word
from ...errors import did_you_mean, quote


@dataclass(frozen=True)
class OtherNames:
    """Names of one scheme elsewhere.

    Attributes:
        names: in papers and tools; case, spaces, hyphens and underscores do not count.
        write: the scenario's form, with options that say what the name implies.
        about: distinguishes it from another scheme of that name; empty where there is none.
    """

    names: tuple[str, ...]
    write: str
    about: str = ""


OTHER_NAMES: Final = (
    OtherNames(("FULLSGD", "AR-SGD", "DDP", "Horovod", "parallel SGD", "PSGD", "BSP"), "all_reduce"),
    OtherNames(
        ("backup workers", "Sync-Opt", "K-sync SGD", "SyncReplicasOptimizer"), "all_reduce: {quorum: 6}"
    ),
    OtherNames(("FSDP", "FSDP2", "ZeRO", "ZeRO-3", "fully shard", "FULL_SHARD"), "sharded"),
    OtherNames(("SHARD_GRAD_OP",), "sharded: {reshard: false}"),
    OtherNames(("ZeRO-1", "distributed optimizer", "ZeroRedundancyOptimizer"), "sharded: {shard: optimizer}"),
    OtherNames(("ZeRO-2",), "sharded: {shard: gradients}"),
    OtherNames(("HSDP", "HYBRID_SHARD", "hybrid sharding"), "sharded: {inside: hosts}"),
    OtherNames(("QSGD",), "all_reduce: {compression: {qsgd: {bits: 8}}}"),
    OtherNames(("CPSGD", "periodic averaging"), "local_sgd: {period: 8}"),
    OtherNames(("LSGD", "leader SGD"), "leader_sgd: {period: 16}", "a leader pulls"),
    OtherNames(("local SGD", "LSGD"), "local_sgd: {period: 8}", "local steps"),
    OtherNames(("ADPSGD",), "adaptive_local_sgd", "adaptive period"),
    OtherNames(("post-local", "post-local SGD"), "post_local_sgd: {switch_at: 500, period: 8}"),
    OtherNames(
        ("D-PSGD", "DSGD", "combine then adapt", "AWC"),
        "gossip: {topology: ring, order: combine_while_adapting}",
    ),
    OtherNames(("adapt then combine", "ATC"), "gossip: {topology: ring}"),
    OtherNames(("DmSGD",), "gossip: {topology: ring, momentum: mixed}"),
    OtherNames(("Gossip-PGA",), "gossip: {topology: ring, global_period: 8}"),
    OtherNames(("SGP", "stochastic gradient push"), "sgp: {topology: one_peer_exponential}"),
    OtherNames(("OSGP", "1-OSGP"), "sgp: {topology: one_peer_exponential, overlap: 1}"),
    OtherNames(("AD-PSGD",), "ad_psgd", "asynchronous"),
    OtherNames(("streaming DiLoCo",), "diloco: {period: 100, fragments: 4, delay: 1, alpha: 0.5}"),
    OtherNames(("OpenDiLoCo",), "diloco: {period: 500, compression: {fp16: true}}"),
    OtherNames(("INTELLECT-1",), "diloco: {period: 100, compression: {qsgd: {bits: 8}}}"),
    OtherNames(("slow momentum", "BMUF", "blockwise model update filtering"), "slowmo: {period: 48}"),
    OtherNames(("DSGT", "GT-DSGD"), "gradient_tracking: {topology: ring}"),
    OtherNames(("CHOCO", "CHOCO-Gossip"), "choco_sgd: {topology: ring, gamma: 0.5}"),
    OtherNames(("delayed Nesterov", "async DiLoCo", "asynchronous local SGD"), "halos: {period: 8}"),
    OtherNames(("federated averaging",), "fedavg: {period: 16, participation: 0.5}"),
    OtherNames(
        ("top-k SGD", "Mem-SGD", "deep gradient compression", "DGC"),
        "all_reduce: {compression: {top_k: {share: 0.01}}}",
    ),
    OtherNames(("elastic averaging", "elastic averaging SGD"), "easgd: {period: 10}"),
)

EXAMPLE_FILES: Final = {
    "d2": ("D2",),
    "demo": ("DeMo", "DisTrO"),
    "eager": ("eager DiLoCo", "eager updates"),
    "noloco": ("NoLoCo",),
    "powersgd": ("PowerSGD",),
    "sparseloco": ("SparseLoCo",),
}
"""Schemes written as a user's own in ``docs/schemes``: file and function of that name -> names elsewhere."""

MODEL_PARALLEL: Final = (
    "hybrid parallelism", "hybrid", "model parallelism", "model parallel", "tensor parallelism",
    "tensor parallel", "pipeline parallelism", "pipeline parallel", "Megatron-LM", "GPipe",
)  # fmt: skip
"""Names of schemes whose workers would share the layers of one model; none is possible here."""
WHY_NOT_PARALLEL: Final = (
    "computes one batch on several workers, and here every worker computes its own, simulated and on a "
    "cluster; GPUs that share a batch are one worker (cluster.island). How long steps of such groups take: "
    "docs/papers/large-models.md, time only"
)

_SEPARATORS: Final = re.compile(r"[\s_-]+")


def explain_unknown(name: str, schemes: Iterable[str]) -> str:
    """Say what to write instead of an unknown scheme's ``name``, given the known ``schemes``.

    >>> explain_unknown("AD-PSGD", ["ad_psgd", "all_reduce"])
    "unknown scheme 'AD-PSGD'; write 'ad_psgd'"
    >>> explain_unknown("adpsgd", ["ad_psgd", "all_reduce"])
    "unknown scheme 'adpsgd'; write 'adaptive_local_sgd' (adaptive period) or 'ad_psgd' (asynchronous)"
    """
    known = sorted(schemes)
    if (same := _SEPARATORS.sub("_", name.lower())) in known:
        return f"unknown scheme {quote(name)}; write '{same}'"
    bare = _bare(name)
    meant = [row for row in OTHER_NAMES if bare in map(_bare, row.names)]
    choices = [f"'{row.write}'" + (f" ({row.about})" if len(meant) > 1 else "") for row in meant]
    choices = choices or [f"'{scheme}'" for scheme in known if bare == _bare(scheme)]
    if choices:
        return f"unknown scheme {quote(name)}; write {' or '.join(choices)}"
    if bare in map(_bare, MODEL_PARALLEL):
        return f"scheme {quote(name)} {WHY_NOT_PARALLEL}"
    for file, names in EXAMPLE_FILES.items():
        if bare in map(_bare, names):
            return (
                f"scheme {quote(name)} is an example, not built in; beside the scenario run "
                f"'paceline new schemes/{file} {file}.py', and write '{file}:{file}'"
            )
    return f"unknown scheme {quote(name)}; {answer_word(name) or did_you_mean(name, known)}"


def _bare(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())
