"""Messages between router and worker process, on a socket that preserves their boundaries.

The router sends the model's number, the bytes of the packed inputs and the point as JSON. The worker sends ``DONE``
with the bytes of the packed outputs, which follow the inputs in shared memory; ``FAILED``, or ``MISCOUNTED`` for a
wrong number of output rows, with the length of the sentence there; or ``CANCELLED``. A worker sends ``READY`` once it
is warm, or ``FAILED``.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.elastic import ElasticModel
from slotool.errors import RunError
from slotool.models.packing import Packed, unpack
from slotool.serving.request import Outputs
from slotool.tables import OperatingPoint

CALL = struct.Struct("<HI")
REPLY = struct.Struct("<BI")
READY, DONE, FAILED, CANCELLED, MISCOUNTED = 1, 2, 3, 4, 5
MAX_MESSAGE_BYTES = 65_536
# Name of a lone input array, or of the confidences among outputs; no tensor has it.
_UNNAMED = ""


@lru_cache(maxsize=4_096)
def encode_point(point: OperatingPoint) -> bytes:
    """Encode a point with every digit of its numbers, which ``key`` would round."""
    return json.dumps(dict(point.settings)).encode()


@lru_cache(maxsize=4_096)
def decode_point(text: bytes) -> OperatingPoint:
    return OperatingPoint.of(json.loads(text))


def tensors_of_inputs(x: Inputs) -> dict[str, np.ndarray]:
    return {_UNNAMED: x} if isinstance(x, np.ndarray) else x.arrays


def inputs_of_tensors(tensors: Mapping[str, np.ndarray]) -> Inputs:
    """Invert ``tensors_of_inputs``."""
    return tensors[_UNNAMED] if _UNNAMED in tensors else Columns(tensors)


def tensors_of_outputs(outputs: Outputs) -> dict[str, np.ndarray]:
    sure = {} if outputs.confidence is None else {_UNNAMED: outputs.confidence}
    return {**outputs.tensors, **sure}


def outputs_of_tensors(tensors: dict[str, np.ndarray], model: ElasticModel) -> Outputs:
    """Invert ``tensors_of_outputs`` for outputs of ``model``."""
    confidence = tensors.pop(_UNNAMED, None)
    return Outputs(tensors, model, confidence)


_ALIGN = 64
# Before the tensors: the cancellation flag of the call, and the factor by which calls are slowed.
_CANCELLED, _SLOWED, _HEADER_BYTES = 0, 8, 64
_TEXT_BYTES = 1_024
_FACTOR = struct.Struct("d")
# Bytes of a call's inputs and outputs; untouched pages take no memory.
MAX_PACKED_BYTES = 2**30
# Pages beyond this are released after each call.
_KEPT_BYTES = 16 * 2**20


class SharedTensors:
    """Packed inputs of a call, followed by its outputs or an error's text.

    Pages that no call touches take no memory. The file has no name: it vanishes when both ends have closed it. ``fd``:
    the file of a child process, inherited from its parent.
    """

    def __init__(self, fd: int | None = None):
        size = _HEADER_BYTES + MAX_PACKED_BYTES
        self.fd = os.memfd_create("slotool-tensors") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        self._view = memoryview(self._memory)

    def pack(self, tensors: Mapping[str, np.ndarray], after: int = 0) -> int:
        """Write tensors after the first ``after`` bytes, and return their bytes.

        Raises ``InputError`` for values that no tensor may have, ``RunError`` when they do not fit.
        """
        packed, at = Packed(tensors), _HEADER_BYTES + _aligned(after)
        if packed.size > len(self._view) - at:
            raise RunError(f"the tensors of a call take more than the {MAX_PACKED_BYTES >> 20} MiB there are for them")
        packed.write(self._view[at:])
        return packed.size

    def unpack(self, size: int, after: int = 0, *, copy: bool = False) -> dict[str, np.ndarray]:
        """Return the tensors there: views of this memory, unless ``copy``."""
        at = _HEADER_BYTES + _aligned(after)
        return unpack(self._view[at : at + size], copy=copy)

    def release(self, used: int) -> None:
        """Give memory back after a call whose tensors took ``used`` bytes."""
        if used > _KEPT_BYTES:
            first = -(-(_HEADER_BYTES + _KEPT_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_REMOVE, first, len(self._view) - first)

    def write_text(self, text: str) -> int:
        """Write as much of ``text`` as fits, and return its bytes."""
        encoded = text.encode(errors="replace")[:_TEXT_BYTES]
        self._memory[_HEADER_BYTES : _HEADER_BYTES + len(encoded)] = encoded
        return len(encoded)

    def read_text(self, length: int) -> str:
        return bytes(self._memory[_HEADER_BYTES : _HEADER_BYTES + length]).decode(errors="replace")

    @property
    def cancelled(self) -> bool:
        """True if the router has cancelled the call."""
        return self._memory[_CANCELLED] != 0

    @cancelled.setter
    def cancelled(self, so: bool) -> None:
        self._memory[_CANCELLED] = so

    @property
    def slowed(self) -> float:
        """Factor, at least 1, by which the router slows the worker's calls."""
        return max(1.0, float(_FACTOR.unpack_from(self._memory, _SLOWED)[0]))

    @slowed.setter
    def slowed(self, factor: float) -> None:
        _FACTOR.pack_into(self._memory, _SLOWED, factor)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
