"""The open-loop client: every request leaves at its intended instant, whatever is still outstanding."""

from __future__ import annotations

import asyncio
import gc
import resource
import select
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from slotool.data.dataset import Split
from slotool.errors import InputError
from slotool.workloads.arrivals import ArrivalProcess
from slotool.workloads.endpoint import Endpoint
from slotool.workloads.requests import RequestLog
from slotool.workloads.target import ANSWER_WITHIN_S, first_model, reason, unreachable

WARM_UP_REQUESTS = 5
# Time between the decision to start and the first intended instant.
LEAD_S = 0.05
# Statuses that tell a request was understood by nobody: no later one would fare better.
_MISUNDERSTOOD = frozenset({400, 401, 403, 404, 405, 411, 413, 415, 422})


@dataclass(frozen=True)
class LoadPlan:
    """What one client process sends: plain arrays, so that a plan can be cut into parts and sent elsewhere.

    ``times_s``: float64 [n], ascending seconds from the start; ``examples``: int64 [n], rows of ``split``.
    """

    times_s: np.ndarray
    examples: np.ndarray
    split: Split

    @classmethod
    def draw(cls, arrivals: ArrivalProcess, duration_s: float, split: Split, seed: int) -> LoadPlan:
        """Arrivals of that long, each with an example; all examples are used once, in random order, before any twice.

        Raises ``InputError`` when nothing arrives at all.
        """
        times_s = arrivals.times(duration_s, seed)
        if not len(times_s):
            raise InputError(f"nothing arrives within {duration_s:g} s; ask for a higher rate or a longer time")
        generator = np.random.default_rng([seed, 1])
        rounds = -(-len(times_s) // len(split))
        order = np.concatenate([generator.permutation(len(split)) for _ in range(rounds)])
        return cls(times_s, order[: len(times_s)].astype(np.int64), split)

    def __len__(self) -> int:
        return len(self.times_s)


@dataclass
class LoadRun:
    """One process's run of a plan against ``address``; ``log`` may be asked for whatever has finished, at any time.

    ``answer_within_s``: after that long a request is given up and recorded with status 0.
    ``progress`` is called once per finished request.
    """

    plan: LoadPlan
    endpoint: Endpoint
    address: str
    answer_within_s: float = ANSWER_WITHIN_S
    progress: Callable[[], None] = lambda: None
    _rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    _start: float = field(default=0.0, init=False)

    def drive(self) -> None:
        """Send everything and wait for the answers. Requests that fail are recorded like all others.

        Raises ``RunError`` when there is no server, ``InputError`` when it does not understand the requests; both
        before anything is counted: the first requests are a warm-up, sent one by one and not recorded.
        """
        _allow_connections(len(self.plan))
        with _collector_resting():
            run_precisely(self._drive())

    @property
    def finished(self) -> int:
        """Requests answered or failed so far."""
        return len(self._rows)

    def log(self, provenance: Mapping[str, Any] | None = None) -> RequestLog:
        """The requests finished so far. Raises ``TableError`` when there are none."""
        return RequestLog.of(self._rows, provenance)

    async def _drive(self) -> None:
        async with client_session(self.answer_within_s) as session:
            await self._warm_up(session)
            self._start = time.perf_counter() + LEAD_S
            async with asyncio.TaskGroup() as outstanding:
                for number, intended_s in enumerate(self.plan.times_s.tolist()):
                    await asyncio.sleep(max(0.0, intended_s - self._now_s()))
                    outstanding.create_task(self._send(session, number, intended_s))

    async def _warm_up(self, session: aiohttp.ClientSession) -> None:
        url = self.address + self.endpoint.path
        for number in range(min(WARM_UP_REQUESTS, len(self.plan))):
            headers, body = self._request(number)
            try:
                async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                    raw = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise unreachable(self.address, error) from error
            if response.status in _MISUNDERSTOOD:
                raise InputError(f"{url} refuses the request ({response.status}): {self.endpoint.refusal(raw)}")

    async def _send(self, session: aiohttp.ClientSession, number: int, intended_s: float) -> None:
        headers, body = self._request(number)
        url = self.address + self.endpoint.path
        row: dict[str, Any] = {
            "intended_s": intended_s,
            "deadline_s": self.endpoint.terms.deadline_s,
            "example": int(self.plan.examples[number]),
            "label": int(self.plan.split.y[self.plan.examples[number]]),
            "status": 0,
            # A timer may fire a nanosecond early.
            "sent_s": max(intended_s, self._now_s()),
        }
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                raw = await response.read()
            row["done_s"] = self._now_s()
            row |= {"status": response.status} | self._answer(response, raw)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            row |= {"done_s": self._now_s(), "error": reason(error)}
        self._rows.append(row)
        self.progress()

    def _answer(self, response: aiohttp.ClientResponse, raw: bytes) -> dict[str, Any]:
        if not 200 <= response.status < 300:
            return {"error": self.endpoint.refusal(raw)}
        try:
            answer = self.endpoint.answer(response.headers, raw)
        except ValueError as error:
            return {"error": str(error)}
        return {
            "answer": answer.label,
            "confidence": answer.confidence,
            "point": answer.point,
            "queue_s": answer.queue_s,
            "compute_s": answer.compute_s,
        }

    def _request(self, number: int) -> tuple[dict[str, str], bytes]:
        return self.endpoint.request(self.plan.split.x[self.plan.examples[number]], number)

    def _now_s(self) -> float:
        return time.perf_counter() - self._start


def ask_first_model(address: str) -> str:
    """``first_model`` of a server, for a caller without an event loop."""

    async def ask() -> str:
        async with client_session(ANSWER_WITHIN_S) as session:
            return await first_model(session, address)

    return asyncio.run(ask())


def client_session(answer_within_s: float) -> aiohttp.ClientSession:
    """As many connections as there are outstanding requests: a limit would close the loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=answer_within_s)
    )


class PreciseSelector(selectors.EpollSelector):
    """epoll rounds a timeout up to whole milliseconds, which would make every request late; select does not."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0.0
        return super().select(timeout)


def run_precisely(main: Any) -> None:
    """``asyncio.run`` on a loop whose timers are exact to some tens of microseconds."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
        runner.run(main)


def _allow_connections(count: int) -> None:
    """Raise the soft limit of open files, so that a stalled server is not mistaken for a client out of sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


@contextmanager
def _collector_resting() -> Iterator[None]:
    """What exists already is not looked through again, so that a collection is short and delays no request."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
