"""The plain notation of docstrings, ``x_i <- sum_j W_ij (x_j - d_j)``, as LaTeX."""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = {
    "sum": r"\sum",
    "alpha": r"\alpha ",
    "gamma": r"\gamma ",
    "lambda": r"\lambda ",
    "grad": r"\nabla ",
    "argmin": r"\operatorname{argmin}",
    "lr": r"\mathrm{lr}\,",
}
_TOKEN: Final = re.compile(
    rf"(?P<arrow><-)|(?P<base>[A-Za-z]|{'|'.join(_NAMES)})(?:_(?P<index>[a-z]{{1,2}}))?(?![\w'])"
    r"|(?P<words>-?[A-Za-z][\w']+)|(?P<other>: |.)"
)
_ARTICLE: Final = re.compile(r"(?<=[a-z]{2} )a(?= [a-z]{2})")


def latex(line: str) -> str:
    """A line of a formula; where blanks set its parts apart, so does a wide space."""
    tidy = re.sub(r"\s+<-", " <-", line.strip())
    parts = (_part(part) for part in re.split(r" {2,}", tidy))
    return r" \qquad ".join(parts)


def _part(part: str) -> str:
    """One part, its words upright in runs."""
    written, end = "", 0
    for article in [*_ARTICLE.finditer(part), None]:
        begin = len(part) if article is None else article.start()
        written += "".join(_token(match) for match in _TOKEN.finditer(part, end, begin))
        if article is not None:
            written, end = written + r"\text{a}", article.end()
    joined = re.sub(r"\} \\text\{", " ", written).strip()
    spaced = re.sub(r"\\text\{([^}]*)\}", r"\\text{ \1 }", joined)
    return re.sub(r" \}(?=[):;,])", "}", re.sub(r"(^|\()\\text\{ ", r"\1\\text{", spaced))


def _token(match: re.Match[str]) -> str:
    if match["arrow"]:
        return r"\leftarrow "
    if base := match["base"]:
        return _NAMES.get(base, base).strip() + (f"_{{{match['index']}}}" if match["index"] else " ")
    if words := match["words"]:
        return r"\text{" + words + "}"
    return match["other"].replace(": ", r":\ ")
