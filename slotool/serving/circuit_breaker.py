"""Circuit breakers of candidates: one that keeps ending workers gets no further requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from slotool.serving import rejections
from slotool.serving.candidates import SHADOW, parted
from slotool.serving.events import Events
from slotool.serving.metrics import Metrics
from slotool.serving.rejections import Rejection

# Workers that may be lost in calls of a candidate within this time. Three workers that hang one after the other are
# lost within it, also where each takes minutes to load.
MAX_LOSSES, WINDOW_S = 3, 600.0

# Takes the name of a candidate and why it gets no requests.
OpenListener = Callable[[str, Rejection], None]


class CircuitBreakers:
    """Of the candidates of a server; all its pools of workers share them.

    A breaker opens when ``MAX_LOSSES`` workers were lost in calls of its candidate within ``WINDOW_S``: they died, or
    were ended as they hung. It stays open until ``close_all``. It is never half-open, as every attempt may cost the
    serving model a worker. ``clock_s`` may be replaced in tests.
    """

    def __init__(self, events: Events, metrics: Metrics, clock_s: Callable[[], float] = time.monotonic):
        self._events, self._metrics, self._clock_s = events, metrics, clock_s
        self._losses: dict[str, deque[float]] = {}
        self._open: dict[str, Rejection] = {}
        self._listeners: list[OpenListener] = []

    @property
    def open(self) -> Mapping[str, str]:
        """The sentence of each open breaker, by the router's name of the candidate."""
        return {name: str(rejection) for name, rejection in self._open.items()}

    def rejection(self, model: str) -> Rejection | None:
        """Of a request for this candidate; None while its breaker is closed, and of a model that is none."""
        return self._open.get(model)

    def listen(self, listener: OpenListener) -> None:
        """Call ``listener`` whenever a breaker opens."""
        self._listeners.append(listener)

    def worker_lost(self, model: str, how: str) -> None:
        """A worker was lost in a call of this model. ``how``: the sentence of the loss."""
        public_name, role = parted(model)
        if not role or model in self._open:
            return
        now_s = self._clock_s()
        losses = self._losses.setdefault(model, deque(maxlen=MAX_LOSSES))
        losses.append(now_s)
        if len(losses) < MAX_LOSSES or now_s - losses[0] > WINDOW_S:
            return
        lost = f"{MAX_LOSSES} workers were lost in its calls within {now_s - losses[0]:.0f} s, the last one: {how}"
        goes = "no requests are copied to it" if role == SHADOW else f"its requests go to {public_name}"
        rejection = self._open[model] = rejections.candidate_stopped(model, lost)
        self._metrics.candidate_stopped(model)
        self._events.emit("candidate-stopped", f"{rejection}; {goes}", model=model, reason=lost)
        for listener in self._listeners:
            listener(model, rejection)

    def close_all(self) -> None:
        """Give every candidate another chance."""
        self._losses.clear()
        self._open.clear()
        self._metrics.no_candidate_stopped()
