"""The open-loop client: every request leaves at its intended instant, whatever is still outstanding."""

from __future__ import annotations

import asyncio
import gc
import select
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from slotool.data.dataset import Split
from slotool.data.stored import StoredExamples
from slotool.errors import InputError, RunError
from slotool.process import allow_connections
from slotool.workloads.arrivals.processes import ArrivalProcess
from slotool.workloads.client import event_loop
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import Channel, Example, Terms
from slotool.workloads.requests import RequestLog

WARM_UP_REQUESTS = 5
# Limit of the examples in one load test, bytes.
MAX_EXAMPLE_BYTES = 256 << 20
# Time between the decision to start and the first intended instant.
LEAD_S = 0.05
# A client that is later than this, and than the deadline, sends no more: nothing can be judged from what it would add.
MAX_SEND_DELAY_S = 5.0
# Statuses of requests that the server does not understand: later ones would fail too.
_MISUNDERSTOOD = frozenset({400, 401, 403, 404, 405, 411, 413, 415, 422, 501})


@dataclass(frozen=True)
class LoadPlan:
    """Requests to send: plain arrays, so that a plan can be cut into parts and sent by several processes.

    ``times_s``: float64 [n], ascending seconds from the start; ``examples``: int64 [n], rows of ``split``;
    ``priorities``: int64 [n], 0 for none. ``numbers``: int64, ids of the rows of ``split`` in logs; None: by position.
    ``tolerances``: float64 [n]; None: those of the terms.
    """

    times_s: np.ndarray
    examples: np.ndarray
    split: Split
    priorities: np.ndarray
    numbers: np.ndarray | None = None
    tolerances: np.ndarray | None = None

    @classmethod
    def draw(
        cls,
        arrivals: ArrivalProcess,
        duration_s: float,
        split: Split,
        seed: int,
        shares: Mapping[int, float] = MappingProxyType({}),
        tolerances: Mapping[float, float] = MappingProxyType({}),
    ) -> LoadPlan:
        """Draw arrivals for that long, each with an example; all are used once, in random order, before any twice.

        ``shares``: share of requests by priority, drawn independently; the rest has none. ``tolerances``: share of
        requests by tolerance, adding up to 1; empty: all have that of the terms. Raises ``InputError`` if nothing
        arrives, or for invalid shares.
        """
        times_s = drawn_times(arrivals, duration_s, seed)
        generator = np.random.default_rng([seed, 1])
        rounds = -(-len(times_s) // len(split))
        order = np.concatenate([generator.permutation(len(split)) for _ in range(rounds)])
        count, drawn = len(times_s), None
        if tolerances:
            chances = np.array(list(tolerances.values()), dtype=np.float64)
            drawn = np.random.default_rng([seed, 3]).choice(list(tolerances), count, p=chances / chances.sum())
        priorities = _priorities(shares, count, seed)
        return cls(times_s, order[:count].astype(np.int64), split, priorities, tolerances=drawn)

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def labels(self) -> np.ndarray:
        """Class of each example of ``split``, int64 [examples]; -1 if the truth is no class."""
        y = self.split.y
        has_classes = isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "iub"
        return y.astype(np.int64) if has_classes else np.full(len(self.split), -1)

    def loaded(self) -> LoadPlan:
        """Return the plan with the examples that it sends loaded into memory.

        Of stored examples at most ``MAX_EXAMPLE_BYTES`` are loaded, and these are sent again in place of the others.
        """
        if not isinstance(self.split.x, StoredExamples):
            return self
        one = self.split.x[:1]
        most = max(1, MAX_EXAMPLE_BYTES // max(1, one.nbytes))
        drawn, first = np.unique(self.examples, return_index=True)
        selected = np.sort(drawn[np.argsort(first)[:most]])
        places = np.searchsorted(selected, self.examples)
        is_held = (places < len(selected)) & (selected[np.minimum(places, len(selected) - 1)] == self.examples)
        examples = np.where(is_held, places, self.examples % len(selected)).astype(np.int64)
        chosen = self.split.take(selected)
        return replace(self, examples=examples, split=chosen, numbers=selected)

    def part(self, number: int, parts: int) -> LoadPlan:
        """Return every ``parts``-th request from ``number`` on, at its own instant."""
        mine = slice(number, None, parts)
        return replace(
            self,
            times_s=self.times_s[mine],
            examples=self.examples[mine],
            priorities=self.priorities[mine],
            tolerances=None if self.tolerances is None else self.tolerances[mine],
        )

    def terms(self, number: int, of_all: Terms) -> Terms:
        """Return the terms of request ``number``, based on those of all."""
        tolerance = of_all.tolerance if self.tolerances is None else float(self.tolerances[number])
        return _own_terms(of_all, int(self.priorities[number]), tolerance)


@lru_cache(maxsize=64)
def _own_terms(of_all: Terms, priority: int, tolerance: float | None) -> Terms:
    """Return one shared object for equal terms, so that the client saves time."""
    return replace(of_all, priority=priority, tolerance=tolerance)


def _priorities(shares: Mapping[int, float], count: int, seed: int) -> np.ndarray:
    weights = np.array(list(shares.values()), dtype=np.float64)
    if not (weights >= 0).all() or weights.sum() > 1 + 1e-9 or min(shares, default=1) < 1:
        raise InputError("priorities are 1 and more, and their shares add up to 1 at most")
    rest = max(0.0, 1.0 - float(weights.sum()))
    chances = np.array([rest, *weights]) / (rest + weights.sum())
    return np.random.default_rng([seed, 2]).choice([0, *shares], count, p=chances).astype(np.int64)


def drawn_times(arrivals: ArrivalProcess, duration_s: float, seed: int) -> np.ndarray:
    """Draw arrival times in seconds from the start. Raises ``InputError`` for none, or far too many."""
    times_s = arrivals.times(duration_s, seed)
    if not len(times_s):
        raise InputError(f"nothing arrives within {duration_s:g} s; ask for a higher rate or a longer time")
    return times_s


class LoadRun(ABC):
    """A run of a plan; ``log`` may be asked for whatever has finished once ``drive`` has ended, however it did."""

    @abstractmethod
    def drive(self) -> None:
        """Send everything and wait for the answers; failed requests are recorded too.

        A client later than ``MAX_SEND_DELAY_S`` stops sending; its log is then shorter than the plan. Raises
        ``RunError`` without a server, ``InputError`` if it rejects the requests, both before anything counts: the first
        requests are a warm-up, sent one by one and not recorded.
        """

    @property
    @abstractmethod
    def finished(self) -> int:
        """Requests answered or failed so far."""

    @abstractmethod
    def log(self, provenance: Mapping[str, Any] | None = None) -> RequestLog:
        """Return the requests finished so far. Raises ``TableError`` when there are none."""


async def _at_once() -> None:
    pass


@dataclass
class LocalRun(LoadRun):
    """Run of a plan against ``target`` by this process.

    ``progress(n)``: n more have finished. ``begin`` is called when all is ready and returns the plan's start, a reading
    of ``time.perf_counter``; ``ready`` is awaited before it.
    """

    plan: LoadPlan
    target: TargetServer
    progress: Callable[[int], None] = lambda more: None
    begin: Callable[[], float] = lambda: time.perf_counter() + LEAD_S
    began: Callable[[float], None] = lambda start_s: None
    ready: Callable[[], Awaitable[None]] = _at_once
    _rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    _labels: np.ndarray = field(init=False)
    _example: Callable[[int], Example] = field(init=False)
    _start: float = field(default=0.0, init=False)

    def drive(self) -> None:
        self._prepare(len(self.plan))
        with _collector_frozen():
            run_precisely(self._drive())

    def _prepare(self, connections: int) -> None:
        self._labels, self._example = self.plan.labels, self.target.examples(self.plan.split.x)
        # A stalled server must not be mistaken for a client out of sockets.
        allow_connections(connections)

    @property
    def finished(self) -> int:
        return len(self._rows)

    def log(self, provenance: Mapping[str, Any] | None = None) -> RequestLog:
        return RequestLog.of(self._rows, provenance)

    async def _drive(self) -> None:
        channel = self.target.connect()
        try:
            await self._warm_up(channel)
            await self.ready()
            self._start = self.begin()
            self.began(self._start)
            latest_s = max(MAX_SEND_DELAY_S, self.target.terms.deadline_s or 0.0)
            async with asyncio.TaskGroup() as outstanding:
                for number, intended_s in enumerate(self.plan.times_s.tolist()):
                    await asyncio.sleep(max(0.0, intended_s - self._now_s()))
                    if self._now_s() - intended_s > latest_s:
                        break
                    outstanding.create_task(self._send(channel, number, intended_s))
        finally:
            await channel.close()

    async def _warm_up(self, channel: Channel) -> None:
        for number in range(min(WARM_UP_REQUESTS, len(self.plan))):
            terms = self.plan.terms(number, self.target.terms)
            reply = await channel.ask(self._example(int(self.plan.examples[number])), number, terms)
            if reply.status == 0:
                raise RunError(f"no server answers at {self.target.address} ({reply.error})")
            if reply.status in _MISUNDERSTOOD:
                raise InputError(f"{channel.where} rejects the request ({reply.status}): {reply.error}")

    async def _send(self, channel: Channel, number: int, intended_s: float) -> None:
        example, terms = int(self.plan.examples[number]), self.plan.terms(number, self.target.terms)
        row: dict[str, Any] = {
            "intended_s": intended_s,
            "deadline_s": self.target.terms.deadline_s,
            "example": example if self.plan.numbers is None else int(self.plan.numbers[example]),
            "label": int(self._labels[example]),
            # A timer may fire a nanosecond early.
            "sent_s": max(intended_s, self._now_s()),
            "priority": terms.priority,
            "tolerance": terms.tolerance,
        }
        reply = await channel.ask(self._example(example), number, terms)
        row |= {"status": reply.status, "done_s": reply.at_s - self._start, "error": reply.error}
        if reply.answer is not None:
            answer = dict(vars(reply.answer))
            row |= {"answer": answer.pop("label"), **answer}
            if row["answer"] < 0:  # there is nothing to hold the true class against
                row["label"] = -1
        self._rows.append(row)
        self.progress(1)

    def _now_s(self) -> float:
        return time.perf_counter() - self._start


def drive_together(runs: Sequence[LocalRun]) -> None:
    """Drive all runs from one instant, at which the last of them is ready."""
    for run in runs:
        run._prepare(sum(len(each.plan) for each in runs))
    barrier, start_s = asyncio.Barrier(len(runs)), [0.0]

    async def ready() -> None:
        if await barrier.wait() == 0:
            start_s[0] = time.perf_counter() + LEAD_S
        await barrier.wait()

    async def drive() -> None:
        for run in runs:
            run.ready, run.begin = ready, lambda: start_s[0]
        await asyncio.gather(*(run._drive() for run in runs))

    with _collector_frozen():
        run_precisely(drive())


class PreciseSelector(selectors.EpollSelector):
    """Selector with precise timeouts: epoll's are rounded up to whole milliseconds, which delays every request."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0.0
        return super().select(timeout)


def run_precisely(main: Coroutine[Any, Any, None]) -> None:
    """Run it on a loop whose timers are exact to some tens of microseconds."""
    event_loop.run(main, lambda: asyncio.SelectorEventLoop(PreciseSelector()))


@contextmanager
def _collector_frozen() -> Iterator[None]:
    """Exempt existing objects from garbage collection, so that it is short and delays no request."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
