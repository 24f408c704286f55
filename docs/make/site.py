"""What the site has beyond Sphinx: pages made from the code, formulas without scripts, links elsewhere."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.util.logging import getLogger

from docs.make.commands import commands_page
from docs.make.scheme_pages import scheme_page
from paceline.sim.schemes import SCHEMES

DOCS: Final = Path(__file__).parents[1]
GLOSSARY: Final = DOCS.parent / "reports" / "glossary.csv"
_ASKING: Final = (
    "am an any can could did do does enough far get had has have how i me much my need one our should so "
    "than what when where which who why would you your"
)
_LOG: Final = getLogger(__name__)
_ANCHOR: Final = re.compile(r' id="([^"]+)"')
_HREF: Final = re.compile(r'<a [^>]*?href="(?!https?:|mailto:)([^"]*)"')
_LOADED: Final = re.compile(
    r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)|<link[^>]* href="(https?:[^"]*)'
)
_SCROLLING: Final = re.compile(r'<(pre(?=[ >])|div(?= class="(?:table|math)-wrapper))')
_PARAMETERS: Final = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')
_PICTURE: Final = re.compile(r'<img alt="[^"]*" src="([^"]+)" />')
_TITLE: Final = re.compile(r"(?<=<h1>)[^<]+")
_CELL: Final = re.compile(r"<td[ >].*?</td>", re.DOTALL)
_BETWEEN: Final = re.compile(r" (\(|to )")
_CODE: Final = re.compile(r'(?<=<span class="pre">)[^<]+')
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(?:#[^)]*)?\)")


class _Questions(SearchEnglish):
    """English, where the words that make a question of its subject are not looked for."""

    stopwords = SearchEnglish.stopwords | frozenset(_ASKING.split())


def setup(app: Sphinx) -> dict[str, bool]:
    """Add to Sphinx what ``docs/conf.py`` names."""
    app.add_config_value("repository_url", "", "env")
    app.add_html_math_renderer("mathml", (_write_inline, None), (_write_display, None))
    app.add_search_language(_Questions)
    app.add_lexer("csv", TextLexer)
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _lead_outside)
    app.connect("html-page-context", _mend_markup, priority=900)
    app.connect("build-finished", _copy_pages)
    app.connect("build-finished", _write_markdown)
    app.connect("build-finished", _check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write_pages(app: Sphinx) -> None:
    """Pages made from the code, which no repository keeps."""
    pages = {f"schemes/{name}": scheme_page(scheme) for name, scheme in SCHEMES.items()}
    pages |= {"command-line": commands_page(), "glossary": _glossary()}
    for name, text in pages.items():
        file = DOCS / "reference" / f"{name}.md"
        file.parent.mkdir(exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _glossary() -> str:
    """The terms of report and terminal, as the report's own glossary has them."""
    rows = [
        f"{row['term']}{f' ({unit})' if (unit := row['unit']) else ''}\n  {row['meaning']}"
        for row in csv.DictReader(GLOSSARY.read_text(encoding="utf-8").splitlines())
    ]
    terms = "\n\n".join(rows)
    return f"# Glossary\n\nTerms of report and terminal, with their units.\n\n```{{glossary}}\n{terms}\n```\n"


def _lead_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to files of the repository that are no pages: to where it can be read, else with their path."""
    folder = (DOCS / page).parent

    def mended(match: re.Match[str]) -> str:
        text, target = match.groups()
        file = (folder / target).resolve()
        if file.is_relative_to(DOCS) and file.suffix != ".html":
            return f"[]{match[0].partition(']')[2]}" if text.endswith(".md") else match[0]
        if file.is_relative_to(DOCS):
            return f'<a href="{target}">{text}</a>'
        path = file.relative_to(DOCS.parent)
        if app.config.repository_url:
            return f"[{text}]({app.config.repository_url}/{path})"
        return f"`{path}`" if text.strip("`") in (str(path), path.name) else f"{text} (`{path}`)"

    source[0] = _LINK.sub(mended, source[0])


def _mend_markup(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """What a screen reader, a keyboard and a narrow page need of the markup of Sphinx and its theme."""
    if "furo_navigation_tree" in context:
        tree = context["furo_navigation_tree"]
        context["furo_navigation_tree"] = tree.replace(' role="heading"', ' role="heading" aria-level="2"')
    if "body" in context:
        context["body"] = mended_markup(context["body"])


def mended_markup(body: str) -> str:
    """A page where a keyboard scrolls what is wide, pictures open alone, and long names and cells break."""
    body = _SCROLLING.sub(r'<\1 tabindex="0"', body)
    body = _PICTURE.sub(r'<a href="\1">\g<0></a>', _PARAMETERS.sub(_parameters, body))
    body = _TITLE.sub(lambda title: title[0].replace("_", "_<wbr>"), body)
    return _CELL.sub(lambda cell: _BETWEEN.sub(r" <wbr>\1", _CODE.sub(_breakable, cell[0])), body)


def _parameters(listed: re.Match[str]) -> str:
    """Parameters in lines of their own: Sphinx writes a list of definitions without terms."""
    lines = listed[1].replace("<dd>", "<div>").replace("</dd>", "</div>")
    return f'<div class="sig-lines">\n{lines}</div>'


def _breakable(code: re.Match[str]) -> str:
    mark = "/" if "/" in code[0] else r"\."
    return re.sub(rf"(?<=[\w\]]){mark}(?=\w)", r"\g<0><wbr>", code[0])


def _copy_pages(app: Sphinx, error: Exception | None) -> None:
    """Pages that are complete in themselves."""
    shutil.copytree(DOCS / "explore", Path(app.outdir) / "explore", dirs_exist_ok=True)


def _write_markdown(app: Sphinx, error: Exception | None) -> None:
    """Each page as Markdown beside its HTML, and ``llms.txt``, which names them all (https://llmstxt.org)."""
    if error is not None:
        return
    out, titles = Path(app.outdir), {}
    for page in sorted(app.env.found_docs):
        source = DOCS / f"{page}.md"
        if source.exists():
            (out / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, out / f"{page}.md")
            titles[page] = app.env.titles[page].astext()
    text = llms_text((DOCS / "index.md").read_text(encoding="utf-8"), titles)
    (out / "llms.txt").write_text(text, encoding="utf-8")


def llms_text(index: str, titles: Mapping[str, str]) -> str:
    """The list of pages for programs that read: what Paceline is, then a link and a title for each.

    Args:
        index: Markdown of the first page; its first paragraph is taken.
        titles: page -> title.
    """
    about = " ".join(index.split("\n\n")[1].split())
    lines = [f"- [{title}]({page}.md)" for page, title in titles.items()]
    return "\n".join(["# Paceline", "", f"> {about}", "", "## Pages", "", *lines, ""])


def _check_links(app: Sphinx, error: Exception | None) -> None:
    """Warn of links inside the site that lead nowhere, and of whatever a page would load over the network."""
    pages = {page: page.read_text(encoding="utf-8") for page in Path(app.outdir).rglob("*.html")}
    anchors = {page: {"", "top", *_ANCHOR.findall(text)} for page, text in pages.items()}
    for page, text in pages.items():
        for target in _LOADED.findall(text):
            _LOG.warning("%s loads %s", page.name, target)
        for target in _HREF.findall(text):
            path, _, fragment = unquote(unescape(target)).partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (file.suffix == ".html" and fragment not in anchors[file]):
                _LOG.warning("%s links to %s, which is not there", page.name, target)


def _write_inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _write_display(writer: Any, node: nodes.math_block) -> None:
    parts = (f"<span>{convert(part)}</span>" for part in node.astext().split(r" \qquad "))
    writer.body.append(f'<div class="formula">{" ".join(parts)}</div>')
    raise nodes.SkipNode
