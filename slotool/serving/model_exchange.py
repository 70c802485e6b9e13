"""Other models in place of those that are served, while requests are in progress: staged, drained and handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from slotool.serving import rejections
from slotool.serving.engines import InferenceEngine
from slotool.serving.model_queue import DefaultDeadline, ModelQueue
from slotool.serving.served import ServedModel

# How long a model that is served no more may take for the requests that it has, and how often that is looked at.
DRAIN_S, DRAINED_LOOK_S = 30.0, 0.02


class ModelExchange:
    """Exchanges the models of a router. ``queues``: its own, by name; ``new_queue`` makes one; ``changed``: called when
    other models serve than before."""

    def __init__(
        self,
        engine: InferenceEngine,
        queues: dict[str, ModelQueue],
        now_us: Callable[[], float],
        new_queue: Callable[[ServedModel], ModelQueue],
        changed: Callable[[], None],
    ):
        self._engine, self._queues, self._now_us = engine, queues, now_us
        self._new_queue, self._changed = new_queue, changed

    async def run(self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None) -> None:
        """From the next dispatch on, serve these models in place of all others; waiting requests stay in the queue, and
        calls in progress are answered by the models they began on. A model that is missing takes no further requests
        once the others are ready, and goes when those that it has are answered, after ``DRAIN_S`` at most.

        Raises ``InputError`` or ``RunError`` when the engine cannot make them ready; then nothing has changed.
        """
        finish = await self.stage(models, workers)
        await finish()

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], Awaitable[None]]:
        """The first half of ``run``: have the engine make these models ready. The function returned is the rest."""
        staging = self._engine.stage(models) if workers is None else self._engine.reconfigure(models, *workers)
        return partial(self._finish, models, workers, await staging)

    async def _finish(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None, change_over: Callable[[], None]
    ) -> None:
        await self._drain([own for name, own in self._queues.items() if name not in models])
        change_over()
        for name, served in models.items():
            if name in self._queues:
                self._queues[name].replace(served)
                if workers is not None:  # latencies of calls that began before are those of other threads
                    self._queues[name].changed_us = self._now_us()
            else:
                self._queues[name] = self._new_queue(served)
        for name in self._queues.keys() - models.keys():
            del self._queues[name]
        self._changed()

    async def _drain(self, leaving: Sequence[ModelQueue]) -> None:
        """Have these models answer what they have, and take no more."""
        for model_queue in leaving:
            model_queue.is_closing = True
        if leaving:
            self._changed()
        until_us = self._now_us() + 1e6 * DRAIN_S
        while any(own.pending for own in leaving) and self._now_us() < until_us:
            await asyncio.sleep(DRAINED_LOOK_S)
        for model_queue in leaving:
            model_queue.end(rejections.no_longer_served(model_queue.served.name))


def hand_over(retired: ModelQueue, heir: ModelQueue, default_deadline: DefaultDeadline) -> None:
    """Have ``heir`` answer what waits for ``retired``."""
    for query in retired.hand_over(heir):
        default_deadline.begin(heir, query)
