"""Requests over HTTP: the Open Inference Protocol V2, and POST /compute of the Tolerance Tiers paper."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np

from slotool import strict_json
from slotool.errors import InputError, RunError, SlotoolError
from slotool.models.inference_messages import HEADER_LENGTH, read_response, write_request
from slotool.models.signature import Signature
from slotool.workloads.client.endpoint import (
    Channel,
    Endpoint,
    Example,
    RequestResult,
    ServedSignature,
    ServerAnswer,
    Terms,
    object_of,
)
from slotool.workloads.client.http_client import HttpClient
from slotool.workloads.client.target import ANSWER_WITHIN_S, UNAUTHORIZED, reason, unauthorized


class ComputeEndpoint(Endpoint):
    """``POST /compute``: a ``.npy`` body; headers Model, Tolerance, Objective, Deadline-Ms, Min-Accuracy, Priority."""

    name: ClassVar[str] = "compute"

    @property
    def path(self) -> str:
        return "/compute"

    def request(self, x: np.ndarray, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(x, dtype=np.float32), allow_pickle=False)
        terms = terms or self.terms
        document = {
            "Tolerance": _plain(terms.tolerance),
            "Objective": terms.objective,
            "Deadline-Ms": None if terms.deadline_s is None else _plain(terms.deadline_s * 1e3),
            "Min-Accuracy": _plain(terms.min_accuracy),
            "Priority": _plain(terms.priority or None),
        }
        headers = {"Model": self.model, "Content-Type": "application/x-npy"}
        return headers | {name: value for name, value in document.items() if value is not None}, buffer.getvalue()

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        document = object_of(body)
        return ServerAnswer.of(document, document)


def _plain(value: float | None) -> str | None:
    return None if value is None else f"{value:.10g}"


class InferEndpoint(Endpoint):
    """``POST /v2/models/M/infer`` with the inputs of ``served``. ``binary``: send tensors in binary form."""

    name: ClassVar[str] = "infer"

    def __init__(self, model: str, terms: Terms, served: ServedSignature, *, binary: bool = True):
        super().__init__(model, terms)
        self._served, self._binary = served, binary
        self._signature = Signature(served.signature.inputs, served.outputs)

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}/infer"

    def request(self, x: Any, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        document = (terms or self.terms).parameters()
        body, json_length = write_request(self._signature, x, binary=self._binary, parameters=document)
        if json_length is None:
            return {"content-type": "application/json"}, body
        return {HEADER_LENGTH: str(json_length), "content-type": "application/octet-stream"}, body

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        try:
            outputs, parameters = read_response(
                self._signature, body, headers.get(HEADER_LENGTH.lower()), "the response"
            )
            return self._served.answer(outputs, parameters)
        except (SlotoolError, IndexError) as error:
            raise ValueError(str(error)) from error


BINARY_EXTENSION = "binary_tensor_data"


class HttpChannel(Channel):
    """Channel with as many connections as outstanding requests: a limit would close the loop."""

    def __init__(self, endpoint: Endpoint, address: str, answer_within_s: float):
        self.where = address + endpoint.path
        self._endpoint, self._client = endpoint, HttpClient(address, answer_within_s)
        self._head = self._client.head("POST", endpoint.path)

    async def ask(self, x: Example, number: int, terms: Terms | None = None) -> RequestResult:
        headers, body = self._endpoint.request(x, number, terms)
        try:
            response = await self._client.request(self._head, headers, body)
        except (OSError, TimeoutError) as error:
            return RequestResult(0, time.perf_counter(), error=reason(error))
        if not 200 <= response.status < 300:
            return RequestResult(response.status, response.at_s, error=self._endpoint.error_in(response.body))
        try:
            return RequestResult(response.status, response.at_s, self._endpoint.answer(response.headers, response.body))
        except ValueError as error:
            return RequestResult(response.status, response.at_s, error=str(error))

    async def close(self) -> None:
        await self._client.close()


async def ask_signature(address: str, model: str) -> tuple[Signature | None, bool]:
    """Return the server's signature of the model or None, and True if the server reads binary tensors.

    Raises ``RunError`` if it cannot be reached, ``InputError`` if it requires a token.
    """
    async with _client_of(address) as client:
        stated = await _document(client, "GET", f"/v2/models/{quote(model, safe='')}")
        server = await _document(client, "GET", "/v2") if isinstance(stated, dict) else None
    extensions = server.get("extensions") if isinstance(server, dict) else None
    try:
        signature = Signature.of_document(stated) if isinstance(stated, dict) else None
    except InputError:
        signature = None
    return signature, isinstance(extensions, list) and BINARY_EXTENSION in extensions


async def ask_parameter(address: str, model: str, name: str) -> str | None:
    """Return a parameter of the model's configuration (Triton's extension), or None.

    Raises ``RunError`` if the server cannot be reached, ``InputError`` if it requires a token.
    """
    async with _client_of(address) as client:
        reply = await _document(client, "GET", f"/v2/models/{quote(model, safe='')}/config")
    for key in ("parameters", name, "string_value"):
        reply = reply.get(key) if isinstance(reply, dict) else None
    return reply if isinstance(reply, str) else None


async def first_model(address: str) -> str:
    """Return the first model a server lists, by the repository extension or, as slotool does, in its front page.

    Raises ``InputError`` when it lists none, wants a token or speaks another protocol, ``RunError`` when it cannot be
    reached.
    """
    async with _client_of(address) as client:
        names = _names(await _document(client, "POST", "/v2/repository/index", b'{"ready": true}'))
        if not names:
            front_page = await _document(client, "GET", "/")
            names = _names(front_page.get("models") if isinstance(front_page, dict) else None)
        speaks = bool(names) or isinstance(await _document(client, "GET", "/v2"), dict)
    if not speaks:
        raise InputError(
            f"{address} is no server of the Open Inference Protocol, as slotool serve, Triton and KServe are: its /v2 "
            "has no JSON answer"
        )
    if not names:
        raise InputError(f"{address} lists no model; name one with --model")
    return names[0]


@asynccontextmanager
async def _client_of(address: str) -> AsyncIterator[HttpClient]:
    """Open a client for a few questions. Raises ``RunError`` where the server cannot be reached."""
    client = HttpClient(address, ANSWER_WITHIN_S)
    try:
        yield client
    except (OSError, TimeoutError) as error:
        raise RunError(f"no server answers at {address} ({reason(error)})") from error
    finally:
        await client.close()


def _names(entries: Any) -> list[str]:
    """Return the model names: of a list of them, of objects that have one, or the keys of one object."""
    listed = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries or []]
    return [name for name in listed if isinstance(name, str) and name]


async def _document(client: HttpClient, method: str, path: str, body: bytes = b"") -> Any:
    """Return the JSON document of a 2xx answer, else None. Raises ``InputError`` if a token is required."""
    headers = {"content-type": "application/json"} if body else {}
    response = await client.request(client.head(method, path), headers, body)
    if response.status in UNAUTHORIZED:
        raise unauthorized(client.address)
    try:
        return strict_json.decode(response.body) if 200 <= response.status < 300 else None
    except strict_json.JsonError:
        return None
