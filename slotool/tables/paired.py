"""Paired outcomes: how much worse than a reference a candidate may do on further examples, from what was counted."""

from __future__ import annotations

import math

import numpy as np

MAX_FURTHER_FACTOR = 4096


def further_losses(lost: np.ndarray, gained: np.ndarray, confidence: float) -> np.ndarray:
    """Upper prediction bounds, int64 like ``lost``, of the net loss on as many further examples as were counted.

    ``lost`` and ``gained``: int, how often of n examples the reference alone is right, and the candidate alone. The
    net loss is how much more often the former happens, in examples. Of one candidate the bound is exceeded with
    probability 1 − ``confidence`` at most, and seldom more where n examples were few.

    Proof. Let b, c be counted on n examples and b', c' on n others. Which of the 2n were counted is chance, so given
    B = b + b' and C = c + c', b is at most as spread as Binomial(B, ½), c as Binomial(C, ½), and
    b − c + C = b + c' is Binomial(B + C, ½). "The further net loss b' − c' exceeds a" is refused when b + c' is too
    small for that: when P(Binomial(b + b' + c + c', ½) ≤ b + c') ≤ 1 − confidence for b' = a + 1 + c'. Larger b' are
    refused too. How many examples the candidate gains among the further ones matters for the spread only, and is
    taken to be c.
    """
    from scipy.special import bdtr

    b, c = (np.asarray(counts, dtype=np.int64) for counts in (lost, gained))

    def refused(a: np.ndarray) -> np.ndarray:
        unlikely: np.ndarray = bdtr((b + c).astype(float), b + 3 * c + a + 1, 0.5) <= 1.0 - confidence
        return unlikely

    # No further loss below the one counted can be refused; from there up in doubling steps, then by halving.
    below, step = b - c - 1, np.full(b.shape, 2)
    while not (enough := refused(below + step)).all():
        step = np.where(enough, step, 2 * step)
    above: np.ndarray = below + step
    while (above - below > 1).any():
        middle = (below + above) // 2
        enough = refused(middle)
        below, above = np.where(enough, below, middle), np.where(enough, middle, above)
    return above


def examples_needed(lost: int, gained: int, examples: int, loss: float, confidence: float) -> int | None:
    """About how many examples would bound the loss by ``loss`` if outcomes stayed as frequent; None: too many to say.

    More than ``examples`` unless these bound it already: of fewer, a lucky rounding might seem to.

    ``lost`` and ``gained`` of ``examples``: as for ``further_losses``; ``loss``: a share of the examples.
    """

    def enough(n: int) -> bool:
        b, c = (np.array(round(n * count / examples)) for count in (lost, gained))
        return bool(further_losses(b, c, confidence) <= loss * n)

    if (lost - gained) / examples >= loss:
        return None
    most = MAX_FURTHER_FACTOR * examples
    powers = range(-8 if enough(examples) else 0, 13)
    n = next((n for n in (examples * 2.0**power for power in powers) if n >= 1 and enough(math.ceil(n))), None)
    if n is None or n > most:
        return None
    low, high = math.ceil(n / 2), math.ceil(n)
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
