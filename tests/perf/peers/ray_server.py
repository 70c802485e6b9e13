"""Ray Serve: a deployment with its defaults that reads Starlette's request. ``python ray_server.py PORT``."""

from __future__ import annotations

import logging
import signal
import sys

import ray
from network import Network, label
from ray import serve
from starlette.requests import Request


@serve.deployment(logging_config={"enable_access_log": False})
class Digits:
    def __init__(self) -> None:
        self.network = Network().eval()

    async def __call__(self, request: Request) -> dict[str, int]:
        return {"label": label(self.network, (await request.json())["input"])}


if __name__ == "__main__":
    ray.init(logging_level=logging.ERROR, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])},
                logging_config={"enable_access_log": False})  # fmt: skip
    serve.run(Digits.bind(), route_prefix="/predict")  # type: ignore[attr-defined]  # the decorator adds it
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    serve.shutdown()
    ray.shutdown()
