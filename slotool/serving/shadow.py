"""Shadow mode: a candidate answers copies of requests, and its answers are scored against those that were sent."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slotool.data.columns import Inputs
from slotool.serving.candidates import SHADOW, candidate_name
from slotool.serving.model_queue import InferenceResult
from slotool.serving.outputs import Outputs
from slotool.serving.pools import AnyRouter
from slotool.serving.rejections import Rejection
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import ServedModel

# Copies on their way at once; of more requests none is made.
MAX_IN_FLIGHT = 8
# Latencies kept for medians.
MAX_SAMPLES = 2_000
REPORT_INTERVAL_S = 60.0
COMPARED, REJECTED, FAILED, SKIPPED = "compared", "rejected", "failed", "skipped"


@dataclass
class _Figures:
    """Since ``served`` is the shadow. ``difference``: sum of errors, were the serving model's answers right."""

    served: ServedModel
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys((COMPARED, REJECTED, FAILED, SKIPPED), 0))
    examples: int = 0
    agreeing: int = 0
    difference: float = 0.0
    compute_us: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    reported: int = 0
    next_report_s: float = -math.inf

    def document(self) -> dict[str, Any]:
        """Requests by outcome, the share of examples with the same answer, the mean difference, and median µs."""
        known, medians = bool(self.examples), [None, None]
        if self.compute_us:
            medians = np.median(np.array(self.compute_us), axis=0).round(1).tolist()
        return {
            "share": self.served.share,
            **self.outcomes,
            "examples": self.examples,
            "agreement": self.agreeing / self.examples if known else None,
            "difference": self.difference / self.examples if known else None,
            "serving_p50_us": medians[0],
            "shadow_p50_us": medians[1],
        }


class Shadows:
    """Sends copies of answered requests to the shadows of their models; figures by model.

    A copy is computed only while nothing waits, and its outcome goes into the figures, the metrics and, once a minute,
    an event; it is never sent. It asks for what the request asked for, at the lowest priority.
    """

    def __init__(self, router: AnyRouter):
        self._router = router
        self._figures: dict[str, _Figures] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random()

    def documents(self) -> Mapping[str, Any]:
        """Figures of every shadow, by the name of the model that it follows."""
        shadows = [served for served in self._router.models.values() if served.version == SHADOW]
        return {shadow.public_name: self._figures_of(shadow).document() for shadow in shadows}

    def answered(
        self, served: ServedModel, x: Inputs, options: RequestOptions, answer: InferenceResult, *, overloaded: bool
    ) -> None:
        """Perhaps have the model's shadow, if it has one, answer ``x`` too."""
        shadow = self._router.model(candidate_name(served.name, SHADOW))  # of a canary there is none
        if shadow is None or self._router.breakers.rejection(shadow.name) or self._random.random() >= shadow.share:
            return
        if options.tolerance is not None and shadow.rules is None:
            return  # a tier that the shadow does not have
        if overloaded or self._router.waiting() or len(self._tasks) >= MAX_IN_FLIGHT:
            self._ended(shadow, SKIPPED)
            return
        task = asyncio.get_running_loop().create_task(self._compare(shadow, x, replace(options, priority=0), answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def report(self, now_s: float) -> None:
        """An event of every shadow with new comparisons, at most once a minute. ``now_s``: of any one clock."""
        for name, figures in self._figures.items():
            if figures.examples == figures.reported or now_s < figures.next_report_s:
                continue
            figures.reported, figures.next_report_s = figures.examples, now_s + REPORT_INTERVAL_S
            document = figures.document()
            self._router.events.emit(
                "shadow",
                f"{name}: the shadow gives the same answer for {figures.agreeing} of {figures.examples} examples, in "
                f"{document['shadow_p50_us']:g} µs against {document['serving_p50_us']:g} (medians)",
                model=name,
                **document,
            )

    def _figures_of(self, shadow: ServedModel) -> _Figures:
        figures = self._figures.get(shadow.public_name)
        if figures is None or figures.served.model is not shadow.model:
            figures = self._figures[shadow.public_name] = _Figures(shadow)
        figures.served = shadow
        return figures

    def _ended(self, shadow: ServedModel, outcome: str) -> None:
        self._figures_of(shadow).outcomes[outcome] += 1
        self._router.metrics.shadowed(shadow.public_name, outcome)

    async def _compare(self, shadow: ServedModel, x: Inputs, options: RequestOptions, answer: InferenceResult) -> None:
        router, name = self._router, shadow.public_name
        try:
            its = await router.answer(shadow.name, x, options, router.now_us(), lambda: False)
            errors = _errors(answer, its)
        except Rejection as rejection:
            self._ended(shadow, FAILED if rejection.status == 500 else REJECTED)
            return
        except Exception:  # a task that cannot compare two answers, or a shadow that is gone: never the clients' matter
            self._ended(shadow, FAILED)
            return
        now = router.model(shadow.name)
        if now is None or now.model is not shadow.model:
            return  # exchanged meanwhile
        self._ended(now, COMPARED)
        figures, agreeing, difference = self._figures_of(now), int((errors == 0).sum()), float(errors.sum())
        figures.examples += len(errors)
        figures.agreeing += agreeing
        figures.difference += difference
        figures.compute_us.append((answer.compute_us, its.compute_us))
        router.metrics.compared(name, agreeing, len(errors), difference)
        router.metrics.shadow_took(name, answer.version, answer.compute_us)
        router.metrics.shadow_took(name, its.version, its.compute_us)


def _errors(answer: InferenceResult, its: InferenceResult) -> np.ndarray:
    """The error of each of the shadow's answers, were the ones that were sent right: float64 [n]."""
    sent, scored = answer.labels, its.scored
    if isinstance(scored, Outputs) and scored.task is not None:
        return scored.task.errors(scored.tensors, sent)
    differ = np.asarray(sent != its.labels).reshape(len(sent), -1)
    return np.asarray(np.any(differ, axis=1), dtype=np.float64)
