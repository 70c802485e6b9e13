"""The access log and trace context: every way a request is answered, rotation, gaps, and what is never written."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from slotool.data import load_dataset
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import family_graphs
from slotool.errors import InputError
from slotool.graphs.torch_module import GraphModule
from slotool.serving.access import Client, Clients
from slotool.serving.monitoring.access_log import AccessLog
from slotool.serving.monitoring.traces import trace_id
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, until
from tests.serving.test_serve_command import EXAMPLE, serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
TOKEN = "a-secret-that-no-line-may-hold"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}", "traceparent": TRACEPARENT, "x-request-id": "order-7"}
INFER = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": [0.5] * 6}]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    clients = Clients.of_token(TOKEN, "test")
    clients = Clients({digest: Client("search") for digest in clients.by_digest})
    with live_server([served(ThreeLinear())], clients=clients) as server:
        server.front.access_log = AccessLog(tmp_path / "access.jsonl")
        yield server


def lines(folder: Path, count: int, name: str = "access.jsonl") -> list[dict[str, Any]]:
    """Of the log, once it has so many."""
    until(lambda: (folder / name).read_text().count("\n") >= count, within_s=20)
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_answers_and_rejections_over_http_get_a_line_and_no_secret_does(server: LiveServer, tmp_path: Path) -> None:
    body = json.dumps(INFER).encode()
    path = "/v2/models/three/infer"
    answered = HTTP.post(server.url + path, content=body, headers=AUTHORIZED)
    assert answered.headers["traceparent"] == TRACEPARENT
    HTTP.post(f"{server.url}/compute", content=b"nothing", headers=AUTHORIZED)
    HTTP.post(server.url + path, content=body, headers={"authorization": "Bearer another-secret-of-no-client"})
    HTTP.get(f"{server.url}/metrics?key={TOKEN}", headers=AUTHORIZED)
    # Given twice, a header is left to the application.
    HTTP.post(server.url + path, content=body, headers=[*AUTHORIZED.items(), ("x-many", "1"), ("x-many", "2")])
    first, bad, stranger, page, slow = lines(tmp_path, 5)
    parameters = answered.json()["parameters"]
    named = {name: parameters[name] for name in ("request", "operating_point", "queue_us", "compute_us")}
    assert named.items() <= first.items()
    expected = {
        "protocol": "http", "client": "search", "peer": "127.0.0.1", "id": "order-7", "trace": TRACE, "path": path,
        "model": "three", "status": 200, "bytes_in": len(body), "bytes_out": len(answered.content),
    }  # fmt: skip
    assert expected.items() <= first.items()
    assert first["total_us"] >= first["queue_us"] + first["compute_us"] > 0
    assert (bad["status"], bad["path"], bad["model"], bad["bytes_in"]) == (400, "/compute", "three", 7)
    assert (stranger["status"], stranger["client"], stranger["trace"]) == (401, None, None)
    assert (page["status"], page["path"], page["client"]) == (200, "/metrics", "search")
    assert {**slow, "operating_point": first["operating_point"], "status": 200}.items() <= slow.items()
    assert (slow["bytes_in"], slow["trace"], slow["model"]) == (len(body), TRACE, "three")
    assert "secret" not in (tmp_path / "access.jsonl").read_text()


def test_grpc_calls_get_a_line_and_their_trace_back(server: LiveServer, tmp_path: Path) -> None:
    tensor = triton.InferInput("input", [1, 1, 2, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1, 2, 3), np.float32))
    with triton.InferenceServerClient(server.grpc_address) as client:
        answer = client.infer("three", [tensor], headers=AUTHORIZED)
        with pytest.raises(InferenceServerException):
            client.infer("two", [tensor], headers=AUTHORIZED)
    first, unknown = lines(tmp_path, 2)
    parameters = answer.get_response().parameters
    assert first["queue_us"] == parameters["queue_us"].double_param
    assert first["operating_point"] == parameters["operating_point"].string_param
    expected = {"protocol": "grpc", "client": "search", "peer": "127.0.0.1", "trace": TRACE, "model": "three"}
    assert expected.items() <= first.items()
    assert first["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert (first["status"], unknown["status"], unknown["model"]) == (200, 404, "two")
    assert first["bytes_out"] == answer.get_response().ByteSize()


def test_probes_get_a_line_only_where_they_fail(server: LiveServer, tmp_path: Path) -> None:
    for model, status in (("three", 200), ("two", 404)):
        for path in ("health/live", "health/ready", f"models/{model}/ready"):
            answered = HTTP.get(f"{server.url}/v2/{path}", headers=AUTHORIZED)
        assert answered.status_code == status
        with triton.InferenceServerClient(server.grpc_address) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready(model, headers=AUTHORIZED) == (status == 200)
    HTTP.post(f"{server.url}/v2/health/live")
    HTTP.get(f"{server.url}/v2/models/three", headers=AUTHORIZED)
    *unknown, bad, last = [(line["path"], line["status"]) for line in lines(tmp_path, 4)]
    assert unknown == [("/v2/models/two/ready", 404), ("/inference.GRPCInferenceService/ModelReady", 503)]
    assert bad == ("/v2/health/live", 405)
    assert last == ("/v2/models/three", 200)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (TRACEPARENT, TRACE),
        (f"01-{TRACE}-{PARENT}-01-what-comes-later", TRACE),
        (None, None),
        ("", None),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"00-{TRACE}-{PARENT}", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{PARENT}-01\n", None),
    ],
)
def test_only_a_valid_trace_context_is_taken(given: str | None, found: str | None) -> None:
    assert trace_id(given) == found


def test_a_trace_context_comes_back_without_a_log_and_a_bad_one_does_not() -> None:
    with live_server([served(ThreeLinear())]) as server:
        for path in ("/v2", "/v2/models/three/infer"):
            for given, found in ((TRACEPARENT, TRACEPARENT), ("00-zz", None)):
                method = "POST" if path.endswith("infer") else "GET"
                answer = HTTP.request(method, server.url + path, json=INFER, headers={"traceparent": given})
                assert answer.status_code == 200
                assert answer.headers.get("traceparent") == found


def entry(log: AccessLog, path: str) -> None:
    log.add({}, protocol="http", client=None, peer=None, path=path, model=None, status=200, total_us=1.0, bytes_in=0,
            bytes_out=0, answer={})  # fmt: skip


def test_it_never_waits_and_says_how_many_lines_were_lost(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl", max_lines=3)
    writes, hold = log._write, threading.Event()

    def held(waiting: list[bytes]) -> None:
        hold.wait(20)
        writes(waiting)

    log._write = held
    entry(log, "/first")
    until(log._waiting.empty)
    for number in range(10):
        entry(log, f"/{number}" + "x" * 1_000)
    hold.set()
    log.close()
    found = lines(tmp_path, 1)
    written = [line["path"] for line in found if "path" in line]
    assert sum(line.get("lost", 0) for line in found) + len(written) == 11
    assert len(written) < 11
    assert max(map(len, written)) == 200


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing/log", "."):
        with pytest.raises(InputError, match="access-log"):
            AccessLog(tmp_path / name)


def test_the_command_takes_it_from_its_file_and_opens_it_again_on_sighup(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name, graph = next(iter(family_graphs(load_dataset("digits")).items()))
    Family.of("family", [Network(name, GraphModule(graph).eval())]).save(tmp_path / "family", config={}, seed=0)
    (tmp_path / "service.toml").write_text('access-log = "access.jsonl"\n[[models]]\nartifact = "family"\n')
    with serving(tmp_path, "--config", "service.toml") as (process, ready), httpx.Client(trust_env=False) as client:
        client.post(f"{ready['url']}/compute", content=EXAMPLE.tobytes())
        assert lines(tmp_path, 1)[0]["status"] == 200
        (tmp_path / "access.jsonl").rename(tmp_path / "access.jsonl.1")
        process.send_signal(signal.SIGHUP)
        until((tmp_path / "access.jsonl").exists, within_s=20)
        client.post(f"{ready['url']}/nowhere", content=b"")
        assert lines(tmp_path, 1)[0]["status"] == 404
        assert len(lines(tmp_path, 1, "access.jsonl.1")) == 1
