"""Text for people: what comes from files and requests is shown, and never obeyed by a terminal or a page."""

from __future__ import annotations

from collections.abc import Iterable

# Blanks of other widths are as harmless as the one that isprintable knows.
_BLANKS = frozenset("\u00a0\u2009\u202f")


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` with every character escaped (``\\x1b``, ``\\u202e``) that a terminal would act on or not show: control
    characters, marks of writing direction, lone surrogates. ``lines``: line ends and tabs may stay."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in _BLANKS or (lines and character in "\n\t")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def reason(error: BaseException, *, limit: int = 200) -> str:
    """The first line of what a library raised, in one line of at most ``limit`` characters; its type where it says
    nothing."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return printable(" ".join(text.split())[:limit])


def counted(count: int, noun: str) -> str:
    """``1 network``, ``2 networks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def name_list(names: Iterable[str], most: int = 20) -> str:
    """``a, b, c``; of more than ``most`` names the first, how many are left out, and the last."""
    every = list(names)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[: most - 1])}, … ({len(every) - most:,} more), {every[-1]}"


def with_article(noun: str) -> str:
    """``a str``, ``an int``."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"
