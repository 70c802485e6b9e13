"""Queries back to back on this core, with several answering strategies interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.colocation.chooser import Lcao
from slotool.elastic.queries import ExampleInference, Queries
from slotool.machine import machine_id
from slotool.process import collector_off
from slotool.scheduling import CannotMeet, CoRunnerEstimator
from slotool.tables import FULL, LatencyTable, OperatingPoint

# Length of a turn: several time slices of a co-runner, and short against the drift of the machine.
TURN_S = 0.03
WARM_UP_QUERIES = 20
# Answers kept per strategy, drawn at random: a regular stride would keep the same examples again and again.
MAX_KEPT = 20_000

# The label and the point of example i; None when it cannot be met.
AnswerFunction = Callable[[int], "tuple[int, OperatingPoint] | None"]


@dataclass
class Strategy:
    """Answering strategy and its results. ``observe`` receives every answer, outside the measured time."""

    name: str
    target: float
    reply: AnswerFunction
    observe: Callable[[OperatingPoint, float], Any] | None = None
    rejected: int = 0
    spent_s: float = 0.0
    latency_s: list[float] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    points: list[OperatingPoint] = field(default_factory=list)

    def take_turn(self, numbers: Sequence[int], first: int, seconds: float) -> int:
        """Answer ``numbers`` cyclically from place ``first`` for so many ``seconds``; returns the next place."""
        clock, began, at = time.perf_counter, time.perf_counter(), first
        while True:
            example = numbers[at % len(numbers)]
            at += 1
            started = clock()
            answer = self.reply(example)
            ended = clock()
            if answer is None:
                self.rejected += 1
            else:
                self.latency_s.append(ended - started)
                self.examples.append(example)
                self.labels.append(answer[0])
                self.points.append(answer[1])
                if self.observe:
                    self.observe(answer[1], 1e6 * (ended - started))
            if ended - began > seconds:
                self.spent_s += ended - began
                return at

    def row(self, queries: Queries, co_runners: int) -> dict[str, Any]:
        """Return the row of an ``InterferenceTable``."""
        order = _drawn(len(self.labels))
        examples, labels = (np.array(of, dtype=np.int64)[order] for of in (self.examples, self.labels))
        return {
            "strategy": self.name,
            "co_runners": co_runners,
            "target": self.target,
            "queries": len(self.labels) + self.rejected,
            "rejected": self.rejected,
            "latency_s": np.array(self.latency_s)[order],
            "right": queries.right(examples, labels).astype(np.float64) if len(labels) else np.empty(0),
            "example": examples.astype(np.float64),
            "k": np.array([share(self.points[i]) for i in order], dtype=np.float64),
        }


def fixed(name: str, point: OperatingPoint, queries: Queries) -> Strategy:
    """Return every query at one point."""
    label = queries.answer(point).label
    return Strategy(name, float("nan"), lambda i: (label(i), point))


def aclo(accuracy: float, queries: Queries) -> Strategy:
    """Return each query at the least k expected to reach ``accuracy``."""
    label, seconds = queries.answer(accuracy=accuracy)
    return Strategy("aclo", accuracy, lambda i: (label(i), seconds()))


def lcao(
    chooser: Lcao,
    deadline_us: float,
    answers: Mapping[OperatingPoint, ExampleInference],
    co_runners: int | CoRunnerEstimator,
) -> Strategy:
    """Return LCAO as a strategy, choosing the greatest k in time; ``co_runners``: β, given or estimated.

    Choosing is part of its latency.
    """
    labels = {point: answer.label for point, answer in answers.items()}
    estimated = co_runners if isinstance(co_runners, CoRunnerEstimator) else None
    count = 0 if isinstance(co_runners, CoRunnerEstimator) else co_runners

    def reply(example: int) -> tuple[int, OperatingPoint] | None:
        point = chooser.choose(deadline_us, 0.0, estimated.co_runners if estimated else count)
        if isinstance(point, CannotMeet):
            return None
        return labels[point](example), point

    return Strategy("lcao", 1e-6 * deadline_us, reply, estimated.observe if estimated else None)


def run(
    strategies: Sequence[Strategy], queries: Queries, seconds: float, *, seed: int = 0, after_turn: Any = None
) -> None:
    """Run all ``strategies`` in turns for ``seconds`` each, on examples in an order drawn by ``seed``.

    ``after_turn()`` is called between turns, to check co-runners or show progress.
    """
    numbers = np.random.default_rng(seed).permutation(len(queries)).tolist()
    for strategy in strategies:
        for example in numbers[:WARM_UP_QUERIES]:
            strategy.reply(example)
    place = dict.fromkeys(range(len(strategies)), 0)
    with collector_off():
        while any(strategy.spent_s < seconds for strategy in strategies):
            for at, strategy in enumerate(strategies):
                place[at] = strategy.take_turn(numbers, place[at], min(TURN_S, seconds))
                if after_turn is not None:
                    after_turn()


def profile_rows(
    queries: Queries,
    seconds: float,
    co_runners: int,
    *,
    seed: int = 0,
    after_turn: Any = None,
) -> LatencyTable:
    """Return T(k, β) as it is now, with ``co_runners`` in its rows: every point in turns, single answers."""
    model = queries.model
    strategies = [fixed(point.key, point, queries) for point in model.points]
    run(strategies, queries, seconds, seed=seed, after_turn=after_turn)
    rows = [
        {
            "subject": model.name,
            "point": strategy.name,
            "batch_size": 1,
            "device": model.device,
            "backend": "elastic",
            "threads": 1,
            "co_runners": "+".join([model.name] * co_runners),
            "machine": machine_id(),
            "samples_s": np.array(strategy.latency_s)[_drawn(len(strategy.latency_s))],
            "calls_per_sample": 1,
        }
        for strategy in strategies
    ]
    return LatencyTable(pd.DataFrame(rows))


def _drawn(n: int) -> np.ndarray:
    """Return the indices of the answers kept of n, in order: int64 [at most ``MAX_KEPT``]."""
    return np.arange(n) if n <= MAX_KEPT else np.sort(np.random.default_rng(n).choice(n, MAX_KEPT, replace=False))


def share(point: OperatingPoint) -> float:
    """Return k of a point: 1 for the full network, NaN for a point without k."""
    k = point.get("k")
    return 1.0 if point == FULL else float(k) if isinstance(k, int | float) else float("nan")
