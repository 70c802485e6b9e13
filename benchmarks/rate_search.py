"""The greatest rate that a server carries, where one stall of the machine must not end the search."""

from __future__ import annotations

from collections.abc import Callable

GROWTH, MAX_STEPS = 1.25, 12


def greatest_rate(tail_s: Callable[[float], float], first_per_s: float, bound_s: float, within: float = 1.06) -> float:
    """The greatest rate, to within this ratio, whose tail latency is ``bound_s`` at most; 0 where none of those tried
    is.

    A rate fails only when the median of three tries of it does. Tries ``first_per_s``, goes on by ``GROWTH`` until both
    a rate that is carried and one that is not are known, then halves the interval (in ratio). ``tail_s``: one try.
    """

    def is_carried(rate_per_s: float) -> bool:
        tails_s = [tail_s(rate_per_s), tail_s(rate_per_s)]
        if (tails_s[0] <= bound_s) != (tails_s[1] <= bound_s):
            tails_s.append(tail_s(rate_per_s))
        return sorted(tails_s)[len(tails_s) // 2] <= bound_s

    good = bad = 0.0
    rate_per_s = first_per_s
    for _ in range(MAX_STEPS):
        if is_carried(rate_per_s):
            good = rate_per_s
        else:
            bad = rate_per_s
        if good and bad:
            if bad / good <= within:
                break
            rate_per_s = (good * bad) ** 0.5
        else:
            rate_per_s = good * GROWTH if good else bad / GROWTH
    return good
