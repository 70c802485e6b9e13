"""Certified rules: P(any shipped tier exceeds its tolerance) ≤ 1 − confidence, over the draw of the table.

Learn, then test (arXiv 2110.01052), with what could spoil the promise and what is done about it:

- *Many candidates, thresholds taken from the data.* A random part of the table (``LEARN_SHARE``) sets the thresholds
  and names a few finalists, the candidates that look cheapest within some tolerance. Only the finalists are tested,
  on the other examples, each at its share of the budget (Bonferroni).
- *Many tiers.* A finalist gets one bound that holds for every tolerance at once, so tiers, like objectives, cost
  nothing: any rule whose bound is within a tolerance may serve it.
- *The best version is named by the same table.* The budget is divided by the number of versions: whichever of them
  had been named, the finalists tested against it would have failed with at most that share.
- *A relative tolerance has the best version's unknown error in its denominator.* The bet is on e − (1 + τ)·e_best
  itself (``betting``).

The promise is relative to the version the rule set names as best; where nothing cheaper can be shown to keep a
tolerance that version serves, with degradation 0 by definition. It assumes what the paper does: examples drawn
independently, and requests to come like them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from slotool.rules.base import Assessment, Problem, RuleGenerator
from slotool.rules.betting import degradation_bound, examples_to_show, expected_width
from slotool.rules.candidates import Candidates
from slotool.rules.policies import Replayed

LEARN_SHARE = 0.2
MOST_FINALISTS = 24
TARGETS = 6
# Finalists are chosen as if their bound lay this many expected widths above the degradation learnt.
CAUTION = (0.5, 1.0, 1.5, 2.0, 3.0)


class Certified(RuleGenerator):
    """Bounds that hold together with the confidence asked for; infinite for candidates that were not tested."""

    name: ClassVar[str] = "certified"
    proves: ClassVar[bool] = True

    def assess(self, problem: Problem) -> Assessment:
        examples = len(problem.outcomes.examples)
        order = np.random.default_rng(problem.seed).permutation(examples)
        learn, test = np.split(order, [round(examples * LEARN_SHARE)])
        candidates = problem.candidates(learn)
        best_errors = problem.outcomes.matrix("error")[:, problem.best] / problem.max_error
        spread = self._second_moment(problem, candidates, best_errors, learn)
        budget = (1.0 - problem.confidence) / len(problem.outcomes.versions)
        finalists = _finalists(problem, candidates, spread, learn, len(test), budget / MOST_FINALISTS)
        bound = np.full(len(candidates), np.inf)
        bound[candidates.best] = 0.0
        if finalists:
            errors = candidates.errors(finalists)[test] / problem.max_error
            alpha = budget / len(finalists)
            shown = degradation_bound(
                errors, best_errors[test], alpha, problem.tolerance_kind, spread[finalists], len(learn) + 1.0
            )
            bound[finalists] = shown * (problem.max_error if problem.tolerance_kind == "absolute" else 1.0)
        means = candidates.means()
        config = {"finalists": len(finalists), "examples_learnt_from": len(learn), "examples_tested_on": len(test)}
        needed = _examples_needed(problem, candidates, means, spread, budget / max(1, len(finalists)))
        return Assessment(
            candidates, bound, means.response_time_s, means.cost, {**config, "examples_for_first_saving": needed}
        )

    def _second_moment(
        self, problem: Problem, candidates: Candidates, best_errors: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """E[(e − e_best)²] of each candidate, errors scaled to [0, 1], never 0: as if one more example differed."""
        squares = candidates.mean_of_error(lambda error: (error / problem.max_error - best_errors) ** 2, rows)
        return (squares * len(rows) + 1.0) / (len(rows) + 1.0)


def _finalists(
    problem: Problem, candidates: Candidates, spread: np.ndarray, learn: np.ndarray, tested: int, alpha: float
) -> list[int]:
    """Indices of what is worth testing, from the learning examples alone: at most ``MOST_FINALISTS``.

    The cheapest that may keep some tolerance, and every version alone: few examples flatter the cheapest, and a
    version that hardly differs from the best one is the safe choice then.
    """
    means = candidates.means(learn)
    best_error = float(means.error[candidates.best])
    width = expected_width(spread, alpha, tested) * problem.max_error
    alone = [index for index in range(len(candidates.alone)) if index != candidates.best]
    picks: dict[int, None] = dict.fromkeys(alone[: MOST_FINALISTS // 2])
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
    """A few of the tolerances asked for, evenly spread, the largest among them."""
    ranks = np.linspace(0, len(tolerances) - 1, min(TARGETS, len(tolerances)))
    return [float(tolerances[round(rank)]) for rank in ranks]


def _thinned(indices: list[int]) -> list[int]:
    if len(indices) <= MOST_FINALISTS:
        return indices
    return [indices[round(rank)] for rank in np.linspace(0, len(indices) - 1, MOST_FINALISTS)]


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
