"""Counts of a server's requests, updated for many answers at once and whenever somebody looks."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from slotool.data.columns import Columns
from slotool.printable import printable
from slotool.serving.monitoring.feedback import Feedback
from slotool.serving.request import InferenceResult, Request
from slotool.serving.routing.router import Router

KEPT_SECONDS = 900
# Latencies stored per second; beyond that, a random sample of as many.
MAX_SAMPLES = 2_000
MAX_EVENTS = 3
# Causes by the client's fault: the request was invalid, or the client had left. ``deploy/alerts.yml`` lists them too.
CLIENTS_OWN = frozenset(
    {"bad-request", "not-found", "too-large", "too-slow", "unauthorized", "forbidden", "quota", "client-gone"}
)


@dataclass
class _Second:
    """Counts of one second. ``right``: sum of the expected accuracies of answers in time."""

    in_time: int = 0
    late: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    latencies_us: list[float] = field(default_factory=list)
    known: int = 0
    accuracy: float = 0.0
    right: float = 0.0
    events: list[str] = field(default_factory=list)
    more_events: int = 0


class Live:
    """Counts of requests by second; ``tick``, called every second, closes one and begins the next.

    ``waiting`` returns the requests in the queue. ``clock_s`` may be replaced in tests.
    """

    def __init__(self, waiting: Callable[[], int], clock_s: Callable[[], float] = time.monotonic):
        self._waiting = waiting
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._second_began_s = self._began_s
        self._number = 0
        self._closed: deque[dict[str, Any]] = deque(maxlen=KEPT_SECONDS)
        self._open = _Second()
        self._random = random.Random(0)

    def answered(self, latencies_us: Sequence[float], late: int, point: str, accuracy: float | None) -> None:
        """Count answers at ``point``, ``late`` of them after their deadlines.

        ``latencies_us`` are from arrival; ``accuracy`` is their mean, None where it is unknown.
        """
        second, count = self._open, len(latencies_us)
        second.in_time += count - late
        second.late += late
        second.points[point] += count
        self._sample(latencies_us)
        if accuracy is not None:
            second.known += count
            second.accuracy += accuracy * count
            second.right += accuracy * (count - late)

    def dropped(self, cause: str, count: int = 1) -> None:
        """Count requests that ended without an answer."""
        self._open.drops[cause] += count

    def event(self, sentence: str) -> None:
        """Note a change in this second; only the first ones are kept."""
        if len(self._open.events) < MAX_EVENTS:
            self._open.events.append(sentence)
        else:
            self._open.more_events += 1

    def tick(self) -> None:
        """Close the current second, which may be longer when the server was busy."""
        now_s = self._clock_s()
        span_s = max(now_s - self._second_began_s, 1e-6)
        self._closed.append(self._figures(self._open, span_s, now_s))
        self._number += 1
        self._second_began_s, self._open = now_s, _Second()

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the closed seconds after ``number``, oldest first; all for a negative number.

        Rates per second, shares in [0, 1], latencies in µs; null where nothing is known. ``attainment``: share answered
        in time of all requests except those that failed by the client's fault. ``accuracy``: expected, of the share
        ``known`` of answers whose point's accuracy is known; ``effective``: the same with late and rejected ones as
        wrong.
        """
        return [second for second in self._closed if second["number"] > number]

    def up_s(self) -> float:
        """Return the seconds since the server began."""
        return self._clock_s() - self._began_s

    def _sample(self, latencies_us: Sequence[float]) -> None:
        samples, second = self._open.latencies_us, self._open
        room = MAX_SAMPLES - len(samples)
        samples.extend(latencies_us[:room])
        for latency_us in latencies_us[room:]:
            if (at := int(self._random.random() * (second.in_time + second.late))) < MAX_SAMPLES:
                samples[at] = latency_us

    def _figures(self, second: _Second, span_s: float, now_s: float) -> dict[str, Any]:
        answered = second.in_time + second.late
        rejected = sum(count for cause, count in second.drops.items() if cause not in CLIENTS_OWN)
        p50_us, p99_us = np.quantile(second.latencies_us, (0.5, 0.99)).tolist() if answered else (None, None)
        return {
            "number": self._number,
            "up_s": round(now_s - self._began_s, 3),
            "answered": answered / span_s,
            "rejected": rejected / span_s,
            "attainment": second.in_time / (answered + rejected) if answered + rejected else None,
            "accuracy": second.accuracy / second.known if second.known else None,
            "known": second.known / answered if answered else None,
            "effective": second.right / (answered + rejected) if second.known and second.known == answered else None,
            "p50_us": p50_us,
            "p99_us": p99_us,
            "waiting": self._waiting(),
            "points": {point: count / span_s for point, count in second.points.items()},
            "drops": {cause: count / span_s for cause, count in second.drops.items()},
            "event": "; ".join(second.events) + (f"; and {second.more_events} more" if second.more_events else ""),
        }


# Uncounted answers, and bytes of their inputs: fewer cost more each; with more, the next request waits longer.
MAX_UNCOUNTED, MAX_UNCOUNTED_BYTES = 64, 2**20
# Longest wait of an answer.
MAX_WAIT_S = 0.1
# Stands for inputs that are not needed any more.
FORGOTTEN = Columns.unchecked({})


class Accounts:
    """Metrics, statistics, feedback and live figures of a server by model, brought up to date when they are read."""

    def __init__(self, router: Router):
        self._metrics, self._events = router.metrics, router.events
        self._waiting = router.waiting
        self._statistics: dict[str, Statistics] = {}
        self._feedback: dict[str, Feedback] = {}
        self._live = Live(router.waiting)
        # By model, if there are several.
        self._live_of: dict[str, Live] = {}
        self._uncounted: deque[tuple[Request, InferenceResult]] = deque()
        self._uncounted_bytes = 0
        # Requests without an answer that are not counted yet, by model and cause.
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._metrics.before_reading(self._count_all)
        self._metrics.watch_spent(self._spent_s)
        router.events.listen(self._hear)

    def _hear(self, kind: str, sentence: str, fields: Mapping[str, Any]) -> None:
        """Show an event in the figures of all models together, and of its model (else all)."""
        self._live.event(sentence)
        about = "" if kind.startswith("worker-") else fields.get("model", "")
        for name, live in self._live_of.items():
            if about in ("", name):
                live.event(sentence)

    def keep_of(self, models: Iterable[str]) -> None:
        """Have accounts of these models; those of removed models stay readable."""
        self._count_all()
        names = list(models)
        for name in names:
            if name not in self._statistics:
                self._statistics[name], self._feedback[name] = Statistics(), Feedback()
                self._metrics.serves(name)
                self._metrics.watch_feedback(name, self._feedback[name])
            if len(names) > 1 and name not in self._live_of:
                self._live_of[name] = Live(partial(self._waiting, name))
        self._live_of = {name: live for name, live in self._live_of.items() if name in names}

    def _spent_s(self) -> dict[str, tuple[float, float]]:
        """Return each model's seconds of requests until dispatch, and from there to the result."""
        return {
            name: (1e-6 * (statistics.read.spent_us + statistics.queue.spent_us), 1e-6 * statistics.compute.spent_us)
            for name, statistics in self._statistics.items()
        }

    @property
    def statistics(self) -> Mapping[str, Statistics]:
        self._count_all()
        return self._statistics

    @property
    def feedback(self) -> Mapping[str, Feedback]:
        self._count_all()
        return self._feedback

    @property
    def live(self) -> Live:
        """Figures of all models together."""
        self._count_all()
        return self._live

    @property
    def live_of(self) -> Mapping[str, Live]:
        """Figures of each model, where there are several."""
        self._count_all()
        return self._live_of

    def answered(self, request: Request, answer: InferenceResult) -> None:
        """Queue an answer to be counted."""
        self._uncounted.append((request, answer))
        if request.served.rules is None:  # only guarantees of rules look at inputs again
            request.x = FORGOTTEN
        else:
            self._uncounted_bytes += request.x.nbytes
        self._count_soon()

    def count_if_many(self) -> None:
        """Count answers, which clients have by now, once there are many."""
        if len(self._uncounted) >= MAX_UNCOUNTED or self._uncounted_bytes > MAX_UNCOUNTED_BYTES:
            self._count_all()

    def rejected(self, request: Request, now_us: float) -> None:
        """Count a rejection by the router; ``dropped`` counts its cause."""
        self._statistics[request.served.name].rejected(now_us - request.arrival_us)

    def dropped(self, model: str, cause: str) -> None:
        """Count a request that ends without an answer, whatever model it names."""
        self._dropped[model, cause] += 1
        self._count_soon()

    def _count_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_WAIT_S, self._count_in_time)

    def _count_in_time(self) -> None:
        self._timer = None
        self._count_all()

    def _count_all(self) -> None:
        groups: dict[tuple[str, str], list[tuple[Request, InferenceResult]]] = {}
        while self._uncounted:
            request, answer = self._uncounted.popleft()
            key = request.served.name, answer.decision.point.label
            groups.setdefault(key, []).append((request, answer))
        self._uncounted_bytes = 0
        for (name, point), answers in groups.items():
            self._count(name, point, answers)
        for (model, cause), count in self._dropped.items():
            self._metrics.dropped(model if model in self._statistics else "", cause, count)
            if model in self._feedback and cause not in CLIENTS_OWN:
                self._feedback[model].rejected(count)
            for live in (self._live, *filter(None, [self._live_of.get(model)])):
                live.dropped(cause, count)
        self._dropped.clear()

    def _count_groups(self, name: str, requests: list[Request]) -> None:
        """Count requests that name a group unknown to the rules: a misspelt group has no guarantee."""
        rules = requests[0].served.rules
        if rules is None:
            return
        groups = Counter(request.options.group for request in requests if not rules.knows_group(request.options.group))
        new = self._feedback[name].of_unknown_groups(groups)
        if groups:
            self._metrics.unknown_groups.labels(name).inc(groups.total())
        for group in new:
            names = ", ".join(rules.config.get("groups", ())) or "none"
            self._events.emit(
                "group-unknown",
                f"{name}: requests name group {printable(group)!r}, which the rules do not know; they know {names}",
                model=name,
                group=group,
            )

    def _count(self, name: str, point: str, answers: list[tuple[Request, InferenceResult]]) -> None:
        """Count answers of one model at one point."""
        latencies_us = [answer.queue_us + answer.compute_us for _, answer in answers]
        late = sum(answer.slack_us < 0 for _, answer in answers)
        self._metrics.answered(name, point, latencies_us, late=late)
        self._statistics[name].answered([answer for _, answer in answers], [request.read_us for request, _ in answers])
        self._feedback[name].answered([
            (None if request.x is FORGOTTEN else request.x, answer, request.options) for request, answer in answers
        ])  # fmt: skip
        self._count_groups(name, [request for request, _ in answers])
        first, answer = answers[0]
        accuracy = first.served.expected_accuracy.get(answer.decision.point)
        self._live.answered(latencies_us, late, point if len(self._statistics) == 1 else f"{name}: {point}", accuracy)
        if name in self._live_of:
            self._live_of[name].answered(latencies_us, late, point, accuracy)


@dataclass
class _Total:
    """Number of occurrences and their total duration, µs."""

    count: int = 0
    spent_us: float = 0.0

    def add(self, spent_us: float, count: int = 1) -> None:
        self.count += count
        self.spent_us += spent_us

    def document(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.spent_us * 1e3)}


@dataclass
class Statistics:
    """Statistics of one model's requests that reached the router; malformed requests are not counted.

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
        """Count answers; ``read_us`` is the time from arrival until each request's tensors were read."""
        count, compute_us = len(results), sum([answer.compute_us for answer in results])
        self.success.add(sum([answer.queue_us for answer in results]) + compute_us, count)
        self.read.add(sum(read_us), count)
        queued_us = [max(0.0, answer.queue_us - us) for answer, us in zip(results, read_us, strict=True)]
        self.queue.add(sum(queued_us), count)
        self.compute.add(compute_us, count)
        for answer in results:
            examples = len(answer.scored)
            self.examples += examples
            # Its part of the shared call.
            self.executions += examples / answer.batch
        self.last_ms = time.time_ns() // 1_000_000

    def rejected(self, after_us: float) -> None:
        """Count a request rejected ``after_us`` its arrival."""
        self.fail.add(after_us)

    def document(self, model: str, version: str) -> dict[str, Any]:
        """Return Triton's ``ModelStatistics``: ``inference_count`` in examples, ``execution_count`` in model runs.

        The time to write answers is not measured: 0 ns per answer, since clients compare the counts.
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
