"""The Open Inference Protocol V2's inference messages as pure functions: JSON tensors and the binary extension.

A body is JSON alone, or JSON followed by raw little-endian tensors; the header ``Inference-Header-Content-Length``
then says how long the JSON is. Source: kserve.github.io, Open Inference Protocol V2 and its binary data extension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import orjson

from slotool import strict_json
from slotool.serving import bounds
from slotool.serving.rejections import bad_request, shown

HEADER_LENGTH = "inference-header-content-length"
INPUT = "input"
OUTPUTS = ("logits", "label", "confidence")
DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}
_REMEMBERED_BYTES = 1_024
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, slots=True)
class InferRequest:
    """``x``: float32 [n, *input_shape], finite. ``outputs``: name to whether its data is wanted in binary form."""

    x: np.ndarray
    outputs: Mapping[str, bool]
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def parse_request(
    body: bytes, header_length: str | None, input_shape: Sequence[int], *, max_batch: int
) -> InferRequest:
    """Read an inference request for a model of this ``input_shape``.

    ``header_length``: text of the header ``Inference-Header-Content-Length``, None without one.
    Raises ``Rejection`` (400) naming what is wrong, whatever the bytes are.
    """
    head, raw = _split(body, header_length)
    read = _remembered if raw and len(head) <= _REMEMBERED_BYTES else _read
    asked = read(head, tuple(input_shape), max_batch)
    x = _tensor_data(asked.tensor, asked.shape, raw)
    require_finite(x)
    return InferRequest(x, asked.outputs, asked.id, asked.parameters)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The content of a request's JSON. Requests with the same JSON share it: never change it."""

    tensor: Mapping[str, Any]
    shape: tuple[int, ...]
    outputs: Mapping[str, bool]
    id: str
    parameters: Mapping[str, Any]


def _read(head: bytes, input_shape: tuple[int, ...], max_batch: int) -> _Asked:
    bounds.require_countable(head, input_shape, max_batch)
    document = json_object(head)
    request_id = document.get("id")
    request_id = "" if request_id is None else request_id
    if not isinstance(request_id, str):
        raise bad_request("id: text is expected")
    bounds.require_id(request_id)
    parameters = _parameters(document, "the request")
    tensor = only_input(document)
    shape = shape_of(tensor, input_shape, max_batch)
    return _Asked(tensor, shape, wanted(document, parameters), request_id, parameters)


# A client that sends its tensors in binary form sends the same few lines of JSON before them again and again.
_remembered = lru_cache(maxsize=1_024)(_read)


def format_response(
    model: str,
    version: str,
    request: InferRequest,
    tensors: Mapping[str, np.ndarray],
    parameters: Mapping[str, str | float | int],
) -> tuple[bytes, int | None]:
    """The response's body, and the length of its JSON when binary tensors follow (else None).

    ``tensors``: float32 or int64 arrays by output name. In JSON form, where infinity does not exist, a class that was
    not computed (−inf) scores the lowest float32.
    """
    outputs, raw = [], []
    for name, binary in request.outputs.items():
        array = tensors[name]
        entry: dict[str, Any] = {"name": name, "datatype": DATATYPES[array.dtype], "shape": list(array.shape)}
        if binary:
            raw.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            flat = array.ravel()
            entry["data"] = np.where(np.isfinite(flat), flat, _LOWEST) if flat.dtype.kind == "f" else flat
        outputs.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        document["id"] = request.id
    document |= {"parameters": dict(parameters), "outputs": outputs}
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([head, *raw]), len(head)) if raw else (head, None)


def model_metadata(name: str, version: str, input_shape: Sequence[int], classes: int) -> dict[str, Any]:
    """The V2 model metadata document; −1 stands for the batch."""
    outputs = (("logits", "FP32", [-1, classes]), ("label", "INT64", [-1]), ("confidence", "FP32", [-1]))
    return {
        "name": name,
        "versions": [version],
        "platform": "slotool",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *input_shape]}],
        "outputs": [{"name": output, "datatype": datatype, "shape": shape} for output, datatype, shape in outputs],
    }


def model_config(name: str, input_shape: Sequence[int], classes: int, max_batch: int) -> dict[str, Any]:
    """Triton's model configuration document; its shapes leave the batch out."""
    scalar = {"dims": [1], "reshape": {"shape": []}}
    return {
        "name": name,
        "platform": "slotool",
        "backend": "slotool",
        "max_batch_size": max_batch,
        "input": [{"name": INPUT, "data_type": "TYPE_FP32", "dims": list(input_shape)}],
        "output": [
            {"name": "logits", "data_type": "TYPE_FP32", "dims": [classes]},
            {"name": "label", "data_type": "TYPE_INT64", **scalar},
            {"name": "confidence", "data_type": "TYPE_FP32", **scalar},
        ],
    }


def _split(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    if header_length is None:
        return body, b""
    text = header_length.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise bad_request(f"Inference-Header-Content-Length: {text[:40]!r} is not a number of bytes")
    length = int(text)
    if length > len(body):
        raise bad_request(f"Inference-Header-Content-Length is {length}, but the body has only {len(body)} bytes")
    return body[:length], body[length:]


def json_object(head: bytes) -> dict[str, Any]:
    """A JSON object, strictly. Raises ``Rejection`` (400) for anything else."""
    try:
        document = strict_json.decode(head)
    except strict_json.JsonError as error:
        raise bad_request(f"the request is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("the request is not a JSON object")
    return document


def _parameters(owner: Mapping[str, Any], what: str) -> dict[str, Any]:
    parameters = owner.get("parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, dict):
        raise bad_request(f"{what}: parameters is not a JSON object")
    bounds.require_few(len(parameters), bounds.MAX_PARAMETERS, f"{what}: parameters")
    return parameters


def require_finite(x: np.ndarray) -> None:
    """Raises ``Rejection`` (400) when a value is not a number."""
    if not np.isfinite(x).all():
        raise bad_request(f"input {INPUT}: it holds NaN or infinity")


def only_input(document: Mapping[str, Any]) -> dict[str, Any]:
    """The one FP32 tensor of a request's ``inputs``. Raises ``Rejection`` (400)."""
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise bad_request(f"inputs: a list of one tensor named {INPUT} is expected")
    if inputs[0].get("name") != INPUT:
        raise bad_request(f"inputs: the tensor is called {shown(inputs[0].get('name'))}, expected {INPUT!r}")
    if inputs[0].get("datatype") != "FP32":
        raise bad_request(f"input {INPUT}: datatype {shown(inputs[0].get('datatype'))}, expected 'FP32'")
    return inputs[0]


def shape_of(tensor: Mapping[str, Any], input_shape: tuple[int, ...], max_batch: int) -> tuple[int, ...]:
    """A tensor's shape, [batch, *input_shape]. Raises ``Rejection`` (400)."""
    shape = tensor.get("shape")
    whole = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in shape)
    if not whole or not isinstance(shape, list) or tuple(shape[1:]) != input_shape or not shape or shape[0] < 1:
        raise bad_request(f"input {INPUT}: shape {shown(shape)}, expected [batch, {', '.join(map(str, input_shape))}]")
    if shape[0] > max_batch:
        raise bad_request(f"input {INPUT}: a batch of {shown(shape[0])}, but at most {max_batch} are served at once")
    return tuple(shape)


def _tensor_data(tensor: Mapping[str, Any], shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    parameters = _parameters(tensor, f"input {INPUT}")
    if "shared_memory_region" in parameters:
        raise bad_request(f"input {INPUT}: shared memory is not served")
    size = parameters.get("binary_data_size")
    if size is not None:
        return _binary_data(tensor, shape, raw, size)
    if raw:
        raise bad_request(f"input {INPUT}: {len(raw)} bytes follow the JSON, but it names no binary_data_size")
    if not isinstance(tensor.get("data"), list):
        raise bad_request(f"input {INPUT}: it has neither a list of data nor a binary_data_size")
    return _json_data(tensor["data"], shape)


def _binary_data(tensor: Mapping[str, Any], shape: tuple[int, ...], raw: bytes, size: Any) -> np.ndarray:
    expected = 4 * math.prod(shape)
    if not isinstance(size, int) or isinstance(size, bool) or size != expected:
        raise bad_request(f"input {INPUT}: binary_data_size {shown(size)}, but this shape has {expected} bytes")
    if len(raw) != expected:
        raise bad_request(f"input {INPUT}: {len(raw)} bytes follow the JSON, expected {expected}")
    if "data" in tensor:
        raise bad_request(f"input {INPUT}: it has both data and a binary_data_size")
    return np.frombuffer(raw, dtype="<f4").reshape(shape).astype(np.float32)


def _json_data(data: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """``data``: a flat list of numbers, or lists nested as ``shape`` says. NumPy is given numbers only: of a list with
    one long text in it it would make an array of texts as long."""
    size = math.prod(shape)
    values = data if list not in set(map(type, data)) else _flattened(data, shape)
    if not set(map(type, values)) <= {int, float}:
        raise bad_request(f"input {INPUT}: data holds something that is not a number")
    if len(values) != size:
        raise bad_request(f"input {INPUT}: data has {len(values)} values, but its shape has {size}")
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float64).astype(np.float32).reshape(shape)


def _flattened(data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    level = data
    for at, length in enumerate(shape[1:], start=1):
        if len(level) != math.prod(shape[:at]) or set(map(type, level)) != {list} or set(map(len, level)) != {length}:
            raise bad_request(f"input {INPUT}: data is ragged, or not nested as its shape {shown(list(shape))}")
        level = list(chain.from_iterable(level))
    return level


def wanted(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, bool]:
    """Names of the outputs asked for, with whether in binary form. Raises ``Rejection`` (400)."""
    binary = parameters.get("binary_data_output", False)
    if not isinstance(binary, bool):
        raise bad_request("binary_data_output: true or false is expected")
    asked = document.get("outputs")
    if asked is None or asked == []:
        return dict.fromkeys(OUTPUTS, binary)
    if not isinstance(asked, list):
        raise bad_request("outputs: a list of tensors is expected")
    bounds.require_few(len(asked), bounds.MAX_OUTPUTS, "outputs")
    return dict(_wanted_output(entry, binary) for entry in asked)


def _wanted_output(entry: Any, binary: bool) -> tuple[str, bool]:
    if not isinstance(entry, dict) or entry.get("name") not in OUTPUTS:
        name = shown(entry.get("name")) if isinstance(entry, dict) else shown(entry)
        raise bad_request(f"outputs: no output is called {name}; there are {', '.join(OUTPUTS)}")
    parameters = _parameters(entry, f"output {entry['name']}")
    for unknown in ("classification", "shared_memory_region"):
        if unknown in parameters:
            raise bad_request(f"output {entry['name']}: {unknown} is not served")
    wanted = parameters.get("binary_data", binary)
    if not isinstance(wanted, bool):
        raise bad_request(f"output {entry['name']}: binary_data is true or false")
    return entry["name"], wanted
