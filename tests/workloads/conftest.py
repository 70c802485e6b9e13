"""A real HTTP server that speaks just the client's two forms, on a thread of its own."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from slotool.data import load_dataset


@cache
def class_means() -> np.ndarray:
    train = load_dataset("digits").train
    return np.stack([train.x[train.y == c].mean(axis=0) for c in range(10)])


def nearest_mean(x: np.ndarray) -> int:
    """A classifier good enough to tell right answers from wrong ones."""
    return int(np.argmin(((class_means() - x) ** 2).sum(axis=(1, 2, 3))))


@dataclass
class Server:
    """``stalls``: (from, to) request numbers among which every answer waits for ``stall_s``."""

    port: int = 0
    binary: bool = True
    stalls: range = range(0)
    stall_s: float = 0.0
    status: Callable[[int], int] = lambda number: 200
    broken_body: bool = False
    lists_by_index: bool = True
    seen: list[dict[str, Any]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    dies_after: int | None = None
    stop_listening: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def before(self, request: web.Request) -> int:
        number = len(self.arrived_s)
        self.arrived_s.append(asyncio.get_running_loop().time())
        if self.dies_after is not None and number >= self.dies_after and request.transport:
            self.stop_listening()
            request.transport.abort()
        if number in self.stalls:
            await asyncio.sleep(self.stall_s)
        return self.status(number)

    async def infer(self, request: web.Request) -> web.Response:
        status = await self.before(request)
        body = await request.read()
        split = int(request.headers["Inference-Header-Content-Length"])
        document = json.loads(body[:split])
        self.seen.append({"model": request.match_info["model"], **document})
        if status != 200:
            return web.json_response({"error": f"rejected with {status}"}, status=status)
        tensor = document["inputs"][0]
        assert tensor["name"] == "input"
        assert tensor["datatype"] == "FP32"
        x = np.frombuffer(body[split:], "<f4").reshape(tensor["shape"])
        parameters = {"operating_point": "k=0.5", "queue_us": 10.0, "compute_us": 250.0}
        return self.infer_response(nearest_mean(x), parameters)

    def infer_response(self, label: int, parameters: dict[str, Any]) -> web.Response:
        if self.broken_body:
            return web.Response(body=b"not what was promised")
        answer: dict[str, Any] = {"model_name": "m", "parameters": parameters}
        outputs = [("confidence", "FP32", np.array([0.75], "<f4")), ("label", "INT64", np.array([label], "<i8"))]
        if not self.binary:
            answer["outputs"] = [
                {"name": n, "datatype": d, "shape": [1], "data": values.tolist()} for n, d, values in outputs
            ]
            return web.json_response(answer)
        answer["outputs"] = [
            {"name": n, "datatype": d, "shape": [1], "parameters": {"binary_data_size": values.nbytes}}
            for n, d, values in outputs
        ]
        head = json.dumps(answer).encode()
        return web.Response(
            body=head + b"".join(values.tobytes() for _, _, values in outputs),
            headers={"Inference-Header-Content-Length": str(len(head))},
        )

    async def compute(self, request: web.Request) -> web.Response:
        status = await self.before(request)
        x = np.load(io.BytesIO(await request.read()), allow_pickle=False)
        self.seen.append(dict(request.headers))
        if status != 200:
            return web.json_response({"error": f"rejected with {status}"}, status=status)
        return web.json_response(
            {"label": nearest_mean(x), "confidence": 0.5, "operating_point": "version=small", "compute_us": 90}
        )

    async def models(self, request: web.Request) -> web.Response:
        if not self.lists_by_index:
            return web.json_response({"error": "no such page"}, status=404)
        return web.json_response([{"name": "first", "state": "READY"}, {"name": "second", "state": "READY"}])

    async def index(self, request: web.Request) -> web.Response:
        return web.json_response({"models": {"leading": {"points": ["full"]}, "other": {}}})


async def cancel_all() -> None:
    """Handlers of connections that were cut still sleep; leave none behind."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.fixture
def server() -> Iterator[Server]:
    """A running server whose behaviour the test may set before it sends anything."""
    standing = Server()
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_post("/v2/models/{model}/infer", standing.infer)
    app.router.add_post("/v2/repository/index", standing.models)
    app.router.add_get("/", standing.index)
    app.router.add_post("/compute", standing.compute)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    standing.port = runner.addresses[0][1]

    def stop_listening() -> None:
        # Each request that is cut off asks for it.
        for site in list(runner.sites) if not stopping else ():
            stopping.append(loop.create_task(site.stop()))

    stopping: list[asyncio.Task[None]] = []
    standing.stop_listening = stop_listening
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield standing
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=60)
    asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(timeout=60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=60)
    loop.close()
