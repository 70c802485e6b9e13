"""The data of the live page: one record for each of the last seconds, in a bounded ring."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KEPT_SECONDS = 900
# Latencies kept of a second; of more, as many chosen at random.
MAX_SAMPLES = 2_000
MAX_EVENTS = 3
# Causes that are the client's: the request was invalid, or the client had left. ``deploy/alerts.yml`` lists them too.
CLIENTS_OWN = frozenset(
    {"bad-request", "not-found", "too-large", "too-slow", "unauthorized", "forbidden", "quota", "client-gone"}
)


@dataclass
class _Second:
    """What happened while it lasted. ``right``: sum of the expected accuracies of answers in time."""

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
    """Counts requests as they end; ``tick``, called every second, closes a second and begins the next.

    ``waiting``: requests in the queue now. ``clock_s`` may be replaced in tests.
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
        """Count answers at ``point``, whose mean accuracy is known or None. ``latencies_us``: of each, from its
        arrival; ``late``: how many came after their deadlines."""
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
        """Note that something changed in this second; of many things only the first are kept."""
        if len(self._open.events) < MAX_EVENTS:
            self._open.events.append(sentence)
        else:
            self._open.more_events += 1

    def tick(self) -> None:
        """Close the second that has passed, be it longer when the server was busy."""
        now_s = self._clock_s()
        span_s = max(now_s - self._second_began_s, 1e-6)
        self._closed.append(self._figures(self._open, span_s, now_s))
        self._number += 1
        self._second_began_s, self._open = now_s, _Second()

    def since(self, number: int) -> list[dict[str, Any]]:
        """The closed seconds after that number, oldest first; all that are kept for a number below them.

        Rates per second, shares in [0, 1], latencies in µs; null where nothing can be said. ``attainment``: share
        answered in time of all requests but those a client has itself to blame for. ``accuracy``: expected, of the
        answers whose point's accuracy is known, which are the share ``known`` of all; ``effective``: the same where
        late and rejected ones count as wrong.
        """
        return [second for second in self._closed if second["number"] > number]

    def up_s(self) -> float:
        """Seconds since the server began."""
        return self._clock_s() - self._began_s

    def _sample(self, latencies_us: Sequence[float]) -> None:
        kept, second = self._open.latencies_us, self._open
        room = MAX_SAMPLES - len(kept)
        kept.extend(latencies_us[:room])
        for latency_us in latencies_us[room:]:
            if (at := int(self._random.random() * (second.in_time + second.late))) < MAX_SAMPLES:
                kept[at] = latency_us

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
