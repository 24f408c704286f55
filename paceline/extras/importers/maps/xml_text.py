"""XML files of other tools, without entities: those can unfold without end."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from paceline.extras.importers.readings import ForeignFile


def refuse_entities(source: ForeignFile) -> None:
    """Raise ``InputError`` for XML that declares entities."""
    if match := re.search(r"<!ENTITY\b", source.text):
        raise source.refuse(
            "declares entities, which are not read", source.text.count("\n", 0, match.start()) + 1
        )


def parse_xml(source: ForeignFile) -> ElementTree.Element:
    """The root; ``InputError`` for text that is no XML, or declares entities."""
    refuse_entities(source)
    try:
        return ElementTree.fromstring(source.text)
    except ElementTree.ParseError as error:
        raise source.refuse(f"is no whole XML: {error.msg}", error.position[0]) from None
