"""Where a request ends is said by one parser: held to plain uvicorn, over every early answer and every way to split."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotool.serving.http import protocol
from slotool.serving.http.connection import scope_of
from tests.hostile.framing_cases import (
    CASES,
    EXPECT,
    GUARDED,
    MARKER,
    PLAIN,
    SIX_FLOATS,
    SMUGGLED,
    UPGRADES,
    Case,
    Servers,
    split_at,
    talk,
)
from tests.hostile.wire import Answer


@pytest.fixture(scope="module")
def servers() -> Servers:
    return Servers()


def require_same(own: list[Answer], plain: list[Answer], case: str) -> None:
    """The same answers in the same order; or a part of them, of which the last says that the connection closes."""
    assert [a.status for a in own] == [a.status for a in plain][: len(own)], case
    if len(own) < len(plain):
        assert own, case
        assert own[-1].is_last, case
    for answer in own:
        assert b"smuggl" not in answer.body, case


def ways_to_send(case: Case) -> Iterator[tuple[str, list[bytes], bool]]:
    both, head = case.sent + MARKER, case.sent.index(b"\r\n\r\n") + 4
    yield "in one packet", [both], False
    yield "the marker apart", [case.sent, MARKER], True
    yield "the body apart", split_at(both, head), True
    yield "head, body, marker", split_at(both, head, len(case.sent)), True
    yield "head, body, marker at once", split_at(both, head, len(case.sent)), False
    for at in range(len(both)):
        if both.startswith(SMUGGLED, at):
            yield f"a request within the body, at {at}, apart", split_at(both, at, at + len(SMUGGLED)), True
    yield "byte by byte", split_at(both, *range(1, len(both))), True
    yield "byte by byte at once", split_at(both, *range(1, len(both))), False
    # In a long body one place is like another.
    for place in (*range(1, head + 30), *range(head + 30, len(case.sent), 11), *range(len(case.sent), len(both))):
        yield f"split at {place}", split_at(both, place), True


@pytest.mark.parametrize("name", CASES)
def test_every_early_answer_however_its_request_is_split(servers: Servers, name: str) -> None:
    case = CASES[name]
    methods = (case.method, "GET")

    async def compare() -> None:
        pipelined = await talk(servers.plain(case.server, HttpToolsProtocol), [case.sent + MARKER], methods, wait=False)
        final = [a.status for a in pipelined if a.status >= 200]
        assert final[0] == case.status
        for way, packets, wait in ways_to_send(case):
            own = await talk(servers.own(case.server), packets, methods, wait=wait)
            require_same(own, pipelined, f"{name}, {way}")
            if case.headers != EXPECT:
                assert len(own) == len(pipelined), "a short body is read to its end, and the connection kept"
            if len([a for a in own if a.status >= 200]) == 2:
                assert b"/marker" in own[-1].body, way

    asyncio.run(compare())


@pytest.mark.parametrize("name", CASES)
def test_uvicorn_on_h11_says_the_same(servers: Servers, name: str) -> None:
    case = CASES[name]
    methods = (case.method, "GET")

    async def compare() -> None:
        plain = await talk(servers.plain(case.server, H11Protocol), [case.sent, MARKER], methods, wait=True)
        own = await talk(servers.own(case.server), [case.sent, MARKER], methods, wait=True)
        first = next(a.status for a in plain if a.status >= 200)
        assert next(a.status for a in own if a.status >= 200) == first == case.status

    asyncio.run(compare())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.headers == EXPECT])
def test_a_body_that_comes_while_another_request_is_answered_is_read(servers: Servers, name: str) -> None:
    case, slow = CASES[name], CASES["415"]
    kind = case.server
    stream = slow.sent + case.sent + MARKER
    head = len(slow.sent) + case.sent.index(b"\r\n\r\n") + 4

    async def compare() -> None:
        for place in range(len(slow.sent) + 1, head + 12):
            packets = split_at(stream, place)
            methods = (slow.method, case.method, "GET")
            plain = await talk(servers.plain(kind, HttpToolsProtocol), packets, methods, wait=False)
            own = await talk(servers.own(kind), packets, methods, wait=False)
            require_same(own, plain, f"{name}, split at {place}")

    asyncio.run(compare())


@settings(max_examples=60)
@given(data=st.data())
def test_pipelines_split_anywhere_are_answered_in_order(data: st.DataObject) -> None:
    servers = _SERVERS or _remember(Servers())
    kind = data.draw(st.sampled_from([PLAIN, GUARDED]))
    names = [name for name, case in CASES.items() if case.server == kind]
    cases = [CASES[name] for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=5))]
    stream = b"".join(case.sent for case in cases) + MARKER
    edges = [at + n for at in range(len(stream)) if stream.startswith(SMUGGLED, at) for n in (0, len(SMUGGLED))]
    place = st.sampled_from([*edges, len(stream) - len(MARKER)]) | st.integers(1, len(stream) - 1)
    places = data.draw(st.lists(place, max_size=6, unique=True))
    wait = data.draw(st.booleans())
    methods = [*(case.method for case in cases), "GET"]

    async def compare() -> None:
        plain = await talk(servers.plain(kind, HttpToolsProtocol), split_at(stream, *places), methods, wait=wait)
        own = await talk(servers.own(kind), split_at(stream, *places), methods, wait=wait)
        require_same(own, plain, "")

    asyncio.run(compare())


_SERVERS: Servers | None = None


def _remember(made: Servers) -> Servers:
    global _SERVERS  # noqa: PLW0603
    _SERVERS = made
    return made


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_that_is_not_supported_is_ignored(servers: Servers, upgrade: str, chunked: bool) -> None:
    case = Case("POST", "/compute", 200, headers=UPGRADES[upgrade], body=SIX_FLOATS, chunked=chunked)
    head = case.sent.index(b"\r\n\r\n") + 4
    both = 2 * case.sent + MARKER

    async def ask() -> None:
        for places in ((), (head,), (head - 2,), (head + 5,), range(1, len(both))):
            said = await talk(servers.own(PLAIN), split_at(both, *places), ("POST", "POST", "GET"), wait=True)
            assert [a.status for a in said] == [200, 200, 404], places
            assert math.isfinite(json.loads(said[0].body)["confidence"])
            assert b"/marker" in said[-1].body

    asyncio.run(ask())


def test_a_connect_is_rejected_and_ends_the_connection(servers: Servers) -> None:
    async def ask() -> None:
        sent = b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED
        (answer,) = await talk(servers.own(PLAIN), [sent], ("CONNECT",), wait=True)
        assert (answer.status, answer.is_last) == (405, True)

    asyncio.run(ask())


def test_a_packet_of_thousands_of_requests_is_read_little_by_little(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = 0

    def counting(*arguments: Any) -> dict[str, Any]:
        nonlocal heads
        heads += 1
        return scope_of(*arguments)

    monkeypatch.setattr(protocol, "scope_of", counting)
    count = 3_000

    async def send() -> None:
        nonlocal heads
        wire = servers.own(PLAIN)
        wire.send(b"GET /v2 HTTP/1.1\r\nHost:\r\n\r\n" * count)
        most, before = heads, heads
        while wire.state.total_requests < count:
            await asyncio.sleep(0)
            most, before = max(most, heads - before), heads
        assert heads == count
        assert wire.said.count(b"HTTP/1.1 200 OK") == count
        assert most < 600, "read in one turn of the event loop"
        await wire.leave()

    asyncio.run(send())


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("HTTP/1.1", (), 400),
        ("HTTP/1.1", ("Host: x", "Host: y"), 400),
        ("HTTP/1.0", ("Host: x", "Host: y"), 400),
        ("HTTP/1.0", (), 200),
        ("HTTP/2.0", ("Host: x",), 505),
        ("HTTP/1.1", ("Host: x", "Transfer-Encoding: gzip, chunked"), 501),
        ("HTTP/1.0", ("Expect: 100-continue",), 200),
        ("HTTP/1.1", ("Host: x",), 200),
    ],
)
@pytest.mark.parametrize("ask", ["POST /compute", "GET /v2"])
def test_heads_that_rfc_9112_rejects_are_rejected_and_end_the_connection(
    servers: Servers, ask: str, line: str, headers: tuple[str, ...], status: int
) -> None:
    """Where llhttp and uvicorn let them pass. And no 100 goes to an HTTP/1.0 client."""
    has_encoding = any("Transfer" in header for header in headers)
    length = () if has_encoding else (f"Content-Length: {len(SIX_FLOATS)}",)
    sent = "\r\n".join((f"{ask} {line}", *headers, *length, "", "")).encode()
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SIX_FLOATS), SIX_FLOATS) if has_encoding else SIX_FLOATS

    async def send() -> None:
        (answer, *_) = said = await talk(servers.own(PLAIN), [sent, body], (ask.split(maxsplit=1)[0],), wait=True)
        assert (answer.status, len(said)) == (status, 1), answer
        assert answer.is_last == (status != 200 or line == "HTTP/1.0")

    asyncio.run(send())


@pytest.mark.parametrize("hosts", ["", "Host: x\r\nHost: y\r\n"])
def test_a_rejected_head_has_no_body(servers: Servers, hosts: str) -> None:
    async def asked() -> list[Answer]:
        packet = f"HEAD /v2 HTTP/1.1\r\n{hosts}\r\n".encode()
        return await talk(servers.own(PLAIN), [packet], ["HEAD"], wait=True)

    (answer,) = asyncio.run(asked())
    assert answer.status == 400
    assert answer.is_last
