"""Online re-profiling: latencies seen in production correct the tables by which policies plan."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from slotool.errors import SlotoolError
from slotool.scheduling import ControlSpace
from slotool.scheduling.latency_watch import LatencyWatch
from slotool.serving.events import warn
from slotool.serving.operations.runtime_settings import ReloadableSettings
from slotool.serving.routing.router import Router
from slotool.tables import OperatingPoint
from slotool.timing.interference import QUIET_CORES, OtherWork, state

LOOK_S = 1.0


class Reprofiling:
    """Watches the calls of ``router``, and has ``settings`` plan by corrected latencies when they have changed.

    Each re-plan is an event with its reason, and a metric.
    """

    def __init__(self, router: Router, settings: ReloadableSettings):
        self._router, self._settings = router, settings
        self._watches: dict[str, LatencyWatch] = {}
        self._spaces: dict[str, ControlSpace] = {}
        self._reloads, self._others = settings.reloads, OtherWork()
        router.listen_to_calls(self.observe)

    def observe(self, model: str, point: OperatingPoint, examples: int, took_us: float, now_us: float) -> None:
        """A call of ``model`` has ended."""
        watch = self._watches.get(model)
        if watch is None:
            served = self._router.model(model)
            if served is None or served.space is None:
                return
            watch = self._watches[model] = LatencyWatch(served.space)
        watch.observe(point, examples, took_us, now_us)

    async def run(self) -> None:
        """Look every second, for as long as the server runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except SlotoolError as error:
                warn(f"latencies were not corrected: {error}")

    async def look(self) -> None:
        """Correct and plan again where latencies have changed. Raises ``InputError`` when tables cannot be read; then
        nothing has changed."""
        if self._settings.reloads != self._reloads:
            self._reloads = self._settings.reloads
            self._watches.clear()  # new tables, of which nothing is known yet
        now_us = self._router.now_us()
        changed = [name for name, watch in self._watches.items() if watch.look(now_us)]
        if not changed:
            return
        factors = {name: watch.factors for name, watch in self._watches.items() if watch.factors}
        await self._settings.correct(factors)
        _, busy_cores = await asyncio.to_thread(self._others.read)
        self._others = OtherWork()
        for name in changed:
            self._report(name, factors.get(name, {}), busy_cores)

    def _report(self, model: str, factors: Mapping[OperatingPoint, float], busy_cores: float) -> None:
        least, most = min(factors.values()), max(factors.values())
        by = f"{most:.2f}" if most - least < 0.005 else f"{least:.2f} to {most:.2f}"
        timing = state(busy_cores < QUIET_CORES)
        self._router.metrics.corrected(model, {point.key: factor for point, factor in factors.items()})
        self._router.events.emit(
            "replan",
            f"{model}: calls take {by} times what the latency table says; planned again; timing: {timing}",
            model=model,
            timing=timing,
            cores_busy_with_others=round(busy_cores, 2),
            factors={point.key: round(factor, 4) for point, factor in factors.items()},
        )
