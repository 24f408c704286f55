"""The papers' claims, measured: simulates their scenarios and writes the figures into their pages.

    python -m benchmarks.papers [PAPER...] [--out out/papers] [--kept]

Runs that are there already are not repeated, also where the command was ended in the middle of a study. A
page in ``docs/papers/`` is written by hand down to a mark; what stands below it is generated here.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.claim import Claim, Paper, PaperStudy
from benchmarks.claims import PAPERS
from docs.make.page import renewed
from paceline.sim.config.files import write_atomically
from paceline.sim.errors import InputError
from paceline.sim.experiments import prepare
from paceline.sim.experiments.simulate import begin, choose_values, simulate
from paceline.sim.experiments.tune import planned_trials, with_chosen
from paceline.sim.records import folder as result_folder
from paceline.sim.records.intervals import FEWEST, Interval, of_median, of_ratio
from paceline.sim.records.run import Run
from paceline.sim.records.summary import Tuned, TuningTrial
from paceline.sim.scenario.repeats import are_enough
from paceline.sim.scenario.schema import Scenario, dump, load

ROOT: Final = Path(__file__).parent.parent
MARK: Final = "<!-- What follows is made by: python -m benchmarks.papers -->\n"

QUANTITIES: Final[Mapping[str, Callable[[Run], float]]] = {
    "time to target": lambda run: math.inf if run.time_to_target_s is None else run.time_to_target_s,
    "steps to target": lambda run: math.inf if run.met is None else run.met.step,
    "time per step": lambda run: run.wall_clock_s / run.iterations,
    "bytes per step": lambda run: run.bytes_sent / run.iterations,
}
"""What runs are compared by, beside the metrics at their end."""


def _leaders(run: Run) -> list[int]:
    """Who led, round by round, as worker 0 saw it."""
    return [event.peer for event in run.events if event.worker == 0 and event.operation == "broadcast"]


def _turnover(run: Run) -> float:
    leaders = _leaders(run)
    return sum(a != b for a, b in pairwise(leaders)) / max(1, len(leaders) - 1)


def _busiest(run: Run) -> float:
    leaders, workers = _leaders(run), 1 + max(event.worker for event in run.events)
    return max(Counter(leaders).values()) * workers / len(leaders)


OF_LEADERS: Final[Mapping[str, Callable[[Run], float]]] = {
    "rounds with another leader": _turnover,
    "rounds of the most frequent leader over an even share": _busiest,
}
"""What else a claim may be about, where all operations are on record and a scheme has leaders."""


Runs = Mapping[str, Mapping[str, Mapping[int, Run]]]
"""Study -> label -> seed -> run."""


def scenario_of(paper: str, study: PaperStudy) -> Scenario:
    """The scenario of a study."""
    file = ROOT / "scenarios" / "papers" / paper / f"{study.scenario}.yaml"
    return load(file.resolve(), study.changes)  # a paper without scenarios of its own has no folder


def results_of(paper: str, study: PaperStudy, out: Path) -> result_folder.Results:
    """The results of a study; simulated if its folder does not hold them, and its schemes tuned before."""
    scenario, folder = scenario_of(paper, study), out / paper / study.name
    if not _is_complete(folder, scenario):
        with begin(scenario, prepare.device_named("cpu"), folder, force=True) as (resolved, parts):
            chosen, tuning = choose_values(resolved, parts=parts)
            runs = list(simulate(chosen, parts=parts))
            text = dump(chosen)
            result_folder.write_results(folder, text, chosen.name, runs, force=True, tuning=tuning)
    return result_folder.read_results(folder)


def kept_results(paper: str, study: PaperStudy, out: Path) -> result_folder.Results | None:
    """The results of the study's runs that are complete; None where there is none."""
    folder = out / paper / study.name
    with suppress(InputError):
        return result_folder.read_results(folder)
    return None


def _is_complete(folder: Path, scenario: Scenario) -> bool:
    """Whether a folder has all runs of this scenario, with the values that its trials chose."""
    if not (folder / result_folder.SCENARIO_FILE).is_file():
        return False
    results = result_folder.read_results(folder)
    labels = [entry.label for entry in scenario.schemes]
    tuning = results.summary.get("tuning", [])
    if [each["label"] for each in tuning] != ([] if scenario.tune is None else labels):
        return False
    if not all(_is_planned(scenario, each["trials"]) for each in tuning):
        return False
    runs = result_folder.runs_of(results)
    resolved = prepare.resolved_in(results.scenario, with_chosen(scenario, tuning))
    return resolved is not None and are_enough(scenario.repeats, labels, runs)


def _is_planned(scenario: Scenario, trials: Sequence[TuningTrial]) -> bool:
    """Whether a scheme's trials are those of this scenario."""
    first, recorded = planned_trials(scenario, ()), [(trial["values"], trial["seed"]) for trial in trials]
    if recorded[: len(first)] != first:
        return False
    return recorded == [*first, *planned_trials(scenario, trials[: len(first)])]


def runs_by_label(results: result_folder.Results) -> dict[str, dict[int, Run]]:
    """The runs of a study: label -> seed -> run."""
    by_label: dict[str, dict[int, Run]] = {}
    for run in result_folder.runs_of(results):
        by_label.setdefault(run.label, {})[run.seed] = run
    return by_label


def value_of(quantity: str, run: Run) -> float:
    """A quantity, or a metric at the end of the run; infinite where there is none."""
    for known in (QUANTITIES, OF_LEADERS):
        if quantity in known:
            return known[quantity](run)
    value = run.evaluations[-1].metrics.get(quantity)
    return math.inf if value is None else value


def ratio_of(claim: Claim, runs: Runs) -> Interval | None:
    """The claim's ratio: its median over the seeds, and the 95 % interval of that.

    None where most runs of both have no value: neither got to the target.
    """

    def values(which: tuple[str, str]) -> dict[int, float]:
        study, label = which
        return {seed: value_of(claim.quantity, run) for seed, run in runs[study][label].items()}

    above = values(claim.above)
    if claim.below is None:
        return of_median(list(above.values()))
    below = values(claim.below)
    if all(of_median(list(column.values()))["median"] is None for column in (above, below)):
        return None
    return of_ratio(above, below)


def _judged(claim: Claim, runs: Runs) -> tuple[str, str]:
    """The claim's ratio and its verdict, as the page shows them."""
    whiches = [which for which in (claim.above, claim.below) if which is not None]
    columns = [runs.get(study, {}).get(label, {}) for study, label in whiches]
    seeds = set.intersection(*(set(column) for column in columns))
    if not seeds:
        return "-", "not simulated"
    ratio = ratio_of(claim, runs)
    judged = verdict(claim, ratio) if len(seeds) >= FEWEST else f"undecided: {len(seeds)} seeds"
    return "neither" if ratio is None else shown(ratio, between="\u2013"), judged


def verdict(claim: Claim, ratio: Interval | None) -> str:
    """Whether the whole interval of the ratio is where the claim says, outside, or across a bound."""
    if ratio is None:
        return "undecided"
    low, high = ratio["low"], ratio["high"]
    low = math.inf if low is None else low
    high = math.inf if high is None else high
    if claim.at_least <= low and high <= claim.at_most:
        return "holds"
    return "does not hold" if high < claim.at_least or low > claim.at_most else "undecided"


def page(paper: Paper, runs: Runs, tuning: Mapping[str, Sequence[Tuned]]) -> str:
    """The generated part of a page: the claims, then a table for each study.

    Args:
        paper: what is claimed.
        runs: of its studies; what is claimed of others is not judged.
        tuning: study -> what its schemes chose; absent where nothing is tuned.
    """
    rows = []
    for claim in paper.claims:
        cells = (claim.says, claim.quantity, _ratio_of(claim), _bounds(claim), *_judged(claim, runs))
        rows.append(f"| {' | '.join(cells)} |")
    repeats = [len(by_seed) for study in runs.values() for by_seed in study.values()]
    seeds = f"{min(repeats)} to {max(repeats)}" if min(repeats) < max(repeats) else f"{max(repeats)}"
    head = ("claim", "of", "ratio of", "claimed", "found", "verdict")
    parts = [
        f"\nMedians over {seeds} seeds ([how to read the tables](index.md)).\n",
        "## Claims\n",
        "\n".join([f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *rows, ""]),
    ]
    for study in paper.studies:
        if study.name not in runs:
            continue
        parts += [f"## {study.name}\n", _table(runs[study.name])]
        if study.front is not None:
            parts.append(_front(runs[study.name], *study.front))
        if study.name in tuning:
            parts.append(_choices(tuning[study.name]))
    if paper.more is not None:
        parts.append(paper.more())
    return "\n".join(parts)


def _ratio_of(claim: Claim) -> str:
    """What is divided by what: a study once, and not where the claim begins with it."""
    (study, above), below = claim.above, claim.below
    if below is not None and below[0] != study:
        return f"{study}: {above} / {': '.join(below)}"
    of = above if below is None else f"{above} / {below[1]}"
    return of if claim.says.startswith(f"{study}: ") else f"{study}: {of}"


def _table(runs: Mapping[str, Mapping[int, Run]]) -> str:
    """One row per scheme."""
    ends = [run.evaluations[-1].metrics for by_seed in runs.values() for run in by_seed.values()]
    metrics = [name for name in dict.fromkeys(name for end in ends for name in end) if "_on_" not in name]
    aimed = any(run.reached_target for by_seed in runs.values() for run in by_seed.values())
    names = [*metrics, *(name for name in QUANTITIES if aimed or "target" not in name)]
    lines = [f"| scheme | {' | '.join(name.replace('_', ' ') for name in names)} |"]
    lines.append("| --- " + "| ---: " * len(names) + "|")
    for label, by_seed in runs.items():
        own = {
            name
            for run in by_seed.values()
            for each in run.evaluations
            for name, value in each.metrics.items()
            if value is not None
        }
        cells = [
            "-"
            if name in metrics and name not in own
            else shown(
                of_median([value_of(name, run) for run in by_seed.values()]), _UNITS.get(name, ""), "\u2013"
            )
            for name in names
        ]
        lines.append(f"| `{label}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _front(runs: Mapping[str, Mapping[int, Run]], metric: str, better: str) -> str:
    """A sentence: the schemes that none equals in time of a step and score and surpasses in one of them."""
    sign = 1.0 if better == "falling" else -1.0
    points = {}
    for label, by_seed in runs.items():
        time_s, score = (
            statistics.median(value_of(name, run) for run in by_seed.values())
            for name in ("time per step", metric)
        )
        if math.isfinite(score):
            points[label] = (time_s, sign * score)
    front = [
        label
        for label, own in points.items()
        if not any(a <= own[0] and b <= own[1] and (a, b) != own for a, b in points.values())
    ]
    names = ", ".join(f"`{label}`" for label in sorted(front, key=points.__getitem__))
    return f"Best {metric.replace('_', ' ')} for the time of a step (medians): {names}.\n"


def _choices(tuning: Sequence[Tuned]) -> str:
    """What each scheme chose, in a sentence."""
    choices: dict[str, list[str]] = {}
    for each in tuning:
        values = ", ".join(
            f"`{key}` {value}" + (" (the end of its list)" if key in each["at_edge"] else "")
            for key, value in each["chosen"].items()
        )
        choices.setdefault(values, []).append(f"`{each['label']}`")
    trials = tuning[0]["trials"]
    seeds = len({trial["seed"] for trial in trials})
    how = f"Chosen from {len(trials)} trials each" if len(trials) > 1 else "Taken, not chosen"
    on = f", on {seeds} seeds" if seeds > 1 else ""
    who = "; ".join(f"{values} for {', '.join(labels)}" for values, labels in choices.items())
    return f"{how}{on}: {who}.\n"


_UNITS: Final = {"time to target": "s", "time per step": "s", "bytes per step": "B"}


def _bounds(claim: Claim) -> str:
    if claim.at_least == 0.0:
        return f"≤ {claim.at_most:g}"
    if claim.at_most == math.inf:
        return f"≥ {claim.at_least:g}"
    return f"{claim.at_least:g} to {claim.at_most:g}"


def shown(median: Interval, unit: str = "", between: str = " to ") -> str:
    """A median with its interval, the unit once; ``never`` where there is no median.

    Args:
        median: what is shown.
        unit: of all three numbers.
        between: what stands between the ends of the interval, where both are numbers and none is negative.
    """
    if median["median"] is None:
        return "never"
    text = _number(median["median"], unit)
    if median["low"] is None or median["low"] == median["high"]:
        return text
    low = _number(median["low"], unit)
    high = "never" if median["high"] is None else _number(median["high"], unit)
    _, blank, shared = text.partition(" ")
    if blank and low.endswith(f" {shared}") and (high == "never" or high.endswith(f" {shared}")):
        low, high = low.removesuffix(f" {shared}"), high.removesuffix(f" {shared}")
    plain = high != "never" and not low.startswith("-")
    return f"{text} ({low}{between if plain else ' to '}{high})"


def _number(value: float, unit: str) -> str:
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit == "B" and abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g}" + (f" {unit}" if unit else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate what is missing and renew the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"of {', '.join(PAPERS)}; default: all")
    parser.add_argument(
        "--kept", action="store_true", help="simulate nothing: make the pages of the runs that are complete"
    )
    parser.add_argument("--out", type=Path, default=Path("out/papers"), help="folder of the results")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.papers if name not in PAPERS]
    if unknown:
        parser.error(f"no paper '{unknown[0]}'; choose from: {', '.join(PAPERS)}")
    for name in chosen.papers or PAPERS:
        paper = PAPERS[name]
        read: Callable[[str, PaperStudy, Path], result_folder.Results | None]
        read = kept_results if chosen.kept else results_of
        by_study = {study.name: read(name, study, chosen.out) for study in paper.studies}
        results = {study: each for study, each in by_study.items() if each is not None}
        runs = {study: runs_by_label(each) for study, each in results.items()}
        tuning = {
            study: each.summary["tuning"] for study, each in results.items() if "tuning" in each.summary
        }
        path = ROOT / "docs" / "papers" / f"{name}.md"
        write_atomically(path, renewed(path.read_text(encoding="utf-8"), MARK, page(paper, runs, tuning)))
        print(f"renewed {path}")


if __name__ == "__main__":
    main()
