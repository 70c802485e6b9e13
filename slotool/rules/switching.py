"""Switching plans: the greatest arrival rate at which each point keeps the deadline, measured by load tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotool import strict_json
from slotool.artifacts.document import load_document, save_document
from slotool.errors import InputError

PLAN_SCHEMA = "slotool/switching-plan"
PLAN_VERSION = 1
# Two rates this close are one, within the noise of a load test of some seconds.
RESOLUTION = 1.15
# The search ends when it is so many times above or below its first guess.
MAX_GROWTH = 64


@dataclass(frozen=True)
class LoadTest:
    """One load test of ``point`` on ``replicas`` workers of ``threads`` threads: ``p99_s`` of all requests sent, None
    when a hundredth of them was not answered, and ``attainment``, the share within the deadline."""

    point: str
    replicas: int
    threads: int
    rate_per_s: float
    p99_s: float | None
    attainment: float


@dataclass(frozen=True)
class SwitchingPlan:
    """For one deadline and one ⟨R, T⟩, per point the greatest rate at which its P99 stays within the deadline.

    ``rates_per_s``: of the whole service, by point key; 0 where not even the lowest rate tried was kept. ``accuracy``:
    by point key. ``loads``: the load tests. Source: model-switching, §3 and Algorithm 1.
    """

    subject: str
    deadline_s: float
    replicas: int
    threads: int
    rates_per_s: Mapping[str, float]
    accuracy: Mapping[str, float]
    loads: tuple[LoadTest, ...]
    machine: str

    @property
    def breakpoints(self) -> list[tuple[float, str]]:
        """Algorithm 1, the most accurate point that is good for the rate, as the rate up to which each point serves.

        Descending in accuracy, without points that another dominates. Beyond the last no point is good; the paper's
        listing then returns the last model it looked at, which is the slowest.
        """
        steps: list[tuple[float, str]] = []
        for point in sorted(self.rates_per_s, key=lambda point: -self.accuracy[point]):
            if self.rates_per_s[point] > (steps[-1][0] if steps else 0.0):
                steps.append((self.rates_per_s[point], point))
        return steps

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        loads = [asdict(load) for load in self.loads]
        return {"schema": PLAN_SCHEMA, "schema_version": PLAN_VERSION, **asdict(self), "loads": loads}

    def save(self, path: str | Path) -> None:
        save_document(path, self.document())

    @classmethod
    def load(cls, path: str | Path) -> SwitchingPlan:
        """Raises ``InputError`` for anything but a plan of this schema version."""
        document = load_document(path, PLAN_SCHEMA, PLAN_VERSION, "switching plan")
        with strict_json.assembling(path, "a switching plan"):
            plan = strict_json.convert(document, cls)
            figures = (plan.deadline_s, plan.replicas, plan.threads)
            possible = min(figures) > 0 and min(plan.rates_per_s.values()) >= 0
        if not possible or set(plan.rates_per_s) != set(plan.accuracy):
            raise InputError(f"{path}: a switching plan with impossible figures")
        return plan


def greatest_rate(
    measure: Callable[[float], LoadTest], first_per_s: float, deadline_s: float
) -> tuple[float, list[LoadTest]]:
    """The greatest rate, to within ``RESOLUTION``, whose P99 stays within the deadline; 0 when none was found.

    Tries ``first_per_s``, doubles or halves until both a rate that is kept and one that is not are known, then halves
    the interval (in ratio).
    """
    loads: list[LoadTest] = []

    def kept(rate_per_s: float) -> bool:
        loads.append(measure(rate_per_s))
        return (loads[-1].p99_s or math.inf) <= deadline_s

    good, bad = 0.0, 0.0
    rate = first_per_s
    while not (good and bad) and first_per_s / MAX_GROWTH <= rate <= first_per_s * MAX_GROWTH:
        if kept(rate):
            good, rate = rate, rate * 2
        else:
            bad, rate = rate, rate / 2
    while good and bad and bad / good > RESOLUTION:
        middle = (good * bad) ** 0.5
        if kept(middle):
            good = middle
        else:
            bad = middle
    return good, loads


def best_configuration(plans: Sequence[SwitchingPlan]) -> SwitchingPlan:
    """Of plans for several ⟨R, T⟩ the one with the greatest mean accuracy over all rates that any of them can serve;
    a rate that a plan cannot serve counts as none right."""
    most = max(max(plan.rates_per_s.values()) for plan in plans)
    if most == 0:
        raise InputError("no point keeps the deadline at any rate; choose a longer deadline")
    return max(plans, key=lambda plan: _mean_accuracy(plan, most))


def _mean_accuracy(plan: SwitchingPlan, max_per_s: float) -> float:
    total, before = 0.0, 0.0
    for rate, point in plan.breakpoints:
        total += (rate - before) * plan.accuracy[point]
        before = rate
    return total / max_per_s
