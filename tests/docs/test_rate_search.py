"""The search for the greatest rate that keeps a tail latency."""

from __future__ import annotations

import pytest

from benchmarks.rate_search import GROWTH, greatest_rate

BOUND_S = 0.025


@pytest.mark.parametrize("first_per_s", [200.0, 950.0, 1_000.0, 4_000.0])
def test_the_greatest_rate_is_found_from_above_and_below(first_per_s: float) -> None:
    tried = []

    def tail_s(rate_per_s: float) -> float:
        tried.append(rate_per_s)
        return 0.01 if rate_per_s <= 1_000 else 0.5

    found = greatest_rate(tail_s, first_per_s, BOUND_S)
    assert 1_000 / 1.06 <= found <= 1_000
    # Twice is enough where both tries agree.
    assert all(tried.count(rate) == 2 for rate in tried)


def test_one_stall_of_three_tries_is_forgiven_and_two_are_not() -> None:
    tries: dict[float, int] = {}

    def stalls(stalled: set[int]):
        def tail_s(rate_per_s: float) -> float:
            tries[rate_per_s] = tries.get(rate_per_s, 0) + 1
            if rate_per_s == 500.0 and tries[rate_per_s] in stalled:
                return float("inf")
            return 0.01 if rate_per_s <= 600.0 else float("inf")

        return tail_s

    assert greatest_rate(stalls({1}), 500.0, BOUND_S) > 500.0
    assert tries[500.0] == 3
    tries.clear()
    assert greatest_rate(stalls({1, 3}), 500.0, BOUND_S) < 500.0


def test_a_server_that_never_keeps_the_bound_has_no_rate() -> None:
    rates: list[float] = []

    def tail_s(rate_per_s: float) -> float:
        rates.append(rate_per_s)
        return 1.0

    assert greatest_rate(tail_s, 100.0, BOUND_S) == 0.0
    assert rates[2] == pytest.approx(rates[0] / GROWTH)
