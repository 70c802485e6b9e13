"""The Open Inference Protocol's protobuf messages, to and from what the HTTP form of the protocol is made of.

Source: kserve.github.io, Open Inference Protocol V2 over gRPC; Triton's ``ModelConfig`` and ``ModelStatistics``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import model_config_pb2, service_pb2

from slotool.serving import bounds, tensors
from slotool.serving.rejections import bad_request
from slotool.serving.tensors import DATATYPES, INPUT, InferRequest

# A ``ModelInferRequest`` with more fields, in all its messages, is not parsed; packed numbers are one field.
MAX_FIELDS = 1_024
# Which fields hold messages with repeated fields of their own: inputs, outputs, and in these parameters and contents.
_NESTED: Mapping[int, Any] = {5: {4: {}, 5: {}}, 6: {3: {}}, 4: {}}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def message_bytes(input_shape: Iterable[int], max_batch: int, max_bytes: int) -> int:
    """The longest message of an inference request: a float32 with its tag has five bytes."""
    return min(max_bytes, bounds.OVERHEAD_BYTES + 5 * max_batch * math.prod(input_shape))


def parse(raw: bytes, kind: type[Message]) -> Any:
    """A message of that kind. Raises ``Rejection`` (400) when the bytes are not one, or one of thousands of fields."""
    if len(raw) > bounds.UNCOUNTED_BYTES and kind is service_pb2.ModelInferRequest:
        _count_fields(raw, 0, len(raw), _NESTED, 0)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise bad_request(f"the message is not a {kind.DESCRIPTOR.name}") from None


def _count_fields(raw: bytes, at: int, end: int, nested: Mapping[int, Any], fields: int) -> int:
    """``fields`` and how many more there are in raw[at:end]. Raises ``Rejection`` as soon as they are too many."""
    while at < end:
        tag, at = _varint(raw, at)
        fields += 1
        if fields > MAX_FIELDS:
            raise bad_request(f"the message has more than {MAX_FIELDS} fields; send numbers packed, or as raw bytes")
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(raw, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            length, at = _varint(raw, at)
            if tag >> 3 in nested:
                fields = _count_fields(raw, at, min(at + length, end), nested[tag >> 3], fields)
            at += length
        else:
            raise bad_request("the message holds a group, which no client of this protocol sends")
    return fields


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(raw[at : at + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise bad_request("the message is not a ModelInferRequest")


def parse_infer(request: Any, input_shape: tuple[int, ...], *, max_batch: int) -> InferRequest:
    """Read a ``ModelInferRequest``; its tensor is in ``raw_input_contents`` or in ``fp32_contents``.

    Raises ``Rejection`` (400) naming what is wrong.
    """
    bounds.require_few(len(request.inputs), bounds.MAX_OUTPUTS, "inputs")
    bounds.require_few(len(request.outputs), bounds.MAX_OUTPUTS, "outputs")
    bounds.require_id(request.id)
    document = {
        "inputs": [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)} for tensor in request.inputs
        ],
        "outputs": [{"name": o.name, "parameters": parameters_of(o.parameters)} for o in request.outputs],
    }
    shape = tensors.shape_of(tensors.only_input(document), input_shape, max_batch)
    x = _data(request, shape)
    tensors.require_finite(x)
    return InferRequest(x, tensors.wanted(document, {}), request.id, parameters_of(request.parameters))


def _data(request: Any, shape: tuple[int, ...]) -> np.ndarray:
    tensor, raw = request.inputs[0], request.raw_input_contents
    typed = tensor.contents.fp32_contents
    if "shared_memory_region" in tensor.parameters:
        raise bad_request(f"input {INPUT}: shared memory is not served")
    if not raw:
        if len(typed) != math.prod(shape):
            raise bad_request(
                f"input {INPUT}: fp32_contents has {len(typed)} values, but its shape has {math.prod(shape)}"
            )
        return np.array(typed, dtype=np.float32).reshape(shape)
    if typed or len(raw) != 1:
        raise bad_request(f"input {INPUT}: exactly one of fp32_contents and raw_input_contents is expected, once")
    if len(raw[0]) != 4 * math.prod(shape):
        raise bad_request(
            f"input {INPUT}: raw_input_contents has {len(raw[0])} bytes, but this shape has {4 * math.prod(shape)}"
        )
    return np.frombuffer(raw[0], dtype="<f4").reshape(shape).astype(np.float32)


def format_infer(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    parameters: Mapping[str, str | float],
) -> Any:
    """A ``ModelInferResponse`` with the tensors that were asked for, raw, as Triton sends them."""
    response = service_pb2.ModelInferResponse(model_name=model, model_version=version, id=request.id)
    for name, value in parameters.items():
        if isinstance(value, str):
            response.parameters[name].string_param = value
        else:
            response.parameters[name].double_param = value
    for name in request.outputs:
        array = outputs[name]
        response.outputs.add(name=name, datatype=DATATYPES[array.dtype], shape=array.shape)
        response.raw_output_contents.append(array.tobytes())
    return response


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of a map of ``InferParameter``; one without a value is None, as if it were absent.

    Raises ``Rejection`` (400) when there are too many.
    """
    bounds.require_few(len(given), bounds.MAX_PARAMETERS, "parameters")
    chosen = ((name, parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in given.items())
    return {name: getattr(parameter, choice) if choice else None for name, parameter, choice in chosen}


def metadata_message(document: Mapping[str, Any]) -> Any:
    """``ModelMetadataResponse`` of the V2 document."""
    return json_format.ParseDict(document, service_pb2.ModelMetadataResponse())


def config_message(document: Mapping[str, Any]) -> Any:
    """``ModelConfigResponse`` of ``tensors.model_config``."""
    config = json_format.ParseDict(document, model_config_pb2.ModelConfig())
    return service_pb2.ModelConfigResponse(config=config)


def statistics_message(documents: Iterable[Mapping[str, Any]]) -> Any:
    """``ModelStatisticsResponse`` of one ``statistics.document`` per model."""
    return json_format.ParseDict({"model_stats": list(documents)}, service_pb2.ModelStatisticsResponse())
