"""Open Inference Protocol V2 over gRPC for any ``tritonclient[grpc]``, on the event loop of HTTP.

Triton's ``ModelConfig``, ``ModelStatistics`` and ``RepositoryIndex`` are served too, and gRPC's health service. A
deadline is the nearer of gRPC's and the ``timeout`` parameter (µs). Messages and stubs are those of the
``tritonclient`` package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health_pb2 as v1
from grpc_health.v1 import health_pb2_grpc
from tritonclient.grpc import service_pb2 as v2

from slotool import __version__
from slotool.printable import printable
from slotool.serving import rejections, request_options
from slotool.serving.access import FORWARDED_FOR, Certificate
from slotool.serving.front.frontend import FrontEnd, explanation
from slotool.serving.front.oip import SERVICE, change_models, reason_of_method
from slotool.serving.grpc import messages as grpc_messages
from slotool.serving.monitoring.traces import TRACE_HEADER, trace_id
from slotool.serving.protocol import bounds
from slotool.serving.protocol.shared_memory import EXTENSION, NOT_SHARED, Regions
from slotool.serving.rejections import GRPC_CODES, Rejection
from slotool.serving.request import answer_of
from slotool.serving.served import ServedModel

# Limit of watching clients, and interval of their checks.
MAX_WATCHES = 64
LOOK_S = 0.5
_SHOWN = 80


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc says nothing of its types
    """Health service: ``SERVING`` while ``is_ready``, for the server (an empty name) and for ``services``."""

    def __init__(self, is_ready: Callable[[], bool], services: Sequence[str]):
        self._is_ready, self._services = is_ready, ("", *services)
        self._watches = 0
        self._ended = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register this service with ``server``."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def end(self) -> None:
        """End every ``Watch`` with the current status: the server would wait for them."""
        self._ended.set()

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status of a service; ``NOT_FOUND`` for an unknown one."""
        if request.service not in self._services:
            names = ", ".join(name or '""' for name in self._services)
            sentence = f'there is no service "{printable(request.service[:_SHOWN])}" here; there are {names}'
            await context.abort(grpc.StatusCode.NOT_FOUND, sentence)
        return v1.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: Any, context: Any) -> None:
        """Send a service's status now and at every change, until the client leaves or the server ends.

        An unknown service is ``SERVICE_UNKNOWN``.
        """
        if self._watches >= MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} clients watch already")
        self._watches += 1
        try:
            sent, is_last = None, False
            while not is_last:
                is_last = self._ended.is_set()
                sent = await self._sent_if_new(request.service, context, sent)
                await self._pause()
        finally:
            self._watches -= 1

    async def _sent_if_new(self, service: str, context: Any, sent: int | None) -> int:
        """Send the current status unless it equals ``sent``, and return it."""
        status = self._status(service)
        if status != sent:
            await context.write(v1.HealthCheckResponse(status=status))
        return status

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._ended.wait()
        except TimeoutError:
            pass

    def _status(self, service: str) -> int:
        statuses = v1.HealthCheckResponse
        if service not in self._services:
            return int(statuses.SERVICE_UNKNOWN)
        return int(statuses.SERVING if self._is_ready() else statuses.NOT_SERVING)


EXTENSIONS = ["classification", "model_configuration", "statistics", "model_repository"]
# As over HTTP, probes show no token.
OPEN = (v2.ServerLiveRequest, v2.ServerReadyRequest)
# Calls open at once on one connection; HTTP/2 has the client keep further ones back.
MAX_STREAMS = 256
# gRPC closes further connections at once, and cannot give a reason.
MAX_CONNECTIONS = 1_024
# How long a rejection by quota waits for the message, which names the model to count.
NAMED_WITHIN_S = 0.1


class GrpcFrontEnd:
    """gRPC server over one ``FrontEnd``, to be started and stopped inside the running event loop.

    ``address``: ``host:port``, IPv6 in brackets. ``certificate``: encrypts connections, if given.
    """

    def __init__(self, front: FrontEnd, address: str, certificate: Certificate | None = None):
        self._front = front
        self._address = address
        self._certificate = certificate
        self._server: grpc.aio.Server | None = None
        self._open_calls = 0
        self._health = HealthService(lambda: front.router.unready() is None, (SERVICE,))

    async def start(self) -> None:
        """Listen. Raises ``OSError`` when the address has been taken."""
        limits = self._front.limits
        options = [
            ("grpc.so_reuseport", 0),
            # It is fixed, while other models may be served later. gRPC gives no reason of ours for longer messages;
            # within it our limit does.
            ("grpc.max_receive_message_length", limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_connection_idle_ms", int(limits.keep_alive_s * 1_000)),
            ("grpc.max_metadata_size", limits.head_bytes),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.max_allowed_incoming_connections", min(limits.connections, MAX_CONNECTIONS)),
            # Streams that have ended count until they are freed; beyond 100 of these gRPC resets new ones unread.
            ("grpc.http2.max_deallocating_streams", 100 * MAX_STREAMS),
            # gRPC silently cancels some calls beyond a thousand that wait for their handler. Let more wait than are
            # open at once, so that our own limits reject each.
            ("grpc.server.max_pending_requests", 4 * limits.connections),
            ("grpc.server.max_pending_requests_hard_limit", 4 * limits.connections),
        ]
        self._server = grpc.aio.server(options=options)
        methods = {name: self._method(*served) for name, served in self._methods().items()}
        # The first handler with a method serves it.
        self._health.add_to(self._server)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods), _NotServed()))
        try:
            if self._certificate is None:
                self._server.add_insecure_port(self._address)
            else:
                self._server.add_secure_port(self._address, _credentials(self._certificate))
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._address}: {error}") from None
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no new requests, and answer pending ones for at most ``grace_s`` seconds."""
        self._health.end()
        if self._server is not None:
            await self._server.stop(grace_s)

    def _methods(self) -> dict[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]]:
        return {
            "ServerLive": (self._live, v2.ServerLiveRequest),
            "ServerReady": (self._ready, v2.ServerReadyRequest),
            "ServerMetadata": (self._server_metadata, v2.ServerMetadataRequest),
            "ModelReady": (self._model_ready, v2.ModelReadyRequest),
            "ModelMetadata": (self._model_metadata, v2.ModelMetadataRequest),
            "ModelConfig": (self._model_config, v2.ModelConfigRequest),
            "ModelStatistics": (self._model_statistics, v2.ModelStatisticsRequest),
            "RepositoryIndex": (self._repository_index, v2.RepositoryIndexRequest),
            "RepositoryModelLoad": (self._load, v2.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (self._unload, v2.RepositoryModelUnloadRequest),
            "SystemSharedMemoryRegister": (self._register_region, v2.SystemSharedMemoryRegisterRequest),
            "SystemSharedMemoryUnregister": (self._unregister_region, v2.SystemSharedMemoryUnregisterRequest),
            "CudaSharedMemoryUnregister": (self._unregister_none, v2.CudaSharedMemoryUnregisterRequest),
            "SystemSharedMemoryStatus": (self._region_status, v2.SystemSharedMemoryStatusRequest),
            "ModelInfer": (self._infer, v2.ModelInferRequest),
        }

    def _method(self, handle: Callable[[Any, Any], Awaitable[Any]], kind: Any) -> grpc.RpcMethodHandler:
        """Wrap ``handle``: bytes in and out, rejections as status codes, every dropped inference counted."""

        async def serve(messages: AsyncIterator[bytes], context: Any) -> bytes:
            model, message, began_us = "", b"", self._front.router.now_us()
            is_inference = kind is v2.ModelInferRequest
            self._open_calls += 1
            try:
                # As many as HTTP may have connections.
                if self._open_calls > (most := self._front.limits.connections):
                    raise rejections.too_many_calls(most)
                if self._front.clients is not None and kind not in OPEN:
                    self._front.let_in(_authorization(context), is_inference)
                if self._front.addresses is not None and is_inference:
                    self._front.let_address_in(_peer(context), _forwarded_for(context))
                message = await self._message(messages, context)
                request = grpc_messages.parse(message, kind)
                model = getattr(request, "model_name", "")
                response = await handle(request, context)
                sent: bytes = response.SerializeToString()
                self._finish(context, kind, model, began_us, message, sent, response)
                return sent
            except Rejection as error:
                rejection = error
            except asyncio.CancelledError:
                # gRPC cancels a handler when the client leaves, and also when the client's deadline has passed.
                left_s = context.time_remaining()
                cause = rejections.client_gone() if left_s is None or left_s > 0 else rejections.expired(0.0)
                if is_inference:
                    self._front.accounts.dropped(model, cause.cause)
                self._finish(context, kind, model, began_us, message, b"", status=cause.status)
                raise
            finally:
                self._open_calls -= 1
            if rejection.cause == "quota" and not message:
                model = await _named_first(messages)
            if is_inference:
                self._front.accounts.dropped(model, rejection.cause)
            traced = self._finish(context, kind, model, began_us, message, b"", status=rejection.status)
            trailers = [("cause", rejection.cause), *traced]
            if rejection.retry_after_s is not None:
                trailers.append(("retry-after", str(rejection.retry_after_s)))
            await context.abort(grpc.StatusCode[GRPC_CODES[rejection.status]], str(rejection), tuple(trailers))
            raise AssertionError("abort raises")

        # On the wire a unary request is a stream of one. Taken as such, a request that never comes can time out, and
        # one that is cancelled before it is read is counted.
        return grpc.stream_unary_rpc_method_handler(serve)

    def _finish(
        self,
        context: Any,
        kind: Any,
        model: str,
        began_us: float,
        message: bytes,
        sent: bytes,
        response: Any = None,
        status: int = 200,
    ) -> list[tuple[str, str]]:
        """Log the request, if there is an access log; return its trace context as trailing metadata.

        ``status``: as over HTTP, or 503 where gRPC says ``ready: false``.
        """
        front = self._front
        if not getattr(response, "ready", True):
            status = 503
        metadata = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        traceparent = metadata.get(TRACE_HEADER)
        traced = [] if trace_id(traceparent) is None else [(TRACE_HEADER, str(traceparent))]
        if traced and response is not None:
            context.set_trailing_metadata(tuple(traced))
        if front.has_records:
            front.record(
                metadata,
                is_inference=kind is v2.ModelInferRequest,
                protocol="grpc",
                client=front.client_name(_authorization(context)),
                peer=_peer(context),
                path=f"/{SERVICE}/{kind.DESCRIPTOR.name.removesuffix('Request')}",
                model=model,
                status=status,
                total_us=front.router.now_us() - began_us,
                bytes_in=len(message),
                bytes_out=len(sent),
                answer=grpc_messages.facts_of(response) if isinstance(response, v2.ModelInferResponse) else {},
            )
        return traced

    async def _message(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        """Read the request's only message. Raises ``Rejection``."""
        limits = self._front.limits
        try:
            async with asyncio.timeout(limits.body_s):
                message = await anext(messages)
        except TimeoutError:
            raise rejections.too_slow(f"the message did not arrive within {limits.body_s:g} s") from None
        except StopAsyncIteration:
            # gRPC has rejected a message beyond its limit, and the call has no peer any more. The client gets gRPC's
            # sentence; ours is only counted.
            if not context.peer():
                raise bounds.too_large(limits.body_bytes) from None
            raise rejections.bad_request("the request has no message") from None
        if len(message) > bounds.OVERHEAD_BYTES:
            # The largest for any model; compressed messages count once inflated.
            interfaces = self._front.interfaces.values()
            most = max(bounds.message_bytes(interface, limits.body_bytes) for interface in interfaces)
            if len(message) > most:
                raise bounds.too_large(most)
        return message

    def _named(self, request: Any) -> ServedModel:
        name = request.model_name if hasattr(request, "model_name") else request.name
        version = getattr(request, "model_version", "") or getattr(request, "version", "") or None
        return self._front.model(name, version)

    async def _live(self, request: Any, context: Any) -> Any:
        return v2.ServerLiveResponse(live=True)

    async def _ready(self, request: Any, context: Any) -> Any:
        """Return not ready while no worker could take a request, and while the server ends."""
        return v2.ServerReadyResponse(ready=self._front.router.unready() is None)

    async def _server_metadata(self, request: Any, context: Any) -> Any:
        extensions = EXTENSIONS if self._front.shared_memory is None else [*EXTENSIONS, EXTENSION]
        return v2.ServerMetadataResponse(name="slotool", version=__version__, extensions=extensions)

    async def _model_ready(self, request: Any, context: Any) -> Any:
        """Return False and no error for a model that is not served, like Triton."""
        try:
            self._named(request)
        except Rejection:
            return v2.ModelReadyResponse(ready=False)
        return v2.ModelReadyResponse(ready=self._front.router.unready() is None)

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        served = self._named(request)
        interface = self._front.interfaces[served.name]
        return grpc_messages.metadata_message(interface.metadata(served.model_name, self._front.versions(served)))

    async def _model_config(self, request: Any, context: Any) -> Any:
        served = self._named(request)
        return grpc_messages.config_message(self._front.interfaces[served.name].config(served.model_name))

    async def _model_statistics(self, request: Any, context: Any) -> Any:
        """Return the statistics of one model, or of all when none is named."""
        names = [self._named(request).name] if request.name or request.version else list(self._front.models)
        return grpc_messages.statistics_message(self._front.statistics_of(names))

    async def _repository_index(self, request: Any, context: Any) -> Any:
        models = self._front.index()
        return v2.RepositoryIndexResponse(models=[v2.RepositoryIndexResponse.ModelIndex(**model) for model in models])

    async def _load(self, request: Any, context: Any) -> Any:
        authorization = _authorization(context)
        parameters = grpc_messages.parameters_of(request.parameters)
        await change_models(self._front, authorization, request.model_name, parameters, load=True)
        return v2.RepositoryModelLoadResponse()

    async def _unload(self, request: Any, context: Any) -> Any:
        authorization = _authorization(context)
        parameters = grpc_messages.parameters_of(request.parameters)
        await change_models(self._front, authorization, request.model_name, parameters, load=False)
        return v2.RepositoryModelUnloadResponse()

    async def _register_region(self, request: Any, context: Any) -> Any:
        document = {"key": request.key, "byte_size": request.byte_size, "offset": request.offset}
        self._regions(context).register(request.name, document)
        return v2.SystemSharedMemoryRegisterResponse()

    async def _unregister_region(self, request: Any, context: Any) -> Any:
        if self._front.shared_memory is not None:  # else there are none
            self._regions(context).unregister(request.name)
        return v2.SystemSharedMemoryUnregisterResponse()

    async def _unregister_none(self, request: Any, context: Any) -> Any:
        """Do nothing where no region can be registered: Triton's clients begin with this."""
        return v2.CudaSharedMemoryUnregisterResponse()

    async def _region_status(self, request: Any, context: Any) -> Any:
        return grpc_messages.regions_message(self._regions(context).status(request.name))

    def _regions(self, context: Any) -> Regions:
        """Return the client's regions. Raises ``Rejection`` (404) where none are served."""
        regions = self._front.regions_of(_authorization(context))
        if regions is None:
            raise rejections.not_found(NOT_SHARED)
        return regions

    async def _infer(self, request: Any, context: Any) -> Any:
        front = self._front
        arrival_us = front.router.now_us()
        served = self._named(request)
        interface = front.interfaces[served.name]
        regions = None if front.shared_memory is None else front.regions_of(_authorization(context))
        infer_request = grpc_messages.parse_infer(request, interface, regions)
        metadata = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        options = request_options.merged(infer_request.options, request_options.from_headers(metadata))
        options = front.asked_by(_nearer(options, context.time_remaining()), _authorization(context), infer_request.id)
        answer = await answer_of(front, served.name, infer_request.x, options, arrival_us, context.cancelled)
        outputs = {name: answer.output(name) for name in infer_request.outputs}
        parameters = explanation(answer)
        return grpc_messages.format_infer(
            served.model_name, served.version, interface, infer_request, outputs, parameters
        )


class _NotServed(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc says nothing of its types
    """Handler that rejects any other method before its message is read."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        sentence = reason_of_method(handler_call_details.method)

        async def reject(messages: AsyncIterator[bytes], context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, sentence)

        return grpc.stream_stream_rpc_method_handler(reject)


async def _named_first(messages: AsyncIterator[bytes]) -> str:
    """Return the model of an inference that is rejected unread, from field 1; empty if it does not come in time."""
    try:
        async with asyncio.timeout(NAMED_WITHIN_S):
            return grpc_messages.leading_text(await anext(messages))
    except (TimeoutError, StopAsyncIteration):
        return ""


def _peer(context: Any) -> str:
    """Return the client's address; gRPC says ``ipv4:ADDRESS:PORT``, an IPv6 address in escaped brackets."""
    address: str = unquote(context.peer()).partition(":")[2].rpartition(":")[0]
    return address.strip("[]")


def _authorization(context: Any) -> str | None:
    shown = [value for name, value in context.invocation_metadata() if name == "authorization"]
    return shown[0] if len(shown) == 1 else None


def _forwarded_for(context: Any) -> str:
    return ",".join(value for name, value in context.invocation_metadata() if name == FORWARDED_FOR)


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return credentials that use the latest certificate for each new connection."""

    def configured() -> grpc.ServerCertificateConfiguration:
        key, chain, authorities = certificate.texts
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)

    must_show = certificate.texts[2] is not None
    return grpc.dynamic_ssl_server_credentials(configured(), configured, require_client_authentication=must_show)


def _nearer(options: request_options.RequestOptions, left_s: float | None) -> request_options.RequestOptions:
    """Return the options with gRPC's deadline, where that is nearer."""
    if left_s is None:
        return options
    if left_s <= 0:
        raise rejections.expired(0.0)
    return replace(options, timeout_us=min(options.timeout_us, left_s * 1e6))
