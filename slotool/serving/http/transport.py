"""The side of a connection that answers are written to, and how it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from slotool.serving.http.deadline import Deadline

# How long a client may take to read a last answer and close its side.
LINGER_S = 2.0


class CoalescingTransport:
    """A transport that sends the head of a response together with the body that its length promises: one packet.

    ``close`` calls ``on_close`` instead, once everything is written.
    """

    def __init__(self, transport: asyncio.Transport, on_close: Callable[[], None]):
        self._transport = transport
        self._on_close = on_close
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

    def flush(self) -> None:
        """There was no body, as with HEAD."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        self.flush()
        self._on_close()


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
