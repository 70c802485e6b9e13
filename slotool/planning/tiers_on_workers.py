"""Fleets that answer by rules: the cheapest that holds a promise for requests of tolerance tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.model import version_name
from slotool.planning.fleet import Fleet, Pool, WorkerType
from slotool.planning.model_on_workers import Demand, ModelOnWorkers
from slotool.planning.promise import Verdict
from slotool.planning.tiers import TierMix
from slotool.rules.policies.points import from_point, in_turn
from slotool.simulation import Scenario
from slotool.simulation.service import Overhead
from slotool.simulation.tiers import TieredService, TierRequests, TierResult
from slotool.tables import OperatingPoint


@dataclass(frozen=True)
class _Answers:
    """``Points`` that requests of a mix may be answered by."""

    points: tuple[OperatingPoint, ...]
    accuracy: np.ndarray


class TierService:
    """Requests of a mix of tiers, each with an example drawn from the outcome table.

    ``tiers``: index in the ``service`` of each tolerance of the mix.
    """

    def __init__(self, service: TieredService, mix: TierMix, tiers: Sequence[int], examples: int):
        self._service, self._mix, self._tiers, self._examples = service, mix, np.array(tiers), examples
        self.fastest_us = max(service.fastest_us(tier) for tier in tiers)
        rows = sorted({row for tier in tiers for row in service.rows(tier)})
        ensembles = service.ensembles
        self.points = _Answers(tuple(ensembles.points[row] for row in rows), ensembles.accuracy[rows])
        # Mean of a request.
        self.worker_us = sum(
            share * service.worker_us(tier) for tier, (_, share) in zip(tiers, mix.shares, strict=True)
        )

    def run(self, scenario: Scenario, seed: int, overhead: Overhead) -> TierResult:
        """Simulate; ``seed``: of the latencies; ``overhead``: of each call, with its reserve taken off deadlines."""
        random = np.random.default_rng((seed, len(scenario)))
        tiers = self._tiers[self._mix.drawn(random, len(scenario))]
        requests = TierRequests(random.integers(self._examples, size=len(scenario)), tiers)
        return self._service.simulate(scenario, requests, seed=seed, overhead=overhead)


class TiersOnWorkers(ModelOnWorkers):
    """Requests of tolerance tiers; what others call policies are mixes of tiers here, by their text."""

    def __init__(self, demand: Demand, *, reserve_us: float = 0.0):
        super().__init__(demand, reserve_us=reserve_us)
        tiers, outcomes = demand.tiers, demand.outcomes
        assert tiers is not None
        assert outcomes is not None
        self.mixes = {str(mix): mix for mix in tiers.mixes}
        self._rules, self._table, self._strictest, self._cancels = (
            tiers.rules, outcomes, tiers.strictest, bool(tiers.cancels)
        )  # fmt: skip
        self._tiers = list(dict.fromkeys((each, mix.objective) for mix in tiers.mixes for each in mix.tolerances))
        self._of_workers: dict[str, TieredService] = {}

    @property
    def remarks(self) -> list[str]:
        """Warnings of tolerances that no tier is as wide as."""
        result = {}
        for tolerance, objective in self._tiers:
            widest = max(rule.tolerance for rule in self._rules.rules if rule.objective == objective)
            if tolerance > widest + 1e-12:
                result[tolerance, widest] = (
                    f"tolerance {tolerance:g} is wider than every tier: as in serve, the widest answers, {widest:g} "
                    "(a tolerance is a share, so 1% is 0.01)"
                )
        return list(result.values())

    def policies(self, worker: WorkerType, names: Sequence[str]) -> list[str]:
        return [name for name in self.mixes if self.service(worker, name).fastest_us <= self.computing_us]

    def terms(self, pool: Pool) -> dict[str, Any]:
        mix = self.mixes.get(pool.policy)
        if mix is None:  # of one point
            return {}
        tolerance = mix.tolerances[0] if len(mix.shares) == 1 else dict(mix.shares)
        return {"tolerance": tolerance, "objective": mix.objective}

    def promised(self, fleet: Fleet) -> list[dict[str, Any]]:
        rules, mix = self._rules, self.mixes[fleet.pool.policy]
        stated = {"confidence": rules.confidence, "tolerance_kind": rules.tolerance_kind, "max_error": rules.max_error}
        rows = []
        for (tolerance, share), rule in zip(mix.shares, mix.rules(rules), strict=True):
            by_rule = {
                "tier": None if rule is None else rule.tolerance,
                "rule": "" if rule is None else rule.id,
                "routing": f"{rules.best_version} alone" if rule is None else from_point(rule.point).words,
                "bound": rules.best_bound if rule is None else rule.bound,
                "above": rules.best_words,
                "certified": rules.best_bound == 0 if rule is None else rule.certified,
                "note": "" if rule is None else rule.note,
                "at_once": rule is not None and in_turn(rule.point) is not None,
            }
            rows.append({"tolerance": tolerance, "share": share, "objective": mix.objective, **by_rule, **stated})
        return rows

    def why_nothing_fits(self, workers: Sequence[WorkerType]) -> str:
        fastest_us = min(self.service(worker, name).fastest_us for worker in workers for name in self.mixes)
        return (
            f"of {self.computing_us / 1e3:.4g} ms left for computing no request could begin: its ensemble may take "
            f"{fastest_us / 1e3:.4g} ms"
        )

    def rank(self, policy: str) -> float:
        return self.mixes[policy].tolerances[0] if self._strictest else 0.0

    def _best_rate_per_s(self, pool: Pool) -> float:
        """Return the rate by the ensembles of the requests' own tiers."""
        return 1e6 / self.service(pool.worker, pool.policy).worker_us

    def is_enough(self, verdict: Verdict) -> bool:
        """True if deadlines hold: more workers do not make answers more accurate, as requests get their own tier."""
        return "attainment" not in verdict.misses(self.promise)

    def service(self, worker: WorkerType, policy: str) -> TierService:
        service = super().service(worker, policy)
        assert isinstance(service, TierService)
        return service

    def _make(self, worker: WorkerType, policy: str) -> TierService:
        if worker.name not in self._of_workers:
            profile = worker.profile
            samples_us = {(version_name(point), size): samples for (point, size), samples in profile.samples_us.items()}
            self._of_workers[worker.name] = TieredService(
                self._rules, profile.grid.space, samples_us, self._table, self._tiers, cancels=self._cancels
            )
        mix = self.mixes[policy]
        tiers = [self._tiers.index((tolerance, mix.objective)) for tolerance in mix.tolerances]
        return TierService(self._of_workers[worker.name], mix, tiers, len(self._table.examples))
