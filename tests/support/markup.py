"""What users may call things, and what rich would take for markup or an emoji if it were asked to."""

from __future__ import annotations

from typing import Final

MARKUP: Final = ("[/]", "[red]x", "[link=http://x]y", ":smile:")
