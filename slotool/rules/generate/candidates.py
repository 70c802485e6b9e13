"""Ensembles that a rule may choose from, replayed all at once.

One *path* per ordered pair of versions: raising the threshold along it moves examples, in order of the first version's
confidence, from early termination to full operation. A mean over the table at every threshold is then a sum of bin
totals from either side, whatever the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from slotool.machine import usable_cores
from slotool.rules.policies.routing import OSFA, PAIRS, POLICIES, Replayed, RoutingPolicy, takes_second
from slotool.tables import OutcomeTable


@dataclass(frozen=True)
class _Path:
    """Ordered pair of versions. ``bins``: int32 [examples], thresholds that the first confidence reaches.

    ``answers``: float64 [examples, 2, columns] of early termination and full operation; columns are error, then time
    and cost of each kind in ``kinds``. ``start``: index of its first candidate.
    """

    first: int
    second: int
    kinds: tuple[str, ...]
    thresholds: np.ndarray
    bins: np.ndarray
    answers: np.ndarray
    start: int

    def means(self, rows: np.ndarray, answers: np.ndarray | None = None) -> np.ndarray:
        """Return means over each sample ``rows`` (int64 [samples, size]): float64 [samples, columns, thresholds].

        ``answers``: float64 [examples, 2, columns] to average instead of the path's.
        """
        from slotool.rules.evidence.kernels import step_means

        chosen = self.answers if answers is None else answers
        return np.asarray(step_means(self.bins, chosen, rows, len(self.thresholds)))


class Candidates:
    """Candidates: every OSFA (only ``best`` without ``osfa`` in ``policies``), then each threshold by path and kind.

    ``thresholds``: most per path, distinct quantiles of the first version's confidence over ``rows`` (default: all
    rows), rounded down to the ten digits that a rule stores. ``best``: index of the version that may always serve
    alone.
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
            steps = quantiles(self._confidence[slice(None) if rows is None else rows, first], thresholds)
            for second in versions:
                if first != second and len(steps):
                    self.paths.append(self._path(first, second, kinds, steps, start))
                    start += len(steps) * len(kinds)
        self._size = start

    def __len__(self) -> int:
        return self._size

    def policy(self, index: int) -> RoutingPolicy:
        names = self._outcomes.versions
        if index < len(self.alone):
            return OSFA(names[self.alone[index]])
        path = next(path for path in reversed(self.paths) if path.start <= index)
        kind, step = divmod(index - path.start, len(path.thresholds))
        return PAIRS[path.kinds[kind]](names[path.first], names[path.second], float(path.thresholds[step]))

    def means(self, rows: np.ndarray | None = None) -> Replayed:
        """Return mean error, response time and cost of every candidate over ``rows`` (int [any], repeats count)."""
        return Replayed(*self.sample_means(self._sample(rows))[0])

    def sample_means(self, rows: np.ndarray, only: np.ndarray | None = None) -> np.ndarray:
        """Return ``means`` of several samples of the table, on all cores: float64 [samples, 3, candidates].

        ``rows``: int64 [samples, size]. ``only``: bool [paths]; candidates on other paths are left NaN.
        """
        rows = np.sort(rows, axis=1)  # neighbours in memory are read one after another
        table = np.full((len(rows), 3, self._size), np.nan)
        for sample, chosen in enumerate(rows):
            for metric, values in enumerate((self._error, self._latency_s, self._cost)):
                table[sample, metric, : len(self.alone)] = values[chosen][:, self.alone].mean(axis=0)

        def fill(path: _Path) -> None:
            path_means, steps = path.means(rows), len(path.thresholds)
            for at in range(len(path.kinds)):
                begin = path.start + at * steps
                table[:, :, begin : begin + steps] = path_means[:, [0, 1 + 2 * at, 2 + 2 * at]]

        with ThreadPoolExecutor(usable_cores()) as cores:
            list(cores.map(fill, (path for at, path in enumerate(self.paths) if only is None or only[at])))
        return table

    def mean_of_error(self, of: Callable[[np.ndarray], np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """Return the mean over ``rows`` of a function of the errors (float64 [examples] to the same), per candidate."""
        sample = self._sample(rows)
        means = np.empty(self._size)
        means[: len(self.alone)] = [of(self._error[:, version])[sample[0]].mean() for version in self.alone]
        for path in self.paths:
            answers = np.stack([of(path.answers[:, 0, 0]), of(path.answers[:, 1, 0])], axis=1)[:, :, None]
            column = path.means(sample, answers)[0, 0]
            means[path.start : path.start + len(column) * len(path.kinds)] = np.tile(column, len(path.kinds))
        return means

    def paths_with(self, marked: np.ndarray) -> np.ndarray:
        """Return bool [paths]: those with a ``marked`` candidate, bool [candidates]."""
        sizes = [len(path.thresholds) * len(path.kinds) for path in self.paths]
        return np.array([marked[p.start : p.start + size].any() for p, size in zip(self.paths, sizes, strict=True)])

    def _sample(self, rows: np.ndarray | None) -> np.ndarray:
        return np.asarray(np.arange(len(self._error)) if rows is None else rows, dtype=np.int64)[None]

    def _path(self, first: int, second: int, kinds: tuple[str, ...], thresholds: np.ndarray, start: int) -> _Path:
        a, b = (self._error[:, first], self._error[:, second])
        sure = self._confidence[:, first]
        early, full = [a], [np.where(takes_second(sure, self._confidence[:, second]), b, a)]
        times, costs = ((m[:, first], m[:, second]) for m in (self._latency_s, self._cost))
        for kind in kinds:
            for early_values, full_values in (PAIRS[kind].times(*times), PAIRS[kind].costs(*times, *costs)):
                early.append(early_values)
                full.append(full_values)
        bins = np.searchsorted(thresholds, sure, side="right").astype(np.int32)
        answers = np.ascontiguousarray(np.array([early, full]).transpose(2, 0, 1))
        return _Path(first, second, kinds, thresholds, bins, answers, start)


def quantiles(values: np.ndarray, count: int) -> np.ndarray:
    """Return at most ``count`` ascending thresholds above the lowest of ``values``, which accepts all examples.

    NaN is left out. Each has at most ten digits, so that its text is exact.
    """
    ascending = np.sort(values[~np.isnan(values)])
    if not len(ascending):
        return np.empty(0)
    places = np.ceil(np.linspace(0.0, 1.0, count + 2)[1:-1] * (len(ascending) - 1)).astype(np.int64)
    levels = np.array([ten_digits(level) for level in dict.fromkeys(ascending[places].tolist())])
    return np.asarray(np.unique(levels[levels > ascending[0]]))


def ten_digits(value: float) -> float:
    """Round ``value`` down to the digits of a point's key, so that a loaded rule treats ties as the table did."""
    rounded = float(f"{value:.10g}")
    return rounded if rounded <= value else float(f"{value - 1e-9 * abs(value):.10g}")
