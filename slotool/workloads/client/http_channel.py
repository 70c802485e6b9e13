"""Requests over HTTP, in the form of an ``Endpoint``."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from slotool import strict_json
from slotool.errors import InputError, RunError
from slotool.models.signature import Signature
from slotool.workloads.client.endpoint import Channel, Endpoint, Example, RequestResult, Terms
from slotool.workloads.client.http_client import HttpClient
from slotool.workloads.client.target import ANSWER_WITHIN_S, UNAUTHORIZED, reason, unauthorized

BINARY_EXTENSION = "binary_tensor_data"


class HttpChannel(Channel):
    """As many connections as there are outstanding requests: a limit would close the loop."""

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
    """The model's tensors, as its server states them, None when it states none that can be read; and whether the server
    reads tensors in binary form. Raises ``RunError`` when it cannot be reached, ``InputError`` when it wants a token.
    """
    client = HttpClient(address, ANSWER_WITHIN_S)
    try:
        stated = await _document(client, "GET", f"/v2/models/{quote(model, safe='')}")
        server = await _document(client, "GET", "/v2") if isinstance(stated, dict) else None
    except (OSError, TimeoutError) as error:
        raise RunError(f"no server answers at {address} ({reason(error)})") from error
    finally:
        await client.close()
    extensions = server.get("extensions") if isinstance(server, dict) else None
    try:
        signature = Signature.of_document(stated) if isinstance(stated, dict) else None
    except InputError:
        signature = None
    return signature, isinstance(extensions, list) and BINARY_EXTENSION in extensions


async def ask_parameter(address: str, model: str, name: str) -> str | None:
    """A parameter of the model's configuration, by Triton's extension; None where the server states none of this name.
    Raises ``RunError`` when it cannot be reached, ``InputError`` when it wants a token."""
    client = HttpClient(address, ANSWER_WITHIN_S)
    try:
        found = await _document(client, "GET", f"/v2/models/{quote(model, safe='')}/config")
    except (OSError, TimeoutError) as error:
        raise RunError(f"no server answers at {address} ({reason(error)})") from error
    finally:
        await client.close()
    for key in ("parameters", name, "string_value"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


async def first_model(address: str) -> str:
    """The first model a server lists, by the repository extension or, as slotool does, in its front page.

    Raises ``InputError`` when it lists none, wants a token or speaks another protocol, ``RunError`` when it cannot be
    reached.
    """
    client = HttpClient(address, ANSWER_WITHIN_S)
    try:
        names = _names(await _document(client, "POST", "/v2/repository/index", b'{"ready": true}'))
        if not names:
            front_page = await _document(client, "GET", "/")
            names = _names(front_page.get("models") if isinstance(front_page, dict) else None)
        speaks = bool(names) or isinstance(await _document(client, "GET", "/v2"), dict)
    except (OSError, TimeoutError) as error:
        raise RunError(f"no server answers at {address} ({reason(error)})") from error
    finally:
        await client.close()
    if not speaks:
        raise InputError(
            f"{address} is no server of the Open Inference Protocol, as slotool serve, Triton and KServe are: its /v2 "
            "has no JSON answer"
        )
    if not names:
        raise InputError(f"{address} lists no model; name one with --model")
    return names[0]


def _names(entries: Any) -> list[str]:
    """Model names: of a list of them, of objects that have one, or the keys of one object."""
    listed = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries or []]
    return [name for name in listed if isinstance(name, str) and name]


async def _document(client: HttpClient, method: str, path: str, body: bytes = b"") -> Any:
    """The JSON document of a 2xx answer, None for anything else. Raises ``InputError`` where a token is wanted."""
    headers = {"content-type": "application/json"} if body else {}
    response = await client.request(client.head(method, path), headers, body)
    if response.status in UNAUTHORIZED:
        raise unauthorized(client.address)
    try:
        return strict_json.decode(response.body) if 200 <= response.status < 300 else None
    except strict_json.JsonError:
        return None
