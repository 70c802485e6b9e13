"""What an unknown name may have been meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# From this similarity on (difflib's ratio) a name is taken for another one misspelt.
MISSPELT = 0.7
# A longer name is not compared: that takes the longer, the longer it is, and clients send what they like.
MAX_CHARACTERS = 80


def nearest(name: str, known: Iterable[str], similarity: float = MISSPELT) -> str | None:
    """The one of ``known`` that ``name`` is most like; None where it is like none of them."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, 1, similarity) if len(name) <= MAX_CHARACTERS else []
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses ``name``, such as ``; did you mean 'port'?``; empty where nothing is near."""
    meant = nearest(name, known)
    return "" if meant is None else f"; did you mean {meant!r}?"
