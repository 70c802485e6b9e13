"""The HTTP protocol of slotool is held against uvicorn's own, in front of the same application."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from slotool.scheduling import FixedPoint
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served, space, tier_rules

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 1, 2, 3)
TENSOR = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3]}
BINARY = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}]}).encode()
INFER = "/v2/models/three/infer"
# Of an answer, what differs from one to the next.
TIMES = ("queue_us", "compute_us", "latency_us", "request", "slack_us")


def infer(**more: Any) -> dict[str, Any]:
    return {"content": json.dumps({"inputs": [{**TENSOR, "data": X.ravel().tolist()}], **more}).encode()}


REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", INFER, infer()),
    ("POST", INFER, infer(id="mine", parameters={"timeout": 5_000_000, "tolerance": 0.3})),
    ("POST", INFER, infer(outputs=[{"name": "label"}], parameters={"min_accuracy": 0.85})),
    (
        "POST",
        INFER,
        {"content": BINARY + X.tobytes(), "headers": {"inference-header-content-length": str(len(BINARY))}},
    ),
    ("POST", "/v2/models/three/versions/1/infer", infer()),
    ("POST", INFER, infer(parameters={"tolerance": -1})),
    ("POST", INFER, infer(parameters={"timeout": 1})),
    ("POST", INFER, {"content": b"{"}),
    ("POST", "/v2/models/four/infer", infer()),
    ("POST", "/compute", {"content": X.tobytes(), "headers": {"tolerance": "0.3"}}),
    ("POST", "/compute", {"content": b"nothing"}),
    ("POST", "/compute", {"content": bytes(64 << 10)}),
    ("GET", "/v2/models/three", {}),
    ("GET", "/v2/health/ready", {}),
    ("GET", "/nowhere", {}),
    ("PUT", INFER, infer()),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LiveServer]]:
    with (
        live_server([served(ThreeLinear(), rules=tier_rules())]) as fast,
        live_server([served(ThreeLinear(), rules=tier_rules())], http="uvicorn") as plain,
    ):
        yield [fast, plain]


def without_times(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    kept = {name: without_times(value) for name, value in document.items() if name not in TIMES}
    if "error" in kept:  # some say for how long a request has waited
        kept["error"] = re.sub(r"\d+ µs", "… µs", kept["error"])
    return kept


def shown(response: httpx.Response) -> tuple[Any, ...]:
    length = int(response.headers.get("inference-header-content-length", len(response.content)))
    document = without_times(json.loads(response.content[:length]))
    named = {name: response.headers.get(name) for name in ("content-type", "retry-after", "allow")}
    return response.status_code, named, document, response.content[length:]


@pytest.mark.parametrize(("method", "path", "sent"), REQUESTS, ids=range(len(REQUESTS)))
def test_answers_are_the_same(servers: list[LiveServer], method: str, path: str, sent: dict[str, Any]) -> None:
    fast, plain = (shown(HTTP.request(method, server.url + path, **sent)) for server in servers)
    assert fast == plain


LABEL_ALONE = {"outputs": [{"name": "label"}]}
REPEATED: list[dict[str, Any]] = [
    {},
    LABEL_ALONE,
    {"outputs": [{"name": "logits", "parameters": {"binary_data": True}}, {"name": "label"}]},
    {"outputs": [{"name": "logits", "parameters": {"classification": 2}}]},
    {"id": "mine", "parameters": {"timeout": 60_000_000, "priority": 2}},
    {"parameters": {"tolerance": 0.3}},
    {"parameters": {"min_accuracy": 0.85}},
]


@pytest.mark.parametrize("more", REPEATED, ids=range(len(REPEATED)))
def test_repeated_requests_are_answered_the_same(servers: list[LiveServer], more: dict[str, Any]) -> None:
    """By their values, of which some cannot be answered, and whatever was answered on the connection before."""
    given = [scale * X for scale in (1.0, 2.0, -1.0, np.nan, -2.0, 1.0)]
    head = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}], **more}).encode()
    before = [server.router.arrived for server in servers]
    said = [[shown(answer) for answer in raw_answers(server, head, given)] for server in servers]
    assert said[0] == said[1]
    assert [status for status, *_ in said[0]][3] == 400
    fast, plain = (server.router.arrived - count for server, count in zip(servers, before, strict=True))
    assert fast == plain


@pytest.mark.parametrize("count", [X.size - 1, X.size + 1])
def test_a_body_that_is_not_as_long_as_its_json_says_is_rejected_each_time(
    servers: list[LiveServer], count: int
) -> None:
    head = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}]}).encode()
    given = 4 * [np.zeros(count, dtype=np.float32)]
    said = [[shown(answer) for answer in raw_answers(server, head, given)] for server in servers]
    assert said[0] == said[1]
    assert [status for status, *_ in said[0]] == 4 * [400]


def test_counts_are_the_same(servers: list[LiveServer]) -> None:
    counted = [
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for metric in server.router.metrics.registry.collect()
            for sample in metric.samples
            if metric.name in ("slotool_requests", "slotool_drops") and sample.name.endswith("_total")
        }
        for server in servers
    ]
    assert counted[0] == counted[1]


def test_what_cannot_be_in_time_is_rejected_whether_its_values_are_read_or_not(servers: list[LiveServer]) -> None:
    """Values that no model takes are found by reading them, for which a known request that is late has no time."""
    head = json.dumps(
        {"inputs": [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}], "parameters": {"timeout": 1}}
    ).encode()
    for server in servers:
        answers = raw_answers(server, head, [scale * X for scale in (1.0, 2.0, np.nan, 1.0)])
        *valid, invalid = (answers[at].status_code for at in (0, 1, 3, 2))
        assert valid == [504, 504, 504]
        assert invalid in (400, 504)


def test_a_known_request_follows_a_change_of_policy(servers: list[LiveServer]) -> None:
    head = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}], **LABEL_ALONE}).encode()
    live = servers[0]
    before = live.router.models["three"]
    with live.connect() as connection:
        points = [point_of(connection, live, head) for _ in range(3)]
        live.router.replace(replace(before, policy=FixedPoint(space(), POINTS[0])))
        points += [point_of(connection, live, head) for _ in range(3)]
        live.router.replace(before)
        points += [point_of(connection, live, head) for _ in range(2)]
    assert points == 3 * [POINTS[-1].label] + 3 * [POINTS[0].label] + 2 * [POINTS[-1].label]


def test_repeated_requests_of_many_packets_worth_are_answered_each_by_its_own_values(servers: list[LiveServer]) -> None:
    """A request is read in parts of 8 KiB."""
    given = np.random.default_rng(0).normal(size=(4, 1_000, *X.shape[1:])).astype(np.float32)
    shape, size = list(given.shape[1:]), {"binary_data_size": given[0].nbytes}
    head = json.dumps({"inputs": [{**TENSOR, "shape": shape, "parameters": size}], **LABEL_ALONE}).encode()
    labels = [
        [answer.json()["outputs"][0]["data"] for answer in raw_answers(live, head, list(given))] for live in servers
    ]
    assert labels[0] == labels[1]
    assert labels[0][0] != labels[0][1]


def raw_request(head: bytes, x: np.ndarray) -> bytes:
    """In one piece, as clients other than httpx send it."""
    lines = f"inference-header-content-length: {len(head)}\r\ncontent-length: {len(head) + x.nbytes}\r\n"
    return f"POST {INFER} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode() + head + x.astype(np.float32).tobytes()


def raw_answers(live: LiveServer, head: bytes, given: list[np.ndarray]) -> list[httpx.Response]:
    with live.connect() as connection:
        return [raw_answer(connection, raw_request(head, x)) for x in given]


def raw_answer(connection: socket.socket, request: bytes) -> httpx.Response:
    connection.sendall(request)
    response = http.client.HTTPResponse(connection)
    response.begin()
    return httpx.Response(response.status, headers=response.getheaders(), content=response.read())


def point_of(connection: socket.socket, live: LiveServer, head: bytes) -> str:
    document = raw_answer(connection, raw_request(head, X)).json()
    return str(document["parameters"]["operating_point"])
