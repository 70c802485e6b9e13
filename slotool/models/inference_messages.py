"""The Open Inference Protocol V2 as a client speaks it over HTTP: requests to write, responses to read.

Source: kserve.github.io, Open Inference Protocol V2 and its binary tensor extension.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from slotool import strict_json
from slotool.errors import RunError
from slotool.models.signature import Signature, TensorSpec

HEADER_LENGTH = "Inference-Header-Content-Length"
_LENGTH = struct.Struct("<I")


def write_request(
    signature: Signature,
    inputs: Mapping[str, np.ndarray],
    *,
    binary: bool,
    parameters: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[bytes, int | None]:
    """Return the body of an inference request for all outputs, and its JSON's length if binary tensors follow."""
    entries: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for spec in signature.inputs:
        array = inputs[spec.name]
        entry: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": list(array.shape)}
        if binary:
            raw.append(to_bytes(spec, array))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = json_values(array)
        entries.append(entry)
    form = {"parameters": {"binary_data": True}} if binary else {}
    outputs = [{"name": spec.name, **form} for spec in signature.outputs]
    document = {"inputs": entries, "outputs": outputs} | ({"parameters": dict(parameters)} if parameters else {})
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join([head, *raw]), len(head) if binary else None


def read_response(
    signature: Signature, body: bytes, header_length: str | None, source: str
) -> tuple[dict[str, np.ndarray], Mapping[str, Any]]:
    """Return outputs by name, and the response's parameters.

    Raises ``RunError`` naming ``source`` for a body that does not match the signature.
    """
    at = int(header_length) if header_length is not None and header_length.isdigit() else len(body)
    document = strict_json.decode_object(body[:at], source)
    entries = document.get("outputs")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RunError(f"{source} answered without a list of outputs")
    outputs: dict[str, np.ndarray] = {}
    for entry in entries:
        spec = next((spec for spec in signature.outputs if spec.name == entry.get("name")), None)
        size = (entry.get("parameters") or {}).get("binary_data_size")
        content, at = (body[at : at + size], at + size) if isinstance(size, int) and size >= 0 else (None, at)
        if spec is not None:
            outputs[spec.name] = _read_output(spec, entry, content, source)
    missing = [spec.name for spec in signature.outputs if spec.name not in outputs]
    if missing:
        raise RunError(f"{source} answered without output {missing[0]!r}")
    parameters = document.get("parameters")
    return outputs, parameters if isinstance(parameters, dict) else {}


def json_values(array: np.ndarray) -> Any:
    """Return the values in row-major order, as orjson writes them; text as UTF-8."""
    if array.dtype.kind == "O":
        return [value.decode(errors="replace") for value in array.flat]
    return (array.astype(np.float32) if array.dtype == np.float16 else array).ravel()


def _read_output(spec: TensorSpec, entry: Mapping[str, Any], content: bytes | None, source: str) -> np.ndarray:
    shape = entry.get("shape")
    if entry.get("datatype") != spec.datatype or not isinstance(shape, list):
        raise RunError(f"{source}: output {spec.name} is {entry.get('datatype')} {shape}, expected {spec}")
    try:
        if content is not None:
            return of_bytes(spec, content, shape)
        flat = np.asarray(entry.get("data"), dtype=np.object_ if spec.datatype == "BYTES" else None).ravel()
        if any(not isinstance(size, int) or size < 0 for size in shape) or len(flat) != math.prod(shape):
            raise ValueError("of another shape")
        array = np.empty(len(flat), dtype=spec.dtype)
        array[:] = [str(value).encode() for value in flat] if spec.datatype == "BYTES" else flat
        return array.reshape(shape)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise RunError(f"{source}: output {spec.name} does not hold a {spec.datatype} of shape {shape}") from error


def to_bytes(spec: TensorSpec, array: np.ndarray) -> bytes:
    """Return a tensor in the protocol's raw form: little-endian values in row-major order; BYTES with lengths."""
    if spec.datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(value)) + value for value in array.flat)
    if spec.datatype == "BF16":
        return to_bfloat16_bits(array).astype("<u2").tobytes()
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def of_bytes(spec: TensorSpec, content: bytes, shape: Sequence[int]) -> np.ndarray:
    """Return the tensor in ``content``. Raises ``ValueError`` if its length does not match the shape."""
    count = math.prod(shape)
    if spec.datatype == "BYTES":
        return _texts(content, count).reshape(shape)
    if spec.datatype == "BF16":
        return of_bfloat16_bits(np.frombuffer(content, dtype="<u2", count=count)).reshape(shape)
    if len(content) != count * spec.dtype.itemsize:
        raise ValueError(f"{len(content)} bytes")
    return np.frombuffer(content, dtype=spec.dtype.newbyteorder("<")).reshape(shape).astype(spec.dtype)


def _texts(content: bytes, count: int) -> np.ndarray:
    texts, at = np.empty(count, dtype=np.object_), 0
    for i in range(count):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        if length > len(content) - at:
            raise ValueError("a text is shorter than its stated length")
        texts[i], at = content[at : at + length], at + length
    if at != len(content):
        raise ValueError("more bytes than texts")
    return texts


def to_bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16 of each float32, ties to even, as uint16 of the same shape; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def of_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """Return the float32 that each bfloat16 (uint16 of its bits) is."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
