"""The standard health service of gRPC, ``grpc.health.v1.Health``, which the ``grpc`` probes of Kubernetes ask.

Source: github.com/grpc/grpc, doc/health-checking.md. Messages and stubs are those of ``grpcio-health-checking``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as v1
from grpc_health.v1 import health_pb2_grpc

from slotool.printable import printable

# Anybody may watch, and each looks for a change so often.
MAX_WATCHES = 64
LOOK_S = 0.5
_SHOWN = 80


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc says nothing of its types
    """``SERVING`` while ``is_ready``, of the server as a whole, the service with an empty name, and of ``services``."""

    def __init__(self, is_ready: Callable[[], bool], services: Sequence[str]):
        self._is_ready, self._services = is_ready, ("", *services)
        self._watches = 0
        self._ended = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Have ``server`` answer for it."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def end(self) -> None:
        """End every ``Watch``, which would have a server that ends wait for it, with the status of the moment."""
        self._ended.set()

    async def Check(self, request: Any, context: Any) -> Any:
        """The status of a service; ``NOT_FOUND`` of one that is not here."""
        if request.service not in self._services:
            here = ", ".join(name or '""' for name in self._services)
            sentence = f'there is no service "{printable(request.service[:_SHOWN])}" here; there are {here}'
            await context.abort(grpc.StatusCode.NOT_FOUND, sentence)
        return v1.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: Any, context: Any) -> None:
        """The status of a service now and whenever it has changed, ``SERVICE_UNKNOWN`` of one that is not here, until
        the client leaves or the server ends."""
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
        """The status of the moment, sent unless it is the one that was sent last."""
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
        known = v1.HealthCheckResponse
        if service not in self._services:
            return int(known.SERVICE_UNKNOWN)
        return int(known.SERVING if self._is_ready() else known.NOT_SERVING)
