"""One self-contained page from what ``export.py`` returns."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from paceline.reports.assumptions import assumed
from paceline.reports.folders import styles_of
from paceline.reports.page import STYLE_FILE, render_template
from paceline.sim.config.files import claim, save_atomically

_HERE = Path(__file__).parent


def build(content: Mapping[str, Any], out: Path) -> None:
    """Write the page to ``out``, which ``check_page`` allows; ``InputError``: in use or not writable."""
    styles = styles_of(content["schemes"], [each["scheme"] for each in content["schemes"]], solid=True)
    coloured = [{**each, "colour": styles[each["label"]].colour} for each in content["schemes"]]
    packed = zlib.compress(json.dumps({**content, "schemes": coloured}, allow_nan=False).encode(), 9)
    script, style = (
        "".join(file.read_text(encoding="utf-8") for file in files)
        for files in ((_HERE / "law.js", _HERE / "view.js"), (STYLE_FILE, _HERE / "explore.css"))
    )
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (script, style)]
    grids = {each["label"]: each["grid"] for each in content["schemes"] if "grid" in each}
    text = render_template(
        "explore.html", _HERE, title=content["name"], between=content["between"],
        left_out=content["left_out"],
        data=base64.b64encode(packed).decode(), script=Markup(script), own_style=Markup(style),
        grids=grids, untrained=content.get("untrained"), assumed=assumed(content["transport"]),
        script_hash=hashes[0], style_hash=hashes[1],
    )  # fmt: skip
    with claim(out):
        save_atomically(out, lambda new: new.write_text(text, encoding="utf-8"))
