"""``--http uvicorn``: uvicorn untouched gives the same answers as the fast path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, tier_rules

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
