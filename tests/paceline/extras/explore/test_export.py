"""The law in JavaScript is lockstep's: times in Chromium agree with a driver's in Python."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.extras.explore import export as exporting
from paceline.extras.explore.export import export
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError
from paceline.sim.experiments import prepare
from paceline.sim.experiments.jobs import PlannedRun
from paceline.sim.experiments.simulate import job_of, simulate
from paceline.sim.experiments.sweep.grid import share_training
from paceline.sim.records.intervals import FEWEST, bound_place, median_ratio
from paceline.sim.records.run import Run
from paceline.sim.records.verdict import BEYOND_CHANCE, TIED_WITHIN, find_verdict, find_winner
from paceline.sim.scenario.schema import Scenario, parse
from tests.support.browser import browse, found_in, in_a_browser

HERE = torch.device("cpu")
LAW = (Path(exporting.__file__).parent / "law.js").read_text(encoding="utf-8")

FLAT = """
name: flat
seed: 3
workload: {timing_only: true, payload: 96 MB}
cluster:
  workers: 6
  compute: {time: 50 ms, jitter: {lognormal: {cv: 0.2}}}
  stragglers: [{workers: [0], slowdown: 1}]
  network: {latency: 20 ms, bandwidth: 1 Gbit/s, sharing: none}
schemes:
  - all_reduce
  - local_sgd: {period: 3}
  - diloco: {period: 3}
  - gossip: {topology: ring, label: ring}
  - gossip: {topology: one_peer_exponential, weights: uniform, label: one peer}
  - sgp: {topology: one_peer_exponential}
stop: {max_iterations: 12}
"""
SITES = FLAT.replace("  workers: 6\n", "").replace(
    "network: {latency: 20 ms, bandwidth: 1 Gbit/s, sharing: none}",
    """network:
    sites: {us: 2, eu: 3, asia: 1}
    within: {latency: 0.1 ms, bandwidth: 10 Gbit/s}
    between: {latency: 20 ms, bandwidth: 1 Gbit/s}
    sharing: none""",
)
GPUS = FLAT.replace("sharing: none}", "sharing: none, host: {gpus: 2, bandwidth: 100 Gbit/s, latency: 2 us}}")
PLAIN = FLAT.replace(", sharing: none}", "}").replace("  - gossip: {topology: ring, label: ring}\n", "")
ENCODED = FLAT.replace(
    "  - sgp: {topology: one_peer_exponential}\n",
    """  - diloco: {period: 3, compression: {qsgd: {bits: 8}}, round: 20 ms, label: int8}
  - all_reduce: {part_reduce: true, label: shards}
  - leader_sgd: {period: 2}
  - gradient_tracking: {topology: ring}
""",
)
OVER_GLOO = FLAT.replace("sharing: none}", "sharing: none, transport: gloo}")
OVER_NCCL = FLAT.replace("sharing: none}", "sharing: none, transport: nccl}")
STUDIES = {
    "flat": FLAT, "sites": SITES, "GPUs": GPUS, "shared": PLAIN, "encoded": ENCODED, "gloo": OVER_GLOO,
    "nccl": OVER_NCCL,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    latency: float
    bandwidth: float
    payload: float
    compute: float
    straggler: float

    def of(self, text: str) -> Scenario:
        """The study under these factors, written into the scenario."""
        changed = (
            text.replace("latency: 20 ms", f"latency: {0.02 * self.latency!r} s")
            .replace("bandwidth: 1 Gbit/s", f"bandwidth: {self.bandwidth!r} Gbit/s")
            .replace("96 MB", f"{round(96 * self.payload)} MB")
            .replace("time: 50 ms", f"time: {0.05 * self.compute!r} s")
            .replace("slowdown: 1}", f"slowdown: {self.straggler!r}}}")
        )
        return parse(changed)


def drawn(number: int, seed: int, payloads: bool) -> list[Setting]:
    rng = random.Random(seed)

    def factor(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    return [
        Setting(
            factor(0.01, 50), factor(0.01, 90), rng.choice((0.25, 0.5, 1.0, 2.0, 8.0)) if payloads else 1.0,
            factor(0.05, 20), factor(1, 20),
        )
        for _ in range(number)
    ]  # fmt: skip


def content_of(text: str) -> dict[str, Any]:
    return export(prepare.resolve(parse(text), HERE), HERE)


def in_browser(content: dict[str, Any], settings: Sequence[Setting], folder: Path) -> list[list[Any]]:
    """Of each setting and scheme: times of all scores and of the workers' last steps, of the first run."""
    probe = folder / "law.html"
    values = json.dumps([vars(each) for each in settings])
    probe.write_text(
        f"""<body><script>{LAW}
const data = {json.dumps(content)};
for (const key in data.durations) data.durations[key] = unpack(data.durations[key]);
const all = {values}.map((setting) => {{
  const law = lawOf(data, setting);
  return data.schemes.map((scheme) => {{
    const [{{ published, times, end }}] = law.scored(scheme, law.choose(scheme.steady));
    return [end, [...published.slice(-data.workers)], times];
  }});
}});
const found = document.createElement("pre");
found.id = "found";
found.textContent = JSON.stringify(all);
document.body.append(found);</script>""",
        encoding="utf-8",
    )
    answer: list[list[Any]] = json.loads(found_in(browse(probe, folder, "--dump-dom")))
    return answer


@in_a_browser
@pytest.mark.parametrize("study", STUDIES)
def test_settings_take_as_long_as_in_python(study: str, tmp_path: Path) -> None:
    text = STUDIES[study]
    settings = drawn(30, seed=len(study), payloads=study in ("flat", "sites", "shared"))
    content = content_of(text)
    labels = [entry.label for entry in parse(text).schemes]
    assert [each["label"] for each in content["schemes"]] == labels, content["left_out"]
    times = in_browser(content, settings, tmp_path)
    scenarios = prepare.resolve_each([each.of(text) for each in settings], HERE)
    for scenario, of_setting in zip(scenarios, times, strict=True):
        for entry, (end_s, last_s, _) in zip(scenario.schemes, of_setting, strict=True):
            job = job_of(PlannedRun("trial", 0, scenario, entry, scenario.seed), HERE)
            outcome = LockstepDriver(job, job.scorer()).run()
            assert end_s == pytest.approx(outcome.wall_s, rel=1e-9)
            assert last_s == pytest.approx([each.ended_s for each in outcome.breakdowns], rel=1e-9)


TRAINED = FLAT.replace(
    "{timing_only: true, payload: 96 MB}",
    "{task: digits-mlp, batch_size: 8, optimizer: {lr: 0.1}, payload: 96 MB}",
).replace("stop: {max_iterations: 12}", "stop: {max_iterations: 12}\nevaluate: {every: 2 steps}")


@in_a_browser
def test_scores_of_curves_are_taken_when_python_takes_them(tmp_path: Path) -> None:
    schemes = ("all_reduce", "gossip")
    rows = [f"{scheme},{step},{9 - step},4,8" for scheme in schemes for step in range(0, 13, 4)]
    (tmp_path / "a.csv").write_text("\n".join(["scheme,step,loss,workers,batch_size", *rows]))
    text = f"""\
name: curves
workload: {{curves: {tmp_path}/a.csv, batch_size: 8, payload: 96 MB}}
cluster:
  workers: 4
  compute: {{time: 50 ms}}
  network: {{latency: 20 ms, bandwidth: 1 Gbit/s, sharing: none}}
schemes: [all_reduce, gossip: {{topology: ring}}]
stop: {{target: {{metric: loss, value: 1}}, max_iterations: 12}}
"""
    (of_setting,) = in_browser(content_of(text), [Setting(1, 1, 1, 1, 1)], tmp_path)
    runs = simulate(prepare.resolve(parse(text), HERE), device=HERE)
    for run, (_, _, at_s) in zip(runs, of_setting, strict=True):
        assert at_s == pytest.approx([each.time_s for each in run.evaluations], rel=1e-9)


@in_a_browser
def test_scores_are_taken_when_python_takes_them(tmp_path: Path) -> None:
    settings, content = drawn(6, seed=1, payloads=True), content_of(TRAINED)
    times = in_browser(content, settings, tmp_path)
    scenarios = prepare.resolve_each([each.of(TRAINED) for each in settings], HERE)
    for place, entry in enumerate(parse(TRAINED).schemes):
        planned = [PlannedRun("trial", 0, each, entry, each.seed) for each in scenarios]
        runs: dict[int, Run] = share_training([(job_of(each, HERE), None) for each in planned])
        for number, of_setting in enumerate(times):
            expected = [each.time_s for each in runs[number].evaluations]
            assert len(expected) == 7
            assert of_setting[place][2] == pytest.approx(expected, rel=1e-9)


def test_what_is_not_synchronous_is_left_out_with_the_reason() -> None:
    text = FLAT.replace("sgp: {topology: one_peer_exponential}", "ad_psgd")
    content = content_of(text)
    assert set(content["left_out"]) == {"ad_psgd"}
    assert "not synchronous" in content["left_out"]["ad_psgd"]


def test_a_study_of_which_nothing_can_be_shown_is_refused() -> None:
    alone = parse(FLAT.partition("schemes:")[0] + "schemes: [ad_psgd]\nstop: {max_iterations: 3}")
    with pytest.raises(InputError, match=r"follows from a record .*ad_psgd: the scheme is not synchronous"):
        export(prepare.resolve(alone, HERE), HERE)


def test_repeats_are_as_many_as_a_page_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.extras.explore.export.MAX_DRAWS", 6 * 12 * 2)
    content = content_of(FLAT + "repeats: 4\n")
    assert {len(each["runs"]) for each in content["schemes"]} == {2}
    assert content["repeats"] == 2
    assert len(content["durations"]) == 2


@in_a_browser
def test_who_is_first_is_the_verdicts_rule(tmp_path: Path) -> None:
    """Drawn times of up to five schemes: the page names the same first and second, and is as sure."""
    rng, drawn = random.Random(5), []
    for _ in range(400):
        repeats, exact = rng.randint(1, 12), rng.random() < 0.1
        spread = rng.choice([0.01, 0.1, 0.6])
        rows = [
            [rng.choice([1.0, 1.0, 1.03, 2.5]) * math.exp(rng.gauss(0, spread)) for _ in range(repeats)]
            for _ in range(rng.randint(1, 5))
        ]
        rule = {"fewest": FEWEST, "place": bound_place(repeats), "beyond": BEYOND_CHANCE, "tied": TIED_WITHIN}
        drawn.append((rows, rule | {"exact": exact}))
    probe = tmp_path / "race.html"
    probe.write_text(
        f"""<body><script>{LAW}
const found = document.createElement("pre");
found.id = "found";
found.textContent = JSON.stringify({json.dumps(drawn)}.map(([times, rule]) => race(times, rule)));
document.body.append(found);</script>""",
        encoding="utf-8",
    )
    answers = json.loads(found_in(browse(probe, tmp_path, "--dump-dom")))
    for (rows, rule), answer in zip(drawn, answers, strict=True):
        times = {str(place): dict(enumerate(row)) for place, row in enumerate(rows)}
        winner = find_winner(times)
        assert winner is not None
        ratios = {label: median_ratio(times[label], times[winner]) or math.inf for label in times}
        ranked = sorted(times, key=lambda label: (label != winner, ratios[label]))
        verdict = find_verdict(ranked, times, by_step=True, exact=bool(rule["exact"]))
        assert [str(place) for place in answer["order"]] == ranked
        assert (answer["settled"], str(answer["order"][0])) == (verdict["settled"], verdict["first"])
        if verdict["second"] is not None:
            assert str(answer["second"]) == verdict["second"]
            assert answer["factor"] == pytest.approx(verdict["factor"], rel=1e-12)
            assert answer["tie"] == (" tie" in verdict["text"])
