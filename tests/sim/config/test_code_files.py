"""Where the code may lie that a scenario names: located before anything of it, or beside it, is imported."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.realrun.lab.lab import python_environment
from paceline.sim.config.user_code import call as user_code
from paceline.sim.errors import InputError
from paceline.sim.scenario import schema
from tests.sim.scenario.test_schema import FLAT

TASK = """
import torch

def build():
    model = torch.nn.Linear(2, 1)
    return model, torch.nn.functional.mse_loss, (torch.zeros(32, 2), torch.zeros(32, 1))
"""
TRAP = "from pathlib import Path\nPath('ran').touch()\ndef build(): pass\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, empty; what is imported in a test is forgotten after it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(file: Path, text: str = TRAP) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def scenario_naming(path: str, folder: Path) -> Path:
    text = FLAT.replace("task: digits-mlp", f"task: '{path}'")
    return write(folder / "scenario-of-mine.yaml", text)


def refuse(path: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        user_code.load_object(path)
    assert not Path("ran").exists()


def test_a_module_beside_the_scenario_comes_first(here: Path, tmp_path: Path) -> None:
    write(tmp_path / "there" / "task_beside.py", TASK)
    write(here / "task_beside.py", "raise RuntimeError('not this one')")
    before = list(sys.path)
    scenario = schema.load(scenario_naming("task_beside:build", tmp_path / "there"))
    assert scenario.workload.task == "task_beside:build"
    assert user_code.load_object("task_beside:build")  # later, too
    assert schema.parse(schema.dump(scenario)) == scenario
    assert sys.path == before


def test_nothing_else_is_imported_from_beside_the_scenario(here: Path) -> None:
    """A stranger's ``cvxpy.py`` there is not taken for the package."""
    write(here / "task_alone.py", TASK)
    write(here / "package_of_others.py")
    assert user_code.load_object("task_alone:build")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("package_of_others")
    assert not Path("ran").exists()


def test_a_module_imports_its_neighbours_while_it_is_loaded(here: Path) -> None:
    write(here / "mine" / "tools.py", "import other_of_mine\nfrom mine import near\n")
    write(here / "mine" / "near.py", "def build(): import later_of_mine\n")
    write(here / "other_of_mine.py", "")
    write(here / "later_of_mine.py", "")
    assert user_code.load_object("mine.tools:near.build") is sys.modules["mine.near"].build
    hint = "No module named 'later_of_mine'.*import what lies beside it at the top of the file"
    with pytest.raises(InputError, match=hint):
        user_code.call("mine.tools:near.build", {}, str, "text")


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_in_the_working_folder_supplies_nothing(mark: str, here: Path) -> None:
    write(here / "env_of_mine" / mark, "")
    write(here / "env_of_mine" / "bin" / "activate_this.py")
    refuse("env_of_mine.bin.activate_this:build", "lies in a Python environment")


def test_the_folder_of_installed_packages_is_no_working_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(here / "site-packages" / "tool_of_others.py").parent
    monkeypatch.chdir(folder)
    refuse("tool_of_others:build", "lies in a Python environment")
    monkeypatch.chdir(Path(sysconfig.get_path("stdlib")) / "json")  # which every installation has
    with pytest.raises(InputError, match=r"is defined in Python itself|lies in a Python environment"):
        user_code.load_object("tool:main")


def test_installed_packages_supply_what_they_declare(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    write(packages / "pack_declared" / "__init__.py", "")
    write(packages / "pack_declared" / "tasks" / "__init__.py", TASK)
    write(packages / "pack_declared" / "tools.py")
    write(packages / "pack_declared-1.0.dist-info" / "METADATA", "Name: pack-declared\nVersion: 1.0\n")
    entry = write(packages / "pack_declared-1.0.dist-info" / "entry_points.txt", "")
    monkeypatch.syspath_prepend(packages)
    refuse("pack_declared.tasks:build", "there is no module|declares no code")
    entry.write_text("[paceline.code]\ntasks = pack_declared.tasks\n")
    importlib.invalidate_caches()
    assert user_code.load_object("pack_declared.tasks:build")
    refuse("pack_declared.tools:build", "there is no module|declares no code")


@pytest.mark.parametrize("path", ["torch:save", "numpy:savetxt", "networkx:write_gml", "filelock:FileLock"])
def test_an_installed_package_that_declares_nothing_is_refused(path: str, here: Path) -> None:
    refuse(path, "site-packages, and declares no code for scenarios")


@pytest.mark.parametrize(
    "change",
    [
        "workload.task='torch:save'",
        "schemes=['torch:save']",
        "schemes=[{gossip: {topology: 'torch:save'}}]",
        "cluster.compute={model: 'torch:save'}",
        "cluster.network={model: 'torch:save'}",
        "collectives.all_reduce='torch:save'",
    ],
)
def test_every_key_that_names_code_is_checked(change: str, here: Path) -> None:
    with pytest.raises(InputError, match=r"'torch' lies in .*, and declares no code for scenarios"):
        schema.parse(FLAT, changes=[change])


@pytest.mark.parametrize(
    "path", ["paceline.sim.config.files:write_json", "sim.config.files:write_json", "paceline:main"]
)
def test_paceline_itself_is_no_users_code(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(InputError, match="is a part of Paceline"):
        user_code.load_object(path)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("from os import system as build", "in no file"),
        ("from subprocess import getoutput as build", "is defined in Python itself"),
        ("from functools import partial\nfrom os import system\nbuild = partial(system)", "in no file"),
        ("from torch import save as build", "lies in a Python environment"),
        ("import os\nclass build: run = os.system\nbuild = build.run", "in no file"),
        ("import subprocess\nbuild = subprocess.Popen", "is defined in Python itself"),
        ("from paceline import main as build", "is a part of Paceline"),
        ("exec('def build(): pass')", "in no file"),
    ],
)
def test_what_a_module_has_only_imported_counts_by_its_file(line: str, match: str, here: Path) -> None:
    write(here / "mine_again.py", line)
    refuse("mine_again:build", match)


def test_odd_names_and_modules_are_refused_in_one_message(here: Path) -> None:
    write(here / "odd.py", "def __getattr__(name): raise ValueError(name)")
    refuse("odd:build", r"'odd:build' raised ValueError: build \(odd.py, line 1\)")
    refuse("é" * 128 + ":build", "there is no module")
    refuse(".".join(2000 * ["a"]) + ":build", "there is no module")


def test_a_partial_of_the_users_is_the_users(here: Path) -> None:
    write(here / "mine_partly.py", "from functools import partial\nbuild = partial(lambda width: width, 3)\n")
    assert user_code.load_object("mine_partly:build")() == 3


def test_a_folder_of_unfinished_results_supplies_nothing(here: Path) -> None:
    write(here / "out" / "parts" / "index.json", "{}")
    write(here / "out" / "task.py")
    refuse("out.task:build", "lies in a result folder")


def test_a_link_counts_by_where_it_leads(here: Path) -> None:
    (here / "innocent.py").symlink_to(subprocess.__file__)
    refuse("innocent:getoutput", "is defined in Python itself")
    write(here / "results" / "scenario.yaml", "{}")
    write(here / "results" / "metrics.parquet", "")
    write(here / "results" / "task.py")
    (here / "linked").symlink_to("results")
    refuse("linked.task:build", "lies in a result folder")


def test_compiled_code_beside_a_source_is_not_run(here: Path) -> None:
    """Unchecked ``.pyc`` files are taken by Python, whatever the source says."""
    write(here / "two_faces.py")
    subprocess.run([sys.executable, "-m", "py_compile", "two_faces.py"], check=True)
    (cached,) = (here / "__pycache__").glob("two_faces.*")
    content = bytearray(cached.read_bytes())
    content[4:16] = b"\x01" + 11 * b"\0"  # by hash, not to be checked
    cached.write_bytes(content)
    write(here / "two_faces.py", TASK)
    assert user_code.load_object("two_faces:build")
    assert not Path("ran").exists()


def test_one_name_for_two_files_is_refused(here: Path, tmp_path: Path) -> None:
    write(here / "task_twice.py", TASK)
    write(tmp_path / "there" / "task_twice.py", TASK)
    assert user_code.load_object("task_twice:build")
    with pytest.raises(InputError, match=r"'task_twice' is loaded from .*here/task_twice.py already"):
        schema.load(scenario_naming("task_twice:build", tmp_path / "there"))


def test_what_python_handed_over_is_known_to_this_process_alone(here: Path) -> None:
    def build() -> None: ...

    path = user_code.import_path_of(build)
    assert user_code.load_object(path) is build
    assert user_code.load_object(user_code.import_path_of(os.system)) is os.system
    refuse("given:build_of_another_process", "put it into a module beside the scenario")
    refuse("__main__:build", "put it into a module beside the scenario")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["paceline.realrun", "paceline.realrun.lab.switch"])
def test_processes_of_ours_import_nothing_from_the_working_folder(module: str, here: Path) -> None:
    write(here / "argparse.py")
    write(here / "struct.py")
    command = [sys.executable, "-m", module, "--help"]
    subprocess.run(command, env=python_environment(), capture_output=True)
    assert not Path("ran").exists()


def test_python_m_takes_no_package_from_the_working_folder(here: Path) -> None:
    write(here / "typer.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "paceline", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, Path("ran").exists()) == (0, False), done.stderr
