"""Values of every datatype, from bytes and from JSON, checked before NumPy or a model sees them.

JSON has neither NaN nor infinity: ``null`` among floating-point data is NaN, both ways, and infinity is written as the
largest number of the datatype. Text in JSON is UTF-8.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from slotool.models.inference_messages import of_bfloat16_bits, of_bytes, to_bfloat16_bits, to_bytes
from slotool.models.signature import DTYPES, TensorSpec
from slotool.serving.rejections import bad_request, shown

# Bytes of one value in raw form; for a text, those of the length before it.
ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"BF16": 2, "BYTES": 4}
# Python's types of JSON values, by NumPy's kind of datatype.
_JSON_TYPES: dict[str, set[type]] = {"f": {int, float, type(None)}, "i": {int}, "u": {int}, "b": {bool}, "O": {str}}
_CALLED = {"f": "a number", "i": "a whole number", "u": "a whole number", "b": "true or false", "O": "text"}
_LITTLE_ENDIAN = {name: dtype.newbyteorder("<") for name, dtype in DTYPES.items()}
_LARGEST = {name: float(np.finfo(dtype).max) for name, dtype in DTYPES.items() if dtype.kind == "f"}
_LARGEST["BF16"] = float(of_bfloat16_bits(np.array([0x7F7F], dtype=np.uint16))[0])


def of_raw(spec: TensorSpec, raw: bytes | bytearray | memoryview, shape: tuple[int, ...]) -> np.ndarray:
    """Return the tensor with the raw form ``raw``. Raises ``Rejection`` (400) for other bytes.

    It takes over a writable, aligned ``raw`` without a copy.
    """
    datatype, count = spec.datatype, math.prod(shape)
    if datatype == "BYTES":
        return _texts_of_raw(spec, raw, shape)
    if len(raw) != count * ITEM_BYTES[datatype]:
        expected = count * ITEM_BYTES[datatype]
        raise bad_request(f"input {spec.name}: {len(raw)} bytes, but this shape has {expected} bytes")
    if datatype == "BF16":
        return of_bfloat16_bits(np.frombuffer(raw, dtype="<u2")).reshape(shape)
    if datatype == "BOOL" and bytes(raw).translate(None, b"\0\1"):
        raise bad_request(f"input {spec.name}: a BOOL is a byte of 0 or 1")
    # Writable for the model, unlike bytes.
    writable = bytearray(raw) if isinstance(raw, bytes) or memoryview(raw).readonly else raw
    array = np.ndarray(shape, _LITTLE_ENDIAN[datatype], writable)
    if writable is raw and not array.flags.aligned:
        array = np.ndarray(shape, _LITTLE_ENDIAN[datatype], bytearray(raw))
    return array if array.dtype.isnative else array.astype(DTYPES[datatype])


def _texts_of_raw(spec: TensorSpec, raw: bytes | bytearray | memoryview, shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    try:
        # No array for more texts than there are lengths.
        if count * ITEM_BYTES["BYTES"] <= len(raw):
            return of_bytes(spec, bytes(raw), shape)
    except (ValueError, struct.error):
        pass
    raise bad_request(
        f"input {spec.name}: {len(raw)} bytes, which are not {count} texts with their lengths before them"
    )


def of_json(spec: TensorSpec, data: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the tensor of ``data``: a flat list, or lists nested as ``shape``. Raises ``Rejection`` (400).

    NumPy only gets values of the right type: one long text among numbers would make an array of texts as long.
    """
    # Checking thousands of values takes as long as making their array: check once.
    values, types, kind = data, set(map(type, data)), spec.dtype.kind
    if list in types:
        values = _flattened(spec, data, shape)
        types = set(map(type, values))
    if not types <= _JSON_TYPES[kind]:
        huge = next((value for value in values if kind in "iu" and _is_huge(spec, value)), None)
        if huge is not None:
            raise bad_request(f"input {spec.name}: {shown(huge)} is beyond {spec.datatype}")
        raise bad_request(f"input {spec.name}: data holds something that is not {_CALLED[kind]}")
    if len(values) != math.prod(shape):
        raise bad_request(f"input {spec.name}: data has {len(values)} values, but its shape has {math.prod(shape)}")
    if kind == "f":
        return _floats(spec, np.array(values, dtype=np.float64)).reshape(shape)
    return of_list(spec, [text.encode() for text in values] if kind == "O" else values).reshape(shape)


def _is_huge(spec: TensorSpec, value: Any) -> bool:
    """True for a whole number beyond the datatype and 64 bits, which JSON decoders read as a float."""
    info = np.iinfo(spec.dtype)
    return type(value) is float and abs(value) >= 2.0**63 and not info.min < value < info.max


def of_list(spec: TensorSpec, values: Sequence[Any]) -> np.ndarray:
    """Return a flat array of Python values of the right type. Raises ``Rejection`` (400) beyond the datatype."""
    array = np.empty(len(values), dtype=spec.dtype)
    if spec.dtype.kind in "iu" and len(values):
        info = np.iinfo(spec.dtype)
        for value in (min(values), max(values)):
            if not info.min <= value <= info.max:
                raise bad_request(f"input {spec.name}: {shown(value)} is beyond {spec.datatype}")
    array[:] = values
    return array


def _floats(spec: TensorSpec, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        array = values.astype(spec.dtype)
    if spec.datatype == "BF16":
        array = of_bfloat16_bits(to_bfloat16_bits(array))
    if np.isinf(array).any():
        raise bad_request(f"input {spec.name}: data holds a number beyond {spec.datatype}")
    return array


def _flattened(spec: TensorSpec, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    level = data
    for at, length in enumerate(shape[1:], start=1):
        nested = len(level) == math.prod(shape[:at]) and all(type(part) is list for part in level)
        if not nested or any(len(part) != length for part in level):
            raise bad_request(f"input {spec.name}: data is ragged, or not nested as its shape {shown(list(shape))}")
        level = list(chain.from_iterable(level))
    return level


def to_raw(spec: TensorSpec, array: np.ndarray) -> bytes:
    """Return the raw form of a tensor."""
    return to_bytes(spec, array) if spec.datatype in ("BYTES", "BF16") else array.tobytes()


def to_json(spec: TensorSpec, array: np.ndarray) -> Any:
    """Return flat values for orjson. Raises ``Rejection`` (400) for text that is not UTF-8."""
    flat = array.ravel()
    if spec.datatype == "BYTES":
        try:
            return [text.decode() for text in flat]
        except UnicodeDecodeError:
            raise bad_request(f"output {spec.name}: it is not UTF-8 text; ask for it in binary form") from None
    if flat.dtype.kind == "f":
        if np.logical_or.reduce(np.isinf(flat)):
            most = _LARGEST[spec.datatype]
            flat = np.nan_to_num(flat, nan=np.nan, posinf=most, neginf=-most)
        # float32 holds every float16, and orjson writes no float16.
        return flat.astype(np.float32) if flat.dtype == np.float16 else flat
    return flat
