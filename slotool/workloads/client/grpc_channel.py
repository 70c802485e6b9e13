"""Requests over gRPC: the Open Inference Protocol V2 by tritonclient's messages and stubs (``slotool[grpc]``)."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slotool.errors import InputError, RunError
from slotool.models.inference_messages import of_bytes, to_bytes
from slotool.models.signature import Signature, TensorSpec
from slotool.workloads.client.endpoint import (
    Channel,
    Example,
    RequestResult,
    ServedSignature,
    ServerAnswer,
    Terms,
)
from slotool.workloads.client.target import (
    ANSWER_WITHIN_S,
    UNAUTHORIZED,
    authorization,
    client_certificate,
    unauthorized,
)

# The HTTP status of each code by google/rpc/code.proto, so that one log holds both protocols.
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# Only its text tells a server's status from the core's own for a missing answer.
_NO_ANSWER = {
    grpc.StatusCode.DEADLINE_EXCEEDED: re.compile("deadline exceeded", re.IGNORECASE),
    grpc.StatusCode.UNAVAILABLE: re.compile(
        ".*(failed to connect|socket closed|connection (reset|refused)|broken pipe|goaway|dns resolution).*",
        re.IGNORECASE,
    ),
}
# The core's text for a server that answers in HTTP/1.1.
_OF_HTTP = re.compile("http1.x serve|failed parsing http/2", re.IGNORECASE)
NO_GRPC_PORT = "this port speaks HTTP, not gRPC; name the port that the server's --grpc-port has"


class GrpcChannel(Channel):
    """``ModelInfer`` on one HTTP/2 connection, which has no limit of outstanding requests on the client's side.

    ``served``: the model's tensors.
    """

    def __init__(self, model: str, terms: Terms, address: str, answer_within_s: float, served: ServedSignature):
        self.where = f"{address} (gRPC)"
        self._model = model
        self._terms = terms
        self._served = served
        self._shown = tuple(authorization().items())
        self._answer_within_s = answer_within_s
        # Processes of one test must not share a connection, nor tests one after the other.
        self._channel = _channel(grpc.aio, address, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def ask(self, x: Example, number: int, terms: Terms | None = None) -> RequestResult:
        request = self._request(x, number, terms or self._terms)
        try:
            response = await self._stub.ModelInfer(request, timeout=self._answer_within_s, metadata=self._shown)
        except grpc.aio.AioRpcError as error:
            return _failure(error)
        at_s = time.perf_counter()
        try:
            return RequestResult(200, at_s, self._answer(response))
        except ValueError as error:
            return RequestResult(200, at_s, error=str(error))

    async def close(self) -> None:
        await self._channel.close()

    def _request(self, x: Example, number: int, terms: Terms) -> Any:
        request = service_pb2.ModelInferRequest(model_name=self._model, id=str(number))
        assert not isinstance(x, np.ndarray)
        for spec in self._served.signature.inputs:
            array = x[spec.name]
            request.inputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
            request.raw_input_contents.append(to_bytes(spec, array))
        for spec in self._served.outputs:
            request.outputs.add(name=spec.name)
        for name, value in terms.parameters().items():
            field = {str: "string_param", int: "int64_param", float: "double_param"}[type(value)]
            setattr(request.parameters[name], field, value)
        return request

    def _answer(self, response: Any) -> ServerAnswer:
        parameters = response.parameters.items()
        fields = {name: getattr(p, p.WhichOneof("parameter_choice") or "", None) for name, p in parameters}
        return self._served.answer(_arrays(response), fields)


def authority(address: str) -> str:
    """Return ``host:port`` of an address with a scheme."""
    return address.partition("://")[2] or address


def _channel(module: Any, address: str, options: Sequence[tuple[str, Any]] = ()) -> Any:
    """Open a channel of ``grpc`` or ``grpc.aio``, TLS for https://; $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names roots."""
    if address.startswith("https://"):
        certificate = client_certificate()
        return module.secure_channel(
            authority(address), grpc.ssl_channel_credentials(None, certificate, certificate), options
        )
    return module.insecure_channel(authority(address), options)


def first_model(address: str) -> str:
    """Return the repository index's first model. Raises ``InputError`` without one, ``RunError`` without a server."""
    request = service_pb2.RepositoryIndexRequest(ready=True)
    index, error = _asked_once(address, "RepositoryIndex", request)
    if error:
        raise InputError(f"{address} lists no model ({error}); name one with --model")
    if not index.models:
        raise InputError(f"{address} lists no model; name one with --model")
    return str(index.models[0].name)


def ask_signature(address: str, model: str) -> Signature | None:
    """Return the server's signature of the model, or None. Raises ``RunError`` without a server."""
    stated, error = _asked_once(address, "ModelMetadata", service_pb2.ModelMetadataRequest(name=model))
    if error:
        return None
    try:
        return Signature(*(tuple(map(_spec, tensors)) for tensors in (stated.inputs, stated.outputs)))
    except InputError:
        return None


def ask_parameter(address: str, model: str, name: str) -> str | None:
    """Return a parameter of the model's configuration (Triton's extension), or None. Raises ``RunError``."""
    stated, error = _asked_once(address, "ModelConfig", service_pb2.ModelConfigRequest(name=model))
    return None if error else stated.config.parameters[name].string_value or None


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape))


def _asked_once(address: str, method: str, request: Any) -> tuple[Any, str]:
    """Return the answer to ``request``, or the reason for none."""
    with _channel(grpc, address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            shown = tuple(authorization().items())
            return getattr(stub, method)(request, timeout=ANSWER_WITHIN_S, metadata=shown), ""
        except grpc.RpcError as error:
            failed = _failure(error)
            if failed.status == 0:
                raise RunError(f"no server answers at {address} over gRPC ({failed.error})") from error
            if failed.status in UNAUTHORIZED:
                raise unauthorized(address) from error
            return None, failed.error


def _failure(error: Any) -> RequestResult:
    at_s, details = time.perf_counter(), error.details() or error.code().name
    if error.code() == grpc.StatusCode.UNAVAILABLE and _OF_HTTP.search(details):
        return RequestResult(0, at_s, error=NO_GRPC_PORT)
    sentence = " ".join(details.split())[:200]
    made_up = _NO_ANSWER.get(error.code())
    if made_up is None or not made_up.fullmatch(sentence):
        return RequestResult(_STATUSES.get(error.code(), 500), at_s, error=sentence)
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        sentence = "no answer within the time allowed"
    return RequestResult(0, at_s, error=sentence)


def _arrays(response: Any) -> dict[str, np.ndarray]:
    """Return each output, raw or in the field of its type. Raises ``ValueError``."""
    raw = list(response.raw_output_contents)
    try:
        return {tensor.name: _array(tensor, raw[i] if raw else None) for i, tensor in enumerate(response.outputs)}
    except (InputError, IndexError, TypeError, OverflowError, struct.error) as error:
        raise ValueError(f"the response's outputs cannot be read ({type(error).__name__}: {error})") from error


def _array(tensor: Any, raw: bytes | None) -> np.ndarray:
    spec = _spec(tensor)
    if raw is not None:
        return of_bytes(spec, raw, spec.shape)
    values = [value for _, field in tensor.contents.ListFields() for value in field]
    array = np.empty(len(values), dtype=spec.dtype)
    array[:] = values
    return array.reshape(spec.shape)
