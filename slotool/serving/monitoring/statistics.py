"""Counts and durations per model in the form of Triton's statistics extension, which its load tester reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slotool.serving.request import InferenceResult


@dataclass
class _Total:
    """How often something happened, and the µs it took in all."""

    count: int = 0
    spent_us: float = 0.0

    def add(self, spent_us: float, count: int = 1) -> None:
        self.count += count
        self.spent_us += spent_us

    def document(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.spent_us * 1e3)}


@dataclass
class Statistics:
    """What happened to the requests of one model that reached the router: bad requests are not the model's.

    Durations: ``success`` and ``fail`` from arrival to answer or rejection, ``read`` from arrival until the tensors
    were read, ``queue`` from there to dispatch, ``compute`` in the model.
    """

    success: _Total = field(default_factory=_Total)
    fail: _Total = field(default_factory=_Total)
    read: _Total = field(default_factory=_Total)
    queue: _Total = field(default_factory=_Total)
    compute: _Total = field(default_factory=_Total)
    examples: int = 0
    executions: float = 0.0
    last_ms: int = 0

    def answered(self, results: Sequence[InferenceResult], read_us: Sequence[float]) -> None:
        """Count answers to requests whose tensors were read so long after they arrived."""
        count, compute_us = len(results), sum([answer.compute_us for answer in results])
        self.success.add(sum([answer.queue_us for answer in results]) + compute_us, count)
        self.read.add(sum(read_us), count)
        queued_us = [max(0.0, answer.queue_us - us) for answer, us in zip(results, read_us, strict=True)]
        self.queue.add(sum(queued_us), count)
        self.compute.add(compute_us, count)
        for answer in results:
            examples = len(answer.scored)
            self.examples += examples
            # Its part in the call it shared with others.
            self.executions += examples / answer.batch
        self.last_ms = time.time_ns() // 1_000_000

    def rejected(self, after_us: float) -> None:
        """Count a request rejected that long after it arrived."""
        self.fail.add(after_us)

    def document(self, model: str, version: str) -> dict[str, Any]:
        """Triton's ``ModelStatistics`` object: ``inference_count`` in examples, ``execution_count`` in model runs.

        What writing answers takes is not known: 0 ns, as often as there was one, since clients compare the counts.
        """
        stats = {
            "success": self.success,
            "fail": self.fail,
            "queue": self.queue,
            "compute_input": self.read,
            "compute_infer": self.compute,
            "compute_output": _Total(self.compute.count),
        }
        return {
            "name": model,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.examples,
            "execution_count": round(self.executions),
            "inference_stats": {name: total.document() for name, total in stats.items()},
        }
