"""Timer of several calls in turns, with disturbed samples repeated, and verdicts that must hold in every round."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slotool.machine import usable_cores
from slotool.process import collector_off, cores_by_preference, torch_threads
from slotool.tables import OutcomeTable
from slotool.tables.outcomes import DISTURBED, SAMPLES
from slotool.tables.rounds import median_interval
from slotool.timing.interference import AGREEMENT, NOT_DECIDED, Interference, state
from slotool.timing.timer import MAX_LOST, MAX_REPEATS, Clock

# Queries that all variants answer before the next ones come.
BLOCK = 100
# For a longer call, refilling the caches hardly counts, and a block of such calls takes so long that the machine
# changes meanwhile.
SHORT_CALL_S = 1e-3
# Interference is read after calls of so many seconds: less than a time slice of the system, so that some pieces stay
# undisturbed on a busy machine, and a hundred times what reading takes.
PIECE_S = 1e-3
# Undisturbed pieces that a variant is taken to have at the start, when repetitions are limited by them.
MIN_PIECES = 10
# Calls of each variant before the first sample, and the seconds after which there are enough of them.
WARM_UP_CALLS, WARM_UP_S = 20, 0.2
# Number of parts of the queries that count as rounds if each query is timed once.
ROUNDS = 5
# Maximum share of disturbed samples of a stable variant, whose rounds also agree.
MAX_DISTURBED = 0.25
# A warning is given if the mean of all samples is more than so many times that of the undisturbed ones.
MEANS_AGREE = 1.1


# Arguments by variant and query, of a block of queries.
Arguments = Callable[[range], Sequence[Sequence[tuple[Any, ...]]]]


@dataclass(frozen=True)
class Watch:
    """Clock of a measurement, seconds, and its interference.

    ``lost``: seconds that other processes took since its last call. ``begin``: called when the calls are warm and their
    thread pools exist.
    """

    clock: Clock
    lost: Callable[[], float]
    begin: Callable[[], None] = lambda: None

    @staticmethod
    @contextmanager
    def opened() -> Iterator[Watch]:
        """Watch of this process."""
        with Interference(cores_by_preference(), oversubscribed=torch_threads() > usable_cores()) as interference:
            yield Watch(time.perf_counter, interference, interference.look_again)


@dataclass(frozen=True)
class Saving:
    """Share of one call's time that another saves: median, least and most of the rounds.

    ``undisturbed``: both calls have enough undisturbed samples.
    """

    share: float
    least: float
    most: float
    undisturbed: bool

    def reaches(self, share: float) -> bool | None:
        """True if at least ``share`` is saved in every round, False if in none; None: not decided."""
        if not self.undisturbed or self.least < share <= self.most:
            return None
        return self.least >= share

    @property
    def doubt(self) -> str:
        """Reason why a verdict cannot be given."""
        between = f"not decided: between {self.least:.1%} and {self.most:.1%} are saved"
        return between if self.undisturbed else NOT_DECIDED


@dataclass(frozen=True, eq=False)
class Turns:
    """Seconds of each call: ``samples_s`` float64 [variants, queries, repeats], ``disturbed`` bool of that shape."""

    samples_s: np.ndarray
    disturbed: np.ndarray

    @classmethod
    def of_outcomes(cls, outcomes: OutcomeTable) -> Turns | None:
        """Timed calls of an outcome table, its versions as variants; None for a table without them."""
        return None if outcomes.samples is None else cls(*outcomes.samples)

    @cached_property
    def undisturbed_s(self) -> np.ndarray:
        """``samples_s`` with NaN for disturbed ones, except for variants that have no others."""
        hidden = self.disturbed & ~self.disturbed.all(axis=(1, 2), keepdims=True)
        return np.where(hidden, np.nan, self.samples_s)

    @cached_property
    def latency_s(self) -> np.ndarray:
        """Median of the undisturbed repeats, seconds, float64 [variants, queries].

        If all repeats are disturbed: the shortest, or the variant's undisturbed mean if that is less, because
        disturbances only add time.
        """
        none = np.all(self.disturbed, axis=2, keepdims=True)
        medians = np.nanmedian(np.where(self.disturbed & ~none, np.nan, self.samples_s), axis=2)
        elsewhere = np.where(self.disturbed.all(axis=(1, 2)), np.inf, self.means_s)
        return np.where(none[:, :, 0], np.minimum(self.samples_s.min(axis=2), elsewhere[:, None]), medians)

    @cached_property
    def medians_s(self) -> np.ndarray:
        """Median of the undisturbed samples, seconds, float64 [variants]."""
        return np.asarray(np.nanmedian(self.undisturbed_s, axis=(1, 2)))

    @cached_property
    def means_s(self) -> np.ndarray:
        """Mean of the undisturbed samples, seconds, float64 [variants]."""
        return np.asarray(np.nanmean(self.undisturbed_s, axis=(1, 2)))

    @cached_property
    def _rounds(self) -> list[list[np.ndarray]]:
        """Undisturbed samples by variant and round."""
        _, queries, repeats = self.samples_s.shape
        if repeats > 1:
            parts = [self.undisturbed_s[:, :, r] for r in range(repeats)]
        else:
            parts = [part[:, :, 0] for part in np.array_split(self.undisturbed_s, min(ROUNDS, queries), axis=1)]
        return [[row[~np.isnan(row)] for row in rows] for rows in zip(*parts, strict=True)]

    @cached_property
    def undisturbed(self) -> np.ndarray:
        """Mask of variants with enough undisturbed samples, bool [variants]."""
        return np.asarray(self.disturbed.mean(axis=(1, 2)) <= MAX_DISTURBED)

    @cached_property
    def stable(self) -> np.ndarray:
        """Mask of variants with enough undisturbed samples and rounds that agree, bool [variants]."""
        return self.undisturbed & [agree(rounds) for rounds in self._rounds]

    @property
    def document(self) -> dict[str, Any]:
        """``state``, "stable" or "disturbed"; shares of disturbed samples, and of variants whose rounds differ."""
        differ = 1.0 - float(np.mean([agree(rounds) for rounds in self._rounds]))
        summary = {"state": state(bool(self.stable.all()))}
        return {**summary, "disturbed": float(self.disturbed.mean()), "differ": differ}

    def saving(self, whole: int, part: int) -> Saving:
        """Return the saving of variant ``part`` over variant ``whole``."""
        rounds = [(w, p) for w, p in zip(self._rounds[whole], self._rounds[part], strict=True) if len(w) and len(p)]
        shares = [1 - float(np.median(p) / np.median(w)) for w, p in rounds]
        shares.append(1 - float(self.medians_s[part] / self.medians_s[whole]))
        return Saving(shares[-1], min(shares), max(shares), bool(self.undisturbed[[whole, part]].all()))

    def is_decided(self, one: int, other: int) -> bool:
        """True if the order of two variants is known: both are stable, or one is the quicker in every round."""
        return bool(self.stable[[one, other]].all()) or self.saving(one, other).reaches(0.0) is not None

    @property
    def disagreements(self) -> dict[int, tuple[float, float]]:
        """Mean without and with disturbed samples, seconds, by variant, for variants in which they disagree."""
        means = zip(self.means_s.tolist(), self.samples_s.mean(axis=(1, 2)).tolist(), strict=True)
        return {at: pair for at, pair in enumerate(means) if pair[1] > MEANS_AGREE * pair[0]}


def plausible(take: Callable[[], Turns], parts: Iterable[tuple[int, int]]) -> Turns:
    """Return what ``take`` measures, again while a part takes longer than its whole; ``parts``: pairs of variants."""
    for _ in range(MAX_REPEATS):
        turns = take()
        if all(turns.saving(whole, part).most >= -AGREEMENT for part, whole in parts):
            return turns
    return take()


def timing_columns(turns: Turns, variant: int) -> dict[str, Any]:
    """Return the columns of an outcome table for one version: the latency of each example, and its timed calls."""
    samples = list(turns.samples_s[variant]), list(turns.disturbed[variant])
    return {"latency_s": turns.latency_s[variant], **dict(zip((SAMPLES, DISTURBED), samples, strict=True))}


def in_turns(
    calls: Sequence[Callable[..., Any]],
    arguments: Arguments,
    queries: int,
    *,
    repeats: int = 1,
    received: Callable[[int, int, Any], None] = lambda variant, query, result: None,
    progress: Callable[[], None] = lambda: None,
    max_seconds: float = float("inf"),
) -> Turns:
    """Time ``calls`` in turns on each query, without garbage collection.

    A block of queries is passed ``repeats`` times, so that no call finds its own data in the caches. Variants of short
    calls take turns by block, because refilling the caches after another variant would slow a call of microseconds.
    Variants of long calls take turns by query, so that a slow second of the machine affects all alike.

    Args:
        calls: The variants.
        arguments: Arguments of the calls by variant, for each query of a block; prepared before the block is timed.
        queries: Number of queries.
        repeats: Timed calls per query and variant.
        received: Called with variant, query and result after each call, and again for repeated samples.
        progress: Called per query.
        max_seconds: Time after which no block is begun, unless fewer than ``ROUNDS`` queries were timed.

    Returns:
        The samples of all queries that were timed. Exceptions of calls are not caught.
    """
    with Watch.opened() as watch, collector_off():
        quickest_s = [_warm_up(call, of[0], watch.clock) for call, of in zip(calls, arguments(range(1)), strict=True)]
        watch.begin()
        return _Sampling(calls, watch, quickest_s, received).run(arguments, queries, repeats, progress, max_seconds)


class _Sampling:
    """Sampling piece by piece, with disturbed pieces repeated."""

    def __init__(
        self,
        calls: Sequence[Callable[..., Any]],
        watch: Watch,
        quickest_s: Sequence[float],
        received: Callable[[int, int, Any], None],
    ):
        self._calls, self._watch, self._quickest_s, self._received = calls, watch, quickest_s, received
        # Undisturbed and repeated pieces, by their first variant.
        self._clean, self._again = Counter[int](), Counter[int]()

    def run(
        self, arguments: Arguments, queries: int, repeats: int, progress: Callable[[], None], max_seconds: float
    ) -> Turns:
        shape = (len(self._calls), queries, repeats)
        samples_s, disturbed = np.empty(shape), np.zeros(shape, dtype=bool)
        began, start = self._watch.clock(), 0
        size = max(1, int(min(BLOCK, max_seconds / ROUNDS / (repeats * sum(self._quickest_s) + 1e-9))))
        while start < queries and (start < ROUNDS or self._watch.clock() - began < max_seconds):
            block = range(start, min(queries, start + size))
            self._arguments, self._start = arguments(block), start
            for repeat, turn in itertools.product(range(repeats), self._turns()):
                for piece in self._cut(itertools.product(block, turn)):
                    seconds, was_disturbed = self._piece(piece)
                    variants, at = np.transpose([(p, i) for i, p in piece])
                    samples_s[variants, at, repeat], disturbed[variants, at, repeat] = seconds, was_disturbed
            for _ in block:
                progress()
            start = block.stop
        return Turns(samples_s[:, :start], disturbed[:, :start])

    def _turns(self) -> list[list[int]]:
        """Return groups of variants that process a block together."""
        short = [p for p, seconds in enumerate(self._quickest_s) if seconds < SHORT_CALL_S]
        long = [p for p in range(len(self._calls)) if p not in short]
        return [[p] for p in short] + ([long] if long else [])

    def _cut(self, steps: Iterator[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Yield pairs of query and variant in pieces of about ``PIECE_S``."""
        piece, expected_s = list[tuple[int, int]](), 0.0
        for step in steps:
            piece.append(step)
            expected_s += self._quickest_s[step[1]]
            if expected_s >= PIECE_S:
                yield piece
                piece, expected_s = [], 0.0
        if piece:
            yield piece

    def _piece(self, piece: Sequence[tuple[int, int]]) -> tuple[list[float], bool]:
        """Return the seconds of each call, and True if they were disturbed in the last repetition too."""
        clock, lost = self._watch.clock, self._watch.lost
        while True:
            (query, variant), seconds = piece[0], list[float]()
            lost()
            if self._quickest_s[variant] < SHORT_CALL_S:
                # Reading the interference, or another variant, has filled the caches.
                self._calls[variant](*self._arguments[variant][query - self._start])
            for i, p in piece:
                call, arguments = self._calls[p], self._arguments[p][i - self._start]
                started = clock()
                result = call(*arguments)
                seconds.append(clock() - started)
                self._received(p, i, result)
            was_disturbed = lost() > MAX_LOST * sum(seconds)
            if not was_disturbed or self._again[variant] >= MAX_REPEATS * (MIN_PIECES + self._clean[variant]):
                self._clean[variant] += not was_disturbed
                return seconds, was_disturbed
            self._again[variant] += 1


def _warm_up(call: Callable[..., Any], arguments: tuple[Any, ...], clock: Clock) -> float:
    """Return the seconds of the fastest call before the first sample."""
    began, taken_s = clock(), list[float]()
    while len(taken_s) < 3 or (len(taken_s) < WARM_UP_CALLS and clock() - began < WARM_UP_S):
        started = clock()
        call(*arguments)
        taken_s.append(clock() - started)
    return min(taken_s)


def agree(rounds: Sequence[np.ndarray]) -> bool:
    """True if medians of rounds are within ``AGREEMENT``, or the confidence intervals of the extremes overlap."""
    if not all(map(len, rounds)):
        return False
    ordered = sorted(rounds, key=lambda samples: float(np.median(samples)))
    first, last = ordered[0], ordered[-1]
    close = float(np.median(last)) <= (1 + AGREEMENT) * float(np.median(first))
    return close or median_interval(first)[1] >= median_interval(last)[0]
