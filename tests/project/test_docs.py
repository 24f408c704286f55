"""What README and docs show is true: scenarios load, commands parse, links lead somewhere."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from docs.make import readme, schemes
from docs.make.picture import draw_picture
from paceline.commands.app import app
from paceline.sim.records.folder import write_results
from paceline.sim.records.rows import RunRow
from paceline.sim.scenario.ready import ready_scenarios
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.local_sgd import local_steps
from tests.support.made_runs import made_run, made_scenario

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ACCURACY = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
RECORDS_PAGE = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
SCHEMES_PAGE = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8")

TREES = ("paceline", "sim", "realrun", "reports", "tests", "benchmarks", "docs")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


COMMANDS = [
    line.partition("#")[0].partition(">")[0].strip()
    for block in blocks("")
    for line in block.splitlines()
    if line.startswith("paceline ")
]


def test_the_scenario_loads() -> None:
    (text,) = blocks("yaml")
    assert {"all_reduce", "local_sgd", "gossip"} <= {entry.name for entry in parse(text).schemes}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_parse(command: str) -> None:
    _, name, *words = shlex.split(command)
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    context = group.commands[name].make_context(name, words)
    scenario = context.params.get("scenario")
    assert scenario is None or scenario.suffix == ".yaml" or str(scenario) in ready_scenarios()


def test_the_readme_names_ready_scenarios() -> None:
    for name in re.findall(r"paceline new (\S+)", README):
        assert name in ready_scenarios()


def test_the_scheme_is_the_one_that_runs() -> None:
    (shown,) = blocks("python", SCHEMES_PAGE)
    code = inspect.getsource(local_steps)
    assert shown == re.sub(r'    """.*?"""\n', "", code, flags=re.DOTALL)


def test_every_key_of_a_run_is_described() -> None:
    described = set(
        re.findall(r"`(\w+)`", RECORDS_PAGE.partition("A run:")[2].partition("\n\n`validate`")[0])
    )
    missing = set(RunRow.__annotations__) - described
    assert not missing, "add a row to the table of a run in docs/records.md"


def test_every_scheme_has_its_row() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", SCHEMES_PAGE, flags=re.MULTILINE)) == set(SCHEMES)
    assert schemes.renewed(SCHEMES_PAGE) == SCHEMES_PAGE, "run: python -m docs.make.schemes"


@pytest.mark.slow
def test_the_picture_has_the_verdict_as_its_title(tmp_path: Path) -> None:
    runs = [made_run(label, reached_s=10.0 + k) for k, label in enumerate(("all_reduce", "local_sgd"))]
    write_results(tmp_path / "r", made_scenario("r"), "r", runs)
    title = draw_picture(tmp_path / "r").axes[0].get_title("left")
    assert title == "r: not settled: all_reduce or local_sgd;\nat least 4 more repeats would tell"


def test_the_numbers_of_the_readme_are_those_of_their_sources() -> None:
    assert readme.renewed(README) == README, "run: make figures"
    assert readme.with_all_rows(ACCURACY) == ACCURACY, "run: make figures"
    demo = parse(ready_scenarios()["four-regions"].read_text(encoding="utf-8"))
    assert (demo.cluster.workers, demo.repeats) == (16, 12)
    assert "Sixteen workers" in README
    assert "twelve repeats" in README


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 700


def test_how_far_to_trust_has_the_numbers_of_the_accuracy_page() -> None:
    page = (ROOT / "docs" / "how-to" / "trust.md").read_text(encoding="utf-8")
    tuned, stock, *_ = re.findall(r"\| lab, .*?\| ([\d.]+) % \| ([\d.]+) %", ACCURACY)
    assert "{} % in the mean of 57 cells in the lab, {} % at worst".format(*tuned) in page
    assert "on stock hosts {} and {} %".format(*stock) in page
    others = [(float(a), float(b)) for a, b in re.findall(r"\| others: .*?\| ([\d.]+) % \| (\d+)", ACCURACY)]
    means, worst = zip(*others, strict=True)
    shown = f"{min(means):g} to {max(means):.0f} % in the mean of a table, {max(worst):.0f} % at worst"
    assert shown in page


def test_a_number_that_was_edited_is_put_right() -> None:
    for number in ("1.45 times as fast", "| 4.8 % |", "0.31 nats", "differ by 1.2 %"):
        assert readme.renewed(README.replace(number, number.replace("4", "9").replace("2", "7"))) == README


def test_local_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.name, target)


def test_no_line_is_taken_for_a_comment() -> None:
    """MyST leaves out lines that begin with a per cent sign."""
    for page in ROOT.glob("docs/**/*.md"):
        text = re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))
        assert not re.findall(r"(?m)^\s*%.*", text), page.name


def test_the_page_to_try_has_the_scripts_of_today() -> None:
    """Else run: paceline explore four-regions --out docs/explore/four-regions.html."""
    shown = (ROOT / "docs" / "explore" / "four-regions.html").read_text(encoding="utf-8")
    for name in ("law.js", "view.js"):
        assert (ROOT / "paceline" / "extras" / "explore" / name).read_text(encoding="utf-8") in shown


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/how-it-works.md"])
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    """By the end of their path; ``NAME`` stands for one of the reader's own."""
    places = [f"/{path.relative_to(ROOT)}" for top in TREES for path in (ROOT / top).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert [
        each for each in named if "NAME" not in each and not any(p.endswith(f"/{each}") for p in places)
    ] == []
