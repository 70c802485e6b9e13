"""Replicas and threads that follow the load, by a switching plan."""

from __future__ import annotations

import asyncio

from slotool.errors import SlotoolError
from slotool.scheduling.worker_counts import LOOK_S, WorkerChoice
from slotool.serving.events import warn
from slotool.serving.operations.runtime_settings import ReloadableSettings
from slotool.serving.routing.router import Router


class WorkerSwitching:
    """Has ``settings`` exchange the workers of ``router`` when a ``WorkerChoice`` of the switching plan says so.

    Each change is an event with its reason. A plan that is reloaded is followed from then on; without one, as where the
    new plan is for one ⟨R, T⟩ only, the workers stay.
    """

    def __init__(self, router: Router, settings: ReloadableSettings):
        self._router, self._settings = router, settings
        self._choice: WorkerChoice | None = None
        self._reloads = -1

    async def run(self) -> None:
        """Look every second, for as long as the server runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except SlotoolError as error:
                if self._choice is not None:
                    self._choice.wait(self._router.now_us() / 1e6)
                warn(f"the workers stay as they are: {error}")

    async def look(self) -> None:
        """Exchange the workers, if the rate says so. Raises ``InputError`` or ``RunError`` where that fails; then
        nothing has changed."""
        settings = self._settings
        if settings.reloads != self._reloads:
            self._reloads = settings.reloads
            plan = await asyncio.to_thread(settings.read_switching_plan)
            self._choice = None if plan is None else WorkerChoice(plan)
        if self._choice is None:
            return
        change = self._choice.look(self._router.now_us() / 1e6, self._router.arrived, settings.workers)
        if change is not None:
            await settings.use_workers(change.replicas, change.threads, change.reason)
