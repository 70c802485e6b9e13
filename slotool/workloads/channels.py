"""Which model of which server is asked in which form: plain values, from which any process can connect."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from slotool.extras import import_failed
from slotool.workloads.compute import ComputeEndpoint
from slotool.workloads.endpoint import Channel, Terms
from slotool.workloads.http_channel import HttpChannel, first_model
from slotool.workloads.infer import InferEndpoint
from slotool.workloads.target import ANSWER_WITHIN_S

GRPC = "grpc"
_HTTP = {"infer": InferEndpoint, "compute": ComputeEndpoint}


@dataclass(frozen=True)
class TargetServer:
    """``form``: infer or compute (HTTP), or grpc. ``answer_within_s``: timeout of a request.

    ``$SLOTOOL_TOKEN``, where it is set, is shown to the server.
    """

    address: str
    form: str
    model: str
    terms: Terms = field(default_factory=Terms)
    answer_within_s: float = ANSWER_WITHIN_S

    def connect(self) -> Channel:
        """Connections to it, for the running event loop."""
        if self.form == GRPC:
            _require_stubs()
            from slotool.workloads.grpc_channel import GrpcChannel

            return GrpcChannel(self.model, self.terms, self.address, self.answer_within_s)
        return HttpChannel(_HTTP[self.form](self.model, self.terms), self.address, self.answer_within_s)


def ask_first_model(address: str, form: str) -> str:
    """The first model the server lists. Raises ``InputError`` when it lists none, ``RunError`` without a server."""
    if form == GRPC:
        _require_stubs()
        from slotool.workloads import grpc_channel

        return grpc_channel.first_model(address)

    return asyncio.run(first_model(address))


def _require_stubs() -> None:
    try:
        import tritonclient.grpc  # noqa: F401
    except ImportError as error:
        raise import_failed(error, "tritonclient", "gRPC") from error
