"""uvicorn's HTTP/1.1 protocol with bounds, on a request's head, in bytes and in time, and on how many are read; and
with a short way for the requests that come by the thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotool.serving import refusals
from slotool.serving.admission import REFUSAL, Admission
from slotool.serving.refusals import Refusal
from slotool.serving.reply import Reply
from slotool.serving.short_way import Begun, ShortWay
from slotool.serving.whole_request import WholeRequest


class HeadWithBody:
    """A transport that sends the head of a response together with the body that its length promises: one packet.

    ``flush``: there was no body, as with HEAD.
    """

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        elif data.endswith(b"\r\n\r\n") and b"\r\ncontent-length: " in data:
            self._held = data
            return
        self._transport.write(data)

    def write_whole(self, data: bytes) -> None:
        """A response that is no head to wait for a body, however it ends."""
        self._transport.write(data)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class LimitedHttp(HttpToolsProtocol):
    """Refuses heads (request line and headers) of more than ``head_bytes``, or not whole within ``head_s`` seconds.

    The time counts from the connection, and on a connection kept alive from the first byte of the next head.
    What cannot be parsed is refused as JSON, as everything else is. An inference request that lies there whole goes
    ``short_way``, and while ``admission`` lets nobody in it is refused without being looked at further. ``dropped``:
    told the model, where it is known, and the cause of each refusal. ``most_connections``: beyond them a new one is
    told so and closed.
    """

    def __init__(
        self,
        *args: Any,
        head_bytes: int,
        head_s: float,
        most_connections: int,
        dropped: Callable[[str, str], None],
        admission: Admission,
        short_way: ShortWay,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._head_limit, self._head_s, self._dropped, self._admission = head_bytes, head_s, dropped, admission
        self._most_connections = most_connections
        self._short_way = short_way
        # The request on the short way that is not answered yet, and what has come behind it.
        self._short: asyncio.Task[Reply] | None = None
        self._behind = b""
        self._active_s = 0.0
        self._closes = False
        self._head_bytes = 0
        self._in_head = False
        self._alarm: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None

    def connection_made(self, transport: Any) -> None:
        self._joined = HeadWithBody(transport)
        super().connection_made(self._joined)  # type: ignore[arg-type]
        if len(self.connections) > self._most_connections:
            self._refuse(refusals.too_many_connections(self._most_connections))
        else:
            self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_alarm()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._head_limit:
            self._refusal = self._too_long()
            # Raised through the parser, which then reads no further and has uvicorn answer.
            raise self._refusal
        if (refusal := self._admission.refusal()) is not None:
            self.scope["state"][REFUSAL] = refusal
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._short is not None:
            self._behind += data
            self.flow.pause_reading()
            return
        # A head that follows a body in one chunk is counted from the next chunk on.
        begins = not self._in_head and self._expects_head()
        if begins and (request := WholeRequest.of(data, head_bytes=self._head_limit)) and self._goes_short_way(request):
            return
        self._head_bytes = len(data) if begins else self._head_bytes + len(data) if self._in_head else 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > self._head_limit:
            self._refuse(self._too_long())
        elif not self._expects_head():
            self._unset_alarm()
        elif self._alarm is None:
            self._set_alarm()

    def _goes_short_way(self, request: WholeRequest) -> bool:
        """Whether the request is answered, or will be, without being parsed; the connection stays."""
        if self.flow.write_paused:
            return False  # It waits until the client has read what it was sent.
        self._unset_alarm()
        if (refusal := self._admission.refusal()) is not None:
            self._dropped(request.head.model, refusal.cause)
            self._reply(Reply.refusing(refusal, {"retry-after": "1"}))
            return True
        if not self._short_way.takes(request.head):
            return False
        answering = self._short_way.answer(request, self.transport.is_closing)
        try:
            # Most are answered before they would wait for anything: a task would only cost a turn of the loop.
            waits_for = answering.send(None)
        except StopIteration as ended:
            self._reply(ended.value)
        except Exception as error:
            self._broken(error)
        else:
            self._short = self.loop.create_task(Begun(answering, waits_for))
            self._short.add_done_callback(self._short_way_ended)
            self.tasks.add(self._short)  # type: ignore[arg-type]
        return True

    def _short_way_ended(self, task: asyncio.Task[Reply]) -> None:
        self._short = None
        self.tasks.discard(task)  # type: ignore[arg-type]
        if task.cancelled():
            self.transport.close()
            return
        error = task.exception()
        if error is None:
            self._reply(task.result())
        else:
            self._broken(error)
        if self._closes:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self._behind:
            behind, self._behind = self._behind, b""
            self.data_received(behind)

    def _reply(self, reply: Reply) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._joined.write_whole(reply.http())
        self._active_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._set_keep_alive(self.timeout_keep_alive)

    def _broken(self, error: BaseException) -> None:
        self.logger.error("Exception on the short way", exc_info=error)
        self._reply(Reply.broken(error))

    def timeout_keep_alive_handler(self) -> None:
        # Answers by the short way do not set the clock back, for that costs more than to look at it here.
        left_s = self._active_s + self.timeout_keep_alive - self.loop.time()
        if self._short is not None or left_s > 0:
            self._set_keep_alive(max(left_s, 1.0))
        else:
            super().timeout_keep_alive_handler()

    def _set_keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def shutdown(self) -> None:
        if self._short is None:
            super().shutdown()
        else:
            self._closes = True

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or refusals.bad_request("this is not an HTTP/1.1 request"))

    def _expects_head(self) -> bool:
        return self._in_head or self.cycle is None or self.cycle.response_complete

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(self._head_s, self._late)

    def _unset_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _late(self) -> None:
        self._alarm = None
        if self.transport.is_closing() or not self._expects_head():
            return
        if self._in_head:
            self._refuse(refusals.too_slow(f"the request's head did not arrive within {self._head_s:g} s"))
        else:
            self.transport.close()

    def _too_long(self) -> Refusal:
        return Refusal(431, "too-large", f"the request's head is longer than {self._head_limit} bytes")

    def _refuse(self, refusal: Refusal) -> None:
        self._unset_alarm()
        self._dropped("", refusal.cause)
        self.transport.write(Reply.refusing(refusal, {"connection": "close"}).http())
        self.transport.close()
