"""Bounds of requests, derived from the model's inputs and checked before the costly part.

Bytes are bounded before a body is read or inflated, and the number of values, lists and strings before JSON is parsed,
so that no client can occupy the event loop with a body that this model never needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotool.serving import rejections
from slotool.serving.rejections import Rejection, bad_request

if TYPE_CHECKING:
    from slotool.serving.served import Interface


# Names, id, parameters, requested outputs and white space of a request.
OVERHEAD_BYTES = 64 * 2**10
# A float64 in full has 24 characters, plus a comma, a blank and indentation.
BYTES_PER_NUMBER = 32
# A negative integer in the typed contents of a gRPC message has ten.
BYTES_PER_TYPED_NUMBER = 10
# An image may carry profiles, previews and text besides its pixels.
IMAGE_OVERHEAD_BYTES = 2**20
# Decompressed size allowed to any body, for a large input per number of one example, and as a multiple of its length.
INFLATED_BYTES = 256 * 2**10
INFLATED_BYTES_PER_NUMBER = 8
INFLATED_RATIO = 8
# Shorter JSON is parsed uncounted: it costs less than 100 µs whatever it holds.
UNCOUNTED_BYTES = 4 * 2**10
# Commas, lists, objects and quotation marks of a request beyond those of its data.
SPARE_COMMAS, SPARE_LISTS, MAX_OBJECTS, MAX_QUOTES = 1_024, 256, 512, 4_096
# JSON values of a request where the model sets no limit; binary tensors are bounded by bytes.
MAX_JSON_VALUES, MAX_TEXT_OBJECTS = 2**20, 2**14
# Largest product of a shape's sizes, those of 0 left out.
MAX_TENSOR_VALUES = 2**31

# A request's inputs in shared memory, which the event loop copies: as many bytes as in the longest body.
MAX_SHARED_BYTES = 16 * 2**20

MAX_OUTPUTS = 64
MAX_PARAMETERS = 64
MAX_ID_CHARACTERS = 1_024


def tensor_body_bytes(interface: Interface, max_bytes: int) -> int:
    """Return the largest inference body: the largest batch as JSON, at most ``max_bytes``.

    Open sizes and texts of any length get ``max_bytes``.
    """
    return _bytes_of_largest(interface, BYTES_PER_NUMBER, max_bytes)


def message_bytes(interface: Interface, max_bytes: int) -> int:
    """Return the largest gRPC inference message: the largest batch of typed numbers, at most ``max_bytes``."""
    return _bytes_of_largest(interface, BYTES_PER_TYPED_NUMBER, max_bytes)


def _bytes_of_largest(interface: Interface, bytes_per_number: int, max_bytes: int) -> int:
    values = interface.values_per_example
    if values is None:
        return max_bytes
    return min(max_bytes, OVERHEAD_BYTES + bytes_per_number * max(interface.max_batch, 1) * values)


def example_body_bytes(input_shape: Sequence[int], max_bytes: int) -> int:
    """Return the largest body of one example, in any form that ``POST /compute`` takes."""
    return min(max_bytes, IMAGE_OVERHEAD_BYTES + BYTES_PER_NUMBER * math.prod(input_shape))


def inflated_anyway_bytes(interface: Interface) -> int:
    """Return the decompressed size allowed to any body: one example of short numbers fits."""
    return max(INFLATED_BYTES, OVERHEAD_BYTES + INFLATED_BYTES_PER_NUMBER * (interface.values_per_example or 0))


def inflated_bytes(compressed_bytes: int, max_bytes: int, anyway_bytes: int = INFLATED_BYTES) -> int:
    """Return the allowed decompressed size of a body, at most ``max_bytes``."""
    return min(max_bytes, max(anyway_bytes, INFLATED_RATIO * compressed_bytes))


def require_countable(
    text: bytes, values: int, lists: int = 0, *, objects: int = MAX_OBJECTS, quotes: int = MAX_QUOTES
) -> None:
    """Raise ``Rejection`` (400), before parsing, for JSON with more parts than such tensors can need.

    ``text``: the JSON part of a request; the others: how many of each part its tensors can need.
    """
    if len(text) <= UNCOUNTED_BYTES:
        return
    for mark, most, what in (
        (b",", values + SPARE_COMMAS, "values"),
        (b"[", lists + SPARE_LISTS, "lists"),
        (b"{", objects, "objects"),
        (b'"', quotes, "quotation marks"),
    ):
        if text.count(mark) > most:
            raise bad_request(f"the request holds more than {most} {what}, more than any for this model needs")


def require_countable_for(interface: Interface, text: bytes) -> None:
    """Apply ``require_countable`` to an inference request."""
    if len(text) <= UNCOUNTED_BYTES:
        return
    values, batch = interface.values_per_example, max(interface.max_batch, 1)
    if values is not None:
        lists = sum(_lists_per_example(interface.example_shape(tensor)) for tensor in interface.inputs)
        require_countable(text, batch * values, batch * lists)
    elif any(tensor.datatype == "BYTES" for tensor in interface.inputs):
        # Texts may hold any of these marks.
        most = MAX_JSON_VALUES
        require_countable(text, most, most, objects=MAX_TEXT_OBJECTS, quotes=2 * most)
    else:
        require_countable(text, MAX_JSON_VALUES, MAX_JSON_VALUES)


def _lists_per_example(shape: Sequence[int]) -> int:
    """Return the number of lists in nested data of one example, of this ``shape``."""
    return sum(math.prod(shape[:axis]) for axis in range(len(shape)))


def require_few(count: int, most: int, what: str) -> None:
    """Raise ``Rejection`` (400) when there are more than ``most``."""
    if count > most:
        raise bad_request(f"{what}: there are {count}, at most {most} are read")


def require_few_shared(count: int) -> None:
    """Raise ``Rejection`` (400) for too many bytes of inputs in shared memory."""
    if count > MAX_SHARED_BYTES:
        raise bad_request(
            f"inputs in shared memory have {count} bytes, at most {MAX_SHARED_BYTES} of a request are read"
        )


def require_id(request_id: str) -> str:
    """Return the id. Raises ``Rejection`` (400) when it is too long to be sent back."""
    if len(request_id) > MAX_ID_CHARACTERS:
        raise bad_request(f"id: it has {len(request_id)} characters, at most {MAX_ID_CHARACTERS} are sent back")
    return request_id


def too_large(max_bytes: int) -> Rejection:
    """Return 413, naming the limit and its options."""
    return rejections.too_large(
        f"the body is longer than {max_bytes} bytes, the most that a request here can need (--max-batch) or may have "
        "(--max-body-mib)"
    )


@dataclass(frozen=True)
class RequestLimits:
    """Limits of requests and connections.

    ``body_bytes``: largest body, also once decompressed; ``batch``: most examples in a request; ``body_s``: seconds to
    send a body; ``unfinished_bytes``: of all incomplete bodies; ``head_bytes``, ``head_s``: largest head (first line
    and headers), and seconds for it; ``connections``: open over HTTP before more are rejected; ``keep_alive_s``:
    seconds that a connection may wait for its next request.
    """

    body_bytes: int = 16 * 2**20
    batch: int = 1_024
    body_s: float = 30.0
    unfinished_bytes: int = 256 * 2**20
    head_bytes: int = 16 * 2**10
    head_s: float = 10.0
    connections: int = 4_096
    keep_alive_s: float = 75.0

    @classmethod
    def of(cls, batch: int, body_mib: int) -> RequestLimits:
        """Return limits with room for a few bodies of ``body_mib`` at once."""
        body_bytes = body_mib * 2**20
        return cls(body_bytes, batch, unfinished_bytes=max(cls.unfinished_bytes, 4 * body_bytes))
