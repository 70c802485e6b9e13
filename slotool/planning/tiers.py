"""Fleets that answer by rules: the cheapest that holds a promise for requests of tolerance tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotool.elastic import ElasticModel, load_served
from slotool.elastic.model import version_name
from slotool.errors import ArgumentError, InputError
from slotool.planning.fleet import Fleet, Pool, WorkerType
from slotool.planning.model_on_workers import ModelOnWorkers
from slotool.planning.promise import Promise, Verdict
from slotool.planning.traffic import Traffic
from slotool.rules.policies.points import from_point, in_turn
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling.batching import ControlGrid, Profile, read_samples
from slotool.scheduling.space import PLANNING_QUANTILE, ControlSpace
from slotool.simulation import Scenario
from slotool.simulation.service import Overhead
from slotool.simulation.tiers import TieredService, TierRequests, TierResult
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable


@dataclass(frozen=True)
class TierMix:
    """Mix of the requests' tolerance tiers.

    ``shares``: pairs of a tolerance and its share of the requests, the strictest first; ``objective``: quantity to
    save.
    """

    shares: tuple[tuple[float, float], ...]
    objective: str

    @property
    def tolerances(self) -> tuple[float, ...]:
        return tuple(tolerance for tolerance, _ in self.shares)

    def drawn(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Return int64 [count]: which of the tolerances each request has."""
        if len(self.shares) == 1:
            return np.zeros(count, dtype=np.int64)
        ends = np.cumsum([share for _, share in self.shares])
        return np.minimum(np.searchsorted(ends, random.random(count), side="right"), len(ends) - 1)

    def rules(self, rules: RuleSet) -> list[Rule | None]:
        """Return the rule of each tolerance; None below the strictest tier, where the best version answers."""
        strictest = min(rule.tolerance for rule in rules.rules if rule.objective == self.objective)
        return [
            rules.rule_for(tolerance, self.objective) if tolerance >= strictest else None
            for tolerance in self.tolerances
        ]

    def __str__(self) -> str:
        if len(self.shares) == 1:
            return f"tier {self.shares[0][0]:g} of {self.objective}"
        parts = ", ".join(f"{tolerance:g} ({share:.0%})" for tolerance, share in self.shares)
        return f"tiers {parts} of {self.objective}"


def mixes_of(rules: RuleSet, shares: Mapping[float, float] | None, objective: str | None) -> list[TierMix]:
    """Return the requests' mix of tiers for each possible objective; without ``shares`` every tier by itself.

    Raises ``InputError`` for an objective without tiers.
    """
    all_objectives = list(dict.fromkeys(rule.objective for rule in rules.rules))
    if objective is not None and objective not in all_objectives:
        raise InputError(f"no rules for objective {objective!r}; there are rules for {', '.join(all_objectives)}")
    objectives = all_objectives if objective is None else [objective]
    if shares is not None:
        return [TierMix(tuple(sorted(shares.items())), objective) for objective in objectives]
    tiers = sorted({(rule.tolerance, rule.objective) for rule in rules.rules if rule.objective in objectives})
    return [TierMix(((tolerance, 1.0),), objective) for tolerance, objective in tiers]


def read_versions(
    latency: LatencyTable,
    outcomes: OutcomeTable,
    rules: RuleSet,
    *,
    subject: str | None = None,
    quantile: float = PLANNING_QUANTILE,
    devices: Sequence[str] = (),
    **conditions: Any,
) -> Profile:
    """Return calls of each version in the rules as a profile with all of them, in commonly measured batches.

    ``conditions`` and ``devices`` narrow the rows, as of ``read_profile``. Raises ``InputError`` as that does, and for
    a version of the rules that the table lacks or has only in batches: a request that waits alone is a call of one
    example.
    """
    subject, samples = read_samples(latency, subject=subject, devices=devices, **conditions)
    versions = {*rules.versions, rules.best_version}
    points = [point for point in dict.fromkeys(point for point, _ in samples) if version_name(point) in versions]
    if missing := versions - {version_name(point) for point in points}:
        names = ", ".join(dict.fromkeys(version_name(point) for point, _ in samples))
        raise InputError(f"the latency table has no version {min(missing)!r} of the rules; it has {names}")
    for point in points:
        if (point, 1) not in samples:
            least = min(size for measured, size in samples if measured == point)
            raise InputError(
                f"latencies of {point} begin with batches of {least}; a request that waits alone is a call of one "
                "example: measure batch size 1"
            )
    solo = latency.where(co_runners="", **conditions)
    space = ControlSpace.of_tables(subject, points, solo, outcomes, quantile=quantile, devices=devices)
    largest = min(space.batch_sizes(point)[-1] for point in points)
    cells = [(point, size) for point in points for size in space.batch_sizes(point) if size <= largest]
    latency_us = {cell: median for cell in cells if (median := space.latency_us(*cell)) is not None}
    accuracy = {point: mean for point in points if (mean := space.accuracy(point)) is not None}
    grid = ControlGrid(ControlSpace(points, latency_us, accuracy), all_points=True)
    return Profile(subject, grid, {cell: samples[cell] for cell in cells})


def _promised(mix: TierMix, rules: RuleSet) -> list[dict[str, Any]]:
    """Per tolerance of a mix, what is promised for it: the bound restated, with the rules' own confidence."""
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
        stated = {"confidence": rules.confidence, "tolerance_kind": rules.tolerance_kind, "max_error": rules.max_error}
        rows.append({"tolerance": tolerance, "share": share, "objective": mix.objective, **by_rule, **stated})
    return rows


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
        self.offered = tuple(service.offered[tier] for tier in tiers), tuple(share for _, share in mix.shares)

    def run(self, scenario: Scenario, seed: int, overhead: Overhead) -> TierResult:
        random = np.random.default_rng((seed, len(scenario)))
        tiers = self._tiers[self._mix.drawn(random, len(scenario))]
        requests = TierRequests(random.integers(self._examples, size=len(scenario)), tiers)
        return self._service.simulate(scenario, requests, seed=seed, overhead=overhead)


@dataclass(frozen=True)
class Tiers:
    """Requests answered by ``rules``. ``mixes``: their possible tiers; ``cancels``: see ``TieredService``.

    ``strictest``: the plan is for the strictest tier of ``mixes`` that some fleet holds, not the cheapest fleet.
    """

    rules: RuleSet
    mixes: Sequence[TierMix]
    strictest: bool = False
    cancels: bool | None = False

    @classmethod
    def of(
        cls, rules: RuleSet, shares: Mapping[float, float], objective: str | None, artifact: str | Path | None
    ) -> Tiers:
        """Return the tiers of ``rules`` that requests name.

        Args:
            rules: Rules that answer.
            shares: Shares of the requests by tolerance; none: each tier by itself.
            objective: What a tolerance saves; None: either.
            artifact: Artifact to serve, which says whether a call can be cancelled.

        Raises:
            ArgumentError: A tolerance is none that the rules could mean.
        """
        for each in shares:
            try:
                rules.require_meant(each)
            except InputError as error:
                raise ArgumentError("tolerance", str(error)) from None
        cancels = None
        if artifact is not None:
            # A call of a library's own model cannot be ended between two operators.
            model = load_served(str(artifact), mapped=True)
            cancels = type(model).set_cancellation_check is not ElasticModel.set_cancellation_check
        return cls(rules, mixes_of(rules, shares or None, objective), not shares, cancels)


class TiersOnWorkers(ModelOnWorkers):
    """Requests of tolerance tiers; what others call policies are mixes of tiers here, by their text."""

    def __init__(
        self,
        arrival_s: np.ndarray,
        promise: Promise,
        tiers: Tiers,
        outcomes: OutcomeTable,
        **settings: Any,
    ):
        super().__init__(arrival_s, promise, outcomes=outcomes, **settings)
        self.mixes = {str(mix): mix for mix in tiers.mixes}
        self._rules, self._table, self._strictest, self._cancels = (
            tiers.rules, outcomes, tiers.strictest, bool(tiers.cancels)
        )  # fmt: skip
        self._tiers = list(dict.fromkeys((each, mix.objective) for mix in tiers.mixes for each in mix.tolerances))
        self._of_workers: dict[str, TieredService] = {}
        # Neighbouring tiers are often served by the same ensembles. The traffic is kept, so that its id stays its own.
        self._tried: dict[tuple[object, ...], tuple[Traffic, Verdict]] = {}

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

    def fits(self, pool: Pool) -> bool:
        worker = self.placed(pool.worker, pool.replicas)
        return self.service(worker, pool.policy).fastest_us <= self.computing_us

    def policies(self, worker: WorkerType, names: Sequence[str]) -> list[str]:
        return [name for name in self.mixes if self.service(worker, name).fastest_us <= self.computing_us]

    def terms(self, pool: Pool) -> dict[str, Any]:
        mix = self.mixes.get(pool.policy)
        if mix is None:  # of one point
            return {}
        tolerance = mix.tolerances[0] if len(mix.shares) == 1 else dict(mix.shares)
        return {"tolerance": tolerance, "objective": mix.objective}

    def promised(self, fleet: Fleet) -> list[dict[str, Any]]:
        return _promised(self.mixes[fleet.pool.policy], self._rules)

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

    def verdict(self, pool: Pool, draw: int, traffic: Traffic) -> Verdict:
        placed = self.placed(pool.worker, pool.replicas)
        key = placed.name, self.service(placed, pool.policy).offered, draw, id(traffic), pool.replicas
        if key not in self._tried:
            self._tried[key] = traffic, super().verdict(pool, draw, traffic)
        return self._tried[key][1]

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
