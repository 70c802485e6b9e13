"""Certified rules: P(any shipped tier exceeds its tolerance) ≤ 1 − confidence, over the draw of the table.

Learn, then test (arXiv 2110.01052). What could break the guarantee, and the remedy:

- *Many candidates, thresholds taken from the data.* A random part of the table (``LEARN_SHARE``) sets the thresholds
  and names a few finalists, the candidates that look cheapest within some tolerance. Only the finalists are tested,
  on the other examples, and Holm's procedure divides the budget among them (``sequences``).
- *Many tiers.* A finalist is tested at one tolerance after another, from the widest down, until one is not shown:
  fixed-sequence testing, which needs no correction. Sequences along tolerances and not along thresholds, because
  then tiers, like objectives, cost nothing; along thresholds every tier would need a share of the budget.
- *The best version is named by the same table.* The budget is divided by the number of versions: whichever of them
  had been named, the finalists tested against it would have failed with at most that share.
- *A relative tolerance has the best version's unknown error in its denominator.* The bet is on e − (1 + τ)·e_best
  itself. Where the learning part shows 0/1 losses on which hardly ever the best version alone errs, an exact
  binomial test is sharper and takes the bet's place (``betting``).

The guarantee is relative to the best version of the rule set. Where nothing cheaper can be proven to keep a
tolerance, that version serves, with degradation 0 by definition. Like the paper's, it assumes examples drawn
independently and requests of the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from slotool.rules.base import Assessment, Problem, RuleGenerator
from slotool.rules.betting import betting_p_value, binomial_p_value, examples_to_show, excess_of, expected_width
from slotool.rules.candidates import Candidates
from slotool.rules.policies import Replayed
from slotool.rules.sequences import holm_over_sequences

LEARN_SHARE = 0.2
MAX_FINALISTS = 24
TARGETS = 6
ONE_SIDED = 3  # so many errors of the finalist alone, and none of the best version alone, call for counting
# Finalists are chosen as if their bound lay this many expected widths above the degradation learnt.
CAUTION = (0.5, 1.0, 1.5, 2.0, 3.0)


class Certified(RuleGenerator):
    """Bounds that hold simultaneously with the wanted confidence; infinite for candidates that were not tested."""

    name: ClassVar[str] = "certified"
    proves: ClassVar[bool] = True
    passes: ClassVar[float] = 4.0

    def assess(self, problem: Problem) -> Assessment:
        examples = len(problem.outcomes.examples)
        order = np.random.default_rng(problem.seed).permutation(examples)
        learn, test = np.split(order, [round(examples * LEARN_SHARE)])
        candidates = problem.candidates(learn)
        best_errors = problem.outcomes.matrix("error")[:, problem.best] / problem.max_error
        spread = self._second_moment(problem, candidates, best_errors, learn)
        budget = (1.0 - problem.confidence) / len(problem.outcomes.versions)
        finalists = _finalists(problem, candidates, spread, learn, len(test), budget / MAX_FINALISTS)
        bound = np.full(len(candidates), np.inf)
        bound[candidates.best] = 0.0
        tests = [
            _Sequence(problem, errors, best_errors, learn, test, budget / len(finalists))
            for errors in candidates.errors(finalists).T / problem.max_error
        ]
        for index, shown in zip(finalists, holm_over_sequences(tests, budget), strict=True):
            if shown:
                bound[index] = sorted(problem.tolerances)[-shown]
        means = candidates.means()
        config: dict[str, Any] = {
            "finalists": len(finalists),
            "examples_learnt_from": len(learn),
            "examples_tested_on": len(test),
        }
        needed = _examples_needed(problem, candidates, means, spread, budget / max(1, len(finalists)))
        config["examples_for_first_saving"] = needed
        tested = np.isin(np.arange(len(candidates)), finalists)
        return Assessment(candidates, bound, means.response_time_s, means.cost, config, tested=tested)

    def _second_moment(
        self, problem: Problem, candidates: Candidates, best_errors: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """E[(e − e_best)²] of each candidate, errors scaled to [0, 1], never 0: as if one more example differed."""
        squares = candidates.mean_of_error(lambda error: (error / problem.max_error - best_errors) ** 2, rows)
        return (squares * len(rows) + 1.0) / (len(rows) + 1.0)


class _Sequence(Sequence[float]):
    """P-values of one finalist at the wanted tolerances, widest first, each computed when it is read.

    Tolerances that the finalist exceeds on the learning part are left out: it would end there anyway.
    ``error``, ``best_error``: float64 [examples] in [0, 1]; ``learn``, ``test``: their rows; ``alpha``: what the
    stakes aim at.
    """

    def __init__(
        self,
        problem: Problem,
        error: np.ndarray,
        best_error: np.ndarray,
        learn: np.ndarray,
        test: np.ndarray,
        alpha: float,
    ):
        self._kind, self._alpha = problem.tolerance_kind, alpha
        self._learn, self._test = (error[learn], best_error[learn]), (error[test], best_error[test])
        points = problem.max_error if self._kind == "absolute" else 1.0
        descending = sorted((tolerance / points for tolerance in problem.tolerances), reverse=True)
        self._tolerances = [t for t in descending if excess_of(*self._learn, t, self._kind).mean() < 0]
        whole = bool(np.isin(error, (0.0, 1.0)).all() and np.isin(best_error, (0.0, 1.0)).all())
        alone, best_alone = (np.count_nonzero(a > b) for a, b in (self._learn, self._learn[::-1]))
        self._counts = whole and best_alone == 0 and bool(alone >= ONE_SIDED)

    def __len__(self) -> int:
        return len(self._tolerances)

    def __getitem__(self, at: Any) -> Any:
        tolerance = self._tolerances[at]
        if self._counts:
            return binomial_p_value(*self._test, tolerance, self._kind)
        squares, seen = excess_of(*self._learn, tolerance, self._kind) ** 2, len(self._learn[0])
        moment = (float(squares.sum()) + 1.0) / (seen + 1.0)
        return betting_p_value(*self._test, tolerance, self._kind, self._alpha, moment, seen + 1.0)


def _finalists(
    problem: Problem, candidates: Candidates, spread: np.ndarray, learn: np.ndarray, tested: int, alpha: float
) -> list[int]:
    """Indices of what is worth testing, from the learning examples alone: at most ``MAX_FINALISTS``.

    The cheapest that may keep some tolerance, and every version alone: few examples flatter the cheapest, and a
    version that hardly differs from the best one is the safe choice then.
    """
    means = candidates.means(learn)
    best_error = float(means.error[candidates.best])
    width = expected_width(spread, alpha, tested) * problem.max_error
    alone = [index for index in range(len(candidates.alone)) if index != candidates.best]
    picks: dict[int, None] = dict.fromkeys(alone[: MAX_FINALISTS // 2])
    for target in _targets(problem.tolerances):
        allowed = best_error + target * (best_error if problem.tolerance_kind == "relative" else 1.0)
        for caution in CAUTION:
            hopeful = means.error + caution * width <= allowed
            for ranking in (means.response_time_s, means.cost):
                cheaper = np.flatnonzero(hopeful & (ranking < ranking[candidates.best]))
                if len(cheaper):
                    picks.setdefault(int(cheaper[np.argmin(ranking[cheaper])]))
    return _thinned(sorted(picks, key=lambda index: means.error[index]))


def _targets(tolerances: Sequence[float]) -> list[float]:
    """A few of the wanted tolerances, evenly spread, the largest among them."""
    ranks = np.linspace(0, len(tolerances) - 1, min(TARGETS, len(tolerances)))
    return [float(tolerances[round(rank)]) for rank in ranks]


def _thinned(indices: list[int]) -> list[int]:
    if len(indices) <= MAX_FINALISTS:
        return indices
    return [indices[round(rank)] for rank in np.linspace(0, len(indices) - 1, MAX_FINALISTS)]


def _examples_needed(
    problem: Problem, candidates: Candidates, means: Replayed, spread: np.ndarray, alpha: float
) -> int | None:
    """About how large a table certifies one cheaper ensemble at the widest tolerance, if its means are the truth.

    None when no cheaper ensemble is within that tolerance even as observed.
    """
    best = candidates.best
    best_error = float(means.error[best])
    widest = max(problem.tolerances) * (best_error if problem.tolerance_kind == "relative" else 1.0)
    margin = (best_error + widest - means.error) / problem.max_error
    cheaper = (means.response_time_s < means.response_time_s[best]) | (means.cost < means.cost[best])
    hopeful = cheaper & (margin > 1e-9)
    if not hopeful.any():
        return None
    needed = examples_to_show(margin[hopeful], spread[hopeful], alpha).min() / (1.0 - LEARN_SHARE)
    return int(np.ceil(needed))
