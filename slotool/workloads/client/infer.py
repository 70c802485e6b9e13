"""Open Inference Protocol V2 over HTTP with the binary tensor extension."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np

from slotool.workloads.client.endpoint import DTYPES, Endpoint, ServerAnswer, Terms, object_of

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
        length = headers.get(HEADER_LENGTH)
        if length is not None and not length.isdecimal():
            raise ValueError(f"{HEADER_LENGTH} is not a number")
        split = len(body) if length is None else int(length)
        document = object_of(body[:split])
        parameters = document.get("parameters")
        said = parameters if isinstance(parameters, dict) else {}
        return ServerAnswer.of(_outputs(document, body[split:]), said)


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


def _outputs(document: Mapping[str, Any], tensors: bytes) -> dict[str, float]:
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
