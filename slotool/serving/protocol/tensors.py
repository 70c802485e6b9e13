"""Inference messages of the Open Inference Protocol V2: JSON tensors and the binary extension.

A body is JSON alone, or JSON followed by raw little-endian tensors; then the header ``Inference-Header-Content-Length``
gives the length of the JSON. Source: kserve.github.io, Open Inference Protocol V2 and its binary data extension.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson

from slotool import strict_json
from slotool.data.columns import Columns
from slotool.elastic.best_labels import TOP
from slotool.models.signature import FREE, TensorSpec, is_cast
from slotool.printable import did_you_mean
from slotool.serving.protocol import bounds, values
from slotool.serving.protocol.shared_memory import Destination, Place, Regions, SharedOutputs, destination
from slotool.serving.rejections import bad_request, shown
from slotool.serving.request_options import DEFAULT_OPTIONS, RequestOptions, from_parameters
from slotool.serving.served import Interface

HEADER_LENGTH = "inference-header-content-length"
_REMEMBERED_BYTES = 1_024


class InferRequest(NamedTuple):
    """Content of a request.

    Attributes:
        x: the model's inputs.
        outputs: by name, True for binary form.
        options: options of the parameters.
        classes: by output name, the number of highest scores to send in its place.
        destinations: by output name, its place in shared memory.
    """

    x: Columns
    outputs: Mapping[str, bool]
    id: str = ""
    options: RequestOptions = DEFAULT_OPTIONS
    classes: Mapping[str, int] = MappingProxyType({})
    destinations: Mapping[str, Destination] = MappingProxyType({})


class _Tensor(NamedTuple):
    """Input as a request's JSON announces it.

    Its values are ``data``, bytes from ``start`` to ``stop`` after the JSON, or in shared memory (``place``).
    """

    spec: TensorSpec
    shape: tuple[int, ...]
    data: list[Any] | None
    start: int
    stop: int
    place: Place | None

    def array(self, raw: memoryview, regions: Regions | None) -> np.ndarray:
        if self.data is not None:
            return values.of_json(self.spec, self.data, self.shape)
        if self.place is not None:
            return shared_array(self.spec, self.place, self.shape, regions)
        return values.of_raw(self.spec, raw[self.start : self.stop], self.shape)


class _Parsed(NamedTuple):
    """Content of a request's JSON. Requests with the same JSON share it: never change it."""

    tensors: tuple[_Tensor, ...]
    raw_bytes: int
    outputs: Mapping[str, bool]
    id: str
    parameters: Mapping[str, Any]
    options: RequestOptions
    classes: Mapping[str, int]
    places: Mapping[str, Place]


class InferenceReader:
    """Reader of inference requests for the model of one ``interface``."""

    def __init__(self, interface: Interface):
        self.interface = interface
        # Clients with binary tensors repeat the same few lines of JSON before them.
        self._remembered = lru_cache(maxsize=1_024)(self._read)

    def parse(
        self, body: bytes | bytearray | memoryview, header_length: str | None, regions: Regions | None = None
    ) -> InferRequest:
        """Parse a request. Raises ``Rejection`` (400) naming what is wrong, whatever the bytes are.

        ``header_length``: header ``Inference-Header-Content-Length``, if any; ``regions``: the client's shared memory,
        if any. Tensors may lie in a ``body`` that is a ``bytearray``.
        """
        head, raw = _split(body, header_length)
        is_short = len(head) <= _REMEMBERED_BYTES and (raw or regions is not None)
        message = (self._remembered if is_short else self._read)(head)
        if len(raw) != message.raw_bytes:
            raise bad_request(f"{len(raw)} bytes follow the JSON, expected {message.raw_bytes} by binary_data_size")
        arrays = {tensor.spec.name: tensor.array(raw, regions) for tensor in message.tensors}
        x = self.interface.x(arrays, message.parameters)
        request = InferRequest(x, message.outputs, message.id, message.options, message.classes)
        return request if not message.places else request._replace(destinations=destinations(message.places, regions))

    def options(self, body: bytes | bytearray | memoryview, header_length: str | None) -> RequestOptions:
        """Return the options in a short JSON before binary tensors, else none. Raises as ``parse``."""
        head, raw = _split(body, header_length)
        return self._remembered(head).options if raw and len(head) <= _REMEMBERED_BYTES else DEFAULT_OPTIONS

    def _read(self, head: bytes) -> _Parsed:
        bounds.require_countable_for(self.interface, head)
        document = json_object(head)
        request_id = document.get("id")
        request_id = "" if request_id is None else request_id
        if not isinstance(request_id, str):
            raise bad_request("id: text is expected")
        bounds.require_id(request_id)
        parameters = _parameters(document, "the request")
        tensors, raw_bytes = self._tensors(document.get("inputs"))
        outputs = binary_outputs(document, parameters, self.interface)
        classes = wanted_classes(document, self.interface)
        options = from_parameters(parameters)
        return _Parsed(tensors, raw_bytes, outputs, request_id, parameters, options, classes, wanted_places(document))

    def _tensors(self, entries: Any) -> tuple[tuple[_Tensor, ...], int]:
        """Return tensors in the model's order, and the number of bytes after the JSON."""
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise bad_request("inputs: a list of tensors is expected")
        tensors: dict[str, _Tensor] = {}
        at = shared_bytes = 0
        for spec, shape, entry in matched(entries, self.interface):
            parameters = _parameters(entry, f"input {spec.name}")
            place = Place.of(parameters, f"input {spec.name}") if parameters else None
            if place is not None and ("data" in entry or "binary_data_size" in parameters):
                raise bad_request(f"input {spec.name}: it has both a shared_memory_region and values of its own")
            size = _raw_size(entry, parameters, spec, shape) if place is None else 0
            data = None if size is not None else entry["data"]
            tensors[spec.name] = _Tensor(spec, shape, data, at, at + (size or 0), place)
            at += size or 0
            shared_bytes += 0 if place is None else place.size
        bounds.require_few_shared(shared_bytes)
        return tuple(tensors[spec.name] for spec in self.interface.inputs), at


def matched(
    entries: list[dict[str, Any]], interface: Interface
) -> list[tuple[TensorSpec, tuple[int, ...], dict[str, Any]]]:
    """Match a request's inputs to the model's: spec in the datatype that was sent, shape and entry.

    Raises ``Rejection`` (400) naming an input that is unknown, given twice, missing, or of another datatype or shape.
    """
    matches: dict[str, tuple[TensorSpec, tuple[int, ...], dict[str, Any]]] = {}
    for entry in entries:
        name = entry.get("name")
        spec = interface.input(name, len(entries)) if isinstance(name, str) else None
        if spec is None:
            raise bad_request(f"inputs: no input is called {shown(name)}; {_listed(interface.inputs, name)}")
        if spec.name in matches:
            raise bad_request(f"input {spec.name}: it is given twice")
        sent = entry.get("datatype")
        if sent != spec.datatype:
            if not is_cast(sent, spec.datatype):
                raise bad_request(f"input {spec.name}: datatype {shown(sent)}, expected {spec.datatype!r}")
            spec = replace(spec, datatype=str(sent))
        matches[spec.name] = spec, shape_of(spec, entry.get("shape"), interface.max_batch), entry
    for spec in interface.inputs:
        if spec.name not in matches:
            raise bad_request(f"input {spec.name}: it is missing; {spec} is expected")
    batches = {name: shape[0] for name, (_, shape, _) in matches.items()} if interface.max_batch else {}
    if len(set(batches.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in batches.items())
        raise bad_request(f"inputs have different numbers of examples: {listed}"[:300])
    return list(matches.values())


def shape_of(spec: TensorSpec, shape: Any, max_batch: int) -> tuple[int, ...]:
    """Check a tensor's shape: [batch, ...], without batch where ``max_batch`` is 0. Raises ``Rejection`` (400)."""
    whole = isinstance(shape, list) and set(map(type, shape)) <= {int}
    expected, first = spec.shape, 1 if max_batch else 0
    if (
        not whole
        or len(shape) != len(expected)
        or (max_batch and shape[0] < 1)
        or (
            # The usual case first. −1 is an open size in the model, and invalid in a request.
            (tuple(shape[first:]) != expected[first:] or min(shape, default=0) < 0)
            and any(
                size not in (FREE, got) or got < 0 for size, got in zip(expected[first:], shape[first:], strict=True)
            )
        )
    ):
        raise bad_request(f"input {spec.name}: shape {shown(shape)}, expected {_expected(expected, shape, first)}")
    if max_batch and shape[0] > max_batch:
        raise bad_request(
            f"input {spec.name}: a batch of {shown(shape[0])}, but at most {max_batch} are served at once"
        )
    # Also for tensors without values: compiled code multiplies the sizes.
    if math.prod(size or 1 for size in shape) > bounds.MAX_TENSOR_VALUES:
        raise bad_request(f"input {spec.name}: shape {shown(shape)} has too many values")
    return tuple(shape)


def _expected(expected: tuple[int, ...], shape: Any, first: int) -> str:
    """Describe allowed shapes in place of ``shape``; ``first``: dimension after that of the batch."""
    sizes = ", ".join([*["batch"] * first, *("any" if size == FREE else str(size) for size in expected[first:])])
    if not isinstance(shape, list) or len(shape) != len(expected):
        return f"[{sizes}]"
    if not all(type(size) is int for size in shape):
        return f"[{sizes}] of whole numbers up to {bounds.MAX_TENSOR_VALUES}"
    if first and shape[0] < 1:
        return f"[{sizes}], a batch of 1 or more"
    return f"[{sizes}]" + (", sizes of 0 or more" if min(shape, default=0) < 0 else "")


def binary_outputs(document: Mapping[str, Any], parameters: Mapping[str, Any], interface: Interface) -> dict[str, bool]:
    """Return names of the requested outputs, True for binary form. Raises ``Rejection`` (400)."""
    binary = parameters.get("binary_data_output", False)
    if not isinstance(binary, bool):
        raise bad_request("binary_data_output: true or false is expected")
    requested = document.get("outputs")
    if requested is None or requested == []:
        return {tensor.name: binary for tensor in interface.outputs}
    if not isinstance(requested, list):
        raise bad_request("outputs: a list of tensors is expected")
    bounds.require_few(len(requested), bounds.MAX_OUTPUTS, "outputs")
    is_binary: dict[str, bool] = {}
    for name, in_binary in (_requested_output(entry, binary, interface) for entry in requested):
        if name in is_binary:
            raise bad_request(f"outputs: {name} is asked for twice, expected once")
        is_binary[name] = in_binary
    return is_binary


def _requested_output(entry: Any, binary: bool, interface: Interface) -> tuple[str, bool]:
    name = entry.get("name") if isinstance(entry, dict) else entry
    if not isinstance(entry, dict) or not isinstance(name, str) or name not in interface.output_by_name:
        names = _listed(interface.output_by_name.values(), name)
        raise bad_request(f"outputs: no output is called {shown(name)}; {names}")
    parameters = _parameters(entry, f"output {name}")
    is_binary = parameters.get("binary_data", binary)
    if not isinstance(is_binary, bool):
        raise bad_request(f"output {name}: binary_data is true or false")
    return name, is_binary


def wanted_places(document: Mapping[str, Any]) -> dict[str, Place]:
    """Return shared-memory places by output name, for checked outputs. Raises ``Rejection`` (400)."""
    places = {}
    for entry in document.get("outputs") or ():
        place = Place.of(entry.get("parameters") or {}, f"output {entry['name']}")
        if place is not None:
            places[entry["name"]] = place
    return places


def destinations(places: Mapping[str, Place], regions: Regions | None) -> dict[str, Destination]:
    """Find the places in the client's regions. Raises ``Rejection`` (400), also where two overlap."""
    targets = {name: destination(regions, place, f"output {name}") for name, place in places.items()}
    for (name, place), (other, elsewhere) in combinations(targets.items(), 2):
        if place.overlaps(elsewhere):
            raise bad_request(f"output {other}: its place in shared memory overlaps that of output {name}")
    return targets


def shared_array(spec: TensorSpec, place: Place, shape: tuple[int, ...], regions: Regions | None) -> np.ndarray:
    """Read an input from shared memory. Raises ``Rejection`` (400)."""
    from_region = destination(regions, place, f"input {spec.name}").region
    _require_size("shared_memory_byte_size", place.size, spec, shape)
    return values.of_raw(spec, from_region.read(place), shape)


def format_response(
    model: str,
    version: str,
    interface: Interface,
    request: InferRequest,
    tensors: Mapping[str, np.ndarray | None],
    parameters: Mapping[str, str | float | int],
) -> tuple[bytes, int | None]:
    """Return the response's body, and the length of its JSON when binary tensors follow (else None).

    ``tensors``: by output name, None where the answer has none. Raises ``Rejection`` (400) for an output that is
    missing, or cannot be written in the requested form.
    """
    outputs, raw = [], []
    shared = SharedOutputs() if request.destinations else None
    for name, binary in request.outputs.items():
        if request.classes:
            spec, array = written(name, request, interface, tensors)
        else:
            spec, array = interface.output_by_name[name], answered(name, tensors)
        entry: dict[str, Any] = {"name": name, "datatype": spec.datatype, "shape": list(array.shape)}
        if shared is not None and name in request.destinations:
            entry["parameters"] = shared.add(name, request.destinations[name], values.to_raw(spec, array))
        elif binary:
            raw.append(values.to_raw(spec, array))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = values.to_json(spec, array)
        outputs.append(entry)
    if shared is not None:
        shared.write()
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        document["id"] = request.id
    document["parameters"], document["outputs"] = parameters, outputs
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([head, *raw]), len(head)) if raw else (head, None)


def _split(body: bytes | bytearray | memoryview, header_length: str | None) -> tuple[bytes, memoryview]:
    """Return the JSON, and the bytes after it without a copy."""
    if header_length is None:
        return bytes(body), memoryview(b"")
    text = header_length.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise bad_request(f"Inference-Header-Content-Length: {text[:40]!r} is not a number of bytes")
    length = int(text)
    if length > len(body):
        raise bad_request(f"Inference-Header-Content-Length is {length}, but the body has only {len(body)} bytes")
    return bytes(body[:length]), memoryview(body)[length:]


def json_object(head: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly. Raises ``Rejection`` (400) for anything else."""
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


def _raw_size(
    tensor: Mapping[str, Any], parameters: Mapping[str, Any], spec: TensorSpec, shape: tuple[int, ...]
) -> int | None:
    """Return the bytes of a tensor after the JSON; None when its values are in the JSON.

    Raises ``Rejection`` (400) for both, neither, or a size that the shape cannot have.
    """
    size = parameters.get("binary_data_size")
    if size is None:
        if not isinstance(tensor.get("data"), list):
            raise bad_request(f"input {spec.name}: it has neither a list of data nor a binary_data_size")
        return None
    checked = _require_size("binary_data_size", size, spec, shape)
    if "data" in tensor:
        raise bad_request(f"input {spec.name}: it has both data and a binary_data_size")
    return checked


def _require_size(parameter: str, size: Any, spec: TensorSpec, shape: tuple[int, ...]) -> int:
    """Return ``size``. Raises ``Rejection`` (400) if no tensor of this shape has so many bytes."""
    expected = values.ITEM_BYTES[spec.datatype] * math.prod(shape)
    is_text = spec.datatype == "BYTES"
    if type(size) is not int or size < expected or (size > expected and not is_text):
        has = f"{'at least ' if is_text else ''}{expected} bytes"
        raise bad_request(f"input {spec.name}: {parameter} {shown(size)}, but this shape has {has}")
    return size


def written(
    name: str, request: InferRequest, interface: Interface, outputs: Mapping[str, np.ndarray | None]
) -> tuple[TensorSpec, np.ndarray]:
    """Return output ``name`` as requested: unchanged, or its highest scores. Raises ``Rejection`` (400)."""
    array = answered(name, outputs)
    if name in request.classes:
        return classified(name, array, request.classes[name], interface.reading.get("classes", ()))
    return interface.output_by_name[name], array


def answered(name: str, outputs: Mapping[str, np.ndarray | None]) -> np.ndarray:
    """Return output ``name``. Raises ``Rejection`` (400) for a task without it, such as without confidence."""
    array = outputs[name]
    if array is None:
        raise bad_request(f"output {name}: the model's task gives none")
    return array


def _listed(tensors: Collection[TensorSpec], unknown: object) -> str:
    """List the tensors for a sentence that rejects an ``unknown`` name."""
    choices = [tensor.name for tensor in tensors]
    names = ", ".join(choices)
    meant = did_you_mean(unknown, choices) if isinstance(unknown, str) else ""
    return f"there {'is' if len(tensors) == 1 else 'are'} {names if len(names) <= 120 else f'{names[:120]}…'}{meant}"


PARAMETER = "classification"
# Texts in one output: all of 50,000 classes and a thousand examples would be a gigabyte.
MAX_TEXTS = 65_536


def wanted_classes(document: Mapping[str, Any], interface: Interface) -> dict[str, int]:
    """Return the requested number of highest scores by output name, for checked outputs.

    Raises ``Rejection`` (400), also for a model that gives the best labels: their positions are no classes.
    """
    counts = {}
    for entry in document.get("outputs") or ():
        parameters = entry.get("parameters") or {}
        count = parameters.get(PARAMETER)
        if count is None:
            continue
        name = entry["name"]
        if type(count) is not int or count < 1:
            raise bad_request(f"output {name}: classification {shown(count)}, expected a whole number from 1")
        if TOP in interface.parameters:
            raise bad_request(
                f"output {name}: classification is of scores of all classes, and this model gives the best labels "
                f"and their scores: the request's parameter {TOP} says how many"
            )
        spec = interface.output_by_name[name]
        if len(spec.shape) < 2 or spec.datatype in ("BYTES", "BOOL"):
            raise bad_request(
                f"output {name}: classification is of an output with a number for each class; it is {spec}"
            )
        counts[name] = count
    return counts


def classified(name: str, scores: np.ndarray, count: int, labels: Sequence[str]) -> tuple[TensorSpec, np.ndarray]:
    """Return the ``count`` highest of ``scores`` [n, ...] of each example, or all if fewer.

    They are texts ``score:index``, with ``:label`` where the classes have names: BYTES [n, count], highest first.
    Raises ``Rejection`` (400) for too many.
    """
    rows = scores.reshape(len(scores), -1)
    count = min(count, rows.shape[1])
    if len(rows) * count > MAX_TEXTS:
        raise bad_request(
            f"output {name}: {count} classes of each of {len(rows)} examples; at most {MAX_TEXTS} texts are sent"
        )
    # Floats, so that unsigned numbers can be negated; NaN comes last, and of equal scores the lower class first.
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    named = labels if len(labels) == rows.shape[1] else ()
    texts = np.empty(order.shape, dtype=np.object_)
    for row, chosen in enumerate(order.tolist()):
        for place, index in enumerate(chosen):
            label = f":{named[index]}" if named else ""
            texts[row, place] = f"{rows[row, index]:f}:{index}{label}".encode()
    return TensorSpec(name, "BYTES", (FREE, FREE)), texts
