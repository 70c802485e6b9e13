"""The paper's generator: trials on random tenths of the table until confident, worst case kept (Fig. 7).

Its listing cannot run. What was repaired, and how:

- ``any`` over no trials is False, so none would ever run: at least ``MIN_TRIALS`` are made.
- ``scipy.stats.ppf`` is read as the normal distribution's quantile, ``choice(k=…)`` as drawing with replacement.
- A constant metric has no z-scores, so the loop would never end: it counts as confident. A metric whose range never
  exceeds twice the quantile in standard deviations would not end it either: ``MAX_TRIALS`` is the cap.
- Of the two conditions of ``confident`` the first implies the second, so only the second is tested.
- ``generate`` ignores ``tol``: here the worst-case degradation must not exceed it.
- The degradation of a trial in which the best version makes no error is taken relative to its error on the table.

All candidates see the same trials, which removes the sampling noise between them. The result is a heuristic:
nothing corrects for choosing among many candidates, and where errors are rare a tenth of the table often
holds none of them, so even the worst trial understates the degradation.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from slotool.rules.generate.base import Assessment, Problem, RuleGenerator
from slotool.rules.generate.candidates import Candidates
from slotool.rules.policies.routing import OSFA

MIN_TRIALS = 30
MAX_TRIALS = 2000
SUBSET_SHARE = 0.1
AT_ONCE = 10  # trials between two checks of which candidates are confident


class Bootstrap(RuleGenerator):
    """Worst degradation, response time and cost over the trials of each candidate."""

    name: ClassVar[str] = "bootstrap"

    def assess(self, problem: Problem) -> Assessment:
        candidates = problem.candidates()
        draw = np.random.default_rng(problem.seed)
        examples = len(problem.outcomes.examples)
        size = max(1, int(examples * SUBSET_SHARE))
        trials = _Trials(len(candidates), 2.0 * float(ndtri(problem.confidence)))
        while trials.count < MAX_TRIALS and trials.unsure.any():
            rows = np.stack([draw.integers(0, examples, size) for _ in range(min(AT_ONCE, MAX_TRIALS - trials.count))])
            for metrics in simulate(problem, candidates, rows, candidates.paths_with(trials.unsure)):
                trials.add(metrics)
        note = f"worst of at most {trials.count} trials on random tenths of the table, without a proof"
        config = {"trials": trials.count, "candidates_not_confident": int(trials.unsure.sum())}
        degradation, response_time_s, cost = trials.worst
        return Assessment(candidates, degradation, response_time_s, cost, config, note)


def simulate(problem: Problem, candidates: Candidates, rows: np.ndarray, only: np.ndarray | None = None) -> np.ndarray:
    """Return degradation, mean response time and mean cost in each trial: float64 [trials, 3, candidates].

    ``rows``: int [trials, size], the examples of each trial. ``only``: bool [paths]; candidates on others are NaN.
    """
    metrics = candidates.sample_means(rows, only)
    best_on_table = float(problem.version_errors[problem.best])
    for trial in metrics:
        best_error = float(trial[0, candidates.best])
        if problem.tolerance_kind == "relative" and best_error == 0 and best_on_table > 0:
            trial[0] /= best_on_table
        else:
            trial[0] = problem.degradation(trial[0], best_error)
    return metrics


class _Trials:
    """Running mean, spread and extremes of each metric of each candidate, frozen once all three are confident."""

    def __init__(self, candidates: int, wanted_range: float):
        self._wanted_range = wanted_range
        self.count = 0
        self.unsure = np.ones(candidates, dtype=bool)
        self.worst = np.full((3, candidates), -np.inf)
        self._least = np.full((3, candidates), np.inf)
        self._mean = np.zeros((3, candidates))
        self._squares = np.zeros((3, candidates))

    def add(self, metrics: np.ndarray) -> None:
        """Add one trial, float64 [3, candidates]; candidates that are confident already ignore it."""
        self.count += 1
        at = self.unsure
        values = metrics[:, at]
        self.worst[:, at] = np.maximum(self.worst[:, at], values)
        self._least[:, at] = np.minimum(self._least[:, at], values)
        with np.errstate(invalid="ignore"):
            step = values - self._mean[:, at]
            self._mean[:, at] += step / self.count
            self._squares[:, at] += step * (values - self._mean[:, at])
            if self.count >= MIN_TRIALS:
                self.unsure[np.flatnonzero(at)[self._confident(at)]] = False

    def _confident(self, at: np.ndarray) -> np.ndarray:
        spread = self.worst[:, at] - self._least[:, at]
        deviation = np.sqrt(self._squares[:, at] / self.count)
        constant = spread <= 1e-12 * np.abs(self.worst[:, at])
        # An infinite degradation (relative to a best version without any error) can only stay infinite.
        settled = constant | ~np.isfinite(spread) | (spread > self._wanted_range * deviation)
        return np.asarray(settled.all(axis=0))


class NaiveOSFA(RuleGenerator):
    """Observed degradation of single versions as if it were the true one. A baseline."""

    name: ClassVar[str] = "naive"

    def assess(self, problem: Problem) -> Assessment:
        candidates = problem.candidates(policies=(OSFA.kind,))
        means = candidates.means()
        bound = problem.degradation(means.error, float(means.error[candidates.best]))
        return Assessment(candidates, bound, means.response_time_s, means.cost, note="as observed, without a guarantee")
