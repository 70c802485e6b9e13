"""The client's connections, against a server that sends exactly the bytes it was given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import numpy as np
import pytest

from slotool.workloads.client.endpoint import Endpoint, RequestResult, ServerAnswer, Terms
from slotool.workloads.client.http_channel import HttpChannel

X = np.zeros((1, 2), dtype=np.float32)
OK = b"HTTP/1.1 200 OK\r\n"


class Digit(Endpoint):
    """The label as one digit."""

    name = "digit"
    path = "/digit"

    def request(self, x: np.ndarray, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        return {"x-number": str(number)}, x.tobytes()

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        return ServerAnswer(int(body), point=headers.get("point", ""))


def asked(
    said: list[bytes], *, closes: bool = False, within_s: float = 5.0
) -> tuple[list[RequestResult], int, list[bytes]]:
    """Replies to as many requests as there are things said, one after the other; connections made; requests read."""
    connections, read = 0, []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                read.append(head + await reader.readexactly(X.nbytes))
                for part in said[len(read) - 1].split(b"|"):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                if closes:
                    break

    async def ask() -> list[RequestResult]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        channel = HttpChannel(Digit("m", Terms()), f"http://127.0.0.1:{port}", within_s)
        try:
            return [await channel.ask(X, number) for number in range(len(said))]
        finally:
            await channel.close()
            server.close()

    return asyncio.run(ask()), connections, read


def test_a_connection_is_kept_and_what_is_sent_is_whole() -> None:
    replies, connections, read = asked(
        [OK + b"Point: p\r\nContent-Length: 1\r\n\r\n3", OK + b"content-length: 1\r\n\r\n|4"]
    )
    assert [reply.answer and reply.answer.label for reply in replies] == [3, 4]
    assert replies[0].answer is not None
    assert replies[0].answer.point == "p"
    assert connections == 1
    head = read[1].split(b"\r\n")
    assert head[0] == b"POST /digit HTTP/1.1"
    assert {b"x-number: 1", b"content-length: 8"} <= set(head)
    assert any(line.startswith(b"host: 127.0.0.1:") for line in head)


@pytest.mark.parametrize(
    ("said", "connections"),
    [
        (OK + b"transfer-encoding: chunked\r\n\r\n1\r\n3\r\n|0\r\n\r\n", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n|" + OK + b"content-length: 1\r\n\r\n3", 1),
        (OK + b"connection: close\r\ncontent-length: 1\r\n\r\n3", 2),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n3", 2),
    ],
    ids=["chunked", "continue", "closing", "1.0"],
)
def test_every_form_of_response_is_read(said: bytes, connections: int) -> None:
    replies, made, _ = asked([said, said])
    assert [reply.answer and reply.answer.label for reply in replies] == [3, 3]
    assert made == connections


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    replies, _, _ = asked([OK + b"\r\n|3", OK + b"\r\n3"], closes=True)
    assert [reply.answer and reply.answer.label for reply in replies] == [3, 3]


@pytest.mark.parametrize(
    ("said", "closes", "error"),
    [
        (b"SMTP 220\r\n\r\n", False, "no HTTP response"),
        (OK + b"content-length: 2\r\n\r\n3", True, "closed the connection"),
        (b"", True, "closed the connection"),
        (OK + b"content-length: 2\r\n\r\n3", False, "no answer within the time allowed"),
    ],
)
def test_what_is_no_response_is_reported_and_its_connection_given_up(said: bytes, closes: bool, error: str) -> None:
    replies, connections, _ = asked([said, OK + b"content-length: 1\r\n\r\n3"], closes=closes, within_s=0.3)
    assert replies[0].status == 0
    assert error in replies[0].error
    assert replies[1].answer is not None
    assert connections == 2


def test_rejections_are_reported_in_the_servers_words() -> None:
    body = b'{"error": "no"}'
    (reply,), _, _ = asked([b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)])
    assert (reply.status, reply.error) == (503, "no")


def test_nobody_there_is_reported_too() -> None:
    async def ask() -> RequestResult:
        channel = HttpChannel(Digit("m", Terms()), "http://127.0.0.1:1", 2.0)
        try:
            return await channel.ask(X, 0)
        finally:
            await channel.close()

    reply = asyncio.run(ask())
    assert (reply.status, reply.error) == (0, "connection refused")
