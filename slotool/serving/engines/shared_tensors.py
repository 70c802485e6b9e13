"""Tensors of one call between router and worker, in memory that both have mapped: nothing is copied through a pipe."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slotool.serving.ensemble import Scores

_ALIGN = 64
# Before the tensors: whether the call in progress is cancelled.
_CANCELLED, _HEADER_BYTES = 0, 64
_TEXT_BYTES = 1_024


@dataclass(frozen=True)
class Shapes:
    """Of one example: ``inputs`` float32 numbers in, ``classes`` scores out."""

    inputs: int
    classes: int

    def bytes_for(self, examples: int) -> int:
        return _aligned(4 * self.inputs * examples) + _aligned(4 * self.classes * examples) + _aligned(8 * examples)


class SharedTensors:
    """One call's inputs, logits and confidences, behind one another, or what went wrong.

    Room for ``max_examples`` of the largest model; pages that no call touches take no memory. The file has no name:
    it is gone when both ends are. ``fd``: what a child inherits; give it there instead of making a new one.
    """

    def __init__(self, shapes: Mapping[str, Shapes], max_examples: int, fd: int | None = None):
        self._shapes = dict(shapes)
        size = _HEADER_BYTES + max([_TEXT_BYTES, *(shape.bytes_for(max_examples) for shape in self._shapes.values())])
        self.fd = os.memfd_create("slotool-tensors") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)

    def inputs(self, model: str, examples: int) -> np.ndarray:
        """float32 [examples, inputs], to be written by the router and read by the worker."""
        count = self._shapes[model].inputs * examples
        return np.frombuffer(self._memory, np.float32, count, _HEADER_BYTES).reshape(examples, -1)

    def outputs(self, model: str, examples: int) -> Scores:
        """The same memory every time: copy what is to outlive the call."""
        shape = self._shapes[model]
        at = _HEADER_BYTES + _aligned(4 * shape.inputs * examples)
        logits = np.frombuffer(self._memory, np.float32, shape.classes * examples, at).reshape(examples, -1)
        sure = np.frombuffer(self._memory, np.float64, examples, at + _aligned(4 * shape.classes * examples))
        return Scores(logits, sure)

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


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
