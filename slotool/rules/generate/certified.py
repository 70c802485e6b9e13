"""Certified rules: P(any shipped tier exceeds its tolerance) ≤ 1 − confidence, over the draw of the table.

The method is learn-then-test (arXiv 2110.01052), for any kind of policy. What could break the guarantee, and the
remedy:

- *Policies and thresholds are chosen on the data.* A random part of the table (``LEARN_SHARE``) chooses a chain of
  policies per tolerance, from the one most likely to keep it to the cheapest (``proposals``). Only the other
  examples test. A chain is tested in its order until a policy is not proven to keep the tolerance: fixed-sequence
  testing, which needs no correction for the length.
- *The choice depends on the part that was drawn.* So there are ``ROUNDS`` random parts, each with its share of the
  budget, and a tier takes the cheapest policy that any of them proves. From ``LARGE`` examples on there is one part,
  with a smaller share of the table.
- *A pair of versions has one chain of thresholds* (path): the better version alone, then the cheapest one from each
  confidence on. ``PATH_EXAMPLES`` rows choose the thresholds, the cheapest and the better version. All others test,
  with ``PATH_BUDGET`` of the budget; rounds have the rest. For more than ``MAX_STEPS`` versions there is no path,
  because one pair is then a small part of the possible policies.
- *Many tiers.* At most ``MAX_GOALS`` of the tolerances have chains, and Holm's procedure divides the budget among them
  (``holm_over_sequences``). A tier between them takes what is proven for the next stricter one.
- *The best version is unknown.* A policy counts as proven only if it is proven against every version: its p-value is
  the largest of theirs (an intersection-union test). The truly best version v* is fixed, and max_v p_v ≥ p_v*. If the
  policy exceeds its tolerance above v*, then P(max_v p_v ≤ α) ≤ P(p_v* ≤ α) ≤ α: no level is divided among the
  versions, whatever losses, groups and kind of tolerance make p_v. A version is never tested against itself, as its
  excess over itself is 0. The version that serves if nothing cheaper is proven is a policy too, with its place in every
  chain; without a proof its tier promises nothing. With ``Problem.reference`` policies are tested against that version
  alone: the statement is then about it, and its own tier holds by definition.
- *Tolerances per group.* A policy keeps a tolerance if it does so in each group. Its p-value is the largest of the
  groups', so that all their guarantees hold at once.
- *A relative tolerance is a share of the best version's error, which is unknown.* The test is of the mean of
  e − (1 + τ)·e_best: for 0/1 losses an exact test of the examples on which the two differ (``counting``), for others a
  bet (``betting``).

Like the paper's guarantee, this one assumes that examples are independent and distributed as requests are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from slotool.rules.evidence.betting import betting_p_value, examples_to_show
from slotool.rules.evidence.counting import examples_to_count, paired_p_value
from slotool.rules.evidence.losses import excess_of, zero_or_largest
from slotool.rules.generate.base import Assessment, Listed, Problem, RuleGenerator
from slotool.rules.generate.proposals import Goal, Proposals, chains, threshold_path
from slotool.rules.policies.cascades import MAX_STEPS, Cascade
from slotool.rules.policies.routing import OSFA, RoutingPolicy
from slotool.tables import OutcomeTable

# Versions that may be the best, and policies with their losses against each.
Against = Sequence[tuple[int, Listed]]

ROUNDS = 3
LEARN_SHARE = 0.3
# Examples from which on there is one round only, and the share of them that chooses.
LARGE, LARGE_SHARE = 30_000, 0.25
# Share of the budget for the path of a pair, and the rows that give its thresholds, at most a tenth of the table.
PATH_BUDGET, PATH_EXAMPLES = 0.5, 200
MAX_GOALS = 10
# Lead of the best of three rounds over a single one, standard errors. The median is .463, as their tests share 49 % of
# the table; less is taken, because the policy was chosen that seems to need the fewest examples.
ROUNDS_LUCK = 0.35
MISS = 0.01  # share of a test's level for the interval of unknown probabilities


class Certified(RuleGenerator):
    """Bounds that hold simultaneously with the wanted confidence; infinite for policies without a proof."""

    name: ClassVar[str] = "certified"
    proves: ClassVar[bool] = True
    knows_groups: ClassVar[bool] = True
    any_best: ClassVar[bool] = True
    propose = staticmethod(chains)

    def assess(self, problem: Problem) -> Assessment:
        best = OSFA(problem.outcomes.versions[problem.best])
        tables = {id(table): Listed(table, best) for _, table in problem.references}
        against = [(version, tables[id(table)]) for version, table in problem.references]
        listed = dict(against)[problem.best]
        rounds = list(_rounds(problem, against, self.propose))
        tested = np.arange(len(listed)) != listed.best
        shown = [(listed.index(policy), tolerance) for part in rounds for policy, tolerance in part.shown()]
        saves = any(_is_cheaper(listed, at, problem) for at, _ in shown)
        needed = {} if saves else {"examples_for_first_saving": _examples_needed(problem, against, listed, rounds)}
        for version in problem.outcomes.versions:  # for comparison with the others
            listed.index(OSFA(version))
        tested = np.append(tested, np.zeros(len(listed) - len(tested), dtype=bool))
        bound = np.full(len(listed), np.inf)
        if problem.reference is not None:
            bound[listed.best] = 0.0
        for at, tolerance in shown:
            bound[at] = min(bound[at], tolerance)
        means, first = listed.means(), rounds[0]
        config: dict[str, Any] = {
            "candidates": first.considered,
            "chains": sum(len(part.tests) for part in rounds),
            "rounds": len(rounds),
            "examples_learnt_from": len(first.learn),
            "examples_tested_on": len(first.test),
            **needed,
        }
        saved = _savings(problem, listed, rounds)
        return Assessment(listed, bound, means.response_time_s, means.cost, config, tested=tested, saves_at_least=saved)


def _is_cheaper(listed: Listed, at: int, problem: Problem) -> bool:
    """True if a policy saves something on some objective."""
    return any(listed.spent(at, name).mean() < listed.spent(listed.best, name).mean() for name in problem.objectives)


def _rounds(problem: Problem, against: Against, propose: Callable[..., Proposals]) -> Iterator[_Round]:
    """Yield random parts of the table with the chains that they propose, then the path of a pair of versions."""
    draw, examples = np.random.default_rng(problem.seed), len(problem.outcomes.examples)
    goals, budget = _goals(problem), 1.0 - problem.confidence
    has_path = len(problem.outcomes.versions) <= MAX_STEPS and Cascade.kind in problem.policies
    share = 1.0 - PATH_BUDGET if has_path else 1.0
    count, learn_share = (ROUNDS, LEARN_SHARE) if examples < LARGE else (1, LARGE_SHARE)
    for _ in range(count):
        learn, test = np.split(draw.permutation(examples), [round(examples * learn_share)])
        proposed = propose(problem, goals, learn, test)
        tolerances = [goal.tolerance for goal in goals]
        chained = list(zip(tolerances, proposed.chains, strict=True))
        yield _Round(problem, against, (learn, test), chained, budget * share / count, proposed.considered)
    if has_path:
        learn, test = np.split(draw.permutation(examples), [min(PATH_EXAMPLES, examples // 10)])
        paths = {tuple(threshold_path(problem, goal, learn)): None for goal in goals}
        chained = [(level, list(path)) for level in dict.fromkeys(goal.tolerance for goal in goals) for path in paths]
        considered = sum(map(len, paths))
        yield _Round(problem, against, (learn, test), chained, budget * PATH_BUDGET, considered, path=True)


class _Round:
    """Chains that one part of the table proposed, and their tests on the rest.

    ``rows``: those that choose and test. ``chained``: policies to test in order, by tolerance, chosen from
    ``considered``. ``budget``: the probability with which any proven policy may exceed its tolerance. ``path``: the
    chains are complete, with the best version in its place, if any.
    """

    def __init__(
        self,
        problem: Problem,
        against: Against,
        rows: tuple[np.ndarray, np.ndarray],
        chained: Sequence[tuple[float, list[RoutingPolicy]]],
        budget: float,
        considered: int,
        path: bool = False,
    ):
        self.learn, self.test = rows
        self.budget, self.considered, self.path = budget, considered, path
        all_chains = [_Chain(problem, tolerance, chain, against, rows, budget / len(chained))
                for tolerance, chain in chained]  # fmt: skip
        if problem.reference is None and not path:
            for chain in all_chains:
                chain.place(OSFA(problem.outcomes.versions[problem.best]))
        self.tests = [chain for chain in all_chains if chain.policies]
        self._counts = holm_over_sequences(self.tests, self.budget)

    def shown(self) -> Iterator[tuple[RoutingPolicy, float]]:
        """Yield policies, and a tolerance that each was proven to keep."""
        for chain, count in zip(self.tests, self._counts, strict=True):
            for policy in chain.policies[:count]:
                yield policy, chain.tolerance


def _savings(problem: Problem, listed: Listed, rounds: Sequence[_Round]) -> dict[str, np.ndarray]:
    """Return the least share that each listed policy saves, by objective: the most that a round proves."""
    shares_saved = {}
    for objective in problem.objectives:
        column = "latency_s" if objective == "response-time" else "cost"
        shares = np.zeros(len(listed))
        for part in rounds:
            count = sum(len(chain) for chain in part.tests)  # as many as might have been shipped
            alpha = part.budget / len(problem.objectives)
            if problem.reference is None:  # the table decides which version savings are shares of
                alpha /= len(problem.outcomes.versions)
            savings = Savings(problem.outcomes, column, problem.best, part.test, alpha, count)
            for policy, _ in part.shown():
                at = listed.index(policy)
                shares[at] = max(shares[at], savings.share(policy, listed.spent(at, objective)))
        shares[listed.best] = 0.0
        shares_saved[objective] = shares
    return shares_saved


class _Chain(Sequence[float]):
    """P-values of a chain's policies at its tolerance, each computed when it is read.

    ``rows``: those that chose, and those that test; ``alpha``: the target of the stakes.
    """

    def __init__(
        self,
        problem: Problem,
        tolerance: float,
        chain: Sequence[RoutingPolicy],
        against: Against,
        rows: tuple[np.ndarray, np.ndarray],
        alpha: float,
    ):
        self._kind, self._alpha, self._max_error = problem.tolerance_kind, alpha, problem.max_error
        self._tolerance = tolerance / problem.max_error if self._kind == "absolute" else tolerance
        self.tolerance = tolerance
        self._alone = [(OSFA(problem.outcomes.versions[version]), listed) for version, listed in against]
        groups = problem.groups
        self._parts = [rows] if groups is None else list(zip(*map(groups.rows, rows), strict=True))
        self._counted = zero_or_largest(problem.outcomes.matrix("error"), problem.max_error) and (
            self._kind == "relative" or self._tolerance < 1.0
        )
        # If losses are relative to a version, it has none.
        self._never_better = problem.recorded is not None
        self.policies = list(chain)

    def __len__(self) -> int:
        return len(self.policies)

    def __getitem__(self, at: Any) -> Any:
        # The weakest proof counts, over all other versions and groups. The reference has no other version.
        against = self._losses(self.policies[at])
        return max((self._p_value(*losses, *rows) for losses in against for rows in self._parts), default=0.0)

    def _losses(self, policy: RoutingPolicy) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield losses of a policy and of each version that it is compared with, in [0, 1]."""
        losses: dict[int, np.ndarray] = {}  # versions mostly share a table
        for alone, listed in self._alone:
            if policy != alone:
                if id(listed) not in losses:
                    losses[id(listed)] = self._scaled(listed, policy)
                yield losses[id(listed)], self._scaled(listed, alone)

    def _scaled(self, listed: Listed, policy: RoutingPolicy) -> np.ndarray:
        error = listed.error(listed.index(policy))
        return error if self._max_error == 1.0 else error / self._max_error

    def place(self, best: RoutingPolicy) -> None:
        """Insert the version that may serve alone before all with a smaller margin."""
        margin = self._margin(best)
        if margin > 0:
            before = next((at for at, policy in enumerate(self.policies) if self._margin(policy) < margin), len(self))
            self.policies.insert(before, best)

    def _margin(self, policy: RoutingPolicy) -> float:
        """Return the least distance of observed degradation and tolerance, in the test's standard errors."""
        least = np.inf
        for error, best in self._losses(policy):
            for learn, test in self._parts:
                excess = excess_of(error[learn], best[learn], self._tolerance, self._kind)
                moment = (((error[learn] - best[learn]) ** 2).sum() + 1.0) / (len(learn) + 1.0)
                least = min(least, -excess.mean() / np.sqrt(moment / max(1, len(test))) if len(learn) else 0.0)
        return float(least)

    def examples_needed(self, policy: RoutingPolicy) -> Iterator[float]:
        """Yield the estimated examples that prove ``policy``, against each version and for each group.

        This is for one round; infinite where the observed degradation exceeds the tolerance.
        """
        count = examples_to_count if self._counted else examples_to_show
        for error, best in self._losses(policy):
            for rows, _ in self._parts:
                excess = excess_of(error[rows], best[rows], self._tolerance, self._kind)
                # Half a difference is added: zero may be chance, and a whole one would demand too many examples.
                margin, moment = -float(excess.mean()), (excess.var() * len(rows) + 0.5) / (len(rows) + 0.5)
                needed = count(np.array(margin), np.array(moment), self._alpha) if margin > 1e-9 else np.inf
                yield float(needed) * len(error) / len(rows)

    def _p_value(self, error: np.ndarray, best: np.ndarray, learn: np.ndarray, test: np.ndarray) -> float:
        if self._counted:
            miss, counts, alone = MISS * self._alpha, error.take(test), best.take(test)
            return paired_p_value(counts, alone, self._tolerance, self._kind, miss, never_better=self._never_better)
        squares = excess_of(error[learn], best[learn], self._tolerance, self._kind) ** 2
        moment, weight = (squares.sum() + 1.0) / (len(squares) + 1.0), len(squares) + 1.0
        return betting_p_value(error[test], best[test], self._tolerance, self._kind, self._alpha, moment, weight)


def _goals(problem: Problem) -> list[Goal]:
    """Return a few tolerances, evenly spread, including the largest, for each objective."""
    tolerances = sorted(set(problem.tolerances))
    ranks = np.linspace(0, len(tolerances) - 1, min(MAX_GOALS, len(tolerances)))
    return [
        Goal(objective, tolerance, 2 if objective == "response-time" else 3)
        for objective in problem.objectives
        for tolerance in dict.fromkeys(tolerances[round(rank)] for rank in ranks)
    ]


def _examples_needed(problem: Problem, against: Against, listed: Listed, rounds: Sequence[_Round]) -> int | None:
    """Estimate the table size that proves the first saving at the widest tolerance half of the time.

    The observed means are taken as true. None if no policy keeps that tolerance as observed.
    """
    examples, least = np.arange(len(problem.outcomes.examples)), np.inf
    replayed = {listed.policy(at) for at in range(len(listed))}
    for group in ([part for part in rounds if not part.path], *([part] for part in rounds if part.path)):
        alpha = group[0].budget / max(1, len(group[0].tests))
        chain = _Chain(problem, max(problem.tolerances), (), against, (examples, examples), alpha)
        policies = dict.fromkeys(policy for part in group for tested in part.tests for policy in tested.policies)
        if not group[0].path:  # only tested ones: all would fill the memory
            policies = {policy: None for policy in policies if policy in replayed}
        cheaper = [policy for policy in policies if _is_cheaper(listed, listed.index(policy), problem)]
        needed = min((max(chain.examples_needed(policy)) for policy in cheaper), default=np.inf)
        # The best of several rounds counts.
        luck = max(0.0, 1.0 + ROUNDS_LUCK / float(ndtri(alpha))) ** 2 if len(group) > 1 else 1.0
        least = min(least, luck * needed * len(examples) / len(group[0].test))
    return int(np.ceil(least)) if np.isfinite(least) else None


def holm_over_sequences(sequences: Sequence[Sequence[float]], level: float) -> list[int]:
    """Return how many hypotheses of each sequence are rejected, from its beginning; ``sequences`` hold p-values.

    Fixed order within each sequence, Holm's procedure across them: a hypothesis is tested only when all before it in
    its sequence are rejected, and a sequence that ends leaves its share of the level to the others. This graphical
    procedure (Bretz, Maurer, Brannath & Posch 2009) rejects any true hypothesis with probability at most the level,
    however the p-values depend on each other.
    """
    rejected = [0] * len(sequences)
    while active := [at for at, sequence in enumerate(sequences) if rejected[at] < len(sequence)]:
        share = level / len(active)
        before = list(rejected)
        for at in active:
            while rejected[at] < len(sequences[at]) and sequences[at][rejected[at]] <= share:
                rejected[at] += 1
        if rejected == before:
            break
    return rejected


class Savings:
    """Lower bounds on savings as shares of the best version's latency_s or cost.

    Empirical Bernstein bounds (Maurer & Pontil, arXiv 0907.3740). They need a range of values: here each version's
    least and greatest value in the table.

    ``rows``: the examples that test. ``alpha``: probability that one bound fails; half of it is for the best version's
    mean, which all bounds share, so ``share`` may be called ``count`` times.
    """

    def __init__(self, outcomes: OutcomeTable, column: str, best: int, rows: np.ndarray, alpha: float, count: int):
        values = outcomes.matrix(column)
        self._names, self._rows = outcomes.versions, rows
        self._least, self._most = values.min(axis=0), values.max(axis=0)
        self._best, self._of_best = best, values[rows, best]
        self._alpha = 0.5 * alpha / max(1, count)
        width = bernstein_width(self._of_best, float(self._most[best] - self._least[best]), 0.5 * alpha)
        self._greatest_best = float(self._of_best.mean()) + width

    def share(self, policy: RoutingPolicy, spent: np.ndarray) -> float:
        """Return the least share that ``policy`` saves; ``spent``: its time or cost, float64 [examples]."""
        at = [self._names.index(version) for version in policy.versions]
        saved = self._of_best - spent[self._rows]
        span = self._most[self._best] - self._least[self._best] + self._most[at].sum() - self._least[at[0]]
        least = float(saved.mean()) - bernstein_width(saved, float(span), self._alpha)
        return max(0.0, least / self._greatest_best) if self._greatest_best > 0 else 0.0


def bernstein_width(values: np.ndarray, span: float, alpha: float) -> float:
    """Return the one-sided distance of expectation and mean of ``values``, with probability ≥ 1 − ``alpha``.

    ``values``: float64 [examples], independent, within ``span`` of each other.
    """
    count = len(values)
    if count < 2:
        return span
    doubt = np.log(2.0 / alpha)
    return float(np.sqrt(2.0 * values.var(ddof=1) * doubt / count) + 7.0 * span * doubt / (3.0 * (count - 1)))
