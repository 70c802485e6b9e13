"""What hostile clients cost: memory per byte that is counted, open files, and lines on the server's stderr."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from slotool.serving import Router, create_app
from slotool.serving.operations.server import Server
from tests.hostile.wire import Wire
from tests.serving.live_server import ThreeLinear, served

BODY = struct.pack("<6f", *range(6))
SERVE = """
import resource, sys
files = int(sys.argv[1])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
from tests.serving.live_server import ThreeLinear, served
from slotool.serving import Router, create_app
from slotool.serving.operations.server import bind, serve_until_signalled
with bind("127.0.0.1", 0) as listener:
    app = create_app(Router({"three": served(ThreeLinear())}))
    ready = lambda: print(listener.getsockname()[1], flush=True)
    warn = lambda text: print(text, file=sys.stderr, flush=True)
    serve_until_signalled(app, listener, ready, drain_s=0.2, warn=warn)
"""
RESETTING = {
    "an inference": b"POST /compute HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 24\r\n\r\n" + BODY,
    "a page": b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an early rejection": b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc",
}


@pytest.mark.parametrize("header", [b"", b"Content-Encoding: gzip\r\n"], ids=["fast path", "application"])
@pytest.mark.parametrize("packet_chunks", [1, 1_000])
def test_a_half_sent_body_takes_about_the_memory_that_is_counted(header: bytes, packet_chunks: int) -> None:
    app = create_app(Router({"three": served(ThreeLinear())}))
    config = Server(app, lambda: None, drain_s=1).config
    config.load()
    chunks = 40_000

    async def send() -> None:
        wire = Wire(config.http_protocol_class, config)
        wire.send(b"POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n%b\r\n" % header)
        await wire.settle()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(chunks // packet_chunks):
            wire.send(b"2\r\nab\r\n" * packet_chunks)
            await asyncio.sleep(0)
        await wire.settle()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        counted = app.state.front.intake.held_bytes
        assert counted == 2 * chunks
        assert held <= 2 * counted, f"{held / counted:.1f} bytes are held for each that is counted"
        await wire.leave()

    asyncio.run(send())


@contextmanager
def server_process(files: int = 0) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Its port, and the process. ``files``: its limit of open files, 0 for what it is here."""
    room = str(Path(__file__).parent.parent / "serving")
    path = {"PYTHONPATH": room, "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ask = [sys.executable, "-c", SERVE, str(files)]
    with subprocess.Popen(ask, text=True, env=path, **pipes) as process:
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def complaints(process: subprocess.Popen[str]) -> str:
    """What the server said on stderr until its end, which SIGTERM asks for."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def test_clients_that_reset_after_the_answer_leave_no_word_on_stderr() -> None:
    with server_process() as (port, process):
        for sent in RESETTING.values():
            for _ in range(200):
                connection = connected(port)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(sent)
                connection.recv(10)
                connection.close()
        assert complaints(process) == ""


def test_a_drain_that_ends_with_half_sent_requests_leaves_no_word_on_stderr() -> None:
    with server_process() as (port, process), ExitStack() as stack:
        for sent in (RESETTING["an inference"][:-5], b"GET / HTT", b""):
            stack.enter_context(connected(port)).sendall(sent)
        time.sleep(0.2)
        assert complaints(process) == ""


def test_who_comes_beyond_the_open_files_is_told_so_and_the_operator_at_the_start() -> None:
    with server_process(files=64) as (port, process), ExitStack() as stack:
        kept, rejected = 0, b""
        while not rejected and kept < 64:
            connection = stack.enter_context(connected(port))
            connection.sendall(RESETTING["an inference"].replace(b"Connection: close\r\n", b""))
            answer = connection.recv(10_000)
            kept, rejected = (kept + 1, b"") if b"200 OK" in answer else (kept, answer)
        assert rejected.startswith(b"HTTP/1.1 503 ")
        assert f"{kept} connections are open already".encode() in rejected
        # Far more than there are files: these wait, and asyncio tries to accept them once a second.
        for _ in range(60):
            stack.enter_context(connected(port))
        time.sleep(0.5)
        lines = complaints(process).splitlines()
    assert lines[0].startswith(f"the limit of open files allows {kept} connections, not 4096: ")
    assert len(lines) == 2
    assert "connections wait to be accepted: Too many open files" in lines[1]
