"""Every way a request can end without an answer: one exception with its HTTP status, cause and sentence."""

from __future__ import annotations

from slotool.errors import SlotoolError


class Refusal(SlotoolError):
    """A request that is not answered. ``cause`` is the label drops are counted under, ``str(refusal)`` the sentence."""

    def __init__(self, status: int, cause: str, sentence: str):
        super().__init__(sentence)
        self.status = status
        self.cause = cause


def bad_request(sentence: str) -> Refusal:
    """400: the request cannot be understood; the client must change it."""
    return Refusal(400, "bad-request", sentence)


def not_found(sentence: str) -> Refusal:
    """404: no such model, version or page."""
    return Refusal(404, "not-found", sentence)


def too_slow(sentence: str) -> Refusal:
    """408: the client did not send what it announced."""
    return Refusal(408, "too-slow", sentence)


def too_large(sentence: str) -> Refusal:
    """413: the body is larger than the server reads."""
    return Refusal(413, "too-large", sentence)


def expired(waited_us: float) -> Refusal:
    """504: the deadline came while the request was waiting; no work was spent on it."""
    return Refusal(504, "expired", f"the deadline passed after {waited_us:.0f} µs, before the request could be served")


def too_near(waited_us: float, left_us: float) -> Refusal:
    """504: the deadline is nearer than what answers lately take beyond their plan; no work was spent on it."""
    left = f"{left_us:.0f} µs are left after {waited_us:.0f} µs of waiting"
    return Refusal(504, "expired", f"{left}, less than answers lately leave later than planned")


def cannot_meet(reason: str) -> Refusal:
    """503: refused before any work, since what was asked for cannot be had."""
    return Refusal(503, "cannot-meet", reason)


def shed(reason: str) -> Refusal:
    """503: given up for the sake of more important requests."""
    return Refusal(503, "shed", reason)


def queue_full(length: int) -> Refusal:
    """503: refused on arrival."""
    return Refusal(503, "queue-full", f"{length} requests are waiting already; try again later")


def too_many_connections(most: int) -> Refusal:
    """503: refused as soon as the client had connected."""
    return Refusal(503, "connections", f"{most} connections are open already; try again later")


def overloaded(in_hand: int, spacing_us: float, patience_us: float) -> Refusal:
    """503: refused unread, since the event loop is behind."""
    pace = f"{in_hand} requests are in hand and one is answered every {spacing_us:.0f} µs"
    return Refusal(503, "overloaded", f"{pace}, while requests have {1e-3 * patience_us:.0f} ms; try again later")


def client_gone() -> Refusal:
    """499: nobody is there to be answered."""
    return Refusal(499, "client-gone", "the client closed the connection")


def failed(error: Exception) -> Refusal:
    """500: the model itself broke."""
    return Refusal(500, "failed", f"the model failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
