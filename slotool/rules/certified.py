"""Certified rules: P(any shipped tier exceeds its tolerance) ≤ 1 − confidence, over the draw of the table.

Learn, then test (arXiv 2110.01052), whatever the policies are. What could break the guarantee, and the remedy:

- *Many policies, thresholds and calibrations taken from the data.* A random part of the table (``LEARN_SHARE``) names
  per tolerance a chain of policies, from the surest to keep it to the cheapest (``proposals``). Only the other examples
  test. A chain is tested in its order until one is not shown to keep the tolerance: fixed-sequence testing, which needs
  no correction for its length.
- *What a part names is chance.* So there are ``ROUNDS`` random parts, each with its share of the budget, and a tier
  takes the cheapest policy that any of them has shown.
- *Many tiers.* Chains are made for at most ``MAX_GOALS`` of the tolerances, and Holm's procedure divides the budget
  among them (``sequences``). A tier between them takes what is shown for the next stricter one.
- *The best version is named by the same table.* Each version has a share of the budget, named by the learning part: as
  likely as it is to be the best. Whichever is named, the chains tested against it fail with at most its share.
- *Tolerances per group.* A policy keeps a tolerance where it does so for each group; the p-value is the largest of
  theirs (an intersection-union test), so that all groups' guarantees hold at once.
- *A relative tolerance has the best version's unknown error in its denominator.* What is tested is the mean of
  e − (1 + τ)·e_best itself: for 0/1 losses by an exact test of the examples on which the two differ (``counting``),
  for others by a bet (``betting``).

The guarantee is relative to the best version of the rule set. Where nothing cheaper can be proven to keep a
tolerance, that version serves, with degradation 0 by definition. Like the paper's, it assumes examples drawn
independently and requests of the same distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from slotool.rules.base import Assessment, Listed, Problem, RuleGenerator
from slotool.rules.betting import betting_p_value, examples_to_show
from slotool.rules.candidates import Candidates
from slotool.rules.counting import examples_to_count, paired_p_value
from slotool.rules.losses import excess_of, zero_or_largest
from slotool.rules.policies import OSFA, PAIR_POLICIES, RoutingPolicy
from slotool.rules.proposals import Goal, chains
from slotool.rules.savings import Savings
from slotool.rules.sequences import holm_over_sequences

ROUNDS = 3
LEARN_SHARE = 0.4
# Of the learning part, what calibrates confidences and chooses nothing.
FIT_SHARE = 0.25
MAX_GOALS = 10
MIN_SHARE = 1e-3  # of the budget, for a version that is hardly the best
MISS = 0.01  # of a test's level, for the interval of what counting does not know


class Certified(RuleGenerator):
    """Bounds that hold simultaneously with the wanted confidence; infinite for policies that were not shown."""

    name: ClassVar[str] = "certified"
    proves: ClassVar[bool] = True
    knows_groups: ClassVar[bool] = True
    passes: ClassVar[float] = 4.0 * ROUNDS

    def assess(self, problem: Problem) -> Assessment:
        listed = Listed(problem.outcomes, OSFA(problem.outcomes.versions[problem.best]))
        rounds = [_Round(problem, listed, rows) for rows in _parts(problem)]
        tested = np.arange(len(listed)) != listed.best
        for version in problem.outcomes.versions:  # to tell what else is cheaper
            listed.index(OSFA(version))
        tested = np.append(tested, np.zeros(len(listed) - len(tested), dtype=bool))
        bound = np.full(len(listed), np.inf)
        bound[listed.best] = 0.0
        for own in rounds:
            for policy, tolerance in own.shown():
                at = listed.index(policy)
                bound[at] = min(bound[at], tolerance)
        means, first = listed.means(), rounds[0]
        config: dict[str, Any] = {
            "candidates": first.considered,
            "chains": sum(len(own.tests) for own in rounds),
            "rounds": len(rounds),
            "examples_calibrated_on": len(first.fit),
            "examples_learnt_from": len(first.learn),
            "examples_tested_on": len(first.test),
            "examples_for_first_saving": _examples_needed(problem, first.budget / max(1, len(first.tests))),
        }
        saved = _savings(problem, listed, rounds)
        return Assessment(listed, bound, means.response_time_s, means.cost, config, tested=tested, saves_at_least=saved)


class _Round:
    """Chains that one part of the table proposed, and their tests on the rest.

    ``rows``: those that calibrate, that choose and that test. ``budget``: the probability with which any policy that
    is shown may exceed its tolerance.
    """

    def __init__(self, problem: Problem, listed: Listed, rows: tuple[np.ndarray, np.ndarray, np.ndarray]):
        self.fit, self.learn, self.test = rows
        goals = _goals(problem)
        proposed = chains(problem, goals, *rows)
        self.considered = proposed.considered
        own = [(goal, chain) for goal, chain in zip(goals, proposed.chains, strict=True) if chain]
        self.budget = (1.0 - problem.confidence) / ROUNDS * _share_of_best(problem, self.learn)
        alpha = self.budget / max(1, len(own))
        self.tests = [_Chain(problem, goal.tolerance, chain, listed, rows[1:], alpha) for goal, chain in own]
        self._counts = holm_over_sequences(self.tests, self.budget)

    def shown(self) -> Iterator[tuple[RoutingPolicy, float]]:
        """Policies, and a tolerance that each was shown to keep."""
        for chain, count in zip(self.tests, self._counts, strict=True):
            for policy in chain.policies[:count]:
                yield policy, chain.tolerance


def _parts(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per round the rows that calibrate, that choose and that test."""
    draw, examples = np.random.default_rng(problem.seed), len(problem.outcomes.examples)
    for _ in range(ROUNDS):
        learnt, test = np.split(draw.permutation(examples), [round(examples * LEARN_SHARE)])
        fit, learn = np.split(learnt, [max(1, round(len(learnt) * FIT_SHARE))])
        yield fit, learn, test


def _savings(problem: Problem, listed: Listed, rounds: Sequence[_Round]) -> dict[str, np.ndarray]:
    """By objective the least share saved by each listed policy, the most that a round shows for those it has shown."""
    found = {}
    for objective in problem.objectives:
        column = "latency_s" if objective == "response-time" else "cost"
        shares = np.zeros(len(listed))
        for own in rounds:
            count = sum(len(chain) for chain in own.tests)  # as many as might have been shipped
            alpha = own.budget / len(problem.objectives)
            savings = Savings(problem.outcomes, column, problem.best, own.test, alpha, count)
            for policy, _ in own.shown():
                at = listed.index(policy)
                shares[at] = max(shares[at], savings.share(policy, listed.taken(at, objective)))
        shares[listed.best] = 0.0
        found[objective] = shares
    return found


class _Chain(Sequence[float]):
    """P-values of a chain's policies at its tolerance, each computed when it is read.

    ``rows``: those that chose, and those that test; ``alpha``: what the stakes aim at.
    """

    def __init__(
        self,
        problem: Problem,
        tolerance: float,
        chain: Sequence[RoutingPolicy],
        listed: Listed,
        rows: tuple[np.ndarray, np.ndarray],
        alpha: float,
    ):
        self._kind, self._alpha, self._max_error = problem.tolerance_kind, alpha, problem.max_error
        self._tolerance = tolerance / problem.max_error if self._kind == "absolute" else tolerance
        self.tolerance, self.policies, self._listed = tolerance, chain, listed
        groups = problem.groups
        self._parts = [rows] if groups is None else list(zip(*map(groups.rows, rows), strict=True))
        self._best = listed.error(listed.best) / problem.max_error
        self._counted = zero_or_largest(problem.outcomes.matrix("error"), problem.max_error) and (
            self._kind == "relative" or self._tolerance < 1.0
        )
        # Losses that compare with the best version already: it has none by definition.
        self._never_better = problem.recorded is not None

    def __len__(self) -> int:
        return len(self.policies)

    def __getitem__(self, at: Any) -> Any:
        error = self._listed.error(self._listed.index(self.policies[at])) / self._max_error
        # To hold for every group each of them must be shown to: the weakest counts, and no level is divided.
        return max(self._p_value(error, *rows) for rows in self._parts)

    def _p_value(self, error: np.ndarray, learn: np.ndarray, test: np.ndarray) -> float:
        (error_learnt, best_learnt), tested = ((error[rows], self._best[rows]) for rows in (learn, test))
        if self._counted:
            miss = MISS * self._alpha
            return paired_p_value(*tested, self._tolerance, self._kind, miss, never_better=self._never_better)
        squares = excess_of(error_learnt, best_learnt, self._tolerance, self._kind) ** 2
        seen = len(squares) + 1.0
        return betting_p_value(*tested, self._tolerance, self._kind, self._alpha, (squares.sum() + 1.0) / seen, seen)


def _goals(problem: Problem) -> list[Goal]:
    """A few of the wanted tolerances, evenly spread, the largest among them; for each objective."""
    tolerances = sorted(set(problem.tolerances))
    ranks = np.linspace(0, len(tolerances) - 1, min(MAX_GOALS, len(tolerances)))
    return [
        Goal(objective, tolerance, 2 if objective == "response-time" else 3)
        for objective in problem.objectives
        for tolerance in dict.fromkeys(tolerances[round(rank)] for rank in ranks)
    ]


def _share_of_best(problem: Problem, learn: np.ndarray) -> float:
    """The share of the budget of the version named best: as likely as it seems, to the learning part, to be it."""
    error = problem.errors[learn]
    ahead = int(error.mean(axis=0).argmin())
    worse = error - error[:, [ahead]]
    doubt = np.sqrt(((worse**2).sum(axis=0) + problem.max_error**2) / (len(learn) + 1.0) ** 2)
    likely = np.maximum(ndtr(-worse.mean(axis=0) / doubt), MIN_SHARE)
    return float(likely[problem.best] / likely.sum())


def _examples_needed(problem: Problem, alpha: float) -> int | None:
    """About how large a table certifies one cheaper pair at the widest tolerance, if what it shows is the truth.

    None when no cheaper pair is within that tolerance even as observed.
    """
    candidates = Candidates(problem.outcomes, problem.best, PAIR_POLICIES, problem.thresholds)
    means, best, best_errors = candidates.means(), candidates.best, problem.outcomes.matrix("error")[:, problem.best]
    widest = max(problem.tolerances) * (best_errors.mean() if problem.tolerance_kind == "relative" else 1.0)
    margin = (means.error[best] + widest - means.error) / problem.max_error
    cheaper = (means.response_time_s < means.response_time_s[best]) | (means.cost < means.cost[best])
    hopeful = cheaper & (margin > 1e-9)
    if not hopeful.any():
        return None
    squares = candidates.mean_of_error(lambda error: ((error - best_errors) / problem.max_error) ** 2)[hopeful]
    moment = (squares * len(best_errors) + 1.0) / (len(best_errors) + 1.0)
    smallest = 1.0 if problem.groups is None else min(map(len, problem.groups.rows(np.arange(len(best_errors)))))
    share = 1.0 if problem.groups is None else smallest / len(best_errors)
    counted = zero_or_largest(problem.outcomes.matrix("error"), problem.max_error)
    needed = (examples_to_count if counted else examples_to_show)(margin[hopeful], moment, alpha)
    return int(np.ceil(needed.min() / (1.0 - LEARN_SHARE) / share))
