"""The side of a connection that answers are written to, its timer, and how it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

# How long a client may take to read a last answer and close its side.
LINGER_S = 2.0


class Deadline:
    """Calls ``on_late`` once the event loop's clock has passed the instant last set.

    Moving it later only writes a number down: the timer that stands looks at that number when it goes off.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]):
        self._loop, self._on_late = loop, on_late
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        # When it goes off.
        self._timer_s = math.inf

    def set(self, at_s: float) -> None:
        """In seconds of the loop's clock; infinity for never."""
        self._at_s = at_s
        if at_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = self._loop.call_at(at_s, self._look), at_s

    def cancel(self) -> None:
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, math.inf

    def _look(self) -> None:
        self._timer, self._timer_s = None, math.inf
        if self._loop.time() < self._at_s:
            self.set(self._at_s)
        else:
            self._at_s = math.inf
            self._on_late()


class FlowControl:
    """Which directions of a connection are paused: reading by the server, writing by a client that does not read."""

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._is_read_paused = False
        self.write_paused = False
        self._writable = asyncio.Event()

    def pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()

    async def drained(self) -> None:
        """Returns once the client has read most of what it was sent, or the connection is gone."""
        if self.write_paused:
            await self._writable.wait()


class Outbox:
    """Answers on their way to the connections of many clients, written one right after the other.

    A client on the same machine wakes up for an answer, and sleeps again before the next has been made: to wake it
    costs the server more than to write.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Write ``answer`` at the next ``flush``."""
        self._answers.append((transport, answer))

    def flush(self) -> None:
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        for transport, answer in answers:
            transport.write(answer)


class Lingering:
    """The end of a connection after its last answer: nothing more is said, but what the client sends is still read.

    Closing at once would reset the connection if anything of the client's is unread, and a reset can overtake the
    answer. It ends when the client closes its side, or ``LINGER_S`` seconds after the client has read the last of it.
    """

    def __init__(self, transport: asyncio.Transport, deadline: Deadline, clock_s: Callable[[], float]):
        self._transport, self._deadline, self._clock_s = transport, deadline, clock_s
        self._unsent_bytes = math.inf

    def begin(self) -> None:
        if not self._transport.is_closing():
            try:
                if self._transport.can_write_eof():  # TLS cannot; its client closes because the answer says so.
                    self._transport.write_eof()
            except OSError:
                # The client has reset the connection, and asyncio is still to learn of it: there is no client to wait
                # for.
                self._transport.abort()
            else:
                self._deadline.set(self._clock_s() + LINGER_S)

    def late(self) -> None:
        """The deadline has passed."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes:
            # A slow reader of a long answer.
            self._unsent_bytes = unsent_bytes
            self._deadline.set(self._clock_s() + LINGER_S)
        else:
            self._transport.abort()
