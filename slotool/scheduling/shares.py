"""Which pool of workers gets which request: in turn, in proportion to stated shares."""

from __future__ import annotations

from collections.abc import Sequence


class WeightedTurns:
    """Deals requests out by ``shares``, each above 0; they need not add up to 1.

    After any number of requests each pool has had its share of them, give or take one per other pool, so that a pool
    gets arrivals that are more even than of a draw at random. Source: stride scheduling (Waldspurger and Weihl, 1995),
    and the smooth weighted round robin of nginx.
    """

    def __init__(self, shares: Sequence[float]):
        self._strides = [1.0 / share for share in shares]
        self._given = [0] * len(shares)

    def next(self) -> int:
        """The pool of the next request."""
        due = [(given + 0.5) * stride for given, stride in zip(self._given, self._strides, strict=True)]
        pool = due.index(min(due))
        self._given[pool] += 1
        return pool
