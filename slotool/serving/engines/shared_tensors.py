"""Tensors of one call between router and worker, in memory that both have mapped: nothing is copied through a pipe."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slotool.errors import RunError
from slotool.models.packing import Packed, unpack

_ALIGN = 64
# Before the tensors: whether the call in progress is cancelled, and by what factor calls are slowed.
_CANCELLED, _SLOWED, _HEADER_BYTES = 0, 8, 64
_TEXT_BYTES = 1_024
_FACTOR = struct.Struct("d")
# Of named tensors, inputs and outputs of a call together; pages that no call touches take no memory.
MAX_PACKED_BYTES = 2**30
# Pages beyond this are given back when a call has ended.
_KEPT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Shapes:
    """Of one example of a model without a signature: ``inputs`` float32 numbers in, ``classes`` scores out."""

    inputs: int
    classes: int

    def bytes_for(self, examples: int) -> int:
        return _aligned(4 * self.inputs * examples) + _aligned(4 * self.classes * examples) + _aligned(8 * examples)


class SharedTensors:
    """One call's inputs, logits and confidences, behind one another, or named tensors, or what went wrong.

    ``shapes``: of models without a signature, by name; there is room for ``max_examples`` of the largest.
    ``packed_bytes``: room for named tensors of models with one. Pages that no call touches take no memory. The file has
    no name: it is gone when both ends are. ``fd``: what a child inherits; give it there instead of making a new one.
    """

    def __init__(self, shapes: Mapping[str, Shapes], max_examples: int, packed_bytes: int, fd: int | None = None):
        self._shapes = dict(shapes)
        room = max([_TEXT_BYTES, packed_bytes, *(shape.bytes_for(max_examples) for shape in self._shapes.values())])
        size = _HEADER_BYTES + _aligned(room)
        self.fd = os.memfd_create("slotool-tensors") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        self._view = memoryview(self._memory)

    def inputs(self, model: str, examples: int) -> np.ndarray:
        """float32 [examples, inputs], to be written by the router and read by the worker."""
        count = self._shapes[model].inputs * examples
        return np.frombuffer(self._memory, np.float32, count, _HEADER_BYTES).reshape(examples, -1)

    def outputs(self, model: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits, float32 [examples, classes], and confidences, float64 [examples]. The same memory every time: copy
        what is to outlive the call."""
        shape = self._shapes[model]
        at = _HEADER_BYTES + _aligned(4 * shape.inputs * examples)
        logits = np.frombuffer(self._memory, np.float32, shape.classes * examples, at).reshape(examples, -1)
        sure = np.frombuffer(self._memory, np.float64, examples, at + _aligned(4 * shape.classes * examples))
        return logits, sure

    def pack(self, tensors: Mapping[str, np.ndarray], after: int = 0) -> int:
        """Write named tensors behind the first ``after`` bytes, and return how many bytes they take.

        Raises ``InputError`` for values that no tensor may have, ``RunError`` when there is no room for them.
        """
        packed, at = Packed(tensors), _HEADER_BYTES + _aligned(after)
        if packed.size > len(self._view) - at:
            raise RunError(f"the tensors of a call take more than the {MAX_PACKED_BYTES >> 20} MiB there are for them")
        packed.write(self._view[at:])
        return packed.size

    def unpack(self, size: int, after: int = 0, *, copy: bool = False) -> dict[str, np.ndarray]:
        """The named tensors that were written there. Views of this memory, unless ``copy``."""
        at = _HEADER_BYTES + _aligned(after)
        return unpack(self._view[at : at + size], copy=copy)

    def release(self, used: int) -> None:
        """Give memory back after a call whose named tensors took ``used`` bytes."""
        if used > _KEPT_BYTES:
            first = -(-(_HEADER_BYTES + _KEPT_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_REMOVE, first, len(self._view) - first)

    def write_text(self, text: str) -> int:
        """Bytes of ``text`` that were kept, at the beginning."""
        kept = text.encode(errors="replace")[:_TEXT_BYTES]
        self._memory[_HEADER_BYTES : _HEADER_BYTES + len(kept)] = kept
        return len(kept)

    def read_text(self, length: int) -> str:
        return bytes(self._memory[_HEADER_BYTES : _HEADER_BYTES + length]).decode(errors="replace")

    @property
    def cancelled(self) -> bool:
        """Whether the call is cancelled; the router sets it, before each call and during it."""
        return self._memory[_CANCELLED] != 0

    @cancelled.setter
    def cancelled(self, so: bool) -> None:
        self._memory[_CANCELLED] = so

    @property
    def slowed(self) -> float:
        """By what factor the worker's calls take longer than they would, 1 or more; the router sets it at any time."""
        return max(1.0, float(_FACTOR.unpack_from(self._memory, _SLOWED)[0]))

    @slowed.setter
    def slowed(self, factor: float) -> None:
        _FACTOR.pack_into(self._memory, _SLOWED, factor)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
