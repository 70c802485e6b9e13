"""Open Inference Protocol V2 over HTTP for a model of any signature, with binary tensors or as JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import orjson

from slotool.models.inference_messages import json_values, of_bytes, to_bytes
from slotool.models.signature import TensorSpec
from slotool.workloads.client.endpoint import Endpoint, ServerAnswer, Terms, object_of
from slotool.workloads.client.infer import HEADER_LENGTH
from slotool.workloads.client.served_signature import ServedSignature


class NamedInferEndpoint(Endpoint):
    """``POST /v2/models/M/infer`` with the inputs that the model's metadata lists. ``binary``: tensors in binary form,
    for servers that read it."""

    name: ClassVar[str] = "infer"

    def __init__(self, model: str, terms: Terms, served: ServedSignature, *, binary: bool):
        super().__init__(model, terms)
        self._served, self._binary = served, binary
        self._head = lru_cache(maxsize=64)(self._make_head)

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}/infer"

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
        length = headers.get(HEADER_LENGTH)
        if length is not None and not length.isdecimal():
            raise ValueError(f"{HEADER_LENGTH} is not a number")
        split = len(body) if length is None else int(length)
        document = object_of(body[:split])
        parameters = document.get("parameters")
        said = parameters if isinstance(parameters, dict) else {}
        try:
            return self._served.answer(_outputs(document, body[split:]), said)
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


def _outputs(document: Mapping[str, Any], tensors: bytes) -> dict[str, np.ndarray]:
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
