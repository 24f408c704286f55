"""The long description: the README, whose links lead to the repository instead of beside the file.

``[project.urls] Source`` in pyproject.toml is the one place for the repository's address. Until it is filled
in, a link into the repository is only its text, and a picture its description: nothing is broken on an index.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?!\w+://|#)(?P<path>[^)]+)\)")


def describe(readme: str, source: str | None) -> str:
    """``readme`` as it is read away from the repository at the address ``source``."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if source is None:
            return f"*{text}*" if picture else text
        return f"{picture}[{text}]({source.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(absolute, readme)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=describe(
            (ROOT / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Source")
        ),
        long_description_content_type="text/markdown",
    )
