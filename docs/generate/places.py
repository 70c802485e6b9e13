"""Places of a page whose text is generated, between ``<!-- KIND: NAME -->`` and ``<!-- end of NAME -->``.

An opening mark alone is a place that has not been written yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# No generated text has a line that begins as a mark.
_PLACE = r"^<!-- {}: ([\w-]+) -->$(?:\n(?:(?!<!-- ).*\n)*<!-- end of \1 -->$)?"


def filled(markdown: str, kind: str, text: Callable[[str], str]) -> str:
    """Return ``markdown`` with ``text(name)`` in each place of ``kind``, in the place of what stood there."""

    def written(place: re.Match[str]) -> str:
        inside = text(place[1])
        first, last = f"<!-- {kind}: {place[1]} -->", f"<!-- end of {place[1]} -->"
        return f"{first}\n\n{inside}\n\n{last}" if inside else f"{first}\n{last}"

    return re.sub(_PLACE.format(kind), written, markdown, flags=re.MULTILINE)


def names(markdown: str, kind: str) -> list[str]:
    """Return the names of the places of ``kind`` in their order."""
    return re.findall(_PLACE.format(kind), markdown, flags=re.MULTILINE)


def without(markdown: str) -> str:
    """Return what people wrote in ``markdown``, without its places."""
    return re.sub(_PLACE.format(r"\w+"), "", markdown, flags=re.MULTILINE)
