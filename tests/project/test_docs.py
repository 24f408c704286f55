"""What the README shows is true: its scenario loads, its scheme is the scheme, its links lead somewhere."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from paceline.sim.scenario.schema import parse
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.local_sgd import local_sgd

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_scenario_loads() -> None:
    (text,) = blocks("yaml")
    assert {"all_reduce", "local_sgd", "gossip"} <= {entry.name for entry in parse(text).schemes}


def test_the_scheme_is_the_one_that_runs() -> None:
    (shown,) = blocks("python")
    code = inspect.getsource(local_sgd)
    assert shown == re.sub(r'    """.*?"""\n', "", code, flags=re.DOTALL)


def test_every_scheme_has_its_row() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE)) == set(SCHEMES)


def test_local_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.name, target)
