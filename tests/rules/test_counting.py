"""The exact test of paired losses of 0 or 1: how often it rejects what holds, and what it needs to reject."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from slotool.rules.evidence.betting import betting_p_value
from slotool.rules.evidence.counting import PairedTest, examples_to_count, kept_p_value, paired_p_value
from slotool.rules.evidence.losses import Comparison

EXAMPLES = 16
KINDS: tuple[Comparison, ...] = ("absolute", "relative")


def _boundary(best_alone: np.ndarray, tolerance: float, kind: Comparison) -> np.ndarray:
    """The probability of an error of the candidate alone at which a tolerance is just exceeded."""
    return np.asarray((best_alone + tolerance) / (1.0 + tolerance) if kind == "relative" else best_alone + tolerance)


def _exceeded(tolerance: float, kind: Comparison) -> np.ndarray:
    """Probabilities, of an error of the candidate alone and of the best version alone, that exceed the tolerance, many
    of them by nothing: float64 [pairs, 2]."""
    pairs = []
    for best_alone in np.concatenate([np.geomspace(1e-4, 0.02, 8), np.linspace(0.0, 0.5, 41)]):
        at = max(0.0, float(_boundary(best_alone, tolerance, kind)))
        pairs += [(alone, best_alone) for alone in (at, at + 0.003, at + 0.05, at + 0.2) if alone + best_alone <= 1.0]
    return np.array([(alone, best) for alone, best in pairs if alone >= _boundary(best, tolerance, kind) - 1e-12])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.1, 0.3, 0.5, -0.1])
def test_no_outcomes_of_sixteen_examples_are_rejected_too_often(kind: Comparison, tolerance: float) -> None:
    test = PairedTest(EXAMPLES, tolerance, kind, miss=1e-3)
    outcomes = [(a, b) for a in range(EXAMPLES + 1) for b in range(EXAMPLES + 1 - a)]
    p_values = np.array([test.p_value(a, b) for a, b in outcomes])
    alone, best_alone = np.array(outcomes).T
    q_alone, q_best = _exceeded(tolerance, kind).T[:, :, None]
    # Every outcome's probability, by binomials one within the other, which share no code with the test.
    rest = np.where(q_best < 1.0, q_alone / (1.0 - q_best), 0.0).clip(0.0, 1.0)
    likely = binom.pmf(best_alone, EXAMPLES, q_best) * binom.pmf(alone, EXAMPLES - best_alone, rest)
    assert likely.sum(axis=1) == pytest.approx(1.0)
    for level in np.unique(p_values):
        assert (likely @ (p_values <= level)).max() <= level + 1e-9, f"at level {level}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_level_is_nearly_used_up(kind: Comparison) -> None:
    """A test that never rejects would keep its level as well."""
    size, share = 400, 0.05
    test, at = PairedTest(size, 0.02, kind, miss=1e-4), float(_boundary(np.array(share), 0.02, kind))
    alone, best_alone = np.mgrid[5:50, 5:45].reshape(2, -1)
    small = np.array([test.p_value(*own) <= 0.05 for own in zip(alone, best_alone, strict=True)])
    likely = binom.pmf(best_alone, size, share) * binom.pmf(alone, size - best_alone, at / (1 - share))
    assert 0.043 < likely[small].sum() <= 0.05


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    trials=st.integers(1, 400),
    tolerance=st.floats(-0.3, 0.5),
    shares=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    miss=st.sampled_from([1e-6, 1e-3]),
)
def test_a_p_value_rises_with_errors_of_the_candidate_and_falls_with_the_best_versions(
    kind: Comparison, trials: int, tolerance: float, shares: tuple[float, float], miss: float
) -> None:
    test = PairedTest(trials, tolerance, kind, miss)
    alone = int(shares[0] * (trials - 1))
    best_alone = int(shares[1] * (trials - 1 - alone))
    own = test.p_value(alone, best_alone)
    assert miss <= own <= 1.0
    assert test.p_value(alone + 1, best_alone) >= own * (1.0 - 1e-9)
    assert test.p_value(alone, best_alone + 1) <= own * (1.0 + 1e-9)


def test_where_the_best_version_never_errs_alone_it_is_the_binomial_tail() -> None:
    """So few errors of the candidate alone leave no doubt about q01: it is about 0, and the test a binomial one."""
    error, best, miss = np.zeros(400), np.zeros(400), 1e-7
    for alone in (0, 1, 3):
        error[:alone] = 1.0
        expected = binom.cdf(alone, 400, 0.1)
        assert paired_p_value(error, best, 0.1, "absolute", miss) == pytest.approx(expected + miss, rel=0.02)
    assert paired_p_value(error, best, 0.0, "absolute", miss) == 1.0


def test_where_the_versions_differ_everywhere_it_is_the_binomial_tail() -> None:
    """Relative, no tolerance, and each example an error of one alone: a sign test."""
    error, best = np.zeros(60), np.ones(60)
    error[:18], best[:18] = 1.0, 0.0
    found = paired_p_value(error, best, 0.0, "relative", 1e-6)
    assert binom.cdf(18, 60, 0.5) < found < 1.05 * binom.cdf(18, 60, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_that_a_tolerance_is_kept_is_tested_from_the_other_side(kind: Comparison) -> None:
    draw, size = np.random.default_rng(0), 3000
    which = draw.random(size)
    best = (which < 0.10).astype(float)
    much_worse = ((which >= 0.02) & (which < 0.20)).astype(float)
    a_bit_worse = ((which >= 0.02) & (which < 0.13)).astype(float)
    tolerance = 0.05 if kind == "absolute" else 0.5
    assert kept_p_value(much_worse, best, tolerance, kind, 1e-6) < 0.01
    assert kept_p_value(a_bit_worse, best, tolerance, kind, 1e-6) > 0.5
    assert paired_p_value(a_bit_worse, best, tolerance, kind, 1e-6) < 0.01
    assert paired_p_value(much_worse, best, tolerance, kind, 1e-6) == 1.0


@pytest.mark.parametrize("level", [0.002, 0.005])
def test_it_shows_more_than_a_bet_does(level: float) -> None:
    """And still more where the level has grown since the bet's stakes were set."""
    draw, size, tolerance, stakes_for = np.random.default_rng(1), 600, 0.02, 0.002
    exact = bets = 0
    for _ in range(300):
        which = draw.random(size)
        error, best = (which < 0.01).astype(float), ((which >= 0.01) & (which < 0.03)).astype(float)
        exact += paired_p_value(error, best, tolerance, "absolute", 0.01 * level) <= level
        bets += betting_p_value(error, best, tolerance, "absolute", stakes_for, 0.03, 240.0) <= level
    assert exact > bets + 5


@pytest.mark.parametrize(("best_alone", "level"), [(0.0175, 1e-4), (0.1, 1e-3), (0.001, 0.01)])
def test_what_is_said_to_show_something_does_about_as_often_as_not(best_alone: float, level: float) -> None:
    draw, tolerance = np.random.default_rng(2), 0.02
    needed = int(examples_to_count(np.array([tolerance]), np.array([2 * best_alone]), level)[0])
    test = PairedTest(needed, tolerance, "absolute", level / 100)
    counts = draw.multinomial(needed, [best_alone, best_alone, 1 - 2 * best_alone], size=200)[:, :2]
    assert 0.4 < np.mean([test.p_value(*own) <= level for own in counts]) < 0.9
    examples, excesses = 1000, np.geomspace(1e-4, 1.0, 1_000)
    needed = examples_to_count(excesses, 2 * best_alone + tolerance + excesses, level)
    excess = float(excesses[np.argmax(needed <= examples)])
    worse = best_alone + tolerance + excess
    counts = draw.multinomial(examples, [worse, best_alone, 1 - worse - best_alone], size=200)[:, :2]
    kept = PairedTest(examples, -tolerance, "absolute", 1e-7)
    assert 0.4 < np.mean([kept.p_value(*own[::-1]) <= level for own in counts]) < 0.9
