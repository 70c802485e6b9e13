"""Choice and construction of an engine: event loop or worker processes, by the length of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from slotool.devices import CPU, FLOAT32
from slotool.errors import ArgumentError
from slotool.serving.engines import InferenceEngine, InlineInferenceEngine, LocalInferenceEngine, registry
from slotool.serving.engines.ensemble import compute, ensemble_plan, warm_up_examples
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.serving.served import ServedModel

# Longest call in the event loop, which reads nothing meanwhile.
MAX_INLINE_US = 1_000.0
# Calls measured per point until one is short enough: the first is slow, and others may use the core.
TRIES = 6


def _points(served: ServedModel) -> list[OperatingPoint]:
    """Return the points of local calls: none that another server computes."""
    plans = [ensemble_plan(served.model, point) for point in served.policy.points]
    points = dict.fromkeys(point for plan in plans for point in plan.points)
    return [point for point in points if point not in served.model.remote_points]


def _latency_us(served: ServedModel, point: OperatingPoint) -> float:
    """Return the latency of one example by the model's table, else measured now; 0 if it fails."""
    if served.space is not None and (known_us := served.space.latency_us(point)) is not None:
        return known_us
    model, least_us = served.model, float("inf")
    for x in warm_up_examples(model):
        with suppress(Exception):  # the model may not take this size
            for _ in range(TRIES):
                began_s = time.perf_counter()
                compute(model, x, point)
                least_us = min(least_us, 1e6 * (time.perf_counter() - began_s))
                if least_us <= MAX_INLINE_US:
                    break
            return least_us
    return 0.0


def chosen_engine(name: str, models: Mapping[str, ServedModel], replicas: int) -> str:
    """Return the engine's name: of ``auto`` inline for one worker whose calls take ``MAX_INLINE_US`` at most.

    A model that fails counts as fast: its engine reports why.
    """
    if name != "auto":
        return name
    latencies_us = (_latency_us(served, point) for served in models.values() for point in _points(served))
    return "inline" if replicas == 1 and all(us <= MAX_INLINE_US for us in latencies_us) else "local"


def make_engine(
    name: str,
    replicas: int,
    threads: int,
    *,
    max_examples: int,
    hang_s: float,
    address: str | None = None,
    devices: tuple[str, ...] = (CPU,),
    precision: str = FLOAT32,
) -> InferenceEngine:
    """Make the engine of this name, or a plugin's. Raises ``ArgumentError`` for an unknown one."""
    if name == "ray":
        from slotool.serving.engines.ray import RayInferenceEngine

        return RayInferenceEngine(replicas, threads, address=address or "auto", hang_s=hang_s)
    if name == LocalInferenceEngine.name:
        return LocalInferenceEngine(replicas, threads, hang_s=hang_s, devices=devices, precision=precision)
    if name == InlineInferenceEngine.name:
        return InlineInferenceEngine(devices[0])
    if name not in registry.plugins:
        raise ArgumentError("engine", registry.unknown(name))
    engine_class: Callable[..., InferenceEngine] = registry.load(name)
    return engine_class(replicas, threads, max_examples=max_examples, hang_s=hang_s, address=address)
