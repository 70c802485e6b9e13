"""Autoscaling: workers come and go with the requests that arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from slotool.errors import ArgumentError
from slotool.scheduling.worker_counts import LOOK_S, Autoscaler
from slotool.serving.routing.router import Router
from slotool.serving.served import ServedModel

# Of what a worker can do in full batches, with arrivals at random and in time.
USABLE_SHARE = 0.8


class Autoscaling:
    """Has the engine of ``router`` run as many workers as ``autoscaler`` says, or as it has room for. Each change is an
    event with its reason, and so is the lack of room."""

    def __init__(self, router: Router, autoscaler: Autoscaler):
        self._router, self._autoscaler = router, autoscaler
        # Workers that were wanted and for which there was no room, said already.
        self._lacking = 0

    async def run(self) -> None:
        """Look every second, for as long as the server runs."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Add or remove workers, if the rate says so."""
        router = self._router
        engine, before = router.engine, router.engine.workers
        scaling = self._autoscaler.look(router.now_us() / 1e6, router.arrived, before)
        if scaling is None:
            self._lacking = 0
            return
        workers, reason = scaling.workers, scaling.reason
        room = engine.room_for(workers) if workers > before else workers
        if room is None:  # it is asked again in a second
            return
        if room < workers:
            reason = f"{reason}; there are free CPUs for {max(room - before, 0)} more now"
        if before >= room and workers > before:
            if self._lacking != workers:  # say so once
                router.events.emit("scale-waits", reason, workers=before, wanted=workers)
            self._lacking = workers
        elif engine.scale_to(room):
            router.events.emit("scale", reason, workers=room, before=before)


def good_for_per_s(served: ServedModel) -> float | None:
    """Requests of one example per second that a worker can be expected to answer at the most accurate point, by the
    model's latency table; None without one."""
    space = served.space
    if space is None:
        return None
    known = [(space.accuracy(point) or 0.0, point) for point in space.points if space.batch_sizes(point)]
    if not known:
        return None
    best = max(known, key=lambda pair: pair[0])[1]
    latencies = ((size, space.latency_us(best, size)) for size in space.batch_sizes(best))
    return USABLE_SHARE * max(1e6 * size / us for size, us in latencies if us)


def autoscaler_of(
    models: Mapping[str, ServedModel], least: int, most: int, requests_per_worker: float | None
) -> Autoscaler:
    """Return the policy of ``least`` to ``most`` workers. ``requests_per_worker``: a second; None: as the latency table
    of the only model says. Raises ``ArgumentError`` where nothing says so."""
    if requests_per_worker is None:
        rates = [good_for_per_s(served) for served in models.values()]
        if len(rates) != 1 or rates[0] is None:
            why = "there are several models" if len(rates) > 1 else "there is no latency table"
            raise ArgumentError("requests_per_worker", f"say for how many requests per second a worker is good: {why}")
        requests_per_worker = rates[0]
    return Autoscaler(least, most, requests_per_worker)
