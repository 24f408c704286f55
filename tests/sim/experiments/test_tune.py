from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.reports import words
from paceline.sim.errors import InputError
from paceline.sim.experiments import jobs
from paceline.sim.experiments import simulate as simulator
from paceline.sim.experiments.prepare import seeds_of
from paceline.sim.experiments.tune import choose, next_trials, planned_trials
from paceline.sim.records.folder import read_results, write_results
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import Tuned, TuningTrial
from paceline.sim.records.verdict import Value
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.scenario.tuning_grid import with_values
from tests.sim.scenario.test_schema import FLAT, refusal
from tests.support.made_runs import made_run

TARGET = FLAT.replace("max_iterations: 100", "max_time: 1 min, target: {metric: test_accuracy, value: 0.9}")


def scenario(grid: str) -> Scenario:
    return parse(TARGET + f"tune: {grid}\n")


def lr(entry: SchemeEntry) -> float:
    assert entry.optimizer is not None
    assert entry.optimizer.lr is not None
    return entry.optimizer.lr


def test_trials_are_one_for_each_point_and_two_more_for_the_best() -> None:
    asked = scenario("{optimizer.lr: [0.1, 0.2], optimizer.momentum: [0.0, 0.9], trials: 8}")
    assert parse(dump(asked)) == asked
    points: list[dict[str, Value]] = [
        {"optimizer.lr": rate, "optimizer.momentum": momentum}
        for rate in (0.1, 0.2)
        for momentum in (0.0, 0.9)
    ]
    first = planned_trials(asked, [])
    assert [values for values, _ in first] == points
    times: list[float | None] = [2.0, None, 1.0, 3.0]
    tried = [
        TuningTrial(values=values, seed=seed, time_to_target_s=time_s, score=0.5)
        for (values, seed), time_s in zip(first, times, strict=True)
    ]
    best = planned_trials(asked, tried)
    assert [values for values, _ in best] == [points[0], points[2]] * 2
    seeds = [first[0][1], best[0][1], best[2][1]]
    assert [seed for _, seed in [*first, *best]] == [seeds[0]] * 4 + [seeds[1]] * 2 + [seeds[2]] * 2
    assert len(set(seeds) - set(seeds_of(asked))) == 3


@pytest.mark.parametrize(("values", "trials"), [("[0.1]", 1), ("[0.1, 0.2]", 6), ("[0.1, 0.2, 0.4]", 7)])
def test_the_best_two_are_confirmed_by_default(values: str, trials: int) -> None:
    by_default, said = (scenario(f"{{optimizer.lr: {values}{more}}}") for more in ("", f", trials: {trials}"))
    assert by_default.tune == said.tune


Outcomes = Callable[[float, int], float | None]
"""Time to target of a rate, on the first, the second or the third seed."""


def tuned(asked: Scenario, run: Callable[[Scenario, SchemeEntry, int], Run]) -> tuple[Scenario, list[Tuned]]:
    runs: list[Run] = []
    while planned := next_trials(asked, runs):
        assert [each.number for each in planned] == list(range(len(runs), len(runs) + len(planned)))
        runs += [run(each.scenario, each.entry, each.seed) for each in planned]
    return choose(asked, runs)


def runner(times: Outcomes, calls: list[tuple[str, float, int]]) -> Callable[..., Run]:
    seeds: list[int] = []

    def run(plain: Scenario, entry: SchemeEntry, seed: int) -> Run:
        assert plain.tune is None
        calls.append((entry.label, lr(entry), seed))
        if seed not in seeds:
            seeds.append(seed)
        return made_run(entry.label, seed, reached_s=times(lr(entry), seeds.index(seed)))

    return run


def test_every_scheme_gets_as_many_trials_and_keeps_the_best_mean() -> None:
    asked = scenario("{optimizer.lr: [0.1, 0.2, 0.4], trials: 7}")
    calls: list[tuple[str, float, int]] = []
    # 0.1 takes 1 s and 20 s, on average more than 0.2 with 5 s on every seed.
    chosen, found = tuned(asked, runner(lambda lr, n: {0.1: (1.0, 20.0, 1.0)[n], 0.2: 5.0}.get(lr), calls))
    labels = [entry.label for entry in asked.schemes]
    assert [len([c for c in calls if c[0] == label]) for label in labels] == [7] * len(labels)
    assert len({tuple(c[1:] for c in calls if c[0] == label) for label in labels}) == 1
    assert [lr(entry) for entry in chosen.schemes] == [0.2] * len(labels)
    assert chosen.tune is None
    assert (found[0]["chosen"], found[0]["at_edge"]) == ({"optimizer.lr": 0.2}, [])
    assert [trial["time_to_target_s"] for trial in found[0]["trials"]] == [
        1.0,
        5.0,
        None,
        20.0,
        5.0,
        1.0,
        5.0,
    ]


def test_trials_of_the_first_seed_keep_the_times_to_levels_up_to_the_target() -> None:
    """Accuracies are 0.1, 0.5 and 0.95 at the begin, the middle and the end; 0.8 is short of the target."""
    asked = scenario("{optimizer.lr: [0.1, 0.2]}")
    _, found = tuned(asked, runner(lambda lr, _: None if lr == 0.1 else 10.0, []))
    short, whole = (trial["levels"] for trial in found[0]["trials"][:2])
    levels = [0.1 + 0.02 * k for k in range(41)]
    seconds = [12.5 * (x - 0.1) if k <= 20 else 5 + 5 * (x - 0.5) / 0.45 for k, x in enumerate(levels)]
    assert np.array(whole).T.tolist() == [pytest.approx(levels), pytest.approx(seconds)]
    assert [x for x, _ in short] == pytest.approx([x for x in levels if x < 0.81])
    assert short[-1][1] == pytest.approx(10.0)
    assert not any("levels" in trial for trial in found[0]["trials"][2:])
    _, of_momentum = tuned(scenario("{optimizer.momentum: [0.0, 0.9]}"), lambda _, e, s: made_run(e.label, s))
    assert not any("levels" in trial for trial in of_momentum[0]["trials"])


def test_a_trial_without_scores_keeps_no_levels() -> None:
    asked = scenario("{optimizer.lr: [0.1, 0.2, 0.4]}")
    _, found = tuned(asked, lambda _, e, s: replace(made_run(e.label, s, reached_s=None), evaluations=()))
    assert [trial["levels"] for trial in found[0]["trials"][:3]] == [[]] * 3


@pytest.mark.parametrize(
    ("fails", "kept"),
    [
        ({0.4}, 0.2),
        ({0.2, 0.4}, 0.1),  # neither of the best two holds: the next one, on one seed
        ({0.1, 0.2, 0.4}, 0.1),
    ],
)
def test_values_that_miss_the_target_on_one_seed_of_three_lose(fails: set[float], kept: float) -> None:
    asked = scenario("{optimizer.lr: [0.1, 0.2, 0.4]}")
    chosen, _ = tuned(asked, runner(lambda lr, n: None if n == 2 and lr in fails else 1 / lr, []))
    assert lr(chosen.schemes[0]) == kept


def test_without_a_target_the_mean_score_decides() -> None:
    def loss(plain: Scenario, entry: SchemeEntry, seed: int) -> Run:
        ended = losses[lr(entry)][seeds.setdefault(seed, len(seeds))]
        one = made_run(entry.label, seed, reached_s=None, status="diverged" if ended is None else "completed")
        end = replace(one.evaluations[-1], metrics={"train_loss": 0.0 if ended is None else ended})
        return replace(one, evaluations=(*one.evaluations[:-1], end))

    for spoilt in (None, 2.3):  # a diverged training counts for nothing, whatever its last score
        seeds: dict[int, int] = {}
        losses = {0.1: (0.3, 0.3, 0.3), 0.2: (0.2, 0.2, spoilt), 0.4: (0.4,)}
        chosen, _ = tuned(parse(FLAT + "tune: {optimizer.lr: [0.1, 0.2, 0.4]}\n"), loss)
        assert lr(chosen.schemes[0]) == 0.1


def test_a_value_at_the_edge_is_flagged_and_said() -> None:
    asked = scenario("{optimizer.lr: [0.1, 0.2, 0.4]}")
    _, found = tuned(asked, runner(lambda lr, _: 1 / lr, []))
    assert found[0]["at_edge"] == ["optimizer.lr"]
    summary = summarise("s", [made_run("a")], None, found)
    labels = words.listed([entry.label for entry in asked.schemes])
    assert words.tuning(summary)[0] == (
        f"{labels} each run with optimizer.lr 0.4, the best of 7 trials; "
        "optimizer.lr at the edge of the grid: a better value may lie beyond."
    )


def test_where_nobody_arrives_the_score_decides() -> None:
    asked = scenario("{optimizer.lr: [0.1, 0.2]}")

    def run(plain: Scenario, entry: SchemeEntry, seed: int) -> Run:
        diverged = lr(entry) == 0.1
        return made_run(entry.label, seed, reached_s=None, status="diverged" if diverged else "completed")

    chosen, found = tuned(parse(FLAT + "tune: {optimizer.lr: [0.1, 0.2]}\n"), run)
    assert found[0]["metric"] == "train_loss"
    assert [trial["score"] for trial in found[0]["trials"]] == [None, 0.5] * 3
    assert lr(chosen.schemes[0]) == 0.2
    assert tuned(asked, run)[1][0]["metric"] == "test_accuracy"


def test_where_nobody_arrives_it_is_the_score_that_the_target_is_on() -> None:
    on_worst = TARGET.replace("value: 0.9", "value: 0.9, on: worst")
    grid = "tune: {optimizer.lr: [0.1, 0.2]}\n"

    def run(plain: Scenario, entry: SchemeEntry, seed: int) -> Run:
        one = made_run(entry.label, seed, reached_s=None)
        mean, worst = (0.8, 0.2) if lr(entry) == 0.1 else (0.6, 0.5)
        end = replace(one.evaluations[-1], metrics={"test_accuracy": mean, "test_accuracy_on_worst": worst})
        return replace(one, evaluations=(*one.evaluations[:-1], end))

    chosen, found = tuned(parse(on_worst + grid), run)
    assert found[0]["metric"] == "test_accuracy_on_worst"
    assert [trial["score"] for trial in found[0]["trials"]] == [0.2, 0.5] * 3
    assert lr(chosen.schemes[0]) == 0.2
    # Where evaluate.on is the same, evaluations have the score under the metric's own name.
    chosen, found = tuned(parse(on_worst + grid + "evaluate: {on: worst}\n"), run)
    assert found[0]["metric"] == "test_accuracy"
    assert lr(chosen.schemes[0]) == 0.1


def test_the_learning_rate_is_that_of_whichever_optimiser_there_is() -> None:
    entry = SchemeEntry.model_validate({"all_reduce": {"optimizer": {"adamw": {"lr": 0.001}}}})
    changed = with_values(entry, parse(FLAT).workload.optimizer, {"optimizer.lr": 0.003})
    assert changed.optimizer is not None
    assert changed.optimizer.adamw is not None
    assert changed.optimizer.adamw.lr == 0.003


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{trials: 3}", "f.yaml:14: tune: names nothing to tune"),
        ("{optimizer.lr: 0.1}", "tune.optimizer.lr: must be a list of values to choose from, not 0.1"),
        ("{optimizer.lr: [0.1, 0.1]}", "tune.optimizer.lr: holds a value twice"),
        ("{optimizer.lr: [1, 0.1, 1.0]}", "tune.optimizer.lr: holds a value twice"),
        ("{optimizer.lr: [0.1, 0.2], trials: 3}", "tune.trials: 3 does not fit 2 points of the grid"),
        ("{optimizer.lr: [0.1, 0.2], trials: 1}", "each of the best; use 2 or 4"),
        ("{optimizer.lr: [0.1, 0.2], trials: 8}", "each of the best; use 4 or 6"),
        ("{optimizer.rate: [0.1]}", "all_reduce has no key 'optimizer.rate'; did you mean"),
        ("{optimizer.lr: [0.1, -1.0]}", "all_reduce: must be more than 0, not -1"),
        ("{optimizer.rate: [0.1, 0.2]}", "tune.optimizer.rate.0: all_reduce has no key 'optimizer.rate'; "),
        ("{period: [4, 8]}", "all_reduce has no key 'period'"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, says: str) -> None:
    refused = refusal(TARGET + f"tune: {text}\n")
    assert says in refused
    assert refused.count("has no key") < 2


QUADRATIC = """\
name: q
workload: {task: quadratic, dimension: 4, noise: 0.1, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 10 ms}, network: {latency: 1 ms}}
schemes: [all_reduce, {local_sgd: {period: 2}}]
stop: {max_iterations: 30, target: {metric: suboptimality, value: 0.05}}
tune: {optimizer.lr: [0.01, 0.3]}
repeats: 2
"""


def test_a_tuned_simulation_is_written_down(tmp_path: Path) -> None:
    asked = parse(QUADRATIC)
    chosen, found = simulator.choose_values(asked)
    assert [lr(entry) for entry in chosen.schemes] == [0.3, 0.3]
    folder = tmp_path / "r"
    write_results(folder, dump(chosen), "q", list(simulator.simulate(chosen)), tuning=found)
    assert read_results(folder).summary["tuning"] == found


def test_trials_and_runs_that_are_there_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, folder, cpu = parse(QUADRATIC), tmp_path / "r", torch.device("cpu")
    with simulator.begin(asked, cpu, folder) as (resolved, parts):
        chosen, found = simulator.choose_values(resolved, parts=parts)
        runs = list(itertools.islice(simulator.simulate(chosen, parts=parts), 2))
    with monkeypatch.context() as patch:
        patch.setattr(simulator, "simulate_job", None)
        with simulator.begin(asked, cpu, folder) as (resolved, parts):
            assert simulator.choose_values(resolved, parts=parts) == (chosen, found)
            assert list(itertools.islice(simulator.simulate(chosen, parts=parts), 2)) == runs
    other = parse(QUADRATIC.replace("[0.01, 0.3]", "[0.02, 0.3]"))
    for different in (other, chosen):
        with (
            pytest.raises(InputError, match="unfinished runs, but they are of another scenario"),
            simulator.begin(different, cpu, folder),
        ):
            pass


def test_trials_go_on_in_the_second_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parse(QUADRATIC.replace("[0.01, 0.3]", "[0.01, 0.1, 0.3]"))
    folder, cpu = tmp_path / "r", torch.device("cpu")
    original, made = simulator.simulate_job, list[int]()

    def interrupted(job: Any, **options: Any) -> Run:
        made.append(job.seed)
        if len(made) == 9:  # 2 schemes with 3 points each, and the third of the best
            raise KeyboardInterrupt
        return original(job, **options)

    monkeypatch.setattr(simulator, "simulate_job", interrupted)
    with pytest.raises(KeyboardInterrupt), simulator.begin(asked, cpu, folder) as (resolved, parts):
        simulator.choose_values(resolved, parts=parts)
    with simulator.begin(asked, cpu, folder) as (resolved, parts):
        assert simulator.choose_values(resolved, parts=parts) == simulator.choose_values(resolved)
    assert len(made) == 9 + 6 + 14


@pytest.mark.slow
def test_trials_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    asked = parse(QUADRATIC)
    with jobs.JobProcesses(2) as processes:
        assert simulator.choose_values(asked, processes=processes) == simulator.choose_values(asked)


def test_a_real_run_wants_to_know_beforehand() -> None:
    from paceline.realrun.launch.cells import run_requests

    with pytest.raises(InputError, match="values are tuned in simulation"):
        run_requests(parse(QUADRATIC))
    with pytest.raises(InputError, match="a real run needs a number of repeats"):
        run_requests(
            parse(
                QUADRATIC.replace("repeats: 2", "repeats: auto").replace(
                    "tune: {optimizer.lr: [0.01, 0.3]}\n", ""
                )
            )
        )
