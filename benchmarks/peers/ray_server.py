"""Ray Serve: a deployment that reads Starlette's request, tuned for throughput as its documentation has it.

``python ray_server.py PORT``."""

from __future__ import annotations

import logging
import os
import signal
import sys

# Before ray is imported, whose processes inherit it: user code runs in the replica's own event loop.
os.environ["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = "1"

import ray
from network import Network, label
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse


# By default five requests at a time are let through to a replica.
@serve.deployment(max_ongoing_requests=100, logging_config={"enable_access_log": False})
class Digits:
    def __init__(self) -> None:
        self.network = Network().eval()

    async def __call__(self, request: Request) -> JSONResponse:
        # A response of Starlette's has its length; what Ray makes of a dict comes in chunks, which the client in C
        # does not read.
        return JSONResponse({"label": label(self.network, (await request.json())["input"])})


if __name__ == "__main__":
    ray.init(logging_level=logging.ERROR, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])},
                logging_config={"enable_access_log": False})  # fmt: skip
    serve.run(Digits.bind(), route_prefix="/predict")  # type: ignore[attr-defined]  # the decorator adds it
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    serve.shutdown()
    ray.shutdown()
