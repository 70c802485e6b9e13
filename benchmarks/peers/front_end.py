"""Another HTTP layer in front of slotool's router, or none of slotool: ``front_end.py KIND PORT ARTIFACT``.

Kinds: ``asyncio`` and ``uvloop``, uvicorn as it comes on that event loop in front of the ASGI application;
``fast-uvloop``, today's protocol on uvloop, which measures no idle time and so admits everything; ``granian``,
granian's RSGI in front of the same handler that the fast path calls; ``fastapi`` and ``fastapi-json``, a route of
FastAPI around a session of ONNX Runtime, raw bytes or JSON in and JSON out, on uvicorn and uvloop; ``echo``, llhttp on
uvloop alone, which answers every request with the same bytes: the floor. One of ``SHORTCUTS``: slotool's own server
without it.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any


def _application(artifact: str) -> Any:
    import torch

    from slotool.serving import Router, create_app
    from slotool.serving.operations.sources import Sources

    torch.set_num_threads(1)
    return create_app(Router(Sources((Path(artifact),), ("mlp",)).load(print)))


def _uvicorn(application: Any, port: int, loop: str) -> None:
    import uvicorn

    uvicorn.run(application, port=port, loop=loop, http="httptools", log_level="error", access_log=False,
                server_header=False, date_header=False, proxy_headers=False, ws="none")  # fmt: skip


def _fast_on_uvloop(application: Any, port: int) -> None:
    import uvicorn

    from slotool.serving.http import HttpProtocol

    state = application.state
    protocol: Any = partial(
        HttpProtocol,
        app=application,
        front=state.front,
        inferences=state.inferences,
        max_connections=4_096,
    )
    uvicorn.run(application, port=port, loop="uvloop", http=protocol, log_level="error", access_log=False,
                server_header=False, date_header=False, proxy_headers=False, ws="none")  # fmt: skip


def _granian(application: Any, port: int) -> None:
    import asyncio

    import uvloop
    from granian.constants import HTTPModes
    from granian.server.embed import Server

    from slotool.serving.http.requests import Head
    from slotool.serving.request_options import from_headers

    front, inferences = application.state.front, application.state.inferences
    front.router.listen()

    async def infer(scope: Any, protocol: Any) -> None:
        headers = dict(scope.headers.items())
        head, body = Head("mlp", None, headers, from_headers(headers)), await protocol()
        reply = inferences.early_rejection(head)
        if reply is None:
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            inferences.answer(head, body, front.router.now_us(), answered.cancelled, answered.set_result)
            reply = inferences.reply_to(head, await answered)
        named = [("content-type", reply.media_type), *reply.headers.items()]
        protocol.response_bytes(reply.status, named, reply.body)

    server = Server(infer, port=port, http=HTTPModes.http1, websockets=False, log_enabled=False)
    uvloop.run(server.serve())


def _fastapi(kind: str, port: int, model: str) -> None:
    import fastapi
    import numpy as np
    import onnxruntime
    import pydantic

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    application = fastapi.FastAPI()

    class Example(pydantic.BaseModel):
        input: list[float]

    def label(x: Any) -> dict[str, int]:
        return {"label": int(session.run(None, {"pixels": x})[0].argmax())}

    async def raw(request: fastapi.Request) -> dict[str, int]:
        return label(np.frombuffer(await request.body(), dtype=np.float32).reshape(1, -1))

    async def by_json(example: Example) -> dict[str, int]:
        return label(np.array([example.input], dtype=np.float32))

    application.post("/predict")(by_json if kind == "fastapi-json" else raw)
    _uvicorn(application, port, "uvloop")


def _echo(port: int) -> None:
    import asyncio

    import httptools
    import uvloop

    body = b'{"label":0}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport: Any = transport
            self._parser = httptools.HttpRequestParser(self)

        def data_received(self, data: bytes) -> None:
            self._parser.feed_data(data)

        def on_message_complete(self) -> None:
            self._transport.write(answer)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(serve())


def _one_by_one(application: Any) -> None:
    outbox = application.state.inferences.outbox
    outbox.add = lambda transport, answer: transport.write(answer)


def _read_each_time(application: Any) -> None:
    application.state.inferences.known_heads.find = lambda data: None
    for reader in application.state.inferences._inference._readers.values():
        reader._remembered = reader._read


def _dispatch_later(application: Any) -> None:
    application.state.front._arrives_alone = lambda: False


def _alone_in_calls(application: Any) -> None:
    from slotool.scheduling import demand

    demand.SHARED_US = 0.0


def _count_each(application: Any) -> None:
    from slotool.serving.front import accounts

    accounts.MAX_UNCOUNTED = 1


SHORTCUTS = {
    "answers written together": _one_by_one,
    "heads remembered": _read_each_time,
    "lone requests dispatched at once": _dispatch_later,
    "calls shared": _alone_in_calls,
    "answers counted together": _count_each,
}


def _without(application: Any, shortcut: str, port: int) -> None:
    from slotool.serving.operations.server import bind, serve_until_signalled

    SHORTCUTS[shortcut](application)
    listener = bind("127.0.0.1", port)
    serve_until_signalled(application, listener, lambda: None, drain_s=1.0, warn=print)


def main() -> None:
    kind, port, artifact = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if kind == "echo":
        _echo(port)
    elif kind.startswith("fastapi"):
        _fastapi(kind, port, artifact)
    elif kind in SHORTCUTS:
        _without(_application(artifact), kind, port)
    elif kind == "granian":
        _granian(_application(artifact), port)
    elif kind == "fast-uvloop":
        _fast_on_uvloop(_application(artifact), port)
    else:
        _uvicorn(_application(artifact), port, kind)


if __name__ == "__main__":
    main()
