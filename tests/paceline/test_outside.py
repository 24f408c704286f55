"""What users have elsewhere: modules with names like ours, and parts written against the public face."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.extras.replay.verify import verify_replay
from paceline.sim.errors import InputError
from paceline.sim.records.folder import read_results
from tests.support import warm

ROOT = Path(__file__).parents[2]

PARTS = '''
import networkx as nx
import torch

from paceline import Worker, ops


def classify(width: int = 4):
    """A task: two classes of points."""
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 6, generator=random)
    targets = (inputs[:, 0] > 0).long()
    data = {"train": (inputs[:48], targets[:48]), "test": (inputs[48:], targets[48:])}
    model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
    return model, torch.nn.functional.cross_entropy, data


def row(workers: int) -> nx.Graph:
    """A topology: everybody in a row."""
    return nx.path_graph(workers)


async def pairs(worker: Worker, share: float = 0.5) -> None:
    """A scheme: everybody averages with the other of its pair, and meanwhile computes."""
    x, other = worker.start, worker.rank ^ 1
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        computing = await worker.begin(ops.Gradient(x))
        hearing = await worker.begin(ops.Receive(other, like=x))
        await worker.send(other, x)
        message = await worker.wait(hearing)
        mixed = (1.0 - share) * x + share * message.value
        x, state = worker.optimizer.update(mixed, await worker.wait(computing), state)
        await worker.publish(k, x)
'''
SCENARIO = """
name: outside
workload: {task: 'outside_parts:classify', width: 3, batch_size: 4, optimizer: {lr: 0.1}}
cluster:
  workers: 2
  compute: {time: 1 ms}
  network: {latency: 1 ms, bandwidth: 1 Gbit/s}
schemes:
  - outside_parts:pairs: {share: 0.25}
  - gossip: {topology: 'outside_parts:row'}
stop: {max_iterations: 4}
gradients: looped
"""
LOOP = """
import json
from pathlib import Path

import torch

import paceline
from outside_parts import classify

torch.manual_seed(0)
model, criterion, data = classify()
inputs, targets = data["train"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with paceline.attach(model, optimizer, SCHEME, steps=3) as worker:
    for _ in range(3):
        optimizer.zero_grad()
        loss = criterion(model(inputs[worker.rank :: worker.size]), targets[worker.rank :: worker.size])
        loss.backward()
        worker.step(loss)
if worker.run is not None:
    told = [worker.run.label, worker.run.status, worker.run.iterations]
    Path("told.json").write_text(json.dumps(told))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a user's parts, and a scenario that names them."""
    (tmp_path / "outside_parts.py").write_text(PARTS, encoding="utf-8")
    (tmp_path / "outside.yaml").write_text(SCENARIO, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "outside_parts", raising=False)
    return tmp_path


def command(*words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    with pytest.raises(SystemExit) as end:
        paceline.main()
    assert end.value.code == 0, words


def labels(folder: Path) -> list[tuple[str, str, str, float]]:
    runs = read_results(folder).summary["runs"]
    return [(run["label"], run["source"], run["status"], run["iterations"]) for run in runs]


def test_a_users_parts_are_simulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("simulate", "outside.yaml", "--out", "out", monkeypatch=monkeypatch)
    assert labels(folder / "out") == [(name, "simulated", "completed", 4) for name in ("pairs", "gossip")]


@pytest.mark.usefixtures("warm_ranks")
def test_a_users_parts_run_on_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And end with the same bits as in simulation."""
    command("realrun", "outside.yaml", "--processes", "--out", "out", monkeypatch=monkeypatch)
    assert labels(folder / "out") == [(name, "measured", "completed", 4) for name in ("pairs", "gossip")]
    simulated = paceline.simulate("outside.yaml", progress=False)
    measured = read_results(folder / "out").summary["runs"]
    assert [run["digest"] for run in measured] == [run.digest for run in simulated.runs]


@pytest.mark.usefixtures("warm_ranks")
def test_parts_beside_the_scenario_reach_every_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From another folder, where the record is not replayed: it has no code in it, nor says where it was."""
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
    command("realrun", "../outside.yaml", "--processes", "--out", "out", monkeypatch=monkeypatch)
    assert labels(Path("out")) == [(name, "measured", "completed", 4) for name in ("pairs", "gossip")]
    capsys.readouterr()
    command("replay", "out", monkeypatch=monkeypatch)
    assert f"outside_parts is {folder / 'outside_parts.py'}" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "outside_parts")
    (Path("out") / "outside_parts.py").write_text("open('ran', 'w').close()")
    for place in (".", "out"):
        monkeypatch.chdir(place)
        with pytest.raises(InputError, match=r"there is no module 'outside_parts'|lies in a result folder"):
            list(verify_replay(folder / "elsewhere" / "out"))
    assert not list(folder.rglob("ran"))


@pytest.mark.parametrize("scheme", ["outside_parts:pairs", {"gossip": {"topology": "outside_parts:row"}}])
def test_a_users_parts_run_in_their_own_loop(
    scheme: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "loop.py").write_text(LOOP.replace("SCHEME", repr(scheme)), encoding="utf-8")
    warm.torchrun("--standalone", "--nproc-per-node", "2", "loop.py", monkeypatch=monkeypatch)
    label = scheme if isinstance(scheme, str) else "gossip"
    assert json.loads((folder / "told.json").read_text()) == [label, "completed", 3]


# --- names --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_modules_of_our_folders_names_are_the_users(folder: Path) -> None:
    for name in ("sim.py", "realrun.py", "reports/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise RuntimeError('this is the module of the user')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-m", "paceline", "simulate", "outside.yaml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "pairs" in done.stdout


# --- installed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left here."""
    top = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("__pycache__", ".*", "build", "*.egg-info")
    for name in ("paceline", "sim", "realrun", "reports", "scenarios", "docs"):
        shutil.copytree(ROOT / name, top / "source" / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, top / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    build = [*pip, "--no-build-isolation", "--no-index", "--wheel-dir", str(top), str(top / "source")]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (found,) = top.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh virtual environment: Paceline from the wheel, all else from this one."""
    top = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(top)], check=True)
    python = top / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    others = sysconfig.get_path("purelib")  # whose own .pth files, and so an editable Paceline, do not count
    (packages / "others.pth").write_text(others + "\n")
    return python


def run_by(python: Path, *words: str) -> str:
    """What an interpreter writes to standard output, with nothing of this repository on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@pytest.mark.slow
def test_the_wheel_has_everything_under_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {re.sub(r"-.*", "", name.split("/")[0]) for name in names} == {"paceline"}
    ours = [path for top in ("sim", "realrun", "reports") for path in (ROOT / top).rglob("*.py")]
    ours += (ROOT / "paceline").rglob("*.py")  # not through its links
    expected = {f"paceline/{path.relative_to(ROOT).as_posix()}" for path in ours}
    expected = {name.replace("paceline/paceline/", "paceline/") for name in expected}
    homes = {"reports": ROOT, "extras": ROOT / "paceline"}
    data = {"paceline/py.typed"} | {
        f"paceline/{path.relative_to(above).as_posix()}"
        for home, above in homes.items()
        for kind in ("html", "css", "js", "csv", "yaml")
        for path in (above / home).rglob(f"*.{kind}")
    }
    data |= {f"paceline/sim/scenario/prices/{name}.csv" for name in ("aws", "azure", "google")}
    data |= {"paceline/sim/records/outside.json", "paceline/sim/scenario/paceline-schema.json"}
    scenarios = [path for path in (ROOT / "scenarios").rglob("*") if path.is_file()]
    documents = [
        *ROOT.glob("docs/*.ipynb"),
        *ROOT.glob("docs/schemes/*.py"),
        *ROOT.glob("docs/tutorials/*.md"),
    ]
    data |= {f"paceline/{path.relative_to(ROOT).as_posix()}" for path in documents}
    data |= {f"paceline/{path.relative_to(ROOT).as_posix()}" for path in scenarios}
    assert {name for name in names if not name.startswith("paceline-")} == expected | data


@pytest.mark.slow
def test_it_runs_where_the_wheel_is_installed(installed: Path, folder: Path) -> None:
    """In processes that are really started, beside modules of the user's with the names of our folders."""
    for name in ("sim.py", "realrun.py", "reports.py"):
        (folder / name).write_text("raise RuntimeError('this is the module of the user')\n")
    where = run_by(
        installed, "-c", "import paceline, paceline.sim as sim; print(paceline.__file__, sim.__file__)"
    )
    assert all(Path(file).is_relative_to(installed.parents[1]) for file in where.split())
    run_by(installed, "-m", "paceline", "simulate", "outside.yaml", "--out", "predicted")
    run_by(installed, "-m", "paceline", "realrun", "outside.yaml", "--processes", "--out", "measured")
    run_by(installed, "-m", "paceline", "report", "predicted", "measured")
    assert "outside" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_ready_scenarios_and_attach_are_where_the_wheel_is_installed(installed: Path, folder: Path) -> None:
    simulate = ("-m", "paceline", "simulate", "two-workers", "--json", "--set=stop.max_iterations=2")
    assert "two-workers" in run_by(installed, *simulate)
    run_by(installed, "-m", "paceline", "new", "leaf-spine", "mine.yaml")
    assert (folder / "leaf-spine.graphml").is_file()
    (folder / "loop.py").write_text(LOOP.replace("SCHEME", repr("all_reduce")), encoding="utf-8")
    run_by(installed, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py")
    assert json.loads((folder / "told.json").read_text()) == ["all_reduce", "completed", 3]


RIGHT = """
from paceline import Worker, ops


async def scheme(worker: Worker, period: int = 2) -> None:
    x, other = worker.start, worker.rank ^ 1
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        computing = await worker.begin(ops.Gradient(x))
        hearing = await worker.begin(ops.Receive(other, like=x))
        await worker.send(other, x)
        message: ops.Message = await worker.wait(hearing)
        gradient = await worker.wait(computing)
        x, state = worker.optimizer.update(0.5 * (x + message.value), gradient, state)
        if k % period == 0:
            x = await worker.all_reduce(x)
            await ops.Barrier()
        await worker.publish(k, x)
"""
WRONG = """
from paceline import Worker, ops


async def scheme(worker: Worker) -> None:
    async for k in worker.steps():
        worker.send(1, worker.start)  # unused-coroutine
        worker.barrier()  # unused-coroutine
        worker.publish(k, worker.start)  # unused-coroutine
        ops.Barrier()  # unused-awaitable
        ops.Send(1, worker.start)  # unused-awaitable
        x = worker.start + worker.gradient(worker.start)  # operator
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_face_and_a_forgotten_await(installed: Path, tmp_path: Path) -> None:
    """A forgotten ``await`` of a worker's method with ``--strict``; of an operation with one more code."""
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    check = [sys.executable, "-m", "mypy", "--strict", "--enable-error-code=unused-awaitable"]
    cache = ROOT / ".mypy_cache" / "outside"
    where = [f"--python-executable={installed}", f"--cache-dir={cache}", "--config-file="]
    done = subprocess.run(
        [*check, *where, "--no-error-summary", "right.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    found = re.findall(r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, flags=re.MULTILINE)
    expected = [
        ("wrong.py", str(number), line.split("# ")[1])
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "# " in line
    ]
    assert found == expected, done.stdout + done.stderr
