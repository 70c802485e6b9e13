"""The exact test of paired losses of 0 or 1: how often it rejects what holds, and what it needs to reject."""

import numpy as np
import pytest
from scipy.stats import binom

from slotool.rules.betting import betting_p_value
from slotool.rules.counting import paired_p_value
from slotool.rules.losses import Comparison

MISS = 1e-4


def _drawn(
    draw: np.random.Generator, kind: Comparison, tolerance: float, best_alone: float, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of a candidate and the best version where the tolerance is exceeded by nothing."""
    which, either = draw.random(size), np.ones(size, bool) if kind == "absolute" else draw.random(size) < 0.4
    alone = best_alone + tolerance if kind == "absolute" else (best_alone + tolerance) / (1 + tolerance)
    error, best = which < alone, (which >= alone) & (which < alone + best_alone)
    both = which >= alone + best_alone if kind == "relative" else np.zeros(size, bool)
    return (either & (error | both)).astype(float), (either & (best | both)).astype(float)


@pytest.mark.parametrize(
    ("kind", "tolerance", "best_alone", "size"),
    [("absolute", 0.01, 0.0, 800), ("absolute", 0.02, 0.1, 500), ("absolute", 0.0, 0.03, 900),
     ("relative", 0.1, 0.05, 900)],
)  # fmt: skip
def test_what_is_exceeded_is_hardly_ever_rejected(
    kind: Comparison, tolerance: float, best_alone: float, size: int
) -> None:
    draw = np.random.default_rng(0)
    found = [
        paired_p_value(*_drawn(draw, kind, tolerance, best_alone, size), tolerance, kind, MISS) for _ in range(250)
    ]
    for level in (0.05, 0.2):
        assert (np.array(found) <= level).sum() <= binom.ppf(0.9999, len(found), level)
    assert (np.array(found) <= 0.2).sum() >= binom.ppf(0.0001, len(found), 0.12)


def test_without_errors_of_the_best_version_alone_it_is_the_binomial_tail() -> None:
    error, best = np.zeros(400), np.zeros(400)
    error[:3] = 1.0
    assert paired_p_value(error, best, 0.03, "absolute", MISS) == pytest.approx(binom.cdf(3, 400, 0.03), abs=3 * MISS)
    assert paired_p_value(error, best, 0.0, "absolute", MISS) == 1.0


def test_at_no_tolerance_it_shows_what_a_bet_shows_with_more_examples() -> None:
    draw = np.random.default_rng(1)
    which = draw.random(3000)
    error, best = (which < 0.02).astype(float), ((which >= 0.02) & (which < 0.05)).astype(float)
    small = slice(0, 2000)
    exact = paired_p_value(error[small], best[small], 0.0, "absolute", MISS)
    assert exact < betting_p_value(error[small], best[small], 0.0, "absolute", 0.01, 0.05, 1000.0)
    assert exact < 0.01
