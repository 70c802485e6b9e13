"""Running a model at an operating point, be it its own or a tolerance tier's ensemble of two of its versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from slotool.elastic import ElasticModel, confidence
from slotool.elastic.evaluation import version_name
from slotool.errors import InputError
from slotool.rules.policies import Conc, consults_second, from_point, takes_second
from slotool.tables import OperatingPoint


@dataclass(frozen=True, slots=True)
class Scores:
    """``logits``: float32 [n, classes]; ``confidence``: float64 [n], NaN where the scores are not numbers."""

    logits: np.ndarray
    confidence: np.ndarray


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """The model's own points behind a decision's point; ``second`` is None when one alone answers. ``concurrent``: both
    versions begin at the same time."""

    first: OperatingPoint
    second: OperatingPoint | None = None
    threshold: float = 0.0
    concurrent: bool = False


class PointRunner:
    """Answers at the model's own points and at ``points``: ensembles (``Rule.point``) of what outcome tables call its
    versions. Those of a policy that came later are found when they are first asked for.

    Raises ``InputError`` for a point that is neither, or an ensemble of versions the model does not have.
    """

    def __init__(self, model: ElasticModel, points: Iterable[OperatingPoint]):
        self.model = model
        self._own = _own(model)
        self._plans: dict[OperatingPoint, EnsemblePlan] = {}
        self.add([*model.points, *points])

    def add(self, points: Iterable[OperatingPoint]) -> None:
        """Answer at these points too. Raises ``InputError`` as the constructor does, and then adds none of
        them."""
        self._plans |= {point: _plan(self.model, self._own, point) for point in points}

    def is_concurrent(self, point: OperatingPoint) -> bool:
        """Whether both versions begin at the same time, so that ``run_concurrently`` is the one to call."""
        return self._plans[point].concurrent

    def run(self, x: np.ndarray, point: OperatingPoint) -> Scores:
        """Scores of ``x`` (float32 [n, *input_shape]), one version after the other.

        The second version sees only the examples whose first answer is not sure enough (tolerance-tiers, §IV-C).
        """
        if point not in self._plans:
            self.add([point])
        plan = self._plans[point]
        first = self._score(x, plan.first)
        if plan.second is None:
            return first
        unsure = consults_second(first.confidence, plan.threshold)
        return combined(first, unsure, self._score(x[unsure], plan.second)) if unsure.any() else first

    async def run_concurrently(self, x: np.ndarray, point: OperatingPoint, pool: Executor) -> Scores:
        """Scores of ``x``, both versions at once in ``pool``; the second is waited for only when the first is not
        sure.

        If it is not needed, it is cancelled before it begins, or its answer is ignored.
        """
        plan = self._plans[point]
        assert plan.second is not None
        loop = asyncio.get_running_loop()
        runs = [loop.run_in_executor(pool, self._score, x, at) for at in (plan.first, plan.second)]
        try:
            first = await runs[0]
            unsure = consults_second(first.confidence, plan.threshold)
            if not unsure.any():
                return first
            second = await runs[1]
            return combined(first, unsure, Scores(second.logits[unsure], second.confidence[unsure]))
        finally:
            for unneeded in runs:
                unneeded.cancel()

    def warm(self, pool: Executor | None = None) -> None:
        """One forward pass at every point that may be asked for, in each thread that will run it, and one estimate."""
        x = np.zeros((1, *self.model.input_shape), dtype=np.float32)
        self.model.expected_accuracy(x)
        for plan in self._plans.values():
            for point in (plan.first, plan.second):
                if point is not None:
                    self._score(x, point)
                if point is not None and pool is not None:
                    pool.submit(self._score, x, point).result()

    def _score(self, x: np.ndarray, point: OperatingPoint) -> Scores:
        # Huge inputs overflow in the network; the NaN confidence that follows is answered, not warned about.
        with np.errstate(over="ignore", invalid="ignore"):
            logits = self.model.forward(x, point)
            return Scores(logits, confidence(logits))


def ensemble_plan(model: ElasticModel, point: OperatingPoint) -> EnsemblePlan:
    """What answering at ``point`` takes. Raises ``InputError`` as ``PointRunner`` does."""
    return _plan(model, _own(model), point)


def _own(model: ElasticModel) -> dict[str, OperatingPoint]:
    return {version_name(point): point for point in model.points}


def _plan(model: ElasticModel, own: dict[str, OperatingPoint], point: OperatingPoint) -> EnsemblePlan:
    if point in model.points:
        return EnsemblePlan(point)
    policy = from_point(point)
    missing = [version for version in policy.versions if version not in own]
    if missing:
        raise InputError(f"{model.name} has no version {missing[0]!r}; it has {', '.join(own)}")
    first, *second = (own[version] for version in policy.versions)
    if not second:
        return EnsemblePlan(first)
    return EnsemblePlan(first, second[0], float(point.get("threshold") or 0.0), isinstance(policy, Conc))


def combined(first: Scores, unsure: np.ndarray, second: Scores) -> Scores:
    """Of two answers the surer one; ``second`` holds the rows where ``unsure`` is set."""
    logits, sure = first.logits.copy(), first.confidence.copy()
    better = takes_second(sure[unsure], second.confidence)
    rows = np.flatnonzero(unsure)[better]
    logits[rows], sure[rows] = second.logits[better], second.confidence[better]
    return Scores(logits, sure)
