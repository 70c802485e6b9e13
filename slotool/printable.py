"""Text for people: what comes from files and requests is shown, and never obeyed by a terminal or a page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

from slotool.errors import SlotoolError

# Blanks of other widths are as harmless as the one that isprintable knows.
_BLANKS = frozenset("\u00a0\u2009\u202f")
# Minimum similarity (difflib's ratio) of a misspelt name.
MISSPELT = 0.7
# A longer name is not compared: that takes the longer, the longer it is, and clients send what they like.
MAX_CHARACTERS = 80


def printable(text: str, *, lines: bool = False) -> str:
    """Escape characters that a terminal would act on or hide, except line ends and tabs with ``lines``."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in _BLANKS or (lines and character in "\n\t")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def reason(error: BaseException, *, limit: int = 200) -> str:
    """Return the first line of an error, at most ``limit`` characters; its type if it has no message."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return printable(" ".join(text.split())[:limit])


def described(error: BaseException) -> str:
    """Return the sentence of an error of slotool; for any other error, its type and message."""
    return str(error) if isinstance(error, SlotoolError) else f"{type(error).__name__}: {error}"


def counted(count: int, noun: str) -> str:
    """Return ``1 network``, ``2 networks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def row_name(index: int) -> str:
    """Return ``row N`` for the row at ``index``, counted from 1 and without the header of a CSV file."""
    return f"row {index + 1}"


def name_list(names: Iterable[str], most: int = 20) -> str:
    """Return ``a, b, c``; of more than ``most`` names the first, the number left out, and the last."""
    every = list(names)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[: most - 1])}, … ({len(every) - most:,} more), {every[-1]}"


def with_article(noun: str) -> str:
    """Return ``a str``, ``an int``."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def number(value: float) -> str:
    """Return four significant digits, without exponent where a person would not use one."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return ``1.234 ms``, ``56.7 µs``, ``2.3 s``: in the unit that a person would choose."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def size_text(size: float) -> str:
    """Return a number of bytes for people: ``412 MiB``."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{math.ceil(size / 2**20)} MiB"


def nearest(name: str, names: Iterable[str], similarity: float = MISSPELT) -> str | None:
    """Return the most similar of ``names``, or None if all are unlike."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, 1, similarity) if len(name) <= MAX_CHARACTERS else []
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message that rejects ``name``, such as ``; did you mean 'port'?``, or an empty string."""
    meant = nearest(name, names)
    return "" if meant is None else f"; did you mean {meant!r}?"
