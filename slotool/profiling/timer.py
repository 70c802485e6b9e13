"""Timing one call: first call apart, warm-up, blocks long enough for the clock, samples until the median is sure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from slotool.machine import collector_off
from slotool.tables.statistics import median_interval

Call = Callable[[], object]
Clock = Callable[[], float]

# A sample lasts at least this many times what reading the clock takes, so the clock's share stays under 0.1 %.
CLOCK_READS_PER_SAMPLE = 1000
WARM_UP_CALLS = 3
WARM_UP_SECONDS = 0.01


@dataclass(frozen=True)
class StoppingRule:
    """When a measurement is good enough.

    ``runs``: fewest samples, taken however long they last (the paper's labels are medians of 20 runs). After them,
    sampling goes on until the 95 % interval of the median lies within ± ``precision`` of it, or ``max_seconds`` of
    sampling or ``max_samples`` are spent.
    """

    runs: int = 20
    precision: float = 0.01
    max_seconds: float = 0.5
    max_samples: int = 1000


@dataclass(frozen=True)
class Measurement:
    """``samples_s``: float64 [n], seconds per call, each the mean over a block of ``calls_per_sample`` calls."""

    first_call_s: float
    samples_s: np.ndarray
    calls_per_sample: int


def measure(call: Call, rule: StoppingRule, clock: Clock = time.perf_counter) -> Measurement:
    """Time ``call``; the collector is off meanwhile. ``clock`` returns seconds. What ``call`` raises goes through."""
    with collector_off():
        first_call_s = _block(call, 1, clock)
        calls = block_size(_warm_up(call, clock), clock_overhead(clock))
        return Measurement(first_call_s, _sample(call, calls, rule, clock), calls)


def is_stable(samples_s: np.ndarray, precision: float) -> bool:
    """Whether the 95 % interval of the median lies within ± ``precision`` (a fraction) of the median."""
    median = float(np.median(samples_s))
    low, high = median_interval(samples_s)
    return median - low <= precision * median and high - median <= precision * median


def clock_overhead(clock: Clock) -> float:
    """Seconds that reading the clock adds to an interval: the median of 31 empty intervals."""
    empty = sorted(-clock() + clock() for _ in range(31))
    return empty[15]


def block_size(call_s: float, overhead_s: float) -> int:
    """Calls per sample, so that reading the clock costs less than 0.1 % of it."""
    return max(1, math.ceil(CLOCK_READS_PER_SAMPLE * overhead_s / max(call_s, 1e-9)))


def _warm_up(call: Call, clock: Clock) -> float:
    """Call until caches and thread pools have settled; returns seconds of the quickest call."""
    started, quickest, calls = clock(), math.inf, 0
    while calls < WARM_UP_CALLS or clock() - started < WARM_UP_SECONDS:
        quickest = min(quickest, _block(call, 1, clock))
        calls += 1
    return quickest


def _sample(call: Call, calls: int, rule: StoppingRule, clock: Clock) -> np.ndarray:
    samples: list[float] = []
    started, next_check = clock(), rule.runs
    while True:
        samples.append(_block(call, calls, clock) / calls)
        if len(samples) < next_check:
            continue
        spent = clock() - started >= rule.max_seconds or len(samples) >= rule.max_samples
        if spent or is_stable(np.asarray(samples), rule.precision):
            return np.asarray(samples)
        next_check = min(len(samples) + max(1, len(samples) // 5), max(rule.max_samples, rule.runs))


def _block(call: Call, calls: int, clock: Clock) -> float:
    started = clock()
    for _ in repeat(None, calls):
        call()
    return clock() - started
