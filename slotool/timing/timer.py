"""Timer of one call: first call, warm-up, then samples of several calls until the median is precise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Protocol

import numpy as np

from slotool.process import collector_off
from slotool.tables.rounds import median_interval

Call = Callable[[], object]
Clock = Callable[[], float]

# Minimum length of a sample, in readings of the clock: they then take less than 0.1 % of it.
CLOCK_READS_PER_SAMPLE = 1000
WARM_UP_CALLS = 1
WARM_UP_SECONDS = 0.01
# A device is warm when the medians of two successive pieces of time differ by less than this share.
RAMP_UP_PIECE_S = 0.05
RAMP_UP_CALLS = 3
SETTLED = 0.01
# A sample of which other processes took more than this share is measured again.
MAX_LOST = 0.01
# A sample is also measured again if its process was stopped. Signs are idle time of so many times the usual, of more
# than this share of the sample, and longer than programs wait for their own threads.
STOP_TO_USUAL = 10.0
STOP_SHARE = 0.05
MIN_STOP_S = 1e-3
# Limit of repeated samples, in multiples of ``runs``; beyond it interrupted samples are kept.
MAX_REPEATS = 2


@dataclass(frozen=True)
class StoppingRule:
    """Conditions under which a measurement is precise enough.

    ``runs``: minimum number of samples, however long they take (the paper's labels are medians of 20 runs). Sampling
    continues until the 95 % interval of the median lies within ± ``precision`` of it, or ``max_seconds`` of sampling or
    ``max_samples`` are spent. ``single``: a sample is one call, however short. Deadlines are
    kept or missed by single calls, and the mean of a block hides slow ones.
    """

    runs: int = 20
    precision: float = 0.01
    max_seconds: float = 0.5
    max_samples: int = 1000
    single: bool = False


class Stopwatch(Protocol):
    """Clock of a device.

    ``start`` and ``stop`` enqueue a time stamp and return at once; ``seconds`` waits for both and returns their
    difference.
    """

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def seconds(self) -> float: ...


def _nothing() -> None:
    return None


def _none_lost() -> float:
    return 0.0


@dataclass(frozen=True)
class MeasurementHooks:
    """Functions called around a timed call; the defaults suit a CPU without other processes.

    ``begin`` is called once, when the call is warm. ``lost``: seconds that other processes took since its last call
    (``Interference``). ``idle``: seconds since its last call without a running or runnable thread of this process.
    ``wait`` returns when the device is done. It is timed once per sample, so that calls in a sample may overlap on the
    device, as they do in use. ``stopwatch``: the device's own clock, stopped before the host waits. ``ramp_up_s``:
    longest time in seconds of calls before the first sample, until their durations settle. ``single``: a sample is one
    call, after an untimed one. Asynchronous calls in a block would overlap, and look faster than one alone.
    """

    begin: Callable[[], None] = _nothing
    lost: Callable[[], float] = _none_lost
    idle: Callable[[], float] = _none_lost
    wait: Callable[[], None] = _nothing
    stopwatch: Stopwatch | None = None
    ramp_up_s: float = 0.0
    single: bool = False


@dataclass(frozen=True)
class Measurement:
    """``samples_s``: float64 [n], seconds per call, each the mean over a block of ``calls_per_sample`` calls.

    ``discarded``: number of samples that were measured again because other processes interrupted them. ``interrupted``:
    too many were, so they count too, without the seconds that other processes took.
    ``device_samples_s`` are the same samples by the device's own clock. ``settled``: durations no longer changed before
    the first sample.
    """

    first_call_s: float
    samples_s: np.ndarray
    calls_per_sample: int
    discarded: int = 0
    interrupted: bool = False
    device_samples_s: np.ndarray | None = None
    settled: bool = True


def measure(
    call: Call, rule: StoppingRule, clock: Clock = time.perf_counter, hooks: MeasurementHooks | None = None
) -> Measurement:
    """Time ``call``, without garbage collection. ``clock`` returns seconds. Exceptions of ``call`` are not caught."""
    hooks = hooks or MeasurementHooks()
    # The first check of precision imports SciPy, which takes 0.25 s: not in the time of the first subject.
    is_stable(np.ones(6), 0.01)
    with collector_off():
        first_call_s = _block(call, 1, clock, hooks.wait)
        quickest_s = _warm_up(call, clock, hooks.wait)
        settled = _ramped_up(call, clock, hooks)
        calls = 1 if hooks.single or rule.single else block_size(quickest_s, clock_overhead(clock))
        return replace(_Sampler(call, calls, rule, clock, hooks).run(first_call_s), settled=settled)


def is_stable(samples_s: np.ndarray, precision: float) -> bool:
    """True if the 95 % interval of the median lies within ± ``precision`` (a fraction) of the median."""
    median = float(np.median(samples_s))
    low, high = median_interval(samples_s)
    return median - low <= precision * median and high - median <= precision * median


def stops(idle_s: np.ndarray, lasted_s: np.ndarray, least_s: float = MIN_STOP_S) -> np.ndarray:
    """Return a mask of the time intervals during which the process was stopped, bool [n].

    Args:
        idle_s: Seconds of each interval without a running or runnable thread.
        lasted_s: Length of each interval, seconds. Regular waits, as for a device, occur in all of them.
        least_s: Shortest time that counts as a stop, seconds.
    """
    usual_s = float(np.median(idle_s)) if len(idle_s) else 0.0
    return idle_s > np.maximum(max(STOP_TO_USUAL * usual_s, least_s), STOP_SHARE * lasted_s)


def check_counts(runs: int, max_samples: int) -> Iterator[int]:
    """Yield the sample counts at which to check precision: ``runs``, a fifth more each time, last ``max_samples``."""
    count = runs
    while count < max_samples:
        yield count
        count += max(1, count // 5)
    yield max(runs, max_samples)


def clock_overhead(clock: Clock) -> float:
    """Return the seconds that reading the clock adds to an interval: the median of 31 empty intervals."""
    empty = sorted(-clock() + clock() for _ in range(31))
    return empty[15]


def block_size(call_s: float, overhead_s: float) -> int:
    """Return the calls per sample, so that reading the clock costs less than 0.1 % of it."""
    return max(1, math.ceil(CLOCK_READS_PER_SAMPLE * overhead_s / max(call_s, 1e-9)))


def _warm_up(call: Call, clock: Clock, wait: Callable[[], None]) -> float:
    """Call until caches and thread pools have settled; return the seconds of the quickest call."""
    started, quickest, calls = clock(), math.inf, 0
    while calls < WARM_UP_CALLS or clock() - started < WARM_UP_SECONDS:
        quickest = min(quickest, _block(call, 1, clock, wait))
        calls += 1
    return quickest


def _ramped_up(call: Call, clock: Clock, hooks: MeasurementHooks) -> bool:
    """Call until durations settle, and so the device's clock, at most ``ramp_up_s``; return True if they settled."""
    if not hooks.ramp_up_s:
        return True
    started, last_s = clock(), math.inf
    while True:
        begun = clock()
        blocks_s: list[float] = []
        while len(blocks_s) < RAMP_UP_CALLS or clock() - begun < RAMP_UP_PIECE_S:
            blocks_s.append(_block(call, 1, clock, hooks.wait))
        median_s = float(np.median(blocks_s))
        if abs(median_s - last_s) <= SETTLED * median_s:
            return True
        if clock() - started >= hooks.ramp_up_s:
            return False
        last_s = median_s


@dataclass(frozen=True)
class _Sample:
    """Block of calls: seconds by both clocks, idle seconds, and seconds taken by other processes."""

    seconds: float
    device_s: float
    idle_s: float
    lost_s: float

    @property
    def undisturbed_s(self) -> float:
        """Seconds without those that other processes took, where these are known."""
        return self.seconds - self.lost_s if MAX_LOST * self.seconds < self.lost_s < self.seconds else self.seconds


class _Sampler:
    """Sampler that sets interrupted samples apart, and stops when there are enough."""

    def __init__(self, call: Call, calls: int, rule: StoppingRule, clock: Clock, hooks: MeasurementHooks):
        self._call, self._calls, self._rule, self._clock, self._hooks = call, calls, rule, clock, hooks
        self._clean: list[_Sample] = []
        self._interrupted: list[_Sample] = []

    def run(self, first_call_s: float) -> Measurement:
        started, checks = self._clock(), check_counts(self._rule.runs, self._rule.max_samples)
        self._hooks.begin()
        next_check = next(checks)
        while not self._is_hopeless():
            self._take_one()
            if len(self._clean) < next_check or self._some_were_stopped():
                continue
            if self._is_enough(self._clock() - started):
                break
            next_check = next(checks)
        return self._measurement(first_call_s)

    def _take_one(self) -> None:
        hooks = self._hooks
        if hooks.single:
            # Since the last sample, checks have filled the caches and the device was idle. Without this call, 40 us
            # become more than 100.
            _block(self._call, 1, self._clock, hooks.wait)
        hooks.idle()
        seconds = _block(self._call, self._calls, self._clock, hooks.wait, hooks.stopwatch)
        device_s = hooks.stopwatch.seconds() if hooks.stopwatch is not None else math.nan
        sample = _Sample(seconds, device_s, hooks.idle(), hooks.lost())
        interrupted = sample.lost_s > MAX_LOST * seconds
        (self._interrupted if interrupted else self._clean).append(sample)

    def _some_were_stopped(self) -> bool:
        """Set aside samples during which the process was stopped; return True if there were any."""
        idle_s, lasted_s = (np.array([getattr(s, name) for s in self._clean]) for name in ("idle_s", "seconds"))
        stopped = [s for s, was in zip(self._clean, stops(idle_s, lasted_s), strict=True) if was]
        self._clean = [sample for sample in self._clean if sample not in stopped]
        self._interrupted += stopped
        return bool(stopped)

    def _is_hopeless(self) -> bool:
        return len(self._interrupted) > MAX_REPEATS * self._rule.runs + len(self._clean)

    def _is_enough(self, spent_s: float) -> bool:
        rule, samples_s = self._rule, np.array([sample.seconds for sample in self._clean])
        spent = spent_s >= rule.max_seconds or len(samples_s) >= rule.max_samples
        return spent or is_stable(samples_s, rule.precision)

    def _measurement(self, first_call_s: float) -> Measurement:
        interrupted = len(self._clean) < self._rule.runs
        samples = [*self._clean, *self._interrupted] if interrupted else self._clean
        samples_s = np.array([sample.undisturbed_s for sample in samples]) / self._calls
        device_s = np.array([sample.device_s for sample in samples]) / self._calls
        device_samples_s = device_s if self._hooks.stopwatch is not None else None
        discarded = 0 if interrupted else len(self._interrupted)
        return Measurement(first_call_s, samples_s, self._calls, discarded, interrupted, device_samples_s)


def _block(call: Call, calls: int, clock: Clock, wait: Callable[[], None], stopwatch: Stopwatch | None = None) -> float:
    if stopwatch is not None:
        stopwatch.start()
    started = clock()
    for _ in repeat(None, calls):
        call()
    if stopwatch is not None:
        # Before the host waits, since its time to wake up is not the device's.
        stopwatch.stop()
    wait()
    return clock() - started
