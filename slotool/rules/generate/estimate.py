"""How many policies the rules for a table are chosen from, and about how long that takes: for ``gen-rules --dry-run``.

Nothing is learnt and few examples are looked at, so that it is quick on a table of any size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.machine import usable_cores
from slotool.rules.generate.base import Problem
from slotool.rules.generate.candidates import quantiles
from slotool.rules.generate.certified import FIT_SHARE, LEARN_SHARE, ROUNDS, Certified
from slotool.rules.generate.generator import largest_error, method_class, usable_policies
from slotool.rules.generate.search import MAX_GRID, MAX_KINDS, ExampleSet
from slotool.rules.policies.cascades import ANSWERS, MAX_STEPS, Cascade
from slotool.rules.policies.routing import OSFA, PAIRS
from slotool.tables import OutcomeTable

# Examples that are looked at for the time; and seconds to learn the line through the confidences of so many.
SAMPLE, LINE_S = 2_000, 4e-3


@dataclass(frozen=True)
class Estimate:
    """``pairs``: ordered pairs of versions; ``candidates``: policies compared at most, ``cascades`` among them;
    ``predicted_s``: seconds, roughly."""

    pairs: int
    candidates: int
    cascades: int
    predicted_s: float


def estimate(
    outcomes: OutcomeTable,
    tolerances: Sequence[float],
    method: str,
    policies: Sequence[str],
    thresholds: int,
    max_error: float | None,
) -> Estimate:
    """What ``generate_rules`` would do with these. Raises like it, and ``InputError`` for an unknown method."""
    generator = method_class(method)
    policies = usable_policies(outcomes, policies, largest_error(outcomes) if max_error is None else max_error)
    drawn = np.random.default_rng(0).permutation(len(outcomes.examples))[:SAMPLE]
    sample = Problem(outcomes.examples_at(drawn), tolerances, policies=tuple(policies), thresholds=thresholds)
    larger = len(outcomes.examples) / len(drawn)
    kinds, versions = sum(kind in policies for kind in PAIRS), len(outcomes.versions)
    grids = [len(quantiles(confidence, thresholds)) for confidence in outcomes.matrix("confidence").T]
    pairs = sum(versions - 1 for steps in grids if steps and kinds)
    alone = versions if OSFA.kind in policies else 1
    cascades = _Cascades(sample) if Cascade.kind in policies and issubclass(generator, Certified) else None
    seconds = generator.passes * larger * _seconds_of_pairs(sample)
    if cascades is not None:
        seconds += cascades.seconds(larger)
    count = 0 if cascades is None else cascades.count
    return Estimate(pairs, alone + sum(grids) * (versions - 1) * kinds + count, count, seconds)


def _seconds_of_pairs(sample: Problem) -> float:
    candidates = sample.candidates()
    candidates.means()  # compiles
    started = time.perf_counter()
    candidates.means()
    return time.perf_counter() - started


class _Cascades:
    """The cascades of up to ``MAX_STEPS`` of a table's versions; ``sample``: some of its examples."""

    def __init__(self, sample: Problem):
        outcomes = sample.outcomes
        self._sample, self._versions = sample, len(outcomes.versions)
        self._answers = len(ANSWERS) if outcomes.knows_answers else 2
        # Of signals: an own confidence, a line through all, and one by label where answers are known.
        self._kinds = 3 if outcomes.knows_answers else 2

    @property
    def count(self) -> int:
        """At most so many: ties make fewer thresholds."""
        found = self._versions
        for length in range(2, min(MAX_STEPS, self._versions) + 1):
            thresholds = math.prod([self._grid(length)] * (length - 1))
            found += math.perm(self._versions, length) * self._answers * self._calls(length) * thresholds
        return found

    def seconds(self, larger: float) -> float:
        """Of all rounds, on a table so much larger than the sample."""
        learnt = larger * LEARN_SHARE * (1.0 - FIT_SHARE)
        lengths = range(2, min(MAX_STEPS, self._versions) + 1)
        each = [
            math.perm(self._versions, length - 1) * self._calls(length) * max(1.0, learnt) * self._call_s(length)
            for length in lengths
        ]
        lines = sum(math.perm(self._versions, length - 1) for length in lengths)
        return ROUNDS * (sum(each) / usable_cores() + lines * LINE_S * max(1.0, larger / 10))

    def _grid(self, length: int) -> int:
        return min(self._sample.thresholds, MAX_GRID[length])

    def _calls(self, length: int) -> int:
        return min(MAX_KINDS[length], self._kinds)

    def _call_s(self, length: int) -> float:
        """Of the cascades of so many versions that begin with the same ones, by one kind of signal."""
        from slotool.rules.generate.search_kernels import cascade_means

        outcomes = self._sample.outcomes
        error, sure = outcomes.matrix("error"), outcomes.matrix("confidence")
        examples = ExampleSet(
            error, outcomes.matrix("latency_s"), outcomes.matrix("cost"), np.zeros_like(error), None, self._sample.best
        )
        grids = [quantiles(sure[:, at], self._grid(length)) for at in range(length - 1)]
        reached = np.array([np.searchsorted(own, sure[:, at], side="right") for at, own in enumerate(grids)])
        order, lasts = np.arange(length - 1), np.arange(length - 1, self._versions)
        sizes, codes = np.array([len(own) for own in grids]), np.arange(self._answers)
        taken = []
        for _ in range(2):  # the first compiles
            started = time.perf_counter()
            cascade_means(*examples.arrays, order, lasts, codes, reached, sizes)
            taken.append(time.perf_counter() - started)
        return min(taken)
