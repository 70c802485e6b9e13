"""Inline engine: the event loop computes calls, for models so fast that another process would cost more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slotool.data.columns import Inputs
from slotool.devices import CPU
from slotool.errors import InputError, RunError
from slotool.process import cores_by_preference
from slotool.serving.engines.base import Done, InferenceEngine, WorkerChange
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.engines.worker_process import WorkerProcess
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.serving.served import ServedModel

# Longest compilation.
COMPILED_WITHIN_S = 600.0


class InlineInferenceEngine(InferenceEngine):
    """Engine that computes each call at once, on the models' ``device``."""

    name = "inline"
    in_loop = True

    def __init__(self, device: str = CPU) -> None:
        self._device = device
        self._runners: dict[str, PointRunner] = {}

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        self._runners = self._warm(models)

    @property
    def devices(self) -> tuple[str, ...]:
        return (self._device,)

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], None]:
        if workers is not None:
            raise InputError("engine inline cannot take other workers while it serves: start the server again")
        serving = [runner.model for runner in self._runners.values()]
        compiling = {
            name: served
            for name, served in models.items()
            if served.model.compiles and served.path and not any(served.model is model for model in serving)
        }
        runners = await asyncio.to_thread(self._warm_from_cache, models) if compiling else None
        if runners is None:
            if compiling:
                await asyncio.to_thread(_compile_apart, compiling)
            runners = await asyncio.to_thread(self._warm, models)
        return lambda: setattr(self, "_runners", runners)

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        self._runners[model].add(points)

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        try:
            computed = self._runners[model].run(x, point)
        except Exception as error:
            done(error)
        else:
            done(computed)

    def _warm(self, models: Mapping[str, ServedModel]) -> dict[str, PointRunner]:
        """Return a warm runner of every model. A model that serves already is warm, and may be running."""
        runners = {name: PointRunner(served.model, served.policy.points) for name, served in models.items()}
        serving = [runner.model for runner in self._runners.values()]
        for name, runner in runners.items():
            if any(runner.model is model for model in serving):
                continue
            try:
                runner.warm(models[name].policy.batch_sizes)
            except Exception as error:
                raise RunError(f"{name} cannot run: {error}") from error
        return runners

    def _warm_from_cache(self, models: Mapping[str, ServedModel]) -> dict[str, PointRunner] | None:
        """Return warm runners, or None where the compilation cache on disk lacks something."""
        # Numba takes seconds to import: only where there is a model that compiles.
        from slotool.compilation import from_cache_only

        with from_cache_only() as missing:
            try:
                runners = self._warm(models)
            except RunError:
                if not missing:
                    raise
        return None if missing else runners

    def close(self) -> None:
        return


def _compile_apart(models: Mapping[str, ServedModel]) -> None:
    """Compile these models in another process: a thread would stop the event loop. Raises ``RunError`` if they fail."""
    try:
        process = WorkerProcess(models, cores_by_preference(), 1, low_priority=True)
    except OSError:  # no process available: they are compiled here
        return
    try:
        process.wait_until_warm(COMPILED_WITHIN_S)
    finally:
        process.end()
