"""Recognise files of other kinds, so that the error can name the mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from paceline.sim.config import yaml_file
from paceline.sim.config.files import MAX_JSON_BYTES, parse_json
from paceline.sim.errors import InputError

_YAML_BYTES: Final = 1 << 20
"""Longest text parsed as YAML to recognise it."""


def name_other_file(path: Path) -> str:
    """Kind of a file, and what to give in its place; "" if it may be measurements. ``InputError``:
    unreadable.
    """
    text = yaml_file.read_text(path, MAX_JSON_BYTES, (".json",))
    try:
        document: Any = parse_json(text)
    except ValueError:
        document = _parse_yaml(text)
    if not isinstance(document, dict):
        return ""
    keys = set(document)
    if {"factors", "residual_pct"} <= keys:
        return "a profile, which 'paceline calibrate' has written already: give it to --profile"
    if {"workload", "schemes"} <= keys or {"cluster", "schemes"} <= keys:
        return "a scenario: measure with 'paceline probe SCENARIO --out MEASURED.json' first"
    if {"summary", "runs"} <= keys:
        return f"the summary of a result folder: give the folder, {path.parent}"
    if {"cells", "decision"} <= keys:
        return f"the comparison of 'paceline validate': give the folder that it lies in, {path.parent}"
    if "bundle" in str(document.get("kind", "")) or "bundle" in keys:
        return "a bundle of 'paceline report --bundle', which has no events: give the folder of the run"
    return ""


def _parse_yaml(text: str) -> Any:
    if len(text) > _YAML_BYTES:
        return None
    try:
        return yaml_file.parse(text, "").value
    except InputError:
        return None
