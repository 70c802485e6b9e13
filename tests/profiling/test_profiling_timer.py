"""The timer against a clock that is set to how long everything takes."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.timing.timer import StoppingRule, block_size, clock_overhead, is_stable, measure

TICK_S = 1e-7


class FakeClock:
    """Each reading costs a tick; ``advance`` is what the timed call does."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now


def call_taking(clock: FakeClock, durations: list[float], then: list[float]):
    """A call whose first durations are given, and which then cycles through others."""
    count = 0

    def call() -> None:
        nonlocal count
        clock.now += durations[count] if count < len(durations) else then[(count - len(durations)) % len(then)]
        count += 1

    return call


def test_the_first_call_is_apart_and_warm_up_is_not_sampled() -> None:
    clock = FakeClock()
    call = call_taking(clock, [3.0, 0.5], [0.01])
    found = measure(call, StoppingRule(), clock)
    assert found.first_call_s == pytest.approx(3.0, rel=1e-3)
    np.testing.assert_allclose(found.samples_s, 0.01, rtol=1e-3)


def test_nothing_is_imported_while_samples_are_taken() -> None:
    """In a fresh process, as a worker is: an import within the sampling costs the first subject its samples."""
    script = (
        "import sys\n"
        "from slotool.timing.timer import StoppingRule, measure\n"
        "loaded = []\n"
        "measure(lambda: loaded.append(len(sys.modules)), StoppingRule(runs=30))\n"
        "assert len(loaded) > 30\n"
        "assert loaded[0] == len(sys.modules), sorted(sys.modules)[-20:]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_steady_call_takes_exactly_the_runs_asked_for() -> None:
    clock = FakeClock()
    assert len(measure(call_taking(clock, [], [0.01]), StoppingRule(runs=20), clock).samples_s) == 20
    assert len(measure(call_taking(clock, [], [0.01]), StoppingRule(runs=33), clock).samples_s) == 33


def test_an_unsteady_call_is_sampled_until_the_time_is_up() -> None:
    clock = FakeClock()
    started = clock.now
    found = measure(call_taking(clock, [], [0.01, 0.02]), StoppingRule(max_seconds=1.0), clock)
    assert 50 <= len(found.samples_s) < 100
    assert 1.0 < clock.now - started < 1.7
    assert not is_stable(found.samples_s, 0.01)


def test_sampling_stops_as_soon_as_the_median_is_sure() -> None:
    clock = FakeClock()
    # One call in eight is slow: the median's interval excludes it once there are some samples.
    found = measure(call_taking(clock, [], [0.02, *[0.01] * 7]), StoppingRule(max_seconds=100.0), clock)
    assert 20 <= len(found.samples_s) < 60
    assert is_stable(found.samples_s, 0.01)


def test_a_slow_call_still_gets_its_runs_and_no_call_more_than_the_cap() -> None:
    clock = FakeClock()
    assert len(measure(call_taking(clock, [], [5.0, 9.0]), StoppingRule(max_seconds=0.1), clock).samples_s) == 20
    unsure = StoppingRule(max_seconds=1e9, max_samples=100)
    assert len(measure(call_taking(clock, [], [0.01, 0.02]), unsure, clock).samples_s) == 100


@given(st.floats(1e-7, 1.0), st.floats(1e-9, 1e-5))
def test_reading_the_clock_stays_under_a_thousandth_of_a_sample(call_s: float, overhead_s: float) -> None:
    calls = block_size(call_s, overhead_s)
    assert overhead_s <= 0.001 * calls * call_s * (1 + 1e-9)
    assert calls == 1 or overhead_s > 0.001 * (calls - 1) * call_s * (1 - 1e-9)


def test_samples_are_per_call_whatever_the_block() -> None:
    clock = FakeClock()
    found = measure(call_taking(clock, [], [2e-6]), StoppingRule(), clock)
    assert clock_overhead(clock) == pytest.approx(TICK_S)
    assert found.calls_per_sample > 1
    np.testing.assert_allclose(found.samples_s, 2e-6, rtol=0.002)


def test_the_collector_is_off_while_timing_and_back_after_a_failure() -> None:
    seen = []

    def call() -> None:
        seen.append(gc.isenabled())
        if len(seen) == 5:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        measure(call, StoppingRule())
    assert seen == [False] * 5
    assert gc.isenabled()
