"""Scenarios that price measured curves: what is refused, with one sentence and status 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paceline.test_command_line import run
from tests.support.event_files import event, event_file, simple

pytestmark = pytest.mark.usefixtures("little_work")

SCENARIO = """\
name: priced
workload: {curves: CURVES, batch_size: 32, payload: 100 MB}
cluster:
  workers: 4
  compute: {time: 100 ms}
  network: {latency: 5 ms, bandwidth: 1 Gbit/s}
schemes: [all_reduce, local_sgd: {period: 16}]
stop: {target: {metric: loss, value: 1.0}, max_iterations: 300}
"""
HEADER = "scheme,seed,step,loss,workers,batch_size,period\n"
ROWS = """\
all_reduce,0,0,2.3,4,32,
all_reduce,0,100,1.5,4,32,
all_reduce,0,200,1.0,4,32,
all_reduce,0,300,0.8,4,32,
local_sgd,0,0,2.3,4,32,16
local_sgd,0,100,1.7,4,32,16
local_sgd,0,200,1.3,4,32,16
local_sgd,0,300,0.9,4,32,16
"""
GOOD = HEADER + ROWS
UNDER = "conditions: {workers: 4, batch_size: 32}"


def text_of(lines: list[object]) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode()


JSON = text_of([{"step": 100 * k, "loss": 2.0 - 0.5 * k} for k in range(4)])
EVENTS = event_file([event(100 * k, simple("loss", 2.0 - 0.5 * k)) for k in range(4)])

Files = dict[str, bytes | str]
BROKEN: dict[str, tuple[Files, str, str]] = {
    # name: files, value of curves, a part of the sentence
    "missing": ({}, "a.csv", "there is no such file"),
    "empty": ({"a.csv": ""}, "a.csv", "needs a header line"),
    "header only": ({"a.csv": HEADER}, "a.csv", "needs a header line"),
    "no UTF-8": ({"a.csv": b"\xff\xfe"}, "a.csv", "is not UTF-8"),
    "ragged": ({"a.csv": GOOD + "local_sgd,0\n"}, "a.csv", "a.csv:10: has 2 cells"),
    "two columns alike": ({"a.csv": GOOD.replace("period", "seed", 1)}, "a.csv", "columns are called 'seed'"),
    "unknown format": ({"a.txt": GOOD}, "a.txt", "no known format"),
    "no axis": ({"a.csv": GOOD.replace("step", "time", 1)}, "a.csv", "a.csv:2: has no step"),
    "no step in a row": ({"a.csv": GOOD.replace("all_reduce,0,100", "all_reduce,0,")}, "a.csv", "a.csv:3"),
    "step in words": ({"a.csv": GOOD.replace(",100,1.5", ",many,1.5")}, "a.csv", "a.csv:3: step cannot be"),
    "negative step": ({"a.csv": GOOD.replace(",100,1.5", ",-1,1.5")}, "a.csv", "a.csv:3: step cannot be -1"),
    "NaN step": ({"a.csv": GOOD.replace(",100,1.5", ",nan,1.5")}, "a.csv", "step cannot be NaN or infinite"),
    "infinite step": ({"a.csv": GOOD.replace(",100,1.5", ",inf,1.5")}, "a.csv", "cannot be NaN or infinite"),
    "a step beyond all": ({"a.csv": GOOD.replace(",100,1.5", ",1e300,1.5")}, "a.csv", "be 1e+300"),
    "a number of 400 digits": (
        {"a.jsonl": f'{{"step": {10**400}, "loss": 1}}'}, "{file: a.jsonl, scheme: x, " + UNDER + "}",
        "step cannot be",
    ),
    "no scores": ({"a.csv": "scheme,step\nall_reduce,3\n"}, "a.csv", "has no scores"),
    "no numbers": ({"a.csv": "scheme,loss\nall_reduce,9%\n"}, "a.csv", "scheme 'all_reduce', loss '9%'"),
    "steps in thousands": (
        {"a.csv": GOOD.replace("step", "step [k]", 1)}, "a.csv", "a.csv:2: has no step"
    ),
    "no folder": ({"a.csv": GOOD}, "b", "b: there is no such file"),
    "score in words": ({"a.csv": GOOD.replace("1.5", "low")}, "a.csv", "a.csv:3: loss cannot be 'low'"),
    "seed in words": ({"a.csv": GOOD.replace(",0,100", ",x,100")}, "a.csv", "a.csv:3: seed cannot be 'x'"),
    "half a seed": ({"a.csv": GOOD.replace(",0,", ",0.5,")}, "a.csv", "a.csv:2: seed cannot be '0.5'"),
    "two seeds in one": ({"a.csv": GOOD + "local_sgd,0,300,0,4,32,16\n"}, "a.csv", "a.csv:10: loss has"),
    "a note": (
        {"a.csv": GOOD.replace("1.5", "low")}, "a.csv", "write a number, or name other 'scores' beside"
    ),
    "a key twice": (
        {"a.jsonl": '{"step": 1, "loss": 2, "loss": 3}'}, "a.jsonl", "object: has the key 'loss' twice",
    ),
    "misspelt condition": (
        {"a.jsonl": JSON},
        "{file: a.jsonl, scheme: all_reduce, conditions: {wrokers: 4, batch_size: 32}}",
        "does not say its workers, only 'wrokers', 'batch_size'",
    ),
    "true workers": (
        {"a.jsonl": JSON},
        "{file: a.jsonl, scheme: all_reduce, conditions: {workers: true, batch_size: 32}}",
        "workers cannot be 'True'",
    ),
    "horizon in words": (
        {"a.jsonl": JSON},
        "{file: a.jsonl, scheme: all_reduce, conditions: {workers: 4, batch_size: 32, horizon: long}}",
        "horizon cannot be 'long'",
    ),
    "no workers": ({"a.csv": GOOD.replace("workers", "w", 1)}, "a.csv", "does not say its workers"),
    "no batch": ({"a.csv": GOOD.replace("batch_size", "b", 1)}, "a.csv", "does not say its batch_size"),
    "workers in words": ({"a.csv": GOOD.replace(",4,", ",four,")}, "a.csv", "workers cannot be 'four'"),
    "two periods": ({"a.csv": GOOD[:-3] + "8\n"}, "a.csv", "a.csv:9: period is 8, and 16 elsewhere"),
    "said otherwise": ({"a.csv": GOOD}, "{file: a.csv, conditions: {workers: 8}}", "workers is 4, and 8"),
    "other workers": ({"a.csv": GOOD.replace(",4,", ",8,")}, "a.csv", "measured with workers 8"),
    "other batch": ({"a.csv": GOOD.replace(",32,", ",64,")}, "a.csv", "measured with batch_size 64"),
    "other period": ({"a.csv": GOOD.replace(",16\n", ",8\n")}, "a.csv", "measured with period 8"),
    "unknown condition": (
        {"a.jsonl": JSON},
        "{file: a.jsonl, scheme: all_reduce, conditions: {workers: 4, batch_size: 32, perod: 8}}",
        "names 'perod', which is no condition",
    ),
    "schedule cut short": (
        {"a.csv": GOOD.replace(",period", ",period,schedule,horizon").replace("\n", ",cosine,3000\n")
         .replace("horizon,cosine,3000", "horizon")},
        "a.csv", "has a cosine schedule over 3000 steps, and says nothing of a run of 300",
    ),
    "too short": ({"a.csv": GOOD[: GOOD.rindex("local")]}, "a.csv", "ends after 200 steps without loss 1"),
    "no such scheme": ({"a.csv": GOOD.replace("local_", "lokal_")}, "a.csv", "no curve is of 'local_sgd'"),
    "other seeds": ({"a.csv": GOOD.replace(",0,", ",1337,")}, "a.csv", "have seed 1337, and this needs 0"),
    "no such score": ({"a.csv": GOOD.replace("loss", "los", 1)}, "a.csv", "has no score 'loss'"),
    "twice": ({"a.csv": GOOD}, "[a.csv, a.csv]", "two curves of 'all_reduce' have seed 0"),
    "unknown key": ({"a.csv": GOOD}, "{file: a.csv, sheme: x}", "unknown key; did you mean 'scheme'"),
    "no such column": ({"a.csv": GOOD}, "{file: a.csv, scores: [loss, los]}", "did you mean 'loss'"),
    "no such run": (
        {"a.csv": "Step,one - loss\n0,1\n"}, f"{{file: a.csv, run: two, {UNDER}}}", "has no run 'two'"
    ),
    "no scheme": ({"a.jsonl": JSON}, f"{{file: a.jsonl, {UNDER}}}", "names no scheme"),
    "tokens alone": (
        {"a.csv": GOOD.replace("step", "tokens", 1)}, "a.csv", "add 'tokens_per_example' beside the file"
    ),
    "a line that is no JSON": ({"a.jsonl": JSON + b"\n{oops"}, "a.jsonl", "a.jsonl:5: is no JSON object"),
    "a line that is a list": ({"a.jsonl": JSON + b"\n[1]"}, "a.jsonl", "a.jsonl:5: is no JSON object"),
    "no lines": ({"a.jsonl": "\n\n"}, "a.jsonl", "a.jsonl"),
    "no Parquet": ({"a.parquet": b"PAR1 is not enough"}, "a.parquet", "a.parquet: is damaged"),
    "events cut off": ({"a.tfevents.1": EVENTS[:-7]}, "a.tfevents.1", "ends inside the record"),
    "no events": ({"a.tfevents.1": GOOD}, "a.tfevents.1", "is damaged"),
    "records of another kind": (
        {"a.tfevents.1": event_file([b"\xff" * 20])}, "a.tfevents.1", "a record is no event"
    ),
    "an empty folder": ({"sub/b.txt": ""}, "sub", "sub: holds no curves"),
    "a damaged result folder": ({"sub/summary.json": "{}"}, "sub", "is no result folder"),
    "no text": ({}, "3", "curves"),
    "no files": ({}, "[]", "curves"),
}  # fmt: skip
CHANGES = {
    "a run longer than the curves": ("stop={max_iterations: 400}", "ends after 300 steps"),
    "no limit of steps": ("stop={max_time: 10 min}", "ends after 300 steps"),
    "a score that is not reached": (
        "stop={target: {metric: loss, value: 0.85}, max_iterations: 400}",
        "ends after 300 steps without loss 0.85",
    ),
    "more repeats than seeds": ("repeats=3", "have seed 0, and this needs 1"),
    "a batch left out": ("workload={curves: a.csv, payload: 1 MB}", "batch_size"),
    "no size": ("workload={curves: a.csv, batch_size: 32}", "payload"),
    "noise of gradients": ("evaluate.gradient_noise=10 steps", "no gradients to measure"),
    "tuning": ("tune={optimizer.lr: [0.1, 0.2]}", "nothing can be tuned"),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Files, str], Path]:
    def files(there: Files, curves: str) -> Path:
        for name, content in there.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        (tmp_path / "s.yaml").write_text(SCENARIO.replace("CURVES", curves))
        return tmp_path / "s.yaml"

    return files


def refusal(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> str:
    code, out, err = run(monkeypatch, capsys, "simulate", scenario, *more)
    assert (code, out) == (2, "")
    assert "mistake in Paceline" not in err
    return err


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_one_sentence(
    name: str,
    write: Callable[[Files, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, curves, sentence = BROKEN[name]
    said = refusal(write(there, curves), monkeypatch, capsys)
    assert sentence in said
    assert said.count("\n") == 1, said


@pytest.mark.parametrize("name", CHANGES)
def test_a_scenario_that_curves_say_nothing_of_is_refused(
    name: str,
    write: Callable[[Files, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, sentence = CHANGES[name]
    assert sentence in refusal(write({"a.csv": GOOD}, "a.csv"), monkeypatch, capsys, "--set", change)


def of_seed(seed: int) -> str:
    return "\n".join(row.replace(",0,", f",{seed},", 1) for row in ROWS.splitlines()) + "\n"


THREE_SEEDS = HEADER + "".join(map(of_seed, range(3)))


@pytest.mark.slow
def test_no_command_says_of_curves_that_they_are_something_else(
    write: Callable[[Files, str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = write({"a.csv": THREE_SEEDS}, "a.csv")
    out, three = scenario.parent / "out", ("--set", "repeats=3")
    said = run(monkeypatch, capsys, "simulate", scenario, "--why", "--out", out, *three)[1]
    assert "(loss 1 in a.csv, noise smoothed)" in " ".join(said.split())  # three seeds are not one
    for command, page in (("report", out), ("explore", scenario)):
        file = scenario.parent / f"{command}.html"
        assert run(monkeypatch, capsys, command, page, "--out", file)[0] == 0
        assert "Nothing was trained: scores are those of measured curves" in file.read_text()
        assert "really computed" not in file.read_text()
        assert "loss of the proxy" not in file.read_text()
    said = " ".join(run(monkeypatch, capsys, "recommend", scenario, *three)[1].split())
    assert "Curves have no other schemes than the scenario's: no more candidates." in said
    assert "loss curves" not in said
    said = run(monkeypatch, capsys, "recommend", scenario, "--hours", "1")[1]
    assert "of 2 candidates in 0 trials and 2 runs" in said  # curves are run, however long they are


def test_a_divergence_names_column_and_step(
    write: Callable[[Files, str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = write({"a.csv": GOOD.replace(",200,1.3", ",200,nan")}, "a.csv")
    said = " ".join(run(monkeypatch, capsys, "simulate", scenario)[1].split())
    assert "local_sgd diverged (loss is not finite at step 200 of its curve, and finite again at step" in said
