"""Behind real proxies, which share connections among clients, nobody gets an answer that is not theirs."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotool.serving.access import Clients
from tests.hostile.proxies import PROXIES, is_there, proxy
from tests.serving.live_server import LiveServer, ThreeLinear, live_server, served

TOKEN = "correct-horse-battery"
# Requests of both behind each proxy: by `make test`, `make test-long` and `make hostile`.
FEW_REQUESTS, REQUESTS, MANY_REQUESTS = 1_000, 4_000, 20_000
QUICK = ("haproxy, reuse always", "nginx, unbuffered")
BEHIND = [
    *((name, FEW_REQUESTS) for name in QUICK),
    *(pytest.param(name, REQUESTS, marks=pytest.mark.long) for name in PROXIES),
]
INFER = "POST /v2/models/three/infer HTTP/1.1"
TENSOR = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": [0.5] * 6}


def request(line: str, body: bytes, *headers: str, token: str = TOKEN, length: bool = True) -> tuple[bytes, bytes]:
    framing = f"Content-Length: {len(body)}" if length else "Transfer-Encoding: chunked"
    lines = (line, "Host: x", f"Authorization: Bearer {token}", framing, *headers, "", "")
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return "\r\n".join(lines).encode(), body if length else chunked


def inference(name: str) -> bytes:
    return b"".join(request(INFER, json.dumps({"id": name, "inputs": [TENSOR]}).encode()))


SMUGGLED = inference("smuggled")
NOT_THE_TOKEN = "x" * len(TOKEN)
# Answered before their bodies were read, or without.
ATTACKS = [
    request("POST /v2/models/none/infer HTTP/1.1", SMUGGLED),
    request("POST /nowhere HTTP/1.1", SMUGGLED),
    request("GET /v2 HTTP/1.1", SMUGGLED),
    request("PUT /compute HTTP/1.1", SMUGGLED),
    request("DELETE /metrics HTTP/1.1", SMUGGLED),
    request(INFER, SMUGGLED, token=NOT_THE_TOKEN),
    request("POST /metrics HTTP/1.1", SMUGGLED, token=NOT_THE_TOKEN),
    request("POST /nowhere HTTP/1.1", SMUGGLED, "Expect: 100-continue"),
    request("POST /nowhere HTTP/1.1", SMUGGLED, length=False),
    request("POST /compute HTTP/1.1", SMUGGLED * 7_000),
]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())], clients=Clients.of_token(TOKEN, "here")) as live:
        yield live


class Client:
    """One connection to the proxy, opened again whenever it has been closed."""

    def __init__(self, port: int):
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, *packets: bytes, pause_s: float = 0.0) -> tuple[int, bytes]:
        """Status and body; 0 when the connection was closed instead."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            for i, packet in enumerate(packets):
                if i:
                    await asyncio.sleep(pause_s)
                writer.write(packet)
                await writer.drain()
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                status = int(head.split()[1])
                if status >= 200:
                    break
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            body = await asyncio.wait_for(reader.readexactly(length), 60)
            if "connection: close" in lines:
                self.close()
            return status, body
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0, b""

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def attack(port: int, count: int, seed: int) -> Counter[str]:
    """Requests whose bodies are requests, which come a little later than their heads."""
    client, chance, told = Client(port), random.Random(seed), Counter[str]()
    for _ in range(count):
        head, body = chance.choice(ATTACKS)
        status, said = await client.ask(head, body, pause_s=chance.choice([0.0, 0.001, 0.003]))
        told["attacks"] += 1
        told["strays"] += b"smuggled" in said or (status == 200 and b'"name":"slotool"' not in said)
        if status == 0:
            told["attacks without an answer"] += 1
        if chance.random() < 0.3:
            client.close()
    client.close()
    return told


async def be_victim(port: int, count: int, seed: int) -> Counter[str]:
    """Requests with an id each, and whether each answer bears the id that was asked."""
    client, told = Client(port), Counter[str]()
    for i in range(count):
        name = f"victim-{seed}-{i}"
        status, said = await client.ask(inference(name))
        told["asked"] += 1
        if status == 200:
            told["answered"] += 1
            told["strays"] += json.loads(said).get("id") != name
        else:
            # A proxy may meet a connection that closes just then, and says so itself.
            told[f"status {status}"] += 1
            told["strays"] += b'"error"' in said
    client.close()
    return told


@pytest.mark.parametrize(("name", "total"), BEHIND)
def test_nobody_gets_what_another_asked(
    live: LiveServer, name: str, total: int, tmp_path: Path, hostile_seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_there(name):
        pytest.skip(f"no {PROXIES[name][0]} on PATH")
    if hostile_seconds > 10 and total == REQUESTS:
        total = MANY_REQUESTS
    clients = 4

    async def both(port: int) -> Counter[str]:
        share = total // (2 * clients)
        attacks = (attack(port, share, seed) for seed in range(clients))
        victims = (be_victim(port, share, seed) for seed in range(clients))
        told = Counter[str]()
        for part in await asyncio.gather(*attacks, *victims):
            told += part
        return told

    with proxy(name, tmp_path, live.address) as port:
        told = asyncio.run(both(port))
    with capsys.disabled():
        print(f"\n{name}: {dict(told)}")
    assert told["strays"] == 0
    assert told["answered"] >= 0.97 * told["asked"]
