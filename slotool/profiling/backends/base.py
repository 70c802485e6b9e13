"""Base class of backends, which execute subjects under the timer."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from slotool import devices
from slotool.devices import FLOAT32
from slotool.errors import ArgumentError, InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.indices import Indices, dtype_of, is_whole
from slotool.profiling.accelerator import Accelerator, DeviceWatch
from slotool.profiling.operator_calls import CALL_S, OperatorCall, operator_calls
from slotool.profiling.out_of_memory import is_out_of_memory
from slotool.timing.timer import Stopwatch

# Small enough that 20 layers of 16,384 units stay finite; the biases keep narrow layers clear of denormals.
WEIGHT_SCALE = 0.02
WEIGHT_BLOCK = 1 << 22
# 64 bytes, a cache line, in float32 values.
ALIGNMENT = 16


class Backend(ABC):
    """Base class of backends that execute subjects on one device; one is made per process.

    ``device`` is ``cpu`` or ``cuda:N``; ``threads`` limits compute threads before the first run (None keeps the
    library's setting); ``seed`` fixes inputs and weights; ``precision`` is one of ``precisions``, None the first.
    Raises ``InputError`` if it does not offer the device or the precision.
    """

    name: ClassVar[str]
    needs: ClassVar[str]
    # Number formats, the usual one first; they are part of the setting of rows.
    precisions: ClassVar[tuple[str, ...]] = (FLOAT32,)
    # True if its library keeps more threads busy than it may, so that they wait for each other.
    oversubscribed: ClassVar[bool] = False
    # True if each subject on a CPU gets its own process (see ``worker.Forks``), as in a plain program.
    forks: ClassVar[bool] = True
    # True if ``walk`` takes the fastest of its inferences, which hold no time of other processes.
    walks_the_fastest: ClassVar[bool] = False
    # Advice for a missing device, as the end of a sentence.
    no_device_advice: ClassVar[str] = ""

    def __init__(self, device: str = "cpu", threads: int | None = None, seed: int = 0, precision: str | None = None):
        self.device = device
        self.seed = seed
        self.precision = self.required_precision(precision, device)
        if threads is not None:
            self.set_threads(threads)
        if not self._offers(device):
            names = ", ".join(self.devices()) or "none"
            advice = f"; {self.no_device_advice}" if self.no_device_advice else ""
            raise InputError(f"the {self.name} backend has no device {device!r} here; it has {names}{advice}")
        # The device of the methods below; None on a CPU, or if a backend overrides these methods.
        self.accelerator: Accelerator | None = None if device == "cpu" else self.open_accelerator()
        self.watch = DeviceWatch(self.accelerator.readings) if self.accelerator else None

    @classmethod
    def required_precision(cls, precision: str | None, device: str) -> str:
        """Return ``precision``, or the usual one for None. Raises ``InputError`` for an unsupported one."""
        if precision is None or precision == cls.precisions[0]:
            return cls.precisions[0]
        if precision not in cls.precisions:
            offered = ", ".join(cls.precisions)
            raise ArgumentError("precision", f"the {cls.name} backend computes in {offered}, not in {precision[:40]!r}")
        return devices.required_precision(precision, device)

    @classmethod
    def missing(cls) -> str | None:
        """Return the name of a required package that is not installed, or None."""
        return None if find_spec(cls.needs) else cls.needs

    def devices(self) -> tuple[str, ...]:
        """Return the devices that it can run on."""
        return ("cpu",)

    def _offers(self, device: str) -> bool:
        return device in self.devices()

    def open_accelerator(self) -> Accelerator | None:
        """Open the device, which is not the CPU; called once, by the constructor."""
        return None

    @abstractmethod
    def set_threads(self, threads: int) -> None:
        """Limit compute threads, once per process before the first run. Raises ``InputError`` if it is too late."""

    @abstractmethod
    def threads(self) -> int:
        """Return the compute threads that the library reports."""

    def open(self, request: Mapping[str, Any]) -> Any:
        """Open the subject of a campaign's request. Raises ``GraphError`` or ``InputError``."""
        return OperatorGraph.from_document(json.loads(request["graph"]))

    @classmethod
    def operator_calls(cls, graph: OperatorGraph, batch_size: int) -> list[OperatorCall | None]:
        """Return the library's calls for ``graph``, in order; None for operators that take no time."""
        return operator_calls(graph, batch_size)

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        """Return a function that runs a number of inferences, and returns the times of their ``operator_calls``.

        They are float64 seconds [inferences, 1 + calls]: the time beyond the calls, then each call, 0 for None; their
        sum is the inference. Here, for libraries that do not show operators, calls share the latency by rough prices.
        Raises as ``prepare``.
        """
        call = self.prepare(subject, batch_size)
        rough = [0.0 if one is None else one.rough_s for one in self.operator_calls(subject, batch_size)]
        prices = np.array([CALL_S, *rough])

        def walked(count: int) -> np.ndarray:
            total_s = []
            for _ in range(1 + count):
                started = time.perf_counter()
                call()
                self.wait()
                total_s.append(time.perf_counter() - started)
            return np.outer(total_s[1:], prices / prices.sum())

        return walked

    @abstractmethod
    def prepare(self, subject: Any, batch_size: int) -> Callable[[], Any]:
        """Return a call without arguments that runs one inference over a batch, which ends when ``wait`` returns.

        Building, tracing and placing happen here, so that calls are steady from the second one on. Only the newest call
        is valid: preparing another subject may reuse its memory. Raises ``GraphError`` for an unsupported operator.
        """

    def facts(self) -> dict[str, Any]:
        """Return further columns of a row about the subject prepared last."""
        return {}

    def wait(self) -> None:
        """Return when the device has finished all calls; on a CPU they have."""
        if self.accelerator is not None:
            self.accelerator.wait()

    def stopwatch(self) -> Stopwatch | None:
        """Return the device's clock, if it has one."""
        return self.accelerator.stopwatch() if self.accelerator else None

    def throttled(self) -> bool:
        """True if the device has lowered its clock because of heat."""
        return self.watch is not None and self.watch.throttled()

    def release(self) -> None:
        """Free cached memory; called when memory ran out."""
        if self.accelerator is not None:
            self.accelerator.release()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if ``error`` means that memory ran out."""
        return is_out_of_memory(error)

    @abstractmethod
    def array(self, output: Any) -> np.ndarray:
        """Return the output of a call as an array [batch, …] in the graph's layout (channels first)."""

    def feeds(self, graph: OperatorGraph, batch_size: int) -> list[np.ndarray]:
        """Draw an array [batch, *shape] for each input by the seed: normal values, valid indices, or ones for masks."""
        indices, rng = Indices(graph), np.random.default_rng(self.seed)
        return [
            indices.filled(operator, rng, batch_size)
            if is_whole(operator)
            else self.inputs(operator.shape, batch_size).astype(dtype_of(operator), copy=False)
            for operator in graph.inputs
        ]

    def inputs(self, shape: tuple[int, ...], batch_size: int) -> np.ndarray:
        """Draw normal values by the seed, float32 [batch, *shape]."""
        return np.random.default_rng(self.seed).standard_normal((batch_size, *shape), dtype=np.float32)

    @cached_property
    def weight_block(self) -> np.ndarray:
        """Small normal values that weights are filled with, float32 [WEIGHT_BLOCK]."""
        block = np.random.default_rng(self.seed).standard_normal(WEIGHT_BLOCK, dtype=np.float32)
        block *= np.float32(WEIGHT_SCALE)
        return block

    def weights(self, shape: Sequence[int]) -> np.ndarray:
        """Return ``weight_block`` repeated, float32 [*shape], in newly allocated memory, 64-byte aligned.

        Values are not zeros: pages never written would all share one page.
        """
        count = math.prod(shape)
        memory = np.empty(count + ALIGNMENT, dtype=np.float32)
        skipped = -memory.ctypes.data // memory.itemsize % ALIGNMENT
        values = memory[skipped : skipped + count]
        for start in range(0, count, WEIGHT_BLOCK):
            part = values[start : start + WEIGHT_BLOCK]
            part[:] = self.weight_block[: len(part)]
        return values.reshape(tuple(shape))
