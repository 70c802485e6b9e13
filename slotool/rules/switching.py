"""Switching plans: the arrival rate up to which each point serves, measured by load tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slotool import devices, strict_json
from slotool.artifacts.document import load_document, save_document
from slotool.errors import InputError

PLAN_SCHEMA = "slotool/switching-plan"
PLAN_VERSION = 1
# Criteria of a plan's rates.
P99, EFFECTIVE_ACCURACY = "p99", "effective-accuracy"
CRITERIA = (P99, EFFECTIVE_ACCURACY)
# Rates this close are equal, within the noise of a load test of some seconds.
RESOLUTION = 1.15
# The search ends this factor above or below its first guess.
MAX_GROWTH = 64
# Share of deadlines that a point may miss if it serves by effective accuracy.
MAX_MISSED = 0.5
# Number of rates at which plans for two configurations are compared.
COMPARED_RATES = 200


@dataclass(frozen=True)
class LoadTest:
    """Load test of ``point`` on ``replicas`` workers of ``threads`` threads.

    ``p99_s``: of all requests sent, None when a hundredth was not answered; ``attainment``: the share within the
    deadline.
    """

    point: str
    replicas: int
    threads: int
    rate_per_s: float
    p99_s: float | None
    attainment: float


@dataclass(frozen=True)
class ConfigurationRates:
    """Rates and load tests of a ``SwitchingPlan`` on another tried ⟨R, T⟩."""

    replicas: int
    threads: int
    rates_per_s: Mapping[str, float]
    loads: tuple[LoadTest, ...]


@dataclass(frozen=True)
class SwitchingPlan:
    """Plan for one deadline and one ⟨R, T⟩: the greatest rate that each point serves.

    ``by``: criterion of the rates. ``p99``: a point's P99 stays within the deadline. ``effective-accuracy``: no less
    accurate point answers more requests correctly and in time. ``rates_per_s``: of the whole service, by point key; 0
    where the lowest tried rate failed. ``accuracy``: by point key. ``loads``: the load tests. ``others``: the same for
    other ⟨R, T⟩, to change to with the load. ``device``: of the load tests. Source: model-switching, §3 and Algorithm
    1.
    """

    subject: str
    deadline_s: float
    replicas: int
    threads: int
    rates_per_s: Mapping[str, float]
    accuracy: Mapping[str, float]
    loads: tuple[LoadTest, ...]
    machine: str
    by: str = P99
    others: tuple[ConfigurationRates, ...] = ()
    device: str = devices.CPU

    @property
    def configuration(self) -> tuple[int, int]:
        """⟨R, T⟩."""
        return self.replicas, self.threads

    @property
    def by_configuration(self) -> dict[tuple[int, int], SwitchingPlan]:
        """Return this plan, then those of the ``others``, each alone."""
        plans = {self.configuration: replace(self, others=())}
        for other in self.others:
            alone = replace(
                self, replicas=other.replicas, threads=other.threads, rates_per_s=other.rates_per_s, loads=other.loads,
                others=(),
            )  # fmt: skip
            plans.setdefault(alone.configuration, alone)
        return plans

    def beside(self, plans: Sequence[SwitchingPlan]) -> SwitchingPlan:
        """Return this plan, with those of ``plans`` for other ⟨R, T⟩ as its ``others``."""
        others = [plan for plan in plans if plan.configuration != self.configuration]
        rates = [ConfigurationRates(*plan.configuration, plan.rates_per_s, plan.loads) for plan in others]
        return replace(self, others=tuple(rates))

    @property
    def breakpoints(self) -> list[tuple[float, str]]:
        """Result of Algorithm 1: pairs of a rate and the most accurate point that serves up to it.

        Descending in accuracy, without points that another dominates. Beyond the last rate no point serves, and the
        last goes on; the paper's listing would return the last model that it tried, the slowest.
        """
        steps: list[tuple[float, str]] = []
        for point in sorted(self.rates_per_s, key=lambda point: -self.accuracy[point]):
            if self.rates_per_s[point] > (steps[-1][0] if steps else 0.0):
                steps.append((self.rates_per_s[point], point))
        return steps

    def effective_accuracy(self, rates_per_s: np.ndarray) -> np.ndarray:
        """Return the expected share of requests answered correctly and in time at each rate: float64 [n] for [n].

        The point that serves a rate answers; the load tests give its attainment.
        """
        steps = self.breakpoints
        least = min(self.accuracy, key=lambda point: self.accuracy[point])
        serves = [point for _, point in steps] + [steps[-1][1] if steps else least]
        at = np.searchsorted([rate for rate, _ in steps], rates_per_s)
        every = np.stack([self.accuracy[p] * attainment(self.loads_of(p), rates_per_s) for p in serves])
        return every[at, np.arange(len(rates_per_s))]

    def loads_of(self, point: str) -> list[LoadTest]:
        """Return the load tests of ``point`` on this plan's configuration."""
        loads = [load for load in self.loads if (load.replicas, load.threads) == self.configuration]
        return [load for load in loads if load.point == point]

    def document(self) -> dict[str, Any]:
        loads = [asdict(load) for load in self.loads]
        others = [{**asdict(other), "loads": [asdict(load) for load in other.loads]} for other in self.others]
        stated = {"schema": PLAN_SCHEMA, "schema_version": PLAN_VERSION, **asdict(self), "loads": loads}
        return {**stated, "others": others}

    def save(self, path: str | Path) -> None:
        save_document(path, self.document())

    @classmethod
    def load(cls, path: str | Path) -> SwitchingPlan:
        """Read a plan. Raises ``InputError`` for anything but a plan of this schema version."""
        document = load_document(path, PLAN_SCHEMA, PLAN_VERSION, "switching plan")
        with strict_json.assembling(path, "a switching plan"):
            plan = strict_json.convert(document, cls)
            parts: list[SwitchingPlan | ConfigurationRates] = [plan, *plan.others]
            possible = plan.deadline_s > 0 and all(min(part.replicas, part.threads) > 0 for part in parts)
            possible = possible and all(min(part.rates_per_s.values()) >= 0 for part in parts)
        if not possible or any(set(p.rates_per_s) != set(plan.accuracy) for p in parts) or plan.by not in CRITERIA:
            raise InputError(f"{path}: a switching plan with impossible figures")
        return plan


def greatest_rate(
    measure: Callable[[float], LoadTest], first_per_s: float, is_good: Callable[[LoadTest], bool]
) -> tuple[float, list[LoadTest]]:
    """Return the greatest rate, to within ``RESOLUTION``, whose load test is good; 0 when there is none.

    Tries ``first_per_s``, doubles or halves until a good and a bad rate are known, then halves the interval (in ratio).
    """
    loads: list[LoadTest] = []

    def is_good_at(rate_per_s: float) -> bool:
        loads.append(measure(rate_per_s))
        return is_good(loads[-1])

    good, bad = 0.0, 0.0
    rate = first_per_s
    while not (good and bad) and first_per_s / MAX_GROWTH <= rate <= first_per_s * MAX_GROWTH:
        if is_good_at(rate):
            good, rate = rate, rate * 2
        else:
            bad, rate = rate, rate / 2
    while good and bad and bad / good > RESOLUTION:
        middle = (good * bad) ** 0.5
        if is_good_at(middle):
            good = middle
        else:
            bad = middle
    return good, loads


def keeps_deadline(deadline_s: float) -> Callable[[LoadTest], bool]:
    """Return a test of whether the P99 of a load test is within the deadline."""
    return lambda load: (load.p99_s or math.inf) <= deadline_s


def is_most_effective(
    accuracy: Mapping[str, float],
    others: Mapping[str, list[LoadTest]],
    measure: Callable[[str, float], LoadTest] | None = None,
) -> Callable[[LoadTest], bool]:
    """Return a test that none of ``others`` answers more requests correctly and in time than a load test.

    The controller maximises effective accuracy (model-switching, §3). A point may miss more than a hundredth of its
    deadlines if its accuracy makes up for it, but not more than ``MAX_MISSED``: beyond that the load test measures the
    client as much as the server. ``others``: load tests by point. ``measure``: of a point at a rate; it measures
    another point that had less load and whose accuracy is above the point's result, and adds the test to ``others``.
    Without it that attainment is extrapolated.
    """

    def is_good(load: LoadTest) -> bool:
        rate, reached = np.array([load.rate_per_s]), accuracy[load.point] * load.attainment
        for point, loads in others.items():
            untried = all(other.rate_per_s < load.rate_per_s for other in loads)
            if measure is not None and untried and accuracy[point] > reached:
                loads.append(measure(point, load.rate_per_s))
            if accuracy[point] * float(attainment(loads, rate)[0]) > reached:
                return False
        return load.attainment >= 1.0 - MAX_MISSED

    return is_good


def attainment(loads: Sequence[LoadTest], rates_per_s: np.ndarray) -> np.ndarray:
    """Return the share of requests within the deadline at each rate: float64 of the same shape.

    Interpolated between load tests of one point and configuration, from all at rate 0. Attainment at a rate also counts
    for lower ones with a worse test: a disturbance only makes things worse. Beyond the highest tried rate as many
    requests a second are in time as there.
    """
    tried = sorted(loads, key=lambda load: load.rate_per_s)
    rates = np.array([0.0, *(load.rate_per_s for load in tried)])
    shares = np.maximum.accumulate([1.0, *(load.attainment for load in tried)][::-1])[::-1]
    beyond = np.divide(rates[-1], rates_per_s, out=np.ones_like(rates_per_s), where=rates_per_s > rates[-1])
    return np.interp(rates_per_s, rates, shares) * beyond


def best_configuration(plans: Sequence[SwitchingPlan]) -> SwitchingPlan:
    """Return the plan with the greatest mean accuracy over all rates that any plan serves.

    ``plans``: for several ⟨R, T⟩, by one criterion. By P99 a rate that a plan cannot serve counts as none right; by
    effective accuracy the load tests tell how many are.
    """
    most = max(max(plan.rates_per_s.values()) for plan in plans)
    if most == 0:
        raise InputError("no point keeps the deadline at any rate; choose a longer deadline")
    if plans[0].by == EFFECTIVE_ACCURACY:
        rates = np.linspace(0.0, most, COMPARED_RATES + 1)[1:]
        return max(plans, key=lambda plan: float(plan.effective_accuracy(rates).mean()))
    return max(plans, key=lambda plan: _mean_accuracy(plan, most))


def _mean_accuracy(plan: SwitchingPlan, max_per_s: float) -> float:
    total, before = 0.0, 0.0
    for rate, point in plan.breakpoints:
        total += (rate - before) * plan.accuracy[point]
        before = rate
    return total / max_per_s
