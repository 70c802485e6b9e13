"""Requests of tolerance tiers on a virtual clock, compiled: each has an example, which says how far its cascade goes.

What a server of rules does with a request is in four places: ``ToleranceTiers`` chooses the ensemble and how many
share the call, ``Dispatcher`` takes those from the queue, a worker asks one version after the other (``PointRunner``),
and two workers ask both of a Conc ensemble (``EnsembleCall``). Here the choice is a table of
``ToleranceTiers.choices``, and how many versions an example takes is ``RoutingPolicy.depths``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from slotool.errors import InputError
from slotool.rules.policies.cascades import MAX_STEPS
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import Conc
from slotool.rules.ruleset.rules import RuleSet
from slotool.scheduling.space import ControlSpace, errors_at
from slotool.scheduling.tolerance_tiers import ToleranceTiers, first_us, worst_us
from slotool.simulation import tier_loop
from slotool.simulation.scenario import EXPIRED, Scenario, SimulationResult
from slotool.simulation.service import Overhead
from slotool.tables import OperatingPoint, OutcomeTable


class Ensembles:
    """Ensembles of versions as arrays; ``points`` name them.

    ``versions``: names, V of them, all that any consults. ``asks``: int16 [P, 4], which are asked, in turn; −1 behind
    the last. ``at_once``: bool [P], the first two begin together. ``depths``: int8 [P, examples], how many of them an
    example takes. ``correct``: float32 [P, examples], 1 less the answer's error; ``accuracy``: float64 [P], its mean.
    ``sizes``: int64 [S], ascending, of the calls that any may have, beginning with 1; ``worst_us``: float64 [P, S], all
    consulted for each example, as a server plans; 0 where ``space`` does not know, ``inf`` beyond what an ensemble
    takes. ``first_us``: float64 [P, S], of the version asked first.
    Raises ``InputError`` for versions that ``outcomes`` lack.
    """

    def __init__(self, points: Sequence[OperatingPoint], space: ControlSpace, outcomes: OutcomeTable):
        policies = [from_point(point) for point in points]
        self.points = tuple(points)
        self.versions = tuple(dict.fromkeys(version for policy in policies for version in policy.versions))
        self.asks = np.full((len(points), MAX_STEPS), -1, dtype=np.int16)
        for row, policy in enumerate(policies):
            self.asks[row, : len(policy.versions)] = [self.versions.index(version) for version in policy.versions]
        self.at_once = np.array([policy.kind == Conc.kind for policy in policies])
        self.depths = np.array([policy.depths(outcomes) for policy in policies], dtype=np.int8)
        correct = 1.0 - errors_at(points, outcomes)
        self.accuracy, self.correct = correct.mean(axis=0), np.ascontiguousarray(correct.T, dtype=np.float32)
        each = [space.call_sizes(point) for point in points]
        self.sizes = np.array(sorted({size for sizes in each for size in sizes}), dtype=np.int64)
        self.worst_us = np.full((len(points), len(self.sizes)), np.inf)
        self.first_us = np.full((len(points), len(self.sizes)), np.inf)
        for row, (point, call_sizes) in enumerate(zip(points, each, strict=True)):
            within = self.sizes <= call_sizes[-1]
            self.worst_us[row, within] = worst_us(space, point, self.sizes[within].tolist())
            self.first_us[row, within] = first_us(space, point, self.sizes[within].tolist())


def _samples(samples_us: Mapping[tuple[str, int], np.ndarray], version: str, size: int) -> np.ndarray:
    """Return µs of calls of ``version`` with ``size`` examples, or the next larger measured size, or the largest."""
    sizes = sorted(measured for name, measured in samples_us if name == version and len(samples_us[name, measured]))
    if not sizes:
        versions = ", ".join(dict.fromkeys(name for name, _ in samples_us)) or "no version"
        raise InputError(f"the latency table does not know version {version!r} of the rules; it has {versions}")
    nearest = next((measured for measured in sizes if measured >= size), sizes[-1])
    return np.asarray(samples_us[version, nearest], dtype=np.float64)


@dataclass(frozen=True)
class TierRequests:
    """Requested tiers: ``example``, row of the outcome table, and ``tier``, index of the tolerance; int64 [n]."""

    example: np.ndarray
    tier: np.ndarray


@dataclass(frozen=True)
class TierResult(SimulationResult):
    """Results by query, where ``row`` and ``calls`` are of ensembles.

    ``versions``: names; ``version_calls``: int64, calls of each. ``other_tier``: requests answered by another ensemble
    than their tier's own. ``example``: int64 [n]: an example that takes longer to answer is also answered wrong more
    often.
    """

    versions: tuple[str, ...]
    version_calls: np.ndarray
    other_tier: int
    example: np.ndarray

    @property
    def right(self) -> np.ndarray:
        assert isinstance(self.grid, Ensembles)
        return np.where(self.row >= 0, self.grid.correct[self.row, self.example], 0.0).astype(np.float64)


class TieredService:
    """``rules`` as workers serve them to requests of ``tiers``: pairs of a tolerance and an objective.

    ``space``: latencies of single versions, by which a server plans; ``samples_us``: µs measured of calls, by version
    and batch size; a size that was not counts as the next larger one that was. ``outcomes``: the examples that requests
    are of. ``cancels``: a version that is not needed any more ends at once; else its worker is busy to its end.
    Raises ``InputError`` for an objective without tiers, and for a version without latencies or outcomes.
    """

    def __init__(
        self,
        rules: RuleSet,
        space: ControlSpace,
        samples_us: Mapping[tuple[str, int], np.ndarray],
        outcomes: OutcomeTable,
        tiers: Sequence[tuple[float, str]],
        *,
        cancels: bool = False,
    ):
        policy = ToleranceTiers(rules, space)
        offered = [tuple(policy.choices(tolerance, objective)) for tolerance, objective in tiers]
        rows: dict[OperatingPoint, int] = {}
        for choices in offered:
            for point in (point for pair in choices for point in pair):
                rows.setdefault(point, len(rows))
        self.ensembles = Ensembles(list(rows), space, outcomes)
        self.cancels = cancels
        self._choices = np.full((len(tiers), max(map(len, offered)), 2), -1, dtype=np.int16)
        for tier, choices in enumerate(offered):
            self._choices[tier, : len(choices)] = [[rows[point] for point in pair] for pair in choices]
        samples = [
            _samples(samples_us, version, size) for version in self.ensembles.versions for size in self.ensembles.sizes
        ]
        self._values, self._starts = np.concatenate(samples), np.cumsum([0, *map(len, samples)])

    def fastest_us(self, tier: int) -> float:
        """Return the least deadline with which a server lets a request of this tier begin."""
        return float(min(self.ensembles.worst_us[row, 0] for row in self._choices[tier, :, 1] if row >= 0))

    def rows(self, tier: int) -> list[int]:
        """Return the rows of ``ensembles`` that may answer a request of this tier."""
        return sorted({int(row) for row in self._choices[tier].ravel() if row >= 0})

    def worker_us(self, tier: int) -> float:
        """Return the mean worker time of a request of this tier by its own ensemble, in the best batches.

        Its versions run one after the other, as while other workers are busy.
        """
        row, ensembles = self._choices[tier, 0, 1], self.ensembles
        values, starts, sizes = self._values, self._starts, ensembles.sizes
        mean_us = np.array([values[first:end].mean() for first, end in pairwise(starts)]).reshape(-1, len(sizes))
        depths = ensembles.depths[row]
        members = [
            (version, float((depths > step).mean())) for step, version in enumerate(ensembles.asks[row]) if version >= 0
        ]
        each_us = [
            sum(
                float(np.interp(share * size, sizes, mean_us[version])) * min(1.0, share * size)
                for version, share in members
            )
            / size
            for size in sizes[np.isfinite(ensembles.worst_us[row])]
        ]
        return float(min(each_us))

    def simulate(
        self, scenario: Scenario, members: TierRequests, *, seed: int = 0, overhead: Overhead | None = None
    ) -> TierResult:
        """Simulate requests in order of arrival, batching waiting ones of one ensemble, on the workers of ``scenario``.

        ``overhead``: of a worker's call, however many versions it has, and of these what is ``slower``; busy cores do
        not count. Raises ``InputError`` for workers that die.
        """
        if np.isfinite(scenario.death_us).any():
            raise InputError("tiers are simulated on workers that live")
        count, ensembles = len(scenario), self.ensembles
        buffers = tier_loop.Results(
            np.full(count, EXPIRED, dtype=np.int8),
            np.full(count, np.nan),
            np.full(count, np.nan),
            np.full(count, -1, dtype=np.int16),
            np.zeros(count, dtype=np.int16),
            np.zeros(len(ensembles.versions), dtype=np.int64),
        )
        busy_us, calls, other_tier = tier_loop.run(
            tier_loop.Requests(
                np.ascontiguousarray(scenario.arrival_us),
                np.ascontiguousarray(scenario.deadline_us),
                np.ascontiguousarray(members.example),
                np.ascontiguousarray(members.tier),
                np.zeros(count, dtype=np.bool_),
                self._choices,
            ),
            tier_loop.EnsembleArrays(*(getattr(ensembles, name) for name in tier_loop.EnsembleArrays._fields)),
            self._of_calls(overhead or Overhead(), seed),
            tier_loop.Workers(np.zeros(len(scenario.death_us)), np.zeros(len(scenario.death_us))),
            buffers,
        )
        return TierResult(
            ensembles, scenario, buffers.status, buffers.started_us, buffers.done_us, buffers.row, buffers.batch,
            busy_us, calls, ensembles.versions, buffers.version_calls, other_tier, members.example,
        )  # fmt: skip

    def _of_calls(self, overhead: Overhead, seed: int) -> tier_loop.Service:
        busy_us, rested_us = overhead._replace(call_us=0.0).of_calls(self._values)
        call_us, rested_call_us = overhead.of_calls(np.zeros(1))
        knows_rest = overhead.memory_us > 0
        call_us = call_us + overhead.turnaround_us
        idle = rested_us if knows_rest else np.empty(0)
        return tier_loop.Service(
            busy_us, self._starts, seed, idle, overhead.memory_us, overhead.saturation, float(call_us[0]),
            float((rested_call_us if knows_rest else call_us)[0]), self.cancels,
        )  # fmt: skip
