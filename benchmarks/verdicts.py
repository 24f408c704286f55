"""How often verdicts are wrong after ``tune``, and how good the number of repeats is that they ask for.

Nothing is trained. Each scheme has a grid of rates, the best of them at one of its places; the further a rate
is from that, the slower. Times are lognormal; half of their variance is that of the seed, which all schemes
share. What is tried, chosen, repeated and said is the product's own (``tune``, ``summarise``).

``python -m benchmarks.verdicts`` prints the tables of docs/checks.md (5 minutes on one core).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Final

import numpy as np

from paceline.sim.experiments.tune import deciding_score, planned_trials, record
from paceline.sim.records.intervals import of_median
from paceline.sim.records.run import Run, TimeShare
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import Tuned, TuningTrial
from paceline.sim.records.verdict import MOST_REPEATS, Verdict, find_verdict, find_winner
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.scenario.tuning_grid import SEEDS

SPREADS: Final = (0.1, 0.2)
GRIDS: Final = (3, 4)
CONFIRMED: Final = (0, 2, 3)
REPEATS: Final = (5, 7, 12)
APART: Final = 1.3

_RATES: Final = (0.1, 0.2, 0.4, 0.8)
_TUNED: Final = """\
name: drawn
workload: {task: quadratic, batch_size: 1, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 1 s}, network: {latency: 0 s}}
schemes: [all_reduce]
stop: {target: {metric: train_loss, value: 0.1}, max_time: 1 h}
"""
_TARGET: Final = Goal(metric="train_loss", value=0.1)
_STEEP: Final = (0.5, 1.0, 1.5, 2.0, 3.0)
"""How much slower the next rate is, in spreads: choices go wrong, and it matters, at about 1 to 2."""
_COUNTS: Final = (5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 25, 30, 35, 42, 50, 60, 75, 90, 110, 140)
_CLOSE: Final = 0.64
"""Deviations of the log ratio at which 32 repeats settle the order in 80 % of cases."""
_BLANK: Final = Run(
    scheme="s", label="s", seed=0, source="simulated", status="completed", reached_target=True,
    time_to_target_s=1.0, wall_clock_s=1.0, iterations=1.0, bytes_sent=0, time_s=TimeShare(1.0, 0.0, 0.0),
    evaluations=(), digest="", events=(),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """How schemes are tuned and repeated.

    Attributes:
        spread: deviation of a log time.
        rates: points of the grid.
        confirmed: those of them that are tried on three seeds, the best on the first.
        repeats: with the values that are chosen.
    """

    spread: float
    rates: int
    confirmed: int
    repeats: int


def drawn_verdict(rng: np.random.Generator, setting: Setting, factors: Sequence[float]) -> Verdict:
    """The verdict on schemes whose best times are as ``factors``; the first is labelled ``s0``."""
    steep = setting.spread * rng.choice(_STEEP)
    best = rng.integers(setting.rates)
    slower = steep * np.abs(np.arange(setting.rates) - best)

    def times(base: np.ndarray, common: np.ndarray) -> np.ndarray:
        own = rng.normal(size=(*base.shape, common.size))
        return np.exp(base[..., None] + setting.spread * math.sqrt(0.5) * (common + own))

    logs = np.log(factors)[:, None] + slower
    tried = times(logs, rng.normal(size=SEEDS))
    tuning = [_tuned(f"s{number}", each, setting) for number, each in enumerate(tried)]
    chosen = [_RATES.index(each["chosen"]["optimizer.lr"]) for each in tuning]
    repeated = times(logs[np.arange(len(logs)), chosen], rng.normal(size=setting.repeats))
    runs = [
        replace(_BLANK, label=f"s{number}", seed=seed, time_to_target_s=float(time), wall_clock_s=float(time))
        for number, column in enumerate(repeated)
        for seed, time in enumerate(column)
    ]
    return summarise("drawn", runs, _TARGET, tuning)["verdict"]


def _tuned(label: str, times: np.ndarray, setting: Setting) -> Tuned:
    scenario, tried, seen = _scenario(setting), list[TuningTrial](), list[int]()
    assert scenario.tune is not None
    while planned := planned_trials(scenario, tried):
        for values, seed in planned:
            seen += [] if seed in seen else [seed]
            time_s = float(times[_RATES.index(values["optimizer.lr"]), seen.index(seed)])
            tried.append(TuningTrial(values=values, seed=seed, time_to_target_s=time_s, score=None))
    return record(scenario.tune, label, tried, *deciding_score(scenario))


@lru_cache
def _scenario(setting: Setting) -> Scenario:
    trials = setting.rates + (SEEDS - 1) * setting.confirmed
    return parse(f"{_TUNED}tune: {{optimizer.lr: {list(_RATES[: setting.rates])}, trials: {trials}}}\n")


def _by_repeats(verdict: Verdict) -> bool:
    """Whether repeats and trials settle the order at the chosen rates; drawn trials know no others."""
    return verdict.get("settled_by_repeats", verdict["settled"])


def share_settled(setting: Setting, factors: Sequence[float], draws: int, seed: int = 0) -> float:
    """How often an order is settled."""
    rng = np.random.default_rng(
        [seed, round(100 * setting.spread), setting.rates, setting.confirmed, setting.repeats, len(factors)]
    )
    return sum(_by_repeats(drawn_verdict(rng, setting, factors)) for _ in range(draws)) / draws


def share_right(setting: Setting, factors: Sequence[float], draws: int, seed: int = 0) -> float:
    """How often an order is settled and the first scheme, which is the fastest, the winner."""
    rng = np.random.default_rng(
        [seed, round(100 * setting.spread), setting.rates, setting.confirmed, setting.repeats, len(factors)]
    )
    verdicts = [drawn_verdict(rng, setting, factors) for _ in range(draws)]
    return sum(_by_repeats(each) and each["first"] == "s0" for each in verdicts) / draws


@dataclass(frozen=True)
class Forecast:
    """More repeats: ``needed`` to settle an order in 80 % of cases, and ``named``; None: more than 100."""

    needed: float
    named: int | None


def drawn_forecast(rng: np.random.Generator, repeats: int, gap: float) -> Forecast | None:
    """What a verdict on two schemes asks for; None where it is settled or names the wrong one.

    Args:
        rng: draws the repeats.
        repeats: that there are.
        gap: true mean of the log ratio, in its deviations.
    """
    ratios = np.exp(gap + rng.normal(size=repeats))
    times = {"a": dict.fromkeys(range(repeats), 1.0), "b": dict(enumerate(map(float, ratios)))}
    first = find_winner(times)
    verdict = find_verdict(sorted(times, key=lambda label: label != first), times)
    if _by_repeats(verdict):
        return None
    return Forecast(max(repeats_for(gap), repeats + 1) - repeats, verdict["repeats_needed"])


def repeats_for(gap: float) -> float:
    """How many repeats settle the order in 80 % of cases, at a gap in deviations of the log ratio."""
    gaps = _gaps()
    # Beyond the largest number, repeats go with the inverse square of the gap.
    most = _COUNTS[-1] * (gaps[-1] / max(gap, 1e-9)) ** 2
    return most if gap < gaps[-1] else float(np.interp(-gap, [-each for each in gaps], _COUNTS))


@lru_cache
def _gaps() -> list[float]:
    """The gap at which each of ``_COUNTS`` repeats settles the order in 80 % of cases."""
    rng = np.random.default_rng(0)
    return [
        float(np.quantile([-(of_median(rng.normal(size=n).tolist())["low"] or 0.0) for _ in range(600)], 0.8))
        for n in _COUNTS
    ]


def main(draws: int = 1000) -> None:
    """Print the tables."""
    print("| spread | rates | confirmed | equal: settled, 5 / 7 / 12 repeats | 1.3x: settled, 12 repeats |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for spread, rates, confirmed in product(SPREADS, GRIDS, CONFIRMED):
        settings = [Setting(spread, rates, confirmed, repeats) for repeats in REPEATS]
        wrong = " / ".join(f"{100 * share_settled(each, (1.0, 1.0), draws):.1f}" for each in settings)
        right = share_right(settings[-1], (1.0, APART), draws)
        print(f"| {100 * spread:g} % | {rates} | {confirmed} | {wrong} % | {100 * right:.0f} % |", flush=True)
    print("\n| repeats | right within a factor 2 | more than 100 said | rightly | where 27 would do |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for repeats in REPEATS:
        rng = np.random.default_rng(repeats)
        drawn = [drawn_forecast(rng, repeats, gap) for gap in rng.uniform(0, 4, 5 * draws)]
        close = [drawn_forecast(rng, repeats, _CLOSE) for _ in range(2 * draws)]
        unsettled = [each for each in drawn if each is not None]
        most = [each for each in unsettled if each.named is None]
        shares = (
            np.mean([_is_near(each) for each in unsettled]),
            len(most) / len(unsettled),
            np.mean([each.needed > MOST_REPEATS for each in most]),
            np.mean([each.named is None for each in close if each is not None]),
        )
        print(f"| {repeats} | {' | '.join(f'{100 * share:.0f} %' for share in shares)} |")


def _is_near(each: Forecast) -> bool:
    if each.named is None or each.needed > MOST_REPEATS:
        return each.named is None and each.needed > MOST_REPEATS
    return 0.5 <= each.named / each.needed <= 2


if __name__ == "__main__":
    main()
