"""Protobuf messages of the Open Inference Protocol, converted from and to its HTTP form.

Source: kserve.github.io, Open Inference Protocol V2 over gRPC; Triton's ``ModelConfig`` and ``ModelStatistics``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import model_config_pb2, service_pb2

from slotool.models.signature import TensorSpec
from slotool.serving.protocol import bounds, tensors, values
from slotool.serving.protocol.shared_memory import Place, Regions, SharedOutputs
from slotool.serving.protocol.tensors import InferRequest, wanted_classes
from slotool.serving.rejections import Rejection, bad_request
from slotool.serving.request_options import from_parameters
from slotool.serving.served import Interface

# A ``ModelInferRequest`` with more fields, in all its messages, is not parsed; packed numbers are one field.
MAX_FIELDS = 1_024
# Fields whose messages have repeated fields: inputs, outputs, and in these parameters and contents.
_NESTED: Mapping[int, Any] = {5: {4: {}, 5: {}}, 6: {3: {}}, 4: {}}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field of the contents with a typed tensor's values. FP16 and BF16 have none: they come raw.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def parse(raw: bytes, kind: type[Message]) -> Any:
    """Parse a message. Raises ``Rejection`` (400) for other bytes, and for thousands of fields."""
    if len(raw) > bounds.UNCOUNTED_BYTES and kind is service_pb2.ModelInferRequest:
        _count_fields(raw, 0, len(raw), _NESTED, 0)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise bad_request(f"the message is not a {kind.DESCRIPTOR.name}") from None


def leading_text(raw: bytes) -> str:
    """Return the text in field 1 if ``raw`` begins with it, such as a request's model; else empty."""
    try:
        tag, at = _varint(raw, 0)
        if tag != 1 << 3 | _BYTES:
            return ""
        length, at = _varint(raw, at)
        return raw[at : at + length].decode()
    except (Rejection, UnicodeDecodeError):
        return ""


def _count_fields(raw: bytes, at: int, end: int, nested: Mapping[int, Any], fields: int) -> int:
    """Add the number of fields in raw[at:end] to ``fields``. Raises ``Rejection`` as soon as they are too many."""
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


def parse_infer(request: Any, interface: Interface, regions: Regions | None = None) -> InferRequest:
    """Read a ``ModelInferRequest``.

    Tensors are in ``raw_input_contents`` (all of them), in their ``contents``, or in shared memory; ``regions`` are the
    client's, None where none are served. Raises ``Rejection`` (400) naming what is wrong.
    """
    bounds.require_few(len(request.inputs), bounds.MAX_OUTPUTS, "inputs")
    bounds.require_few(len(request.outputs), bounds.MAX_OUTPUTS, "outputs")
    bounds.require_id(request.id)
    sent = {spec.name: (spec, shape, entry) for spec, shape, entry in tensors.matched(_entries(request), interface)}
    arrays = {
        spec.name: _array(spec, shape, entry["tensor"], entry["raw"], entry["place"], regions)
        for spec, shape, entry in (sent[spec_of.name] for spec_of in interface.inputs)
    }
    document = {"outputs": [{"name": o.name, "parameters": parameters_of(o.parameters)} for o in request.outputs]}
    outputs = tensors.binary_outputs(document, {}, interface)
    classes = wanted_classes(document, interface)
    parameters = parameters_of(request.parameters)
    places = tensors.destinations(tensors.wanted_places(document), regions)
    return InferRequest(
        interface.x(arrays, parameters), outputs, request.id, from_parameters(parameters), classes, places
    )


def _entries(request: Any) -> list[dict[str, Any]]:
    """Return each input with its raw bytes or None, and its place in shared memory or None. Raises ``Rejection``."""
    entries: list[dict[str, Any]] = []
    for tensor in request.inputs:
        place = Place.of(parameters_of(tensor.parameters), f"input {tensor.name[:80]}") if tensor.parameters else None
        entry = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "raw": None}
        entries.append({**entry, "tensor": tensor, "place": place})
    bounds.require_few_shared(sum(entry["place"].size for entry in entries if entry["place"] is not None))
    raw = request.raw_input_contents
    if raw:
        # Of inputs outside shared memory, in their order.
        sent = [entry for entry in entries if entry["place"] is None]
        if len(raw) != len(sent):
            raise bad_request(f"raw_input_contents: there are {len(raw)} for {len(sent)} inputs")
        for entry, content in zip(sent, raw, strict=True):
            entry["raw"] = content
    return entries


def _array(
    spec: TensorSpec,
    shape: tuple[int, ...],
    tensor: Any,
    raw: bytes | None,
    place: Place | None,
    regions: Regions | None,
) -> np.ndarray:
    if place is not None:
        return tensors.shared_array(spec, place, shape, regions)
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if raw is None:
        return _typed(spec, tensor.contents, filled, shape)
    if filled:
        raise bad_request(f"input {spec.name}: exactly one of {filled[0]} and raw_input_contents is expected")
    return values.of_raw(spec, raw, shape)


def _typed(spec: TensorSpec, contents: Any, filled: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
    field = CONTENTS.get(spec.datatype)
    if field is None:
        raise bad_request(f"input {spec.name}: {spec.datatype} is read from raw_input_contents only")
    if any(name != field for name in filled):
        raise bad_request(f"input {spec.name}: {spec.datatype} is read from {field}, not from {', '.join(filled)}")
    typed = getattr(contents, field)
    if len(typed) != math.prod(shape):
        raise bad_request(f"input {spec.name}: {field} has {len(typed)} values, but its shape has {math.prod(shape)}")
    return values.of_list(spec, typed).reshape(shape)


def format_infer(
    model: str,
    version: str,
    interface: Interface,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray | None],
    parameters: Mapping[str, str | float],
) -> Any:
    """Format a ``ModelInferResponse`` with the requested tensors, raw, as Triton sends them."""
    response = service_pb2.ModelInferResponse(model_name=model, model_version=version, id=request.id)
    for name, value in parameters.items():
        if isinstance(value, str):
            response.parameters[name].string_param = value
        else:
            response.parameters[name].double_param = value
    shared = SharedOutputs()
    for name in request.outputs:
        spec, array = tensors.written(name, request, interface, outputs)
        output, raw = (
            response.outputs.add(name=name, datatype=spec.datatype, shape=array.shape),
            values.to_raw(spec, array),
        )
        if name in request.destinations:
            _set(output.parameters, shared.add(name, request.destinations[name], raw))
            raw = b""  # Clients count them.
        response.raw_output_contents.append(raw)
    shared.write()
    return response


def _set(parameters: Any, values: Mapping[str, str | int]) -> None:
    for name, value in values.items():
        if isinstance(value, str):
            parameters[name].string_param = value
        else:
            parameters[name].int64_param = value


def parameters_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values of ``InferParameter``s; one without a value is None, as if it were absent.

    Raises ``Rejection`` (400) when there are too many.
    """
    bounds.require_few(len(parameters), bounds.MAX_PARAMETERS, "parameters")
    chosen = ((name, parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in parameters.items())
    return {name: getattr(parameter, choice) if choice else None for name, parameter, choice in chosen}


def metadata_message(document: Mapping[str, Any]) -> Any:
    """Convert a V2 document to ``ModelMetadataResponse``, without its parameters."""
    return json_format.ParseDict(document, service_pb2.ModelMetadataResponse(), ignore_unknown_fields=True)


def config_message(document: Mapping[str, Any]) -> Any:
    """Convert ``Interface.config`` to ``ModelConfigResponse``."""
    config = json_format.ParseDict(document, model_config_pb2.ModelConfig())
    return service_pb2.ModelConfigResponse(config=config)


def statistics_message(documents: Iterable[Mapping[str, Any]]) -> Any:
    """Convert ``Statistics.document`` of each model to ``ModelStatisticsResponse``."""
    return json_format.ParseDict({"model_stats": list(documents)}, service_pb2.ModelStatisticsResponse())


def regions_message(regions: Iterable[Mapping[str, Any]]) -> Any:
    """Convert ``Regions.status`` to ``SystemSharedMemoryStatusResponse``."""
    by_name = {region["name"]: region for region in regions}
    return json_format.ParseDict({"regions": by_name}, service_pb2.SystemSharedMemoryStatusResponse())


def facts_of(response: Any) -> dict[str, Any]:
    """Return an answer's facts for the access log: the request's id, its operating point and times."""
    values = {name: response.parameters.get(name) for name in ("request", "operating_point", "queue_us", "compute_us")}
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in values.items() if value}
