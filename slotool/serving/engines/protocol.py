"""What router and worker process say to each other: short messages on a socket that keeps them apart.

The router sends the model's number, the examples and the point as JSON; the worker answers ``DONE``, or ``FAILED`` +
length of the sentence it left in the shared memory, or ``CANCELLED`` when that memory said so meanwhile. A worker says
``READY`` once it is warm, or ``FAILED``.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache

from slotool.tables import OperatingPoint

CALL = struct.Struct("<HI")
REPLY = struct.Struct("<BI")
READY, DONE, FAILED, CANCELLED = 1, 2, 3, 4
MAX_MESSAGE_BYTES = 65_536


@lru_cache(maxsize=4_096)
def encode_point(point: OperatingPoint) -> bytes:
    """Every digit of its numbers, which ``key`` would round."""
    return json.dumps(dict(point.settings)).encode()


@lru_cache(maxsize=4_096)
def decode_point(text: bytes) -> OperatingPoint:
    return OperatingPoint.of(json.loads(text))
