"""Interface of all generators of routing rules: the problem they solve and the assessment they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from slotool.rules.evidence.groups import Groups
from slotool.rules.evidence.losses import Comparison, ToleranceKind, degradation, losses
from slotool.rules.generate.candidates import Candidates
from slotool.rules.policies.routing import OSFA, POLICIES, Replayed, RoutingPolicy
from slotool.tables import OutcomeTable


@dataclass(frozen=True)
class Problem:
    """Outcome table and the requirements on the rules, already checked.

    ``tolerances`` ascending; ``tolerance_kind`` relative: (e − e_best) / e_best, or absolute: e − e_best. Errors lie in
    [0, ``max_error``]. ``groups``: a tolerance must hold for each; None: for all examples together. ``recorded``: the
    table of original errors, which decides which version is best, where ``outcomes`` has losses made from them
    (``losses``) with ``loss_limit``. ``reference``: the version that tolerances are relative to; None: the truly best
    one, whichever that is.
    """

    outcomes: OutcomeTable
    tolerances: Sequence[float]
    tolerance_kind: Comparison = "relative"
    confidence: float = 0.999
    policies: Sequence[str] = POLICIES
    thresholds: int = 50
    max_error: float = 1.0
    seed: int = 0
    objectives: Sequence[str] = ("response-time", "cost")
    groups: Groups | None = None
    recorded: OutcomeTable | None = None
    loss_limit: float = 0.0
    reference: str | None = None

    @property
    def kind(self) -> ToleranceKind:
        """Kind of tolerances as stated: with ``recorded``, losses are made from errors."""
        return self.tolerance_kind if self.recorded is None else "quantile"

    @property
    def errors(self) -> np.ndarray:
        """Errors that decide which version is best: float64 [examples, versions]."""
        return (self.outcomes if self.recorded is None else self.recorded).matrix("error")

    @cached_property
    def best(self) -> int:
        """Index of ``reference``, by default of the version with the lowest mean error, then the fastest."""
        if self.reference is not None:
            return self.outcomes.versions.index(self.reference)
        return int(np.lexsort((self.outcomes.matrix("latency_s").mean(axis=0), self.version_errors))[0])

    @cached_property
    def version_errors(self) -> np.ndarray:
        """Mean error of each version: float64 [versions]."""
        return self.errors.mean(axis=0)

    @cached_property
    def references(self) -> list[tuple[int, OutcomeTable]]:
        """Versions that may be the best, those with few errors first, and the table of losses against each."""
        order = [self.best] if self.reference is not None else np.argsort(self.version_errors, kind="stable").tolist()
        if self.recorded is None:
            return [(at, self.outcomes) for at in order]
        names = self.recorded.versions
        return [(at, losses(self.recorded, "quantile", self.loss_limit, names[at])) for at in order]

    def candidates(self, rows: np.ndarray | None = None, policies: Sequence[str] | None = None) -> Candidates:
        """Return all ensembles to choose from; thresholds are quantiles over ``rows`` (default: the whole table)."""
        return Candidates(self.outcomes, self.best, policies or self.policies, self.thresholds, rows)

    def degradation(self, error: np.ndarray, best_error: float) -> np.ndarray:
        """Return the degradation from the best version in the tolerance's kind; infinite relative to no error."""
        return degradation(error, best_error, self.tolerance_kind)


class Listed:
    """Policies with the interface of ``Candidates``, replayed at first use; ``best``: index that may serve alone."""

    def __init__(self, outcomes: OutcomeTable, best: OSFA):
        self._outcomes = outcomes
        self._at: dict[RoutingPolicy, int] = {}
        self._replayed: list[Replayed] = []
        self.best = self.index(best)

    def __len__(self) -> int:
        return len(self._at)

    def index(self, policy: RoutingPolicy) -> int:
        """Return the index of ``policy``, adding it if necessary."""
        if policy not in self._at:
            self._at[policy] = len(self._at)
            self._replayed.append(policy.replay(self._outcomes))
        return self._at[policy]

    def policy(self, index: int) -> RoutingPolicy:
        return list(self._at)[index]

    def error(self, index: int) -> np.ndarray:
        """Return the error per example: float64 [examples]."""
        return self._replayed[index].error

    def spent(self, index: int, objective: str) -> np.ndarray:
        """Return the time or cost per example: float64 [examples]."""
        replayed = self._replayed[index]
        return replayed.response_time_s if objective == "response-time" else replayed.cost

    def means(self) -> Replayed:
        """Return mean error, response time and cost of every policy."""
        rows = [(r.error.mean(), r.response_time_s.mean(), r.cost.mean()) for r in self._replayed]
        return Replayed(*np.array(rows).T)


@dataclass(frozen=True)
class Assessment:
    """Result of a generator for each of ``candidates``.

    ``bound``: float64 [candidates], upper bound of the error degradation; infinite where there is none. For the best
    version alone it is at most 0, unless the generator covers ``any_best`` and the problem has no ``reference``.
    ``response_time_s`` and ``cost``: the ranked figures, expected or worst case. ``config`` goes into the rule set,
    ``note`` to each rule. ``tested``: bool [candidates]; None: all were tested. ``saves_at_least``: by objective
    float64 [candidates], proven savings as shares of the best version's figures; 0 where left out.
    """

    candidates: Candidates | Listed
    bound: np.ndarray
    response_time_s: np.ndarray
    cost: np.ndarray
    config: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    tested: np.ndarray | None = None
    saves_at_least: Mapping[str, np.ndarray] = field(default_factory=dict)


class RuleGenerator(ABC):
    """Method to bound the error degradation of ensembles from a table of outcomes.

    ``name``: on the command line. ``proves``: its bounds hold together, for all candidates, with probability ≥
    confidence over the draw of the table; with ``knows_groups`` also for each group. ``any_best``: without a
    ``reference`` they hold above the truly best version, whichever that is; else above the one with the fewest errors
    in the table.
    """

    name: ClassVar[str]
    proves: ClassVar[bool] = False
    knows_groups: ClassVar[bool] = False
    any_best: ClassVar[bool] = False

    @abstractmethod
    def assess(self, problem: Problem) -> Assessment:
        """Assess candidates. The same problem gives the same assessment."""
