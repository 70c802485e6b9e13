"""The ensembles a rule may choose from, replayed all at once.

One *path* per ordered pair of versions: raising the threshold along it moves examples, in order of the first
version's confidence, from early termination to full operation. A mean over the table at every threshold is then a
sum of bin totals from either side, whatever the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.rules.policies import OSFA, PAIRS, POLICIES, Replayed, RoutingPolicy, takes_second
from slotool.tables import OutcomeTable


@dataclass(frozen=True)
class _Path:
    """One ordered pair. ``bins``: int [examples], how many thresholds the first version's confidence reaches.

    ``early`` and ``full``: per example what early termination and full operation give, float64 rows of error, then
    time and cost of each kind in ``kinds``. ``start``: index of its first candidate.
    """

    first: int
    second: int
    kinds: tuple[str, ...]
    thresholds: np.ndarray
    bins: np.ndarray
    early: np.ndarray
    full: np.ndarray
    start: int

    def means(self, rows: np.ndarray | slice, early: np.ndarray, full: np.ndarray) -> np.ndarray:
        """Mean over ``rows`` at each threshold of the one column given: float64 [thresholds]."""
        bins, size = self.bins[rows], len(self.thresholds)
        early_sums = np.bincount(bins, weights=early[rows], minlength=size + 1)
        full_sums = np.bincount(bins, weights=full[rows], minlength=size + 1)
        # At threshold k an example terminates early when it reaches more than k thresholds.
        after = np.cumsum(early_sums[::-1])[::-1][1:]
        return (after + np.cumsum(full_sums)[:size]) / len(bins)


class Candidates:
    """Every OSFA (just ``best``'s without ``osfa`` among ``policies``), then per path and kind each threshold.

    ``thresholds``: at most so many per path, quantiles of the first version's confidence over ``rows`` (default: all
    rows), each of them rounded down to the ten digits a rule stores, and deduplicated. ``best``: index of the
    version that may always serve alone.
    """

    def __init__(
        self,
        outcomes: OutcomeTable,
        best: int,
        policies: Sequence[str] = POLICIES,
        thresholds: int = 50,
        rows: np.ndarray | None = None,
    ):
        self._outcomes = outcomes
        self._error, self._confidence, self._latency_s, self._cost = (
            outcomes.matrix(column) for column in ("error", "confidence", "latency_s", "cost")
        )
        versions = range(len(outcomes.versions))
        self.alone = [v for v in versions if OSFA.kind in policies or v == best]
        self.best = self.alone.index(best)
        self.paths: list[_Path] = []
        kinds = tuple(kind for kind in PAIRS if kind in policies)
        start = len(self.alone)
        for first in versions if kinds else ():
            steps = _quantiles(self._confidence[slice(None) if rows is None else rows, first], thresholds)
            for second in versions:
                if first != second and len(steps):
                    self.paths.append(self._path(first, second, kinds, steps, start))
                    start += len(steps) * len(kinds)
        self._size = start

    def __len__(self) -> int:
        return self._size

    def policy(self, index: int) -> RoutingPolicy:
        """The candidate of this index."""
        names = self._outcomes.versions
        if index < len(self.alone):
            return OSFA(names[self.alone[index]])
        path = self._path_of(index)
        kind, step = divmod(index - path.start, len(path.thresholds))
        return PAIRS[path.kinds[kind]](names[path.first], names[path.second], float(path.thresholds[step]))

    def means(self, rows: np.ndarray | None = None, only: np.ndarray | None = None) -> Replayed:
        """Mean error, response time and cost of every candidate over ``rows`` (int [any], repeats count again).

        ``only``: bool [paths]; candidates on other paths are left NaN.
        """
        chosen = slice(None) if rows is None else rows
        table = np.full((3, self._size), np.nan)
        for metric, values in enumerate((self._error, self._latency_s, self._cost)):
            table[metric, : len(self.alone)] = values[chosen][:, self.alone].mean(axis=0)
        for path in (p for at, p in enumerate(self.paths) if only is None or only[at]):
            columns = [path.means(chosen, early, full) for early, full in zip(path.early, path.full, strict=True)]
            for at in range(len(path.kinds)):
                begin = path.start + at * len(path.thresholds)
                table[:, begin : begin + len(path.thresholds)] = columns[0], columns[1 + 2 * at], columns[2 + 2 * at]
        return Replayed(*table)

    def mean_of_error(self, of: Callable[[np.ndarray], np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """Mean over ``rows`` of a function of the answers' errors (float64 [examples] to the same), per candidate."""
        chosen = slice(None) if rows is None else rows
        means = np.empty(self._size)
        means[: len(self.alone)] = [of(self._error[:, version])[chosen].mean() for version in self.alone]
        for path in self.paths:
            column = path.means(chosen, of(path.early[0]), of(path.full[0]))
            means[path.start : path.start + len(column) * len(path.kinds)] = np.tile(column, len(path.kinds))
        return means

    def errors(self, indices: Sequence[int]) -> np.ndarray:
        """Per example the error of these candidates: float64 [examples, len(indices)]."""
        columns = np.empty((len(self._error), len(indices)))
        for at, index in enumerate(indices):
            if index < len(self.alone):
                columns[:, at] = self._error[:, self.alone[index]]
            else:
                path = self._path_of(index)
                step = (index - path.start) % len(path.thresholds)
                columns[:, at] = np.where(path.bins > step, path.early[0], path.full[0])
        return columns

    @property
    def path_numbers(self) -> np.ndarray:
        """Per candidate the number of its path, −1 for OSFA: int [candidates]."""
        numbers = np.full(self._size, -1)
        for at, path in enumerate(self.paths):
            numbers[path.start : path.start + len(path.thresholds) * len(path.kinds)] = at
        return numbers

    def _path_of(self, index: int) -> _Path:
        return next(path for path in reversed(self.paths) if path.start <= index)

    def _path(self, first: int, second: int, kinds: tuple[str, ...], thresholds: np.ndarray, start: int) -> _Path:
        a, b = (self._error[:, first], self._error[:, second])
        sure = self._confidence[:, first]
        early, full = [a], [np.where(takes_second(sure, self._confidence[:, second]), b, a)]
        times, costs = ((m[:, first], m[:, second]) for m in (self._latency_s, self._cost))
        for kind in kinds:
            for early_values, full_values in (PAIRS[kind].times(*times), PAIRS[kind].costs(*times, *costs)):
                early.append(early_values)
                full.append(full_values)
        bins = np.searchsorted(thresholds, sure, side="right")
        return _Path(first, second, kinds, thresholds, bins, np.array(early), np.array(full), start)


def _quantiles(confidence: np.ndarray, count: int) -> np.ndarray:
    """Ascending thresholds above the lowest confidence: at or below it the second version would never be asked."""
    levels = np.linspace(0.0, 1.0, count + 2)[1:-1]
    values = np.quantile(confidence, levels, method="higher")
    stored = np.array([_stored(value) for value in values])
    return np.unique(stored[stored > confidence.min()])


def _stored(value: float) -> float:
    """``value`` rounded down to what a point's key can carry, so that a loaded rule treats ties as the table did."""
    rounded = float(f"{value:.10g}")
    return rounded if rounded <= value else float(f"{value - 1e-9 * abs(value):.10g}")
