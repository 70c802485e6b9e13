"""Open Inference Protocol V2 over HTTP: one FP32 tensor, or the tensors of any signature, in binary form or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import orjson

from slotool.models.inference_messages import json_values, of_bytes, to_bytes
from slotool.models.signature import TensorSpec
from slotool.workloads.client.endpoint import DTYPES, Endpoint, ServerAnswer, Terms, object_of
from slotool.workloads.client.served_signature import ServedSignature

HEADER_LENGTH = "inference-header-content-length"


class InferEndpoint(Endpoint):
    """``POST /v2/models/M/infer``: input ``input`` FP32 [1, *shape]; outputs ``label`` and ``confidence``."""

    name: ClassVar[str] = "infer"

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}/infer"

    def request(self, x: np.ndarray, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        header = _header(terms or self.terms, x.shape)
        headers = {HEADER_LENGTH: str(len(header)), "content-type": "application/octet-stream"}
        return headers, header + np.ascontiguousarray(x, dtype="<f4").tobytes()

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        document, said, tensors = _parted(headers, body)
        return ServerAnswer.of(_first_values(document, tensors), said)


def _parted(headers: Mapping[str, str], body: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the JSON document of an answer, its parameters, and the tensors in binary form. Raises ``ValueError``."""
    length = headers.get(HEADER_LENGTH)
    if length is not None and not length.isdecimal():
        raise ValueError(f"{HEADER_LENGTH} is not a number")
    split = len(body) if length is None else int(length)
    document = object_of(body[:split])
    parameters = document.get("parameters")
    return document, parameters if isinstance(parameters, dict) else {}, body[split:]


@lru_cache(maxsize=64)
def _header(terms: Terms, shape: tuple[int, ...]) -> bytes:
    """The JSON before the tensor. Requests that ask the same have the same: it is not to cost the client anything."""
    document = {
        "parameters": terms.parameters(),
        "inputs": [
            {
                "name": "input",
                "datatype": "FP32",
                "shape": [1, *shape],
                "parameters": {"binary_data_size": 4 * math.prod(shape)},
            }
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("label", "confidence")],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _first_values(document: Mapping[str, Any], tensors: bytes) -> dict[str, float]:
    """First value of each output, whether it came as JSON or as bytes after the header. Raises ``ValueError``."""
    values: dict[str, float] = {}
    offset = 0
    try:
        for output in document["outputs"]:
            size = (output.get("parameters") or {}).get("binary_data_size")
            if size is None:
                values[output["name"]] = np.asarray(output["data"]).ravel()[0].item()
                continue
            dtype = np.dtype(DTYPES[output["datatype"]])
            values[output["name"]] = np.frombuffer(tensors, dtype, count=1, offset=offset).item()
            offset += int(size)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"the response's outputs cannot be read ({type(error).__name__}: {error})") from error
    return values


class NamedInferEndpoint(InferEndpoint):
    """``POST /v2/models/M/infer`` with the inputs that the model's metadata lists. ``binary``: tensors in binary form,
    for servers that read it."""

    def __init__(self, model: str, terms: Terms, served: ServedSignature, *, binary: bool):
        super().__init__(model, terms)
        self._served, self._binary = served, binary
        self._head = lru_cache(maxsize=64)(self._make_head)

    def request(self, x: Any, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        inputs = self._served.signature.inputs
        if not self._binary:
            entries = [_entry(spec, x[spec.name].shape, {"data": json_values(x[spec.name])}) for spec in inputs]
            return {"content-type": "application/json"}, self._document(entries, terms or self.terms)
        raw = [to_bytes(spec, x[spec.name]) for spec in inputs]
        head = self._head(
            terms or self.terms,
            tuple((x[spec.name].shape, len(content)) for spec, content in zip(inputs, raw, strict=True)),
        )
        headers = {HEADER_LENGTH: str(len(head)), "content-type": "application/octet-stream"}
        return headers, b"".join([head, *raw])

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        document, said, tensors = _parted(headers, body)
        try:
            return self._served.answer(_arrays(document, tensors), said)
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"the response's outputs cannot be read ({type(error).__name__}: {error})") from error

    def _make_head(self, terms: Terms, given: tuple[tuple[tuple[int, ...], int], ...]) -> bytes:
        """The JSON before the tensors. Requests of the same shapes have the same: it is not to cost the client
        anything."""
        inputs = zip(self._served.signature.inputs, given, strict=True)
        entries = [_entry(spec, shape, {"parameters": {"binary_data_size": size}}) for spec, (shape, size) in inputs]
        return self._document(entries, terms)

    def _document(self, inputs: list[dict[str, Any]], terms: Terms) -> bytes:
        form = {"parameters": {"binary_data": True}} if self._binary else {}
        outputs = [{"name": spec.name, **form} for spec in self._served.outputs]
        document = {"parameters": terms.parameters(), "inputs": inputs, "outputs": outputs}
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _entry(spec: TensorSpec, shape: tuple[int, ...], content: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(shape), **content}


def _arrays(document: Mapping[str, Any], tensors: bytes) -> dict[str, np.ndarray]:
    """Each output's array, whether it came as JSON or as bytes after the header."""
    arrays: dict[str, np.ndarray] = {}
    at = 0
    for output in document["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            arrays[output["name"]] = np.asarray(output["data"])
            continue
        spec = TensorSpec(output["name"], output["datatype"], tuple(output["shape"]))
        arrays[spec.name] = of_bytes(spec, tensors[at : at + int(size)], spec.shape)
        at += int(size)
    return arrays
