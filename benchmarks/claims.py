"""What the papers claim, as ratios that can be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from benchmarks import even_draws, svm
from benchmarks.claim import Claim, Paper, PaperStudy
from benchmarks.outer_claims import DELAYED_NESTEROV, DILOCO, SLOWMO
from benchmarks.real_data_claims import (
    AS_TESTED,
    GRAPHS_ON_TEXT,
    REAL_DATA,
    REAL_IMAGES,
    about_periods,
    faster_by_periods,
)

_BY_LABEL: Final = ("workload.partition.kind=by_label",)

_IID_MEAN: Final = (
    "workload.partition.kind=iid",
    "evaluate={on: mean, every: 1 steps}",
    "stop.target.value=0.9",
)

_FASTER_LINK: Final = "100 Gbit/s"
_FASTER: Final = (f"cluster.network.bandwidth={_FASTER_LINK}",)
_PERIODS: Final = tuple(
    claim
    for study in ("iid", "by label")
    for claim in (
        *about_periods(study, f"{study}, QSGD"),
        faster_by_periods(f"{study}, {_FASTER_LINK}", _FASTER_LINK),
    )
)

_TOPOLOGIES: Final = tuple(
    claim
    for study, kind in (("iid", ""), ("by label", ""), ("by label", " DmSGD"))
    for claim in (
        Claim(
            f"{study}{kind}: one-peer needs as many steps as the static graph, within 10 %",
            "steps to target", (study, f"one-peer{kind}"), (study, f"static{kind}"), 0.9, 1.1,
        ),
        Claim(
            f"{study}{kind}: one-peer is faster by the clock than the static graph",
            "time to target", (study, f"one-peer{kind}"), (study, f"static{kind}"), at_most=1.0,
        ),
        Claim(
            f"{study}{kind}: a step of one-peer is faster than one of all-reduce",
            "time per step", (study, f"one-peer{kind}"), (study, "all_reduce"), at_most=1.0,
        ),
        Claim(
            f"{study}{kind}: one-peer is sooner at the target than all-reduce",
            "time to target", (study, f"one-peer{kind}"), (study, "all_reduce"), at_most=1.0,
        ),
    )
) + tuple(
    Claim(
        f"{study}: a ring ends at a higher consensus distance than one-peer",
        "consensus_distance", (study, "ring"), (study, "one-peer"), at_least=1.0,
    )
    for study in ("iid", "by label")
)  # fmt: skip

_PUSH: Final = (
    Claim(
        "SGP reaches the target sooner than all-reduce on Ethernet",
        "time to target", ("iid", "SGP"), ("iid", "all_reduce"), at_most=1.0,
    ),
    Claim(
        "with one message overlapped sooner still",
        "time to target", ("iid", "1-OSGP"), ("iid", "SGP"), at_most=1.0,
    ),
    Claim(
        "leaving out the push-sum weight costs steps",
        "steps to target", ("iid", "biased 1-OSGP"), ("iid", "1-OSGP"), at_least=1.0,
    ),
    Claim(
        "slow moments cost all-reduce more than half as much time again per step",
        "time per step", ("slow moments", "all_reduce"), ("iid", "all_reduce"), at_least=1.5,
    ),
    Claim(
        "and SGP less of it than all-reduce",
        "time per step", ("slow moments", "SGP"), ("slow moments", "all_reduce"), at_most=0.9,
    ),
    Claim(
        "a node that is always three times slower costs all-reduce at least twice the time per step",
        "time per step", ("slow node", "all_reduce"), ("iid", "all_reduce"), at_least=2.0,
    ),
    Claim(
        "asynchronous SGP at most a fifth",
        "time per step", ("slow node", "asynchronous SGP"), ("iid", "asynchronous SGP"), at_most=1.2,
    ),
    Claim(
        "and is the first of the two at the target",
        "time to target", ("slow node", "asynchronous SGP"), ("slow node", "all_reduce"), at_most=1.0,
    ),
    Claim(
        "by label: SGP sooner than all-reduce",
        "time to target", ("by label", "SGP"), ("by label", "all_reduce"), at_most=1.0,
    ),
    Claim(
        "text, Adam inside: SGP ends at all-reduce's loss, within 5 %",
        "train_loss", ("text", "SGP"), ("text", "all_reduce"), at_most=1.05,
    ),
    Claim(
        "text, Adam inside: in less time",
        "time per step", ("text", "SGP"), ("text", "all_reduce"), at_most=1.0,
    ),
)  # fmt: skip

_DIGITS: Final = ("4 workers", "16 workers", "16 workers, own shards", "16 workers, by label")
_ONE_LEADER: Final = (("4 workers", "LSGD"), ("16 workers", "one leader"))

_LEADER: Final = (
    Claim(
        "the leader ends at a stationary point, elastic averaging's centre (on weak springs) does not",
        "gradient_norm", ("matrix", "EASGD 0.1"), ("matrix", "LGD"), at_least=100.0,
    ),
    Claim(
        "nor do its workers",
        "gradient_norm", ("matrix, workers", "EASGD 0.1"), ("matrix, workers", "LGD"), at_least=100.0,
    ),
    Claim(
        "on strong springs it goes down more slowly",
        "steps to target", ("matrix, to 1 %", "EASGD 0.9"), ("matrix, to 1 %", "LGD"), at_least=1.0,
    ),
    *(
        Claim(
            f"{study}: the leader is another one than the round before, in most rounds",
            "rounds with another leader", (study, label), None, at_least=0.5,
        )
        for study, label in _ONE_LEADER
    ),
    *(
        Claim(
            f"{study}: nobody leads more than twice as often as would be even",
            "rounds of the most frequent leader over an even share", (study, label), None, at_most=2.0,
        )
        for study, label in _ONE_LEADER
    ),
    *(
        Claim(
            f"{study}: leader SGD is faster than {rival}",
            "time to target", (study, rival), (study, "LSGD"), at_least=1.0,
        )
        for study in _DIGITS
        for rival in ("EASGD", "EAMSGD")
    ),
    *(
        Claim(
            f"{study}: leader SGD is faster than DOWNPOUR",
            "time to target", (study, "DOWNPOUR"), (study, "LSGD"), at_least=1.0,
        )
        for study in _DIGITS[:2]
    ),
    Claim(
        "16 workers: leaders of nodes are faster than one leader",
        "time to target", ("16 workers", "one leader"), ("16 workers", "LSGD"), at_least=1.0,
    ),
    Claim(
        "a node that is three times slower delays the synchronous form more than the asynchronous one",
        "time per step", ("slow node", "LSGD"), ("slow node", "asynchronous LSGD"), at_least=1.0,
    ),
)  # fmt: skip

_BY_GAP: Final = (
    "lattice Metropolis",
    "lattice Laplacian",
    "torus Laplacian",
    "learned Metropolis",
    "learned Laplacian",
)
"""The smallest spectral gap first."""

_LEARNED: Final = (
    Claim(
        "by label: learned with Laplacian weights needs fewer steps than the lattice with Metropolis",
        "steps to target", ("by label", _BY_GAP[0]), ("by label", _BY_GAP[-1]), at_least=1.0,
    ),
    *(
        Claim(
            f"by label: {more} has the larger spectral gap and needs fewer steps than {less}",
            "steps to target", ("by label", less), ("by label", more), at_least=1.0,
        )
        for less, more in pairwise(_BY_GAP)
    ),
    *(
        Claim(
            f"iid, mean model: {less} needs as many steps as {_BY_GAP[-1]}, within 5 %",
            "steps to target", ("iid, mean model", less), ("iid, mean model", _BY_GAP[-1]), 0.95, 1.05,
        )
        for less in _BY_GAP[:-1]
    ),
    Claim(
        "four sites: the graph found for time is sooner at the target than the one found for steps",
        "time to target", ("four sites", "fewest steps"), ("four sites", "least time"), at_least=1.0,
    ),
    Claim(
        "four sites: and than the lattice",
        "time to target", ("four sites", "lattice"), ("four sites", "least time"), at_least=1.0,
    ),
)  # fmt: skip

_EPOCHS: Final = 10
_SVM_DATA: Final = {"breast_cancer": 455, "wine": 142, "iris": 120}
"""scikit-learn's data sets -> their training examples."""
_SVM_SEEDS: Final = {"breast_cancer": 10, "wine": 20, "iris": 20}
_SVM_TARGET: Final = 0.95
_AIMED: Final = f", to {100 * _SVM_TARGET:.0f} %"
"""Behind a study's name: it ends at that test accuracy, and not after ``_EPOCHS``."""


def _svm_study(data: str, workers: int, aimed: str) -> PaperStudy:
    """Pegasos on so many ranks."""
    steps = math.ceil(_SVM_DATA[data] / workers)
    name = data if workers > 1 else f"{data}, sequential"
    alone = () if workers > 1 else ("schemes=[{local_sgd: {period: 1, label: MSF 1}}]",)
    aim = (f"stop.target={{metric: test_accuracy, value: {_SVM_TARGET}}}",) if aimed else ()
    return PaperStudy(
        f"{name}{aimed}",
        "periods",
        (
            f"workload.data={data}",
            f"workload.optimizer.schedule.inverse_time.half={steps} steps",
            f"evaluate.every={max(1, steps // 8) if aimed else steps} steps",
            f"cluster.workers={workers}",
            f"stop.max_iterations={_EPOCHS * steps}",
            f"repeats={_SVM_SEEDS[data]}",
            *alone,
            *aim,
        ),
    )


_SVM_STUDIES: Final = tuple(
    _svm_study(data, workers, aimed) for data in _SVM_DATA for aimed in ("", _AIMED) for workers in (8, 1)
)

_SVM: Final = tuple(
    claim
    for data in _SVM_DATA
    for label in ("MSF 1", "MSF 8", "MSF 32")
    for claim in (
        Claim(
            f"{data}: 8 ranks with {label} are at least as accurate as the sequential algorithm",
            "test_accuracy", (data, label), (f"{data}, sequential", "MSF 1"), at_least=1.0,
        ),
        Claim(
            f"{data}: 8 ranks with {label} are sooner at 95 % test accuracy than the sequential algorithm",
            "time to target", (f"{data}{_AIMED}", label), (f"{data}, sequential{_AIMED}", "MSF 1"),
            at_most=1.0,
        ),
    )
)  # fmt: skip

_SLOW_MOMENTS: Final = "cluster.stragglers=[{probability: 0.02, slowdown: 6}]"
_SLOW_LEADER: Final = "cluster.stragglers=[{workers: [3], slowdown: 3}]"
_SLOW_NODE: Final = "cluster.stragglers=[{workers: [5], slowdown: 3}]"

PAPERS: Final[Mapping[str, Paper]] = {
    "adaptive-periodic-averaging": Paper(
        (
            PaperStudy("iid", "periods"),
            PaperStudy("iid, QSGD", "quantised"),
            PaperStudy("by label", "periods", _BY_LABEL),
            PaperStudy("by label, QSGD", "quantised", _BY_LABEL),
            PaperStudy(f"iid, {_FASTER_LINK}", "periods", _FASTER),
            PaperStudy(f"by label, {_FASTER_LINK}", "periods", (*_BY_LABEL, *_FASTER)),
        ),
        _PERIODS,
    ),
    "delayed-nesterov": DELAYED_NESTEROV,
    "diloco": DILOCO,
    "exponential-graph": Paper(
        (PaperStudy("iid", "topologies"), PaperStudy("by label", "topologies", _BY_LABEL)), _TOPOLOGIES
    ),
    "graphs-on-text": GRAPHS_ON_TEXT,
    "optimal-topology-search": Paper(
        (
            PaperStudy("by label", "equal-degree"),
            PaperStudy("iid, mean model", "equal-degree", _IID_MEAN),
            PaperStudy("four sites", "four-sites"),
        ),
        _LEARNED,
    ),
    "real-data": REAL_DATA,
    "real-images": REAL_IMAGES,
    "slowmo": SLOWMO,
    "stochastic-gradient-push": Paper(
        (
            PaperStudy("iid", "ethernet"),
            PaperStudy("by label", "ethernet", _BY_LABEL),
            PaperStudy("slow moments", "ethernet", (_SLOW_MOMENTS,)),
            PaperStudy("slow node", "ethernet", (_SLOW_NODE,)),
            PaperStudy("text", "text"),
        ),
        _PUSH,
    ),
    "svm": Paper(_SVM_STUDIES, _SVM, svm.page),
    "leader-sgd": Paper(
        (
            PaperStudy("matrix", "matrix"),
            PaperStudy("matrix, workers", "matrix", ("evaluate.on=workers",)),
            PaperStudy("matrix, to 1 %", "matrix", ("stop.target={metric: relative_error, value: 0.01}",)),
            PaperStudy("4 workers", "digits", AS_TESTED),
            PaperStudy("16 workers", "nodes", AS_TESTED),
            PaperStudy("16 workers, own shards", "nodes", ("workload.partition.kind=iid", *AS_TESTED)),
            PaperStudy("16 workers, by label", "nodes", (*_BY_LABEL, *AS_TESTED)),
            PaperStudy("slow node", "digits", (_SLOW_LEADER, *AS_TESTED)),
        ),
        _LEADER,
        even_draws.page,
    ),
}
"""By the name of the page and of the folder of scenarios."""
