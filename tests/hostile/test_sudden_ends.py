"""Commands that end just before they are done: no part is missing for ever, the same command makes it."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from benchmarks.sudden_death import contents
from paceline.extras.topology import topology_page as graph_pages
from paceline.extras.topology.topology_page import describe
from paceline.reports import sweep_page
from paceline.sim.experiments.sweep import sweep_folder
from paceline.sim.records import unfinished
from paceline.sim.records.folder import lacks_page
from paceline.sim.scenario import ready
from paceline.sim.topology.entry import TopologyEntry
from tests.hostile import sandbox
from tests.hostile.test_sudden_report import _MOST_CHANGES, _kill_at
from tests.paceline.test_command_line import TINY, run
from tests.support import warm

pytestmark = pytest.mark.usefixtures("little_work")
GRID = ("--grid", "cluster.network.latency=1 ms, 2 s", "--jobs", "1")
FEW = TINY.replace("repeats: 2\n", "").replace(", ad_psgd", "")


def end_once(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, at: int = 0) -> None:
    """End the command at a call of a function, the first time, as Ctrl-C or SIGTERM do."""
    original, calls = getattr(home, name), itertools.count()

    def ending(*arguments: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(home, name, ending)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_sweep_that_is_ended_while_it_draws_has_its_figure_in_the_end(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(FEW)
    command = ("sweep", tmp_path / "s.yaml", *GRID, "--out")
    assert run(monkeypatch, capsys, *command, tmp_path / "whole")[0] == 0
    assert (tmp_path / "whole" / "winners.svg").is_file()
    home, name = (sweep_page, "save_atomically") if late else (sweep_page, "write_winners")
    with monkeypatch.context() as patch:
        end_once(patch, home, name)
        assert run(patch, capsys, *command, tmp_path / "out")[0] == 130
    code, _, err = run(monkeypatch, capsys, *command, tmp_path / "out")
    assert code == 0, err
    assert "4 runs are there" in err
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_sweep_that_was_killed_before_its_first_run_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(FEW)
    command = ("sweep", tmp_path / "s.yaml", *GRID, "--out")
    assert run(monkeypatch, capsys, *command, tmp_path / "whole")[0] == 0
    copies = itertools.count()
    begin = unfinished.begin_parts

    def copying(folder: Path, *arguments: Any) -> Any:
        begun = begin(folder, *arguments)
        shutil.copytree(tmp_path / "out", tmp_path / f"killed-{next(copies)}")
        return begun

    with monkeypatch.context() as patch:
        patch.setattr("paceline.sim.experiments.sweep.sweep_folder.begin_parts", copying)
        assert run(patch, capsys, *command, tmp_path / "out")[0] == 0
    writing = tmp_path / "killed-2" / "0001" / f".parts.{socket.gethostname()}-{2**31 - 1}.new"
    writing.mkdir(parents=True)
    (writing / "index.json").touch()
    for number in range(3):
        out = tmp_path / f"killed-{number}"
        assert run(monkeypatch, capsys, *command, out)[0] == 0
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_topology_that_is_ended_while_it_draws_is_drawn_again(tmp_path: Path) -> None:
    record = describe(TopologyEntry.of("torus"), 9, "auto", 0)
    graph_pages.write_topology(record, tmp_path / "whole", force=False)
    for at in range(3):
        with pytest.MonkeyPatch.context() as patch:
            end_once(patch, graph_pages, "save_atomically", at)
            with pytest.raises(KeyboardInterrupt):
                graph_pages.write_topology(record, tmp_path / "out", force=False)
        assert not (tmp_path / "out" / "topology.json").exists()
    graph_pages.write_topology(record, tmp_path / "out", force=False)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_a_copy_that_is_ended_goes_on(tmp_path: Path) -> None:
    """What the scenario names comes first; a file with other content is left alone."""
    name = next(
        name for name in ready.ready_scenarios() if len(ready.copy_ready(name, tmp_path / f"{name}.y")) > 2
    )
    for at in (0, 1, 2):
        (tmp_path / str(at)).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            end_once(patch, ready, "write_atomically", at)
            with pytest.raises(KeyboardInterrupt):
                ready.copy_ready(name, tmp_path / str(at) / "my.yaml")
        assert not (tmp_path / str(at) / "my.yaml").exists()
        written = ready.copy_ready(name, tmp_path / str(at) / "my.yaml")
        assert all(path.is_file() for path in written)


def test_the_page_of_a_validation_that_was_ended_is_made_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of measurement are kept, and so is the folder; nothing runs again."""
    sandbox.write_good(tmp_path, sandbox.SMALL)
    (tmp_path / "s.yaml").write_text(sandbox.SMALL)
    out = tmp_path / "validated"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "r", out)
    assert not lacks_page(out)
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "validation.json").touch()
    assert lacks_page(tmp_path / "ended")
    monkeypatch.setattr("paceline.sim.records.folder.lacks_page", lambda folder: folder == Path("validated"))
    code, _, err = run(monkeypatch, capsys, "validate", "s.yaml", "--out", "validated")
    assert code == 2
    assert "the page of validated was missing, and is there now" in err
    assert (out / "report.html").is_file()


def draw_no_more(picture: bytes) -> None:
    """Have every figure be this one: to draw it takes long, and changes no file."""

    def save(self: Figure, file: Any, **options: Any) -> None:
        file.write(picture.decode() if isinstance(file, io.StringIO) else picture)

    Figure.savefig = save  # type: ignore[method-assign, assignment]


def be_ended_at_changes(top: str) -> None:
    """End sweeps whose runs are complete before they change files for the first, the third, ... time."""
    work = Path(top)
    os.environ |= sandbox.ENVIRONMENT
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    (work / "s.yaml").write_text(FEW)

    def sweep(out: str, die_at: int = _MOST_CHANGES * 10, finish: Callable[..., Any] | None = None) -> int:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.chdir(work)
                sys.argv = ["paceline", "sweep", "s.yaml", *GRID, "--out", out]
                own = sweep_folder.finish

                def finishing(*arguments: Any) -> Any:
                    if finish is not None:
                        finish()
                    sys.addaudithook(_kill_at(die_at))
                    return own(*arguments)

                sweep_folder.finish = finishing  # type: ignore[assignment]
                from paceline.commands.app import main

                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert sweep("whole") == 0
    draw_no_more((work / "whole" / "winners.svg").read_bytes())
    assert sweep("started", finish=lambda: os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL
    for number in itertools.count(step=2):
        shutil.copytree(work / "started", work / f"ended-{number}")
        status = sweep(f"ended-{number}", number)
        if status != -signal.SIGKILL:
            assert status == 0
            return
        again = sweep(f"ended-{number}")
        whole = (work / f"ended-{number}" / "winners.svg").is_file()
        assert again == 0 or (again == 2 and whole), (number, again)


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_its_end_is_made_whole_by_the_same_command(tmp_path: Path) -> None:
    """Before every second change of files, from the summaries on; nothing else is left beside the folders.

    But the lock of the one that was killed and not begun again: the next command on its folder takes it.
    """
    process = warm.forks().Process(target=be_ended_at_changes, args=(str(tmp_path),))
    process.start()
    process.join(500)
    process.kill()
    process.join()
    assert process.exitcode == 0
    ended = list(tmp_path.glob("ended-*"))
    assert len(ended) > 10
    for folder in ended:
        assert contents(folder) == contents(tmp_path / "whole"), folder.name
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {
        "s.yaml",
        "whole",
        "started",
        ".started.lock",
        "ended",
    }
