"""Suggestions for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Minimum similarity (difflib's ratio) of a misspelt name.
MISSPELT = 0.7
# A longer name is not compared: that takes the longer, the longer it is, and clients send what they like.
MAX_CHARACTERS = 80


def nearest(name: str, known: Iterable[str], similarity: float = MISSPELT) -> str | None:
    """Return the most similar of ``known``, or None if all are unlike."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, 1, similarity) if len(name) <= MAX_CHARACTERS else []
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that rejects ``name``, such as ``; did you mean 'port'?``, or an empty string."""
    meant = nearest(name, known)
    return "" if meant is None else f"; did you mean {meant!r}?"
