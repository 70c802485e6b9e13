"""Heads that were read before: clients send the same again and again, and llhttp need not read them."""

from __future__ import annotations

from slotool.serving.http.exchange import Exchange
from slotool.serving.http.fast_path import FastPath, SentHead
from slotool.serving.http.straight_path import KnownRequest

# A head of so many bytes is remembered until the next one.
MAX_REPEATED_HEAD_BYTES = 1_024
# Requests that are like the one before but for their values are looked for so often, until one is found.
MAX_LOOKS = 4


class RepeatedHead:
    """What is known of requests that begin with the bytes of the last head of a connection, or of one that another
    connection has sent: the bytes of a head alone say what it means."""

    __slots__ = ("_fast_path", "_known", "_last", "_looks")

    def __init__(self, fast_path: FastPath):
        self._fast_path = fast_path
        # The last head as it was sent, and what was made of it, if a request that repeats it needs no reading.
        self._last: SentHead | None = None
        # What requests with that head are known as, and how often that is still looked for.
        self._known: KnownRequest | None = None
        self._looks = MAX_LOOKS

    def remember(self, data: bytes, exchange: Exchange) -> None:
        """``data`` began where a request may, and has brought this one whole."""
        request, head, at = exchange.request, exchange.head, data.find(b"\r\n\r\n") + 4
        if head is None or at > MAX_REPEATED_HEAD_BYTES or not request.keep_alive:
            self._last = None
        elif request.content_length == len(data) - at and exchange.received == data[at:]:
            self._last = self._fast_path.keep(data[:at], request, head)
            self._known, self._looks = None, MAX_LOOKS

    def begins(self, data: bytes) -> bool:
        """Whether ``data`` is a whole request with this head, or with another that was read before: which then is the
        last."""
        if self._last is None or not _has_head(data, self._last):
            end = data.find(b"\r\n\r\n", 0, MAX_REPEATED_HEAD_BYTES)
            found = None if end < 0 else self._fast_path.sent(data[: end + 4])
            if found is None or not _has_head(data, found):
                return False
            self._last, self._known, self._looks = found, None, MAX_LOOKS
        return True

    def exchange(self, data: bytes) -> Exchange:
        """Of ``data``, which this head begins."""
        assert self._last is not None
        sent, request, head = self._last
        exchange = Exchange(request, head=self._fast_path.again(head))
        # No copy: what reads a tensor out of bytes makes one.
        exchange.received = memoryview(data)[len(sent) :]
        return exchange

    def answer(self, data: bytes) -> bytes | None:
        """The answer to ``data``, which this head begins, where it differs from the request before in nothing but its
        values and ``FrontEnd.may_answer_alone``; ``settle`` must follow, once it is written. None: nothing has
        happened."""
        known = self._known_of(data)
        return None if known is None else self._fast_path.straight.answer(known, data)

    def settle(self) -> None:
        """Count the last ``answer``."""
        self._fast_path.straight.settle()
        self._looks = MAX_LOOKS

    def known(self, data: bytes) -> KnownRequest | None:
        """Return what ``data``, which this head begins, is known as; None for a request unlike those before."""
        known = self._known_of(data)
        if known is not None:
            self._looks = MAX_LOOKS
        return known

    def _known_of(self, data: bytes) -> KnownRequest | None:
        """What ``data``, which this head begins, is known as by now."""
        straight, known = self._fast_path.straight, self._known
        if known is None or not data.startswith(known.prefix) or not straight.is_current(known):
            assert self._last is not None
            sent, _, head = self._last
            if not self._looks or not head.model or head.version is not None:
                return None
            self._looks -= 1
            known = self._known = straight.known(sent, head.model, head.headers, data[len(sent) :])
        return known


def _has_head(data: bytes, known: SentHead) -> bool:
    """Whether ``data`` is a whole request that begins with the bytes of a head."""
    sent, request, _ = known
    return len(data) - len(sent) == request.body_bytes and data.startswith(sent)
