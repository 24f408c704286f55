"""Pages of the site that are made from the code name all that is there; examples of docstrings run."""

from __future__ import annotations

import doctest
import re
import sys
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
from docs.make.claims import PAPERS, claims_of
from docs.make.commands import commands_page
from docs.make.formulas import latex
from docs.make.pairs import pairs_of
from docs.make.scheme_pages import scheme_page
from docs.make.site import llms_text, mended_markup
from paceline.commands.app import COMMANDS
from paceline.sim.schemes import SCHEMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
HOMES = {"paceline": "", "sim": "sim.", "realrun": "realrun.", "reports": "reports."}
EXAMPLES = sorted(
    "paceline." + within + ".".join(path.relative_to(ROOT / top).with_suffix("").parts)
    for top, within in HOMES.items()
    for path in (ROOT / top).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_every_public_name_has_its_place() -> None:
    named = re.findall(r"\.\. auto\w+:: paceline\.(\w+)$", PAGE, flags=re.MULTILINE)
    assert "automodule:: paceline.sim.program.operations" in PAGE  # ops
    assert sorted([*named, "ops"]) == sorted(paceline.__all__)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_page_has_its_formula_costs_and_options(name: str) -> None:
    page = scheme_page(SCHEMES[name])
    formulas = re.findall(r"```math\n(.*)\n```", page)
    assert formulas
    assert "**Source.**" in page, "say 'Source: ...' in the module's docstring"
    for formula in formulas:
        assert "_" not in re.sub(r"_\{\w+\}|\\text\{[^}]*\}", "", formula), "an index that is no index"
    assert all(f"| `{key}" in page for key in SCHEMES[name].options.model_fields)


@given(st.text(alphabet="abxyWn_ij ()+-<=/.,|1'", max_size=40))
def test_any_line_becomes_a_formula(line: str) -> None:
    written = latex(line)
    assert written.count("{") == written.count("}")
    assert re.sub(r"\\text|\\leftarrow|\\qquad|[\\{} ]", "", written) == re.sub(r"<-| ", "", line)


def test_every_option_of_every_command_is_there() -> None:
    page = commands_page()
    for name in COMMANDS:
        section = page.partition(f"## paceline {name}\n")[2].partition("\n## ")[0]
        for each in COMMANDS[name].params:
            assert (
                not each.opts[0].startswith("-")
                or f"`{each.opts[-1]}" in section
                or f" {each.opts[-1]}" in section
            )


def test_every_page_about_a_paper_has_a_picture() -> None:
    for page in set(PAPERS.glob("*.md")) - {PAPERS / "index.md"}:
        pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        assert any((PAPERS / picture).exists() for picture in pictures), page.name


def test_numbers_are_compared_in_one_unit() -> None:
    page = (PAPERS / "stochastic-reweighted-gradient.md").read_text(encoding="utf-8")
    assert pairs_of(page)["Noise around the optimum"][0] == (0.238, 0.247)
    assert pairs_of("## A\n\n| published | ours |\n| --- | --- |\n| 2 s | 3 s |\n| 2 % | 3 s |\n") == {
        "A": [(2, 3)]
    }


def test_a_picture_shows_the_claims_of_its_page() -> None:
    pages = [page for page in PAPERS.glob("*.md") if claims_of(page.read_text(encoding="utf-8"))]
    assert len(pages) >= 12
    for page in pages:
        text, picture = page.read_text(encoding="utf-8"), PAPERS / "images" / f"{page.stem}.svg"
        assert f"(images/{page.stem}.svg)" in text
        drawn = unescape(picture.read_text(encoding="utf-8"))
        assert all(claim.says[:20] in drawn for claim in claims_of(text)), "run: python -m docs.make.claims"


def test_a_keyboard_scrolls_what_is_wide() -> None:
    for name in ('pre id="a"', "pre", 'div class="table-wrapper docutils"', 'div class="math-wrapper"'):
        assert mended_markup(f"<{name}>") == "<" + name.replace(name[:3], f'{name[:3]} tabindex="0"', 1) + ">"


def test_a_long_cell_can_be_broken() -> None:
    code = '<code><span class="pre">{}</span></code>'
    assert mended_markup(f"<td>{code.format('a.b_c')}</td>") == f"<td>{code.format('a.<wbr>b_c')}</td>"
    assert mended_markup(f"<td>{code.format('a/b.md')}</td>") == f"<td>{code.format('a/<wbr>b.md')}</td>"
    assert mended_markup("<td>2 (1 to 3)</td> (1)") == "<td>2 <wbr>(1 <wbr>to 3)</td> (1)"


def test_a_long_title_can_be_broken_and_a_picture_opened() -> None:
    assert mended_markup("<h1>a_b: A</h1><h2>a_b</h2>") == "<h1>a_<wbr>b: A</h1><h2>a_b</h2>"
    picture = '<img alt="A" src="a.svg" />'
    assert mended_markup(picture) == f'<a href="a.svg">{picture}</a>'


def test_parameters_are_no_definitions_without_terms() -> None:
    parameters = '<dl>\n<dd><em class="sig-param">a</em>,</dd>\n<dd><em class="sig-param">b</em>,</dd>\n</dl>'
    assert "<dl>" not in mended_markup(parameters)
    assert mended_markup("<dl>\n<dt>a</dt><dd>b</dd>\n</dl>").startswith("<dl>")


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_of_docstrings_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(import_module(module))
    assert found.failed == 0
    assert found.attempted > 0


def test_functions_of_ones_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILE.findall(PAGE):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    study = paceline.simulate(tmp_path / "my_parts.yaml", progress=False)
    assert [(run.label, run.status, run.iterations) for run in study.runs] == [
        ("alone", "completed", 6), ("gossip", "completed", 6),
    ]  # fmt: skip


def test_programs_find_every_page() -> None:
    text = llms_text((ROOT / "docs" / "index.md").read_text(encoding="utf-8"), {"start": "First", "a/b": "B"})
    assert text.startswith("# Paceline\n\n> Which averaging scheme of distributed SGD reaches")
    assert text.endswith("## Pages\n\n- [First](start.md)\n- [B](a/b.md)\n")
