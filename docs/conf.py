"""How Sphinx builds the site: ``make docs`` writes ``out/site``."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "Paceline"
release = version = version_of("paceline")
copyright = "the authors of Paceline"

repository_url = ""
"""Where files of the repository can be read: https://HOST/NAME/blob/main. Empty: links show their path."""

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docs.make.site",
]
exclude_patterns = ["make", "schemes/*.py", "bundles"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r".*")
]  # types of other packages, whose inventories are not at hand offline

myst_enable_extensions = ["deflist"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 80
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

smartquotes = False
highlight_language = "text"
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "Paceline"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
html_css_files = ["site.css"]
