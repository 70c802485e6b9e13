"""Tolerance tiers that requests name, and the versions that rules route between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotool.elastic import ElasticModel, load_served
from slotool.elastic.model import version_name
from slotool.errors import ArgumentError, InputError
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling.batching import ControlGrid, Profile, read_samples
from slotool.scheduling.space import PLANNING_QUANTILE, ControlSpace
from slotool.tables import LatencyTable, OutcomeTable


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
