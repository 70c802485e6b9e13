"""The timer against a clock that is set to how long everything takes."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.timing.interference import Interference
from slotool.timing.timer import (
    MAX_REPEATS,
    MeasurementHooks,
    StoppingRule,
    block_size,
    clock_overhead,
    is_stable,
    measure,
)

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
    timed = measure(call, StoppingRule(), clock)
    assert timed.first_call_s == pytest.approx(3.0, rel=1e-3)
    np.testing.assert_allclose(timed.samples_s, 0.01, rtol=1e-3)


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
    timed = measure(call_taking(clock, [], [0.01, 0.02]), StoppingRule(max_seconds=1.0), clock)
    assert 50 <= len(timed.samples_s) < 100
    assert 1.0 < clock.now - started < 1.7
    assert not is_stable(timed.samples_s, 0.01)


def test_sampling_stops_as_soon_as_the_median_is_sure() -> None:
    clock = FakeClock()
    # One call in eight is slow: the median's interval excludes it once there are some samples.
    timed = measure(call_taking(clock, [], [0.02, *[0.01] * 7]), StoppingRule(max_seconds=100.0), clock)
    assert 20 <= len(timed.samples_s) < 60
    assert is_stable(timed.samples_s, 0.01)


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
    timed = measure(call_taking(clock, [], [2e-6]), StoppingRule(), clock)
    assert clock_overhead(clock) == pytest.approx(TICK_S)
    assert timed.calls_per_sample > 1
    np.testing.assert_allclose(timed.samples_s, 2e-6, rtol=0.002)


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


def test_interrupted_samples_are_measured_again() -> None:
    clock, lost = FakeClock(), iter([0.0, 0.5, 0.0, 0.0, 0.5] + [0.0] * 100)
    timed = measure(
        call_taking(clock, [], [0.01]), StoppingRule(runs=20), clock, MeasurementHooks(lost=lambda: next(lost))
    )
    assert (len(timed.samples_s), timed.discarded, timed.interrupted) == (20, 2, False)


def test_a_machine_that_is_never_quiet_is_taken_as_it_is_and_said() -> None:
    clock = FakeClock()
    timed = measure(call_taking(clock, [], [0.01]), StoppingRule(runs=20), clock, MeasurementHooks(lost=lambda: 1.0))
    assert timed.interrupted
    assert timed.discarded == 0
    assert 20 < len(timed.samples_s) <= MAX_REPEATS * 20 + 1


def test_a_device_is_waited_for_once_per_sample_and_its_own_clock_is_kept() -> None:
    clock, waits = FakeClock(), []

    class Halved:
        def start(self) -> None:
            self.began = clock.now

        def stop(self) -> None:
            waits.append("stop")

        def seconds(self) -> float:
            return (clock.now - self.began) / 2

    def wait() -> None:
        waits.append("wait")
        clock.now += 1e-3

    hooks = MeasurementHooks(wait=wait, stopwatch=Halved())
    timed = measure(call_taking(clock, [], [1e-6]), StoppingRule(runs=20), clock, hooks)
    assert timed.device_samples_s is not None
    np.testing.assert_allclose(timed.device_samples_s, timed.samples_s / 2, rtol=0.01)
    assert len(waits) >= 22


STOPPED_S = 2.0


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def sleep(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("does", [spin, sleep])
def test_a_sample_during_which_the_process_was_stopped_is_measured_again(does: Callable[[float], None]) -> None:
    """By SIGSTOP, which no counter of the system's tells; also where the call itself waits, as for a device."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=measure_and_stop_once, args=(does, results))
    child.start()
    stopped, status = os.waitpid(child.pid, os.WUNTRACED)
    assert (stopped, os.WIFSTOPPED(status)) == (child.pid, True)
    time.sleep(STOPPED_S)
    os.kill(child.pid, signal.SIGCONT)
    longest_s, discarded, interrupted = results.get(timeout=60)
    os.waitpid(child.pid, 0)
    # A machine that is never quiet is taken as it is, and the result states so.
    assert interrupted or (longest_s < STOPPED_S and discarded >= 1)


def measure_and_stop_once(does: Callable[[float], None], results: Any) -> None:
    calls = itertools.count()

    def call() -> None:
        does(0.005)
        if next(calls) == 30:
            os.kill(os.getpid(), signal.SIGSTOP)

    idle_s = Interference(sorted(os.sched_getaffinity(0))).idle_s
    measured = measure(call, StoppingRule(runs=60, max_seconds=0.0), hooks=MeasurementHooks(idle=idle_s))
    results.put((float(measured.samples_s.max()), measured.discarded, measured.interrupted))


def test_what_a_call_waits_by_nature_is_kept() -> None:
    """Idle times that belong to the call vary too: only one far beyond the usual is a stop."""
    clock, idle = FakeClock(), [0.001, 0.002, 0.004, 0.003] * 10
    answers = iter(pair for value in idle for pair in (0.0, value))
    rule = StoppingRule(runs=20, precision=1.0, max_samples=20)
    timed = measure(call_taking(clock, [], [0.01]), rule, clock, MeasurementHooks(idle=lambda: next(answers)))
    assert (timed.discarded, timed.interrupted, len(timed.samples_s)) == (0, False, 20)
