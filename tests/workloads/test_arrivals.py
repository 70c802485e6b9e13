"""Poisson arrivals: their distribution, and what a seed promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slotool.errors import InputError
from slotool.workloads import Poisson
from tests.workloads.arrival_conformance import ArrivalConformance


class TestPoisson(ArrivalConformance):
    make = staticmethod(Poisson)


def test_gaps_are_exponential_and_independent() -> None:
    gaps_s = np.diff(Poisson(200).times(100, seed=11), prepend=0.0)
    assert stats.kstest(gaps_s, "expon", args=(0, 1 / 200)).pvalue > 0.01
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 4 / np.sqrt(len(gaps_s))


def test_counts_are_poisson_over_seeds() -> None:
    counts = np.array([len(Poisson(50).times(2.0, seed=seed)) for seed in range(400)])
    assert abs(counts.mean() - 100) < 4 * np.sqrt(100 / 400)
    assert 0.75 < counts.var() / 100 < 1.3, "a Poisson count's variance is its mean"


@given(rate=st.floats(0.5, 500), short=st.floats(0.01, 3), more=st.floats(0.0, 5), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_longer_run_continues_the_shorter_one(rate: float, short: float, more: float, seed: int) -> None:
    first, longer = (Poisson(rate).times(duration, seed) for duration in (short, short + more))
    shared = longer[longer < short]
    assert len(first) == len(shared)
    assert np.allclose(first, shared, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(InputError, match="is not a positive, finite rate"):
        Poisson(rate)


@pytest.mark.parametrize(("duration", "sentence"), [(0.0, "not a positive"), (1e9, "are more than 5,000,000")])
def test_a_run_is_bounded(duration: float, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Poisson(100).times(duration, seed=0)
