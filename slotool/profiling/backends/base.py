"""The base class of everything that can execute a subject under the timer."""

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
    """Executes subjects on one device. Made once per process; ``device`` is ``cpu`` or ``cuda:N``.

    ``threads`` caps its compute threads and must be set before the first run (None leaves the library's setting);
    ``seed`` fixes inputs and weights; ``precision`` is one of ``precisions``, None the first. Raises ``InputError``
    when it does not offer the device or the precision.
    """

    name: ClassVar[str]
    needs: ClassVar[str]
    # Number formats that it can compute in, the usual one first; a part of the setting that rows are labels of.
    precisions: ClassVar[tuple[str, ...]] = (FLOAT32,)
    # Whether its library keeps more threads busy than it was allowed, so that they wait for each other.
    oversubscribed: ClassVar[bool] = False
    # True if each subject on a CPU gets a process of its own (see ``worker.Forks``), as in a plain program.
    forks: ClassVar[bool] = True
    # What to do where it lacks a device, as the end of a sentence.
    no_device_advice: ClassVar[str] = ""

    def __init__(self, device: str = "cpu", threads: int | None = None, seed: int = 0, precision: str | None = None):
        self.device = device
        self.seed = seed
        self.precision = self.required_precision(precision, device)
        if threads is not None:
            self.set_threads(threads)
        if not self._offers(device):
            there = ", ".join(self.devices()) or "none"
            advice = f"; {self.no_device_advice}" if self.no_device_advice else ""
            raise InputError(f"the {self.name} backend has no device {device!r} here; it has {there}{advice}")
        # What the methods below ask of the device; None on a CPU, and where a backend overrides them itself.
        self.accelerator: Accelerator | None = None if device == "cpu" else self.open_accelerator()
        self.watch = DeviceWatch(self.accelerator.readings) if self.accelerator else None

    @classmethod
    def required_precision(cls, precision: str | None, device: str) -> str:
        """Return ``precision``, or the usual one for None. Raises ``InputError`` for one that it does not offer."""
        if precision is None or precision == cls.precisions[0]:
            return cls.precisions[0]
        if precision not in cls.precisions:
            offered = ", ".join(cls.precisions)
            raise ArgumentError("precision", f"the {cls.name} backend computes in {offered}, not in {precision[:40]!r}")
        return devices.required_precision(precision, device)

    @classmethod
    def missing(cls) -> str | None:
        """The package it needs and that is not installed, or None."""
        return None if find_spec(cls.needs) else cls.needs

    def devices(self) -> tuple[str, ...]:
        """Devices it can run on."""
        return ("cpu",)

    def _offers(self, device: str) -> bool:
        return device in self.devices()

    def open_accelerator(self) -> Accelerator | None:
        """The device it was made for, which is not the CPU; called once, while the backend is made."""
        return None

    @abstractmethod
    def set_threads(self, threads: int) -> None:
        """Cap compute threads; once per process, before anything ran. Raises ``InputError`` when it is too late."""

    @abstractmethod
    def threads(self) -> int:
        """Compute threads it says it uses."""

    def open(self, request: Mapping[str, Any]) -> Any:
        """A subject from what the campaign says of it. Raises ``GraphError`` or ``InputError``."""
        return OperatorGraph.from_document(json.loads(request["graph"]))

    @classmethod
    def operator_calls(cls, graph: OperatorGraph, batch_size: int) -> list[OperatorCall | None]:
        """Return the calls that the library makes one after the other for ``graph``; None for what takes no time."""
        return operator_calls(graph, batch_size)

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        """Return a function that runs a number of inferences, and returns how long each of ``operator_calls`` took.

        Its answer is float64 seconds [inferences, 1 + calls]: first what an inference takes beyond its calls, then each
        of them, 0 for None; together they are the inference. A library that runs a network as one does not show its
        operators: here they share its latency by rough prices. Raises what ``prepare`` does.
        """
        call = self.prepare(subject, batch_size)
        rough = [0.0 if each is None else each.rough_s for each in self.operator_calls(subject, batch_size)]
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
        """A call without arguments that runs one inference over a batch; it is done when ``wait`` returns.

        Building, tracing and placing happen here, so that the second call on is steady state. Only the newest call
        is valid: preparing another subject may reuse its memory. Raises ``GraphError`` for an operator it cannot run.
        """

    def facts(self) -> dict[str, Any]:
        """Return columns of a row about the subject prepared last, besides those of the timer."""
        return {}

    def wait(self) -> None:
        """Return when the device has done all that was called; on a CPU a call returns only then anyway."""
        if self.accelerator is not None:
            self.accelerator.wait()

    def stopwatch(self) -> Stopwatch | None:
        """The device's own clock, if it has one besides the host's."""
        return self.accelerator.stopwatch() if self.accelerator else None

    def throttled(self) -> bool:
        """True if the device has lowered its clock just now, for heat, so that timings would be too long."""
        return self.watch is not None and self.watch.throttled()

    def release(self) -> None:
        """Give back memory that is kept for the next subject; called when memory ran out."""
        if self.accelerator is not None:
            self.accelerator.release()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if what it raised means that memory ran out."""
        return is_out_of_memory(error)

    @abstractmethod
    def array(self, output: Any) -> np.ndarray:
        """Return the output of a call as an array [batch, …] laid out like the graph's shapes (channels first)."""

    def feeds(self, graph: OperatorGraph, batch_size: int) -> list[np.ndarray]:
        """An array [batch, *shape] for each of a graph's inputs, the same for the same seed: normal values; of whole
        numbers such as its lookups take, and ones for masks."""
        indices, rng = Indices(graph), np.random.default_rng(self.seed)
        return [
            indices.filled(operator, rng, batch_size)
            if is_whole(operator)
            else self.inputs(operator.shape, batch_size).astype(dtype_of(operator), copy=False)
            for operator in graph.inputs
        ]

    def inputs(self, shape: tuple[int, ...], batch_size: int) -> np.ndarray:
        """Normal values, float32 [batch, *shape], the same for the same seed and shape."""
        return np.random.default_rng(self.seed).standard_normal((batch_size, *shape), dtype=np.float32)

    @cached_property
    def weight_block(self) -> np.ndarray:
        """Small normal values, float32 [WEIGHT_BLOCK], that weights are filled with."""
        block = np.random.default_rng(self.seed).standard_normal(WEIGHT_BLOCK, dtype=np.float32)
        block *= np.float32(WEIGHT_SCALE)
        return block

    def weights(self, shape: Sequence[int]) -> np.ndarray:
        """Return the values of ``weight_block`` over and over, float32 [*shape], on 64-byte aligned memory of its own.

        Never zeros: pages that were not written all share one.
        """
        count = math.prod(shape)
        memory = np.empty(count + ALIGNMENT, dtype=np.float32)
        skipped = -memory.ctypes.data // memory.itemsize % ALIGNMENT
        values = memory[skipped : skipped + count]
        for start in range(0, count, WEIGHT_BLOCK):
            part = values[start : start + WEIGHT_BLOCK]
            part[:] = self.weight_block[: len(part)]
        return values.reshape(tuple(shape))
