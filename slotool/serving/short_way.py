"""The short way from a request's bytes to those of its answer: past ASGI, its messages and its task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from slotool.serving.compute import Compute
from slotool.serving.frontend import FrontEnd
from slotool.serving.oip import OpenInference
from slotool.serving.refusals import Refusal
from slotool.serving.reply import Reply
from slotool.serving.whole_request import Head, WholeRequest


class ShortWay:
    """Answers whole requests for an inference as the application's routes do."""

    def __init__(self, front: FrontEnd, inference: OpenInference, compute: Compute):
        self._front, self._inference, self._compute = front, inference, compute

    def takes(self, head: Head) -> bool:
        """Whether such a request can be answered here. Not when it is to be decompressed, or is too long."""
        return head.body_bytes <= self._front.limits.body_bytes and "content-encoding" not in head.headers

    async def answer(self, request: WholeRequest, is_gone: Callable[[], bool]) -> Reply:
        """Refusals are answers too; they are counted."""
        front, head = self._front, request.head
        arrival_us = front.router.now_us()
        try:
            if front.token is not None:
                front.token.check(head.headers.get("authorization"))
        except Refusal as refusal:
            return front.unauthorized(refusal)
        try:
            if head.is_compute:
                return await self._compute.answer(head.headers, request.body, arrival_us, is_gone)
            served = front.model(head.model, head.version)
            return await self._inference.answer(served, head.headers, request.body, arrival_us, is_gone)
        except Refusal as refusal:
            return front.refused(refusal, head.model or head.headers.get("model"))


class Begun(Coroutine[Any, Any, Reply]):
    """A coroutine that has run, outside of any task, until it first had to wait: for a task to go on with."""

    def __init__(self, coroutine: Coroutine[Any, Any, Reply], waits_for: Any):
        self._coroutine, self._waits_for = coroutine, waits_for

    def send(self, value: Any) -> Any:
        if self._waits_for is None:
            return self._coroutine.send(value)
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Reply]:
        return (yield from self._coroutine.__await__())
