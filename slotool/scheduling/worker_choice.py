"""Which replicas × threads a service should have, by the load and a switching plan: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.rules.switching import SwitchingPlan
from slotool.scheduling.recent_rates import CALM_S, CALM_SHARE, RATE_S, RecentRates

# Accuracy that another ⟨R, T⟩ must gain: under overload, at the rate of now; else on average over the rates of calm.
# New processes take seconds of the cores that serve, so that less is not worth them.
URGENT_GAIN, CALM_GAIN = 0.02, 0.005

Configuration = tuple[int, int]


@dataclass(frozen=True)
class WorkerChange:
    """``replicas`` workers of ``threads`` threads from now on; ``reason``: one sentence."""

    replicas: int
    threads: int
    reason: str


class WorkerChoice:
    """Between the ⟨R, T⟩ that ``plan`` holds load tests of, by the accuracy that it expects of each at the measured
    rate.

    A load that grows is followed at once: to the ⟨R, T⟩ of the greatest expected accuracy at the rate of the last
    ``RATE_S``, among those that serve greater rates than the one in use, where that gains ``URGENT_GAIN``. So changes
    in quick succession only lead to ⟨R, T⟩ that serve more. Any other change waits until the one in use has served for
    ``CALM_S``: at the rates of that time, and at these divided by ``CALM_SHARE``, another must gain ``CALM_GAIN`` on
    average and lose as much at none. A load that swings faster than that, or by less than a fifth, brings no change
    back.
    Source: model-switching, §3, whose ⟨R, T⟩ is chosen once, by an administrator; the hysteresis is ours.
    """

    def __init__(self, plan: SwitchingPlan):
        self._plans = plan.by_configuration
        self._rates = RecentRates()
        self._in_use: Configuration | None = None
        self._since_s = 0.0

    def look(self, now_s: float, arrived: int, in_use: Configuration) -> WorkerChange | None:
        """What to change, if anything. ``arrived``: requests since the service began; ``in_use``: ⟨R, T⟩ now. To be
        asked about every second, in order of time."""
        if in_use != self._in_use:
            self._in_use, self._since_s = in_use, now_s
        rate_per_s = self._rates.look(now_s, arrived)
        if rate_per_s is None or in_use not in self._plans:
            return None
        return self._urgent(rate_per_s) or (self._calm() if now_s - self._since_s >= CALM_S else None)

    def wait(self, now_s: float) -> None:
        """Another change, but under overload, only after ``CALM_S``: the last one failed."""
        self._since_s = now_s

    def _urgent(self, rate_per_s: float) -> WorkerChange | None:
        assert self._in_use is not None
        serves_now = self._plans[self._in_use].greatest_rate_per_s
        found = {
            configuration: self._gains(configuration, [rate_per_s])[0]
            for configuration, plan in self._plans.items()
            if plan.greatest_rate_per_s > serves_now
        }
        best = max(found, key=found.__getitem__, default=self._in_use)
        if found.get(best, 0.0) < URGENT_GAIN:
            return None
        return self._change(best, found[best], f"{rate_per_s:.4g} requests/s over {RATE_S:g} s")

    def _calm(self) -> WorkerChange | None:
        rates = self._rates.of_calm
        more = [rate / CALM_SHARE for rate in rates]
        gains = {each: np.minimum(self._gains(each, rates), self._gains(each, more)) for each in self._plans}
        harmless = {each: float(gain.mean()) for each, gain in gains.items() if gain.min() > -CALM_GAIN}
        best = max(harmless, key=harmless.__getitem__)
        if harmless[best] < CALM_GAIN:
            return None
        return self._change(best, harmless[best], f"at most {max(rates):.4g} requests/s in {CALM_S:g} s")

    def _gains(self, configuration: Configuration, rates_per_s: Sequence[float]) -> np.ndarray:
        """Expected accuracy beyond that of the ⟨R, T⟩ in use, at each rate: float64 [n]."""
        assert self._in_use is not None
        rates = np.array(rates_per_s)
        gains: np.ndarray = self._plans[configuration].expected_accuracy(rates) - self._plans[
            self._in_use
        ].expected_accuracy(rates)
        return gains

    def _change(self, to: Configuration, gain: float, seen: str) -> WorkerChange:
        return WorkerChange(*to, f"{seen}, at which the plan expects {100 * gain:.1f} points more accuracy")
