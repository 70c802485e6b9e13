"""A model that another server has, over the Open Inference Protocol: slotool, Triton, KServe, MLServer."""

from __future__ import annotations

import math
import os
import re
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from slotool import devices, extras, strict_json
from slotool.errors import InputError, RunError, SlotoolError, TimedOut
from slotool.models import inference_messages as messages
from slotool.models.model import Model
from slotool.models.signature import Signature
from slotool.printable import reason
from slotool.tables import FULL, OperatingPoint

# Names the variable that holds the token of each server.
VARIABLE = "SLOTOOL_REMOTE_TOKENS"
# Answers of a server that may be another one in a moment: too many requests, no worker, no upstream.
RETRIED_STATUS = {429, 502, 503, 504}
FIRST_PAUSE_S = 0.02
MAX_TRIES = 3
# Default limit of a call with all its retries, seconds.
TIMEOUT_S = 10.0
# Maximum size of an answer.
MAX_ANSWER_BYTES = 64 << 20
BINARY_EXTENSION = "binary_tensor_data"
# Part of a URL after /v2/models/: a name and perhaps a version.
_NAMED = re.compile(r"([^/?#]+)(?:/versions/[^/?#]+)?")


class RemoteUnavailable(RunError):
    """The endpoint cannot be reached or rejects calls for now."""


class RemoteRejection(InputError):
    """The endpoint answered that the inputs are wrong. ``sentence``: its own words."""

    def __init__(self, url: str, sentence: str):
        super().__init__(f"{url} rejects the inputs: {sentence}")
        self.sentence = sentence


class RemoteModel(Model):
    """Model behind another server.

    ``timeout_s``: of a call with all its retries. ``signature``: known inputs and outputs; with one, the endpoint is
    not queried and may be down for now.

    A call that finds no connection, or is rejected for now, is repeated after a pause while time remains. A call that
    was sent and got no answer is not: it may have been computed. Raises ``InputError`` if the model is unknown there,
    ``RemoteRejection`` for inputs that it rejects, ``RemoteUnavailable`` if the endpoint cannot be reached,
    ``TimedOut`` when time is up.

    The server receives the token that ``remote_tokens`` has for it.
    """

    timeout_s: float
    # Name and versions that the server states; empty where it was not asked.
    declared: str = ""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S):
        if urlsplit(url).username is not None:
            raise InputError(f"{urlsplit(url).hostname}: the URL holds a user; name a token in ${VARIABLE} instead")
        if not timeout_s > 0:
            raise InputError(f"{url}: a timeout of {timeout_s:g} s leaves no time for a call")
        self.url, self.timeout_s = url, timeout_s
        self._authorization = headers_for(url)

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        """Return this model, as its server decides where it computes."""
        return self

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        return self._retried(inputs, self.timeout_s, math.inf)

    def run_within(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        """Run within ``timeout_s``, in at most ``MAX_TRIES`` tries, for optional calls; safe from several threads."""
        return self._retried(inputs, timeout_s, MAX_TRIES)

    def _retried(self, inputs: Mapping[str, np.ndarray], timeout_s: float, most: float) -> dict[str, np.ndarray]:
        deadline_s, pause_s, tries = time.monotonic() + timeout_s, FIRST_PAUSE_S, 0
        while True:
            left_s, tries = deadline_s - time.monotonic(), tries + 1
            if left_s <= 0:
                raise TimedOut(f"{self.url} did not answer within {timeout_s:.3g} s")
            try:
                return self._call(inputs, left_s)
            except RemoteUnavailable:
                if tries >= most or time.monotonic() + pause_s >= deadline_s:
                    raise
            time.sleep(pause_s)
            pause_s *= 2

    @abstractmethod
    def _call(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        """Make one call. Raises ``RemoteUnavailable`` if another try makes sense."""


class HttpModel(RemoteModel):
    """``http://host:8000/v2/models/NAME`` or ``…/NAME/versions/VERSION``, ``https`` too.

    Tensors are sent in binary form if the server states that it reads it.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, signature: Signature | None = None):
        super().__init__(url.rstrip("/"), timeout_s=timeout_s)
        import httpx

        parts = urlsplit(self.url)
        base, _, path = self.url.partition("/v2/models/")
        named = _NAMED.fullmatch(path)
        if not parts.hostname or named is None or {"..", "."} & set(unquote(self.url).split("/")):
            raise InputError(f"{url}: http://host:port/v2/models/NAME or …/NAME/versions/VERSION is expected")
        self.name = named[1]
        # No proxy of the environment: where a call goes is what was written.
        self._client = httpx.Client(timeout=timeout_s, trust_env=False, headers=self._authorization)
        self._server_url = f"{base}/v2"
        # Known once the server was asked, by the first call at the latest.
        self._binary: bool | None = None
        try:
            if signature is None:
                document = self._metadata(self.url, timeout_s)
                self.declared = _declared(document)
            self.signature = signature or Signature.of_document(document)
            if signature is None:
                self._binary = self._reads_binary(timeout_s)
        except SlotoolError:
            self.close()
            raise

    def close(self) -> None:
        self._client.close()

    def _metadata(self, url: str, timeout_s: float) -> dict[str, Any]:
        return strict_json.decode_object(self._send("GET", url, timeout_s=timeout_s)[0], url)

    def _reads_binary(self, timeout_s: float) -> bool:
        return BINARY_EXTENSION in (self._metadata(self._server_url, timeout_s).get("extensions") or ())

    def _call(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        deadline_s = time.monotonic() + timeout_s
        if self._binary is None:
            self._binary = self._reads_binary(timeout_s)
        body, head = messages.write_request(self.signature, inputs, binary=self._binary)
        kind = "application/json" if head is None else "application/octet-stream"
        headers = {"Content-Type": kind} | ({} if head is None else {messages.HEADER_LENGTH: str(head)})
        left_s = max(deadline_s - time.monotonic(), 1e-3)
        content, length = self._send("POST", f"{self.url}/infer", timeout_s=left_s, content=body, headers=headers)
        return messages.read_response(self.signature, content, length, self.url)[0]

    def _send(self, method: str, url: str, *, timeout_s: float, **request: Any) -> tuple[bytes, str | None]:
        """Return the body of an answer of status 200, and what it says of the length of its JSON."""
        import httpx

        try:
            with self._client.stream(method, url, timeout=timeout_s, **request) as answer:
                content = _whole(answer, url, timeout_s)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise RemoteUnavailable(f"{url}: no connection ({reason(error)})") from error
        except httpx.TimeoutException as error:
            raise TimedOut(f"{url} did not answer within {timeout_s:.3g} s") from error
        except httpx.HTTPError as error:
            raise RunError(f"{url}: the call failed ({reason(error)})") from error
        if answer.status_code in RETRIED_STATUS:
            raise RemoteUnavailable(f"{url} answered {answer.status_code}: {_sentence(content)}")
        if answer.status_code == 400:
            raise RemoteRejection(url, _sentence(content))
        if answer.status_code == 404:
            raise InputError(f"{url} answered {answer.status_code}: {_sentence(content)}")
        if answer.status_code in (401, 403):
            wants = (
                "the token shown is not its own" if self._authorization else f"it wants a token; name it in ${VARIABLE}"
            )
            raise RunError(f"{url} answered {answer.status_code}: {wants}")
        if answer.status_code != 200:
            raise RunError(f"{url} answered {answer.status_code}: {_sentence(content)}")
        return content, answer.headers.get(messages.HEADER_LENGTH)


class GrpcModel(RemoteModel):
    """``grpc://host:8001/NAME`` or ``…/NAME/VERSION``. Raises ``MissingPackageError`` without tritonclient."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, signature: Signature | None = None):
        super().__init__(url, timeout_s=timeout_s)
        extras.require("grpc", "tritonclient", needed_by="a model behind gRPC")
        from tritonclient import grpc

        parts = urlsplit(url)
        self.name, _, self._version = parts.path.strip("/").partition("/")
        if not parts.hostname or not self.name:
            raise InputError(f"{url}: grpc://host:port/NAME is expected")
        self._grpc = grpc
        self._client = grpc.InferenceServerClient(parts.netloc)
        try:
            self.signature = signature or self._signature(timeout_s)
        except SlotoolError:
            self.close()
            raise

    @classmethod
    def _request_input(cls, grpc: Any, name: str, datatype: str, array: np.ndarray) -> Any:
        tensor = grpc.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def close(self) -> None:
        self._client.close()

    def _signature(self, timeout_s: float) -> Signature:
        def ask() -> Any:
            return self._client.get_model_metadata(
                self.name, self._version, self._authorization, as_json=True, client_timeout=timeout_s
            )

        document = self._guarded(ask, timeout_s)
        self.declared = _declared(document)
        return Signature.of_document(_with_shapes(document))

    def _call(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        tensors = [self._request_input(self._grpc, s.name, s.datatype, inputs[s.name]) for s in self.signature.inputs]
        # By name: by default a server may return others.
        requested = [self._grpc.InferRequestedOutput(spec.name) for spec in self.signature.outputs]

        def ask() -> Any:
            return self._client.infer(
                self.name, tensors, self._version, requested, headers=self._authorization, client_timeout=timeout_s
            )

        response = self._guarded(ask, timeout_s)
        outputs = {spec.name: response.as_numpy(spec.name) for spec in self.signature.outputs}
        missing = [name for name, array in outputs.items() if array is None]
        if missing:
            raise RunError(f"{self.url} answered without output {missing[0]!r}")
        return outputs

    def _guarded(self, call: Any, timeout_s: float) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return call()
        except InferenceServerException as error:
            status, text = str(error.status()), f"{self.url}: {reason(error)}"
            if status.endswith(("UNAVAILABLE", "RESOURCE_EXHAUSTED")):
                raise RemoteUnavailable(text) from error
            if status.endswith("DEADLINE_EXCEEDED"):
                raise TimedOut(f"{self.url} did not answer within {timeout_s:.3g} s") from error
            if status.endswith("INVALID_ARGUMENT"):
                raise RemoteRejection(self.url, reason(error)) from error
            kind = InputError if status.endswith("NOT_FOUND") else RunError
            raise kind(text) from error


def _whole(answer: Any, url: str, timeout_s: float) -> bytes:
    """Return the body of an arriving answer. Raises ``TimedOut`` for a slow one, ``RunError`` for an endless one."""
    deadline_s, content = time.monotonic() + timeout_s, bytearray()
    for chunk in answer.iter_bytes():
        content += chunk
        if time.monotonic() > deadline_s:
            raise TimedOut(f"{url} did not answer within {timeout_s:.3g} s")
        if len(content) > MAX_ANSWER_BYTES:
            raise RunError(f"{url} answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(content)


def _declared(document: Mapping[str, Any]) -> str:
    """Return the name and versions in the metadata of a model."""
    versions = document.get("versions")
    names = versions if isinstance(versions, list) else []
    return f"{document.get('name', '')} {','.join(map(str, names))}".strip()


def open_remote(url: str, *, timeout_s: float = TIMEOUT_S, signature: Signature | None = None) -> RemoteModel:
    """Return the model behind ``url``, over HTTP or gRPC by its scheme, as ``RemoteModel`` has it."""
    kind = GrpcModel if urlsplit(url).scheme == "grpc" else HttpModel
    return kind(url, timeout_s=timeout_s, signature=signature)


def ask_shared_outputs(models: Sequence[Model], renames: Sequence[Mapping[str, str]]) -> None:
    """Request from remote ``models`` only the outputs that all of them have.

    ``renames``: for each model, new names of outputs by their present names.
    """
    called = [
        {tensor.name: new.get(tensor.name, tensor.name) for tensor in model.signature.outputs}
        for model, new in zip(models, renames, strict=True)
    ]
    shared = set.intersection(*(set(names.values()) for names in called))
    for model, names in zip(models, called, strict=True):
        common = tuple(tensor for tensor in model.signature.outputs if names[tensor.name] in shared)
        if isinstance(model, RemoteModel) and common:
            model.signature = Signature(model.signature.inputs, common)


def _with_shapes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Restore an empty shape, which protobuf's JSON omits."""
    return {side: [{"shape": [], **tensor} for tensor in metadata.get(side, ())] for side in ("inputs", "outputs")}


def _sentence(content: bytes) -> str:
    """Return the server's error message."""
    try:
        message = strict_json.decode(content)
    except strict_json.JsonError:
        message = content[:200].decode(errors="replace")
    text = message.get("error", message) if isinstance(message, dict) else message
    return reason(RunError(str(text) or "no reason"))


def headers_for(url: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the header with the token for the server behind ``url``; empty where none is named for it.

    Tokens come from environment variables: no artifact and no command line holds one. ``SLOTOOL_REMOTE_TOKENS`` names
    the variable of each server: ``models.example.com:8000=VARIABLE``, several apart by spaces. A token goes to the
    server that is named, host and port, and to no other.

    Raises ``InputError`` for an entry that is not HOST:PORT=NAME, and for a variable that is not set or holds no token.
    """
    for entry in environment.get(VARIABLE, "").split():
        server, equals, name = entry.partition("=")
        if not equals or not server or not name:
            raise InputError(f"{VARIABLE}: an entry is not HOST:PORT=NAME, such as models.example.com:8000=MY_TOKEN")
        if server.lower() != urlsplit(url).netloc.lower():
            continue
        token = environment.get(name, "").strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError(f"{VARIABLE}: ${name}, for {server}, is not set to a token of visible ASCII characters")
        return {"authorization": f"Bearer {token}"}
    return {}
