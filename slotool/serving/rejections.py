"""Rejections of requests: one exception with its HTTP status, cause and sentence."""

from __future__ import annotations

import math
import reprlib
from typing import Any

from slotool.errors import SlotoolError
from slotool.printable import described, duration
from slotool.scheduling.edf import DEADLINE_PASSED

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 50
_SHORT.maxlevel = 2


# Cause of a request behind too many others.
TOO_MANY = "queue-full"


class Rejection(SlotoolError):
    """End of a request without an answer.

    ``cause``: label of the drop counter; ``str(rejection)``: the sentence; ``retry_after_s``: when to retry, if known.
    """

    def __init__(self, status: int, cause: str, sentence: str, retry_after_s: int | None = None):
        super().__init__(sentence)
        self.status = status
        self.cause = cause
        self.retry_after_s = retry_after_s


def bad_request(sentence: str) -> Rejection:
    """Return 400: the client must change the request."""
    return Rejection(400, "bad-request", sentence)


def no_confidence() -> Rejection:
    """Return 400: the model's scores on an input are not numbers."""
    return bad_request("the model's scores are not numbers on this input: it holds NaN, or values that are too large")


def forbidden(sentence: str) -> Rejection:
    """Return 403: the sender may not do this."""
    return Rejection(403, "forbidden", sentence)


def not_found(sentence: str) -> Rejection:
    """Return 404: no such model, version or page."""
    return Rejection(404, "not-found", sentence)


def no_longer_served(model: str) -> Rejection:
    return not_found(f"model {model} is no longer served")


def too_slow(sentence: str) -> Rejection:
    """Return 408: the client did not send what it announced."""
    return Rejection(408, "too-slow", sentence)


def too_large(sentence: str) -> Rejection:
    return Rejection(413, "too-large", sentence)


def too_many_bytes(most: int) -> Rejection:
    """Return 503 for the largest of too many incomplete bodies."""
    what = f"unfinished bodies hold more than {most} bytes together, and this was the largest"
    return Rejection(503, "unfinished", f"{what}; try again later", 1)


def expired(timeout_us: float) -> Rejection:
    """Return 504: the deadline, ``timeout_us`` after arrival, passed in the queue; no work was spent on the request."""
    when = f"the deadline passed, {duration(1e-6 * timeout_us)} after the request arrived, before it could be served"
    return Rejection(504, "expired", when if timeout_us > 0 else "the deadline passed before the request arrived")


def deadline_infeasible(timeout_us: float, left_us: float, headroom_us: float, reason: str) -> Rejection:
    """Return 504: too little time is left for a call and the latency headroom; no work was spent."""
    left, timeout, headroom = (duration(1e-6 * time_us) for time_us in (left_us, timeout_us, headroom_us))
    remaining = f"{left} are left of the {timeout} that the request had when it arrived"
    why = f"recent answers came up to {headroom} later than planned"
    # A policy sees only the time beyond the headroom.
    rest = "" if reason == DEADLINE_PASSED else f"; with that margin, {reason}"
    return Rejection(504, "expired", f"the deadline is infeasible: {remaining}, and {why}{rest}")


def waited_too_long(waited_us: float) -> Rejection:
    """Return 504: a request without a deadline waited for the default deadline; no work was spent."""
    waited = f"the request has no deadline and waited for {waited_us * 1e-6:.1f} s"
    return Rejection(504, "expired", f"{waited}, the default deadline of this server; set a deadline of your own")


def no_worker(lost: int, workers: int, ready_in_s: float) -> Rejection:
    """Return 503: every worker is lost, and being replaced."""
    wait_s = max(1, math.ceil(ready_in_s))
    are = "is" if lost == 1 else "are"
    sentence = f"no worker is ready: {lost} of {workers} {are} being restarted; retry after {wait_s} s"
    return Rejection(503, "no-worker", sentence, wait_s)


def no_version(failure: str) -> Rejection:
    """Return 503: the version's server did not answer, and no local version can."""
    return Rejection(503, "no-version", f"{failure}, and there is no local version to answer instead", 1)


def cannot_meet(reason: str) -> Rejection:
    """Return 503: the request's options cannot be met; no work was spent."""
    return Rejection(503, "cannot-meet", reason)


def shed(reason: str) -> Rejection:
    """Return 503: load-shed in favour of more important requests."""
    return Rejection(503, "shed", reason)


def overloaded() -> Rejection:
    """Return 503: half of the request's time is for the wait behind others; its tensors were not read."""
    return Rejection(503, TOO_MANY, "more requests come than can be answered in time; try again later", 1)


def queue_full(length: int) -> Rejection:
    return Rejection(503, TOO_MANY, f"{length} requests are waiting already; try again later", 1)


def too_many_connections(most: int) -> Rejection:
    return Rejection(503, "connections", f"{most} connections are open already; try again later", 1)


def too_many_calls(most: int) -> Rejection:
    return Rejection(503, "connections", f"{most} gRPC calls are open already; try again later", 1)


def stopping() -> Rejection:
    return Rejection(503, "stopping", "the server is shutting down and could not answer in time; try another one", 1)


def client_gone() -> Rejection:
    return Rejection(499, "client-gone", "the client closed the connection")


def failed(error: Exception) -> Rejection:
    """Return 500: the model itself failed."""
    return Rejection(500, "failed", f"the model failed: {' '.join(described(error).split())[:200]}")


def input_rejected(error: Exception, inputs: str) -> Rejection:
    """Return 400: the model fails on this input, ``inputs`` with their shapes, and still answers another."""
    what = f"this input ({inputs})" if inputs else "this input"
    return bad_request(f"the model fails on {what}, while it answers others: {' '.join(str(error).split())[:400]}")


def shown(value: Any) -> str:
    """Shorten a decoded JSON value, however large, to 60 characters."""
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# google/rpc/code.proto maps codes to HTTP statuses; 408, 413, 415 and 431 have no other place.
GRPC_CODES = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
