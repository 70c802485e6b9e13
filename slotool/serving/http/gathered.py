"""Requests that arrive together and are alike but for their values: answered in calls that they share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slotool.data.columns import Inputs, concatenate
from slotool.serving import rejections
from slotool.serving.accounts import Asked
from slotool.serving.direct_calls import DirectCalls
from slotool.serving.dispatch_loop import LONG_US
from slotool.serving.frontend import FrontEnd
from slotool.serving.http.straight_path import KnownRequest, StraightPath
from slotool.serving.oip import OpenInference
from slotool.serving.reply import Reply


class GatheredRequest(NamedTuple):
    """``values``: the bytes of its tensors; ``done``: takes its answer; ``begin``: has the fast path answer it."""

    values: memoryview
    arrival_us: float
    is_disconnected: Callable[[], bool]
    done: Callable[[Reply], None]
    begin: Callable[[], None]


class GatheredRequests:
    """Gathers known requests that arrive in an iteration of the event loop, and answers those that are alike in as few
    calls as the policy admits: without the queue, and with one decision for each call.

    They are answered once nothing waits in the queue. Until then those without a deadline stay, as long as all that
    waits came before them and has none either: the queue would have them wait as long, and whatever joins it is dearer
    to answer.

    Tensors are read, the policy asked, the call made and each answer written as for every other request. Whatever is
    unusual is left to the fast path, as if it had not been gathered: a request whose client has left, values that are
    not numbers, a policy that has none share a call, others that come to wait in the queue meanwhile.
    """

    def __init__(self, front: FrontEnd, inference: OpenInference, straight: StraightPath):
        self._front, self._inference, self._straight = front, inference, straight
        self._groups: dict[bytes, tuple[KnownRequest, list[GatheredRequest]]] = {}
        self._count = 0
        # How many had arrived at the router when the first of these did.
        self._arrived = 0

    @property
    def _direct(self) -> DirectCalls:
        direct = self._front.router.direct_calls
        assert direct is not None  # nothing is gathered without them
        return direct

    def admits(self, known: KnownRequest) -> bool:
        """True if such a request that arrives now may be added."""
        return self._front.may_gather(self._count, known.options.timeout_us)

    def add(self, known: KnownRequest, request: GatheredRequest) -> None:
        """Have it answered once all that this iteration has read were added."""
        if not self._count:
            self._arrived = self._front.router.arrived
            asyncio.get_running_loop().call_soon(self._answer)
        self._groups.setdefault(known.prefix, (known, []))[1].append(request)
        self._count += 1
        self._front.admission.begin()

    def _answer(self) -> None:
        """For a millisecond; then the event loop reads what has arrived."""
        urgent = any(known.options.priority or _has_deadline(known) for known, _ in self._groups.values())
        if not urgent and self._front.may_stay_gathered(self._count, self._arrived):
            asyncio.get_running_loop().call_soon(self._answer)
            return
        groups, self._groups = self._groups, {}
        admission, now_us = self._front.admission, self._front.router.now_us
        admission.leave(self._count)
        self._count, until_us, is_over = 0, now_us() + LONG_US, False
        for known, requests in sorted(groups.values(), key=_urgency):
            here: list[GatheredRequest] = []
            left: list[GatheredRequest] = []
            first_us = self._direct.first_arrival_us(known.served, known.options)
            for request in requests:
                if request.arrival_us >= first_us and not request.is_disconnected():
                    here.append(request)
                elif _has_deadline(known):
                    self._expire(known, request)
                else:
                    left.append(request)
            for request in (*self._unanswered(known, here, until_us), *left):
                if not is_over and now_us() >= until_us:
                    admission.begin()  # none that begins while another is in progress is the only one
                    is_over = True
                request.begin()
        if is_over:
            admission.leave(1)

    def _expire(self, known: KnownRequest, request: GatheredRequest) -> None:
        """Reject a request that cannot be in time, or whose client has left: of these there are many under overload."""
        waited_us = self._front.router.now_us() - request.arrival_us
        gone = request.is_disconnected()
        rejection = rejections.client_gone() if gone else rejections.expired(waited_us)
        request.done(self._front.rejected(rejection, known.served.name))

    def _unanswered(
        self, known: KnownRequest, requests: list[GatheredRequest], until_us: float
    ) -> list[GatheredRequest]:
        """Answer requests in calls until that instant. Those for which no time is left are gathered again, as more
        urgent ones may have arrived meanwhile; those that no call answers are returned."""
        while len(requests) > 1:
            if self._front.router.now_us() >= until_us:
                for request in requests:
                    self.add(known, request)
                return []
            answered = self._answered_by_a_call(known, requests)
            if not answered:
                break
            requests = requests[answered:]
        return requests

    def _answered_by_a_call(self, known: KnownRequest, requests: Sequence[GatheredRequest]) -> int:
        """How many of the first of ``requests`` a call has answered; 0: nothing has happened."""
        front, served, options, json = self._front, known.served, known.options, known.json
        arrivals_us, taken = [request.arrival_us for request in requests], list[Inputs]()

        def joined(count: int) -> Inputs:
            taken.extend(json.x(bytearray(request.values)) for request in requests[:count])
            return concatenate(taken)

        if not self._straight.is_current(known):
            return 0
        try:
            answers = self._direct.answer_alike(served, options, arrivals_us, json.examples, joined)
            replies = [self._inference.reply(served, json.request, answer) for answer in answers]
        except Exception:
            return 0  # the fast path says what is wrong
        if not answers:
            return 0
        for request, reply in zip(requests, replies, strict=False):
            request.done(reply)
        front.settle_alike([
            Asked(served, x, options, request.arrival_us, answer.queue_us)
            for x, request, answer in zip(taken, requests, answers, strict=False)
        ], answers)  # fmt: skip
        return len(answers)


def _has_deadline(known: KnownRequest) -> bool:
    return math.isfinite(known.options.timeout_us)


def _urgency(group: tuple[KnownRequest, list[GatheredRequest]]) -> tuple[float, float]:
    """Return the sort key of a queue: earliest deadline first, then priority."""
    options, requests = group[0].options, group[1]
    return requests[0].arrival_us + options.timeout_us, options.priority or math.inf
