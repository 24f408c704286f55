"""What a release says of itself agrees: versions, names, checks, and links that lead somewhere."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from paceline.extras.report.bundle import unpack
from paceline.reports.folders import read_sources
from paceline.reports.page import agreement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORKFLOWS = ROOT / ".github" / "workflows"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = spec_from_file_location("setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_version_and_one_date() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    (newest,) = re.findall(r"\A# Changelog\n.*?^## (\S+) - (\S+)$", read("CHANGELOG.md"), re.M | re.S)
    assert newest == (PROJECT["version"], str(citation["date-released"]))
    assert citation["version"] == PROJECT["version"]
    assert version("paceline") == PROJECT["version"], "run: .venv/bin/pip install -e ."
    assert [each["name"] for each in citation["authors"]] == [each["name"] for each in PROJECT["authors"]]
    assert citation["license"] == PROJECT["license"]


def test_the_notes_are_short() -> None:
    assert len(read(f"docs/releases/{PROJECT['version']}.md").splitlines()) <= 30


def test_a_description_without_an_address_has_no_link_into_the_repository(setup: ModuleType) -> None:
    links = re.findall(r"\]\(([^)]*)\)", setup.describe(README, None))
    assert [link for link in links if "://" not in link] == []
    assert "[First steps]" in README
    assert "First steps, a one-minute notebook" in setup.describe(README, None)


def test_with_an_address_every_link_of_the_description_is_absolute(setup: ModuleType) -> None:
    links = re.findall(r"\]\(([^)]*)\)", setup.describe(README, "https://example.org/paceline/"))
    assert len(links) == len(re.findall(r"\]\(", README))
    assert all(link.startswith("https://") for link in links)
    assert "https://example.org/paceline/raw/main/docs/images/four-regions.png" in links
    assert "https://example.org/paceline/blob/main/docs/accuracy.md" in links


def test_public_ci_runs_what_ours_runs_on_every_python_that_is_promised() -> None:
    (job, _) = yaml.safe_load((WORKFLOWS / "ci.yml").read_text(encoding="utf-8"))["jobs"].values()
    promised = [each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if ":: 3." in each]
    assert job["strategy"]["matrix"]["python"] == promised
    assert job["steps"][-1]["run"].endswith(".ci/run")


def test_pre_commit_runs_the_checks_of_make_test() -> None:
    (local,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    ours = re.findall(r"^\t\$\(BIN\)/(ruff|mypy|lint-imports)\b(.*)$", read("Makefile"), re.M)
    assert [hook["entry"].split("/")[-1].split()[0] for hook in local["hooks"]] == [tool for tool, _ in ours]
    assert [hook["entry"] for hook in local["hooks"] if "mypy" in hook["entry"]] == [
        f".venv/bin/{tool}{words}" for tool, words in ours if tool == "mypy"
    ]


def test_the_container_takes_the_steps_of_the_dockerfile() -> None:
    steps = [line for line in read("Dockerfile").splitlines() if line.startswith("RUN ")]
    assert all(f"grep -qx '{step}' Dockerfile" in read(".ci/container") for step in steps)
    assert len(steps) == 1


def test_results_of_the_version_before_are_read(tmp_path: Path) -> None:
    folder, bundle = unpack(ROOT / "docs" / "bundles" / "paceline-loopback.json", tmp_path)
    assert bundle.versions["paceline"] == "0.1.0"
    (study,) = read_sources([folder])
    assert study.measured is not None
    assert agreement(study.main, study.measured) is not None
