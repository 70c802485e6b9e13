"""How far something may change until a promise breaks: found by few trials, as each simulates a fleet, and some need a
policy of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

# How far limits are looked for: times the deadline or the rate. Where all that was tried holds, a limit is what the
# range ends with.
MAX_TIMES = 8.0
# Values between the ends of a range, each a like ratio above the last, among which so many halvings find one.
HALVINGS = 7
_STEPS = 2**HALVINGS
# What one limit counts for where trials are counted, and one of its trials where stand-ins say where to try.
TRIALS, _OF_A_FEW = HALVINGS + 2, 3

# What is missed of the promise at a value; empty where it holds.
Missed = Callable[[float], tuple[str, ...]]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Limit:
    """How far something may change until the promise breaks: ``value``, None where nothing that was tried holds, and
    what then is missed (``breaks``; empty where all that was tried holds)."""

    value: float | None
    breaks: tuple[str, ...]


def lowest_without_misses(
    low: float, high: float, missed: Missed, advance: Advance, stand_in: Missed | None = None
) -> Limit:
    """The least of ``low`` to ``high`` with nothing ``missed``, as all above it; to 2 % of a range of 8 times.

    ``stand_in``: about the same as ``missed``, at less cost. It only says where to try first: the limit holds and the
    value below it does not, both by ``missed``. ``advance``: called with ``TRIALS`` in all.
    """
    left, each = TRIALS, 1 if stand_in is None else _OF_A_FEW

    @cache
    def misses(step: int) -> tuple[str, ...]:
        nonlocal left
        found = missed(_value(low, high, step))
        counted = min(each, left)
        left -= counted
        advance(counted)
        return found

    try:
        first = _in_range(misses) if stand_in is None else _around(misses, _guessed(low, high, stand_in))
        if first is None:
            return Limit(None, misses(_STEPS))
        return Limit(_value(low, high, first), misses(first - 1) if first else ())
    finally:
        advance(left)


def _value(low: float, high: float, step: int) -> float:
    return float(low * (high / low) ** (step / _STEPS))


def _guessed(low: float, high: float, stand_in: Missed) -> int:
    """The least step at which the stand-in misses nothing; the last where it does there too."""

    def misses(step: int) -> tuple[str, ...]:
        return stand_in(_value(low, high, step))

    if not misses(0):
        return 0
    return _between(misses, 0, _STEPS)


def _in_range(misses: Callable[[int], tuple[str, ...]]) -> int | None:
    """The least step with no misses; None where even the last has some."""
    if misses(_STEPS):
        return None
    return _between(misses, 0, _STEPS) if misses(0) else 0


def _between(misses: Callable[[int], tuple[str, ...]], below: int, above: int) -> int:
    """The least step with no misses, when there are some at ``below`` and none at ``above``."""
    while above - below > 1:
        middle = (below + above) // 2
        if misses(middle):
            below = middle
        else:
            above = middle
    return above


def _around(misses: Callable[[int], tuple[str, ...]], guess: int) -> int | None:
    """The same from a guess on, by growing steps; None where even the last step misses something."""
    reach = 1
    if misses(guess):
        below = guess
        while below < _STEPS:
            above = min(_STEPS, below + reach)
            if not misses(above):
                return _between(misses, below, above)
            below, reach = above, 2 * reach
        return None
    above = guess
    while above > 0:
        below = max(0, above - reach)
        if misses(below):
            return _between(misses, below, above)
        above, reach = below, 2 * reach
    return 0
