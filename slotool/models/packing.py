"""Named tensors as one run of bytes and back, without pickle: what worker processes and files carry.

Layout: the length of a JSON head (uint32), the head, then the tensors in order, each aligned. The head lists name,
NumPy type, shape, and where the bytes of a tensor begin and how many they are. A tensor of ``bytes`` objects is the
lengths of its values (uint32), then the values one after another.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from slotool.errors import InputError, RunError
from slotool.models.signature import DTYPES

_HEAD = struct.Struct("<I")
_ALIGN = 64
_TYPES = {dtype.name: dtype for dtype in DTYPES.values()}
_LENGTHS = np.dtype(np.uint32)


class Packed:
    """``tensors``, ready to be written: ``size`` bytes.

    Raises ``InputError`` for values of another type than ``DTYPES`` has, such as objects that are not ``bytes``.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self._parts = [_content(name, array) for name, array in tensors.items()]
        sizes = [sum(len(piece) for piece in pieces) for pieces in self._parts]
        # Where tensors begin counts from the end of the head, whose own length depends on these numbers.
        self._begins, end = [], 0
        for size in sizes:
            self._begins.append(end)
            end = _aligned(end + size)
        listed = [
            [name, array.dtype.name, array.shape, at, size]
            for (name, array), at, size in zip(tensors.items(), self._begins, sizes, strict=True)
        ]
        self._head = orjson.dumps(listed)
        self._body = _aligned(_HEAD.size + len(self._head))
        self.size = self._body + end

    def write(self, memory: memoryview | bytearray) -> None:
        """Into the first ``size`` bytes of ``memory``."""
        memory[: _HEAD.size] = _HEAD.pack(len(self._head))
        memory[_HEAD.size : _HEAD.size + len(self._head)] = self._head
        for begin, pieces in zip(self._begins, self._parts, strict=True):
            at = self._body + begin
            for piece in pieces:
                memory[at : at + len(piece)] = piece
                at += len(piece)


def pack(tensors: Mapping[str, np.ndarray]) -> bytes:
    """``tensors`` as bytes that ``unpack`` reads. Raises ``InputError`` as ``Packed`` does."""
    packed = Packed(tensors)
    memory = bytearray(packed.size)
    packed.write(memory)
    return bytes(memory)


def unpack(memory: memoryview | bytes, *, copy: bool = False) -> dict[str, np.ndarray]:
    """The tensors that were packed. They are views of ``memory``, unless ``copy``; ``bytes`` objects are always copied.

    Raises ``RunError`` when ``memory`` holds something else.
    """
    view = memoryview(memory)
    try:
        (length,) = _HEAD.unpack_from(view)
        listed = orjson.loads(view[_HEAD.size : _HEAD.size + length])
        body = _aligned(_HEAD.size + length)
        return {
            name: _tensor(view[body + at : body + at + size], kind, shape, copy)
            for name, kind, shape, at, size in listed
        }
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise RunError(f"packed tensors cannot be read ({type(error).__name__}: {error})") from error


def _content(name: str, array: np.ndarray) -> list[Any]:
    if array.dtype.name not in _TYPES:
        raise InputError(f"tensor {name}: values of type {array.dtype} cannot be sent to a model")
    if array.dtype.kind != "O":
        return [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data] if array.size else []
    values = list(array.flat)
    if not all(type(value) is bytes for value in values):
        raise InputError(f"tensor {name}: a value is not of type bytes")
    return [np.fromiter(map(len, values), _LENGTHS, len(values)).tobytes(), b"".join(values)]


def _tensor(content: memoryview, kind: str, shape: list[int], copy: bool) -> np.ndarray:
    count = math.prod(shape)
    if kind != "object":
        array = np.frombuffer(content, _TYPES[kind]).reshape(shape)
        return array.copy() if copy else array
    ends = _LENGTHS.itemsize * count + np.cumsum(np.frombuffer(content, _LENGTHS, count), dtype=np.int64)
    values = np.empty(count, dtype=np.object_)
    at = _LENGTHS.itemsize * count
    for i, end in enumerate(ends.tolist()):
        if end > len(content):
            raise ValueError("a value is cut off")
        values[i], at = bytes(content[at:end]), end
    return values.reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
