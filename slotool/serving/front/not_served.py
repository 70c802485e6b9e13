"""What clients of the Open Inference Protocol and of Triton may ask for, and why it is not there."""

from __future__ import annotations

from slotool.printable import printable
from slotool.serving.front.oip import MODELS_ARE_FIXED
from slotool.serving.front.shared_memory_routes import PATH as SHARED_MEMORY
from slotool.serving.protocol.shared_memory import CUDA_NOT_SHARED, NOT_SHARED

SERVICE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
_LOGS = "what is logged is set when the server starts: --log for events, access-log in a service file for requests"
_TRACES = "what is traced is set when the server starts: --traces, and --traces-share for the share of requests"
_PAGES = {
    "/v2/repository/models/": MODELS_ARE_FIXED,
    f"{SHARED_MEMORY}/": NOT_SHARED,
    "/v2/cudasharedmemory/": CUDA_NOT_SHARED,
    "/v2/logging": _LOGS,
    "/v2/trace/setting": _TRACES,
}
_METHODS = {
    "ModelStreamInfer": "no state is kept between requests; send each of them by ModelInfer",
    "TraceSetting": _TRACES,
    "LogSettings": _LOGS,
    **dict.fromkeys((f"CudaSharedMemory{what}" for what in ("Status", "Register")), CUDA_NOT_SHARED),
}
_SHOWN = 80


def reason_of_page(path: str) -> str:
    """The sentence for a path of HTTP that is not served."""
    if path.startswith("/v2/models/") and path.endswith("/trace/setting"):
        return _TRACES
    served = (reason for pages, reason in _PAGES.items() if path.startswith(pages))
    return next(served, f"there is no page {path[:_SHOWN]}")


def reason_of_method(path: str) -> str:
    """The sentence for a method of gRPC, ``/SERVICE/METHOD``, that is not served."""
    service, _, method = path.removeprefix("/").partition("/")
    if service not in (SERVICE, HEALTH):
        return f"there is no service {printable(service[:_SHOWN])}: this server has {SERVICE} and {HEALTH}"
    if service == SERVICE and method in _METHODS:
        return f"{method} is not served: {_METHODS[method]}"
    return f"{service} has no method {printable(method[:_SHOWN])} here"
