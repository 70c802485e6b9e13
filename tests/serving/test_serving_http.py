"""A real server asked by the clients people use: an unmodified ``tritonclient[http]``, httpx, and raw sockets."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

from slotool.elastic import ElasticModel
from slotool.errors import InputError
from slotool.scheduling import by_demand
from slotool.serving import RequestLimits, Router
from tests.serving.live_server import (
    HTTP,
    POINTS,
    LiveServer,
    ThreeLinear,
    live_server,
    served,
    space,
    tier_rules,
    until,
)

SMALL, MEDIUM, LARGE = POINTS
X = np.random.default_rng(3).random((1, 1, 2, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    """Two models: ``three`` with rules and known latencies, ``plain`` with neither."""
    three, plain = ThreeLinear(), ThreeLinear("plain")
    policy = by_demand(space(100.0, 50_000.0, 1e9), tier_rules())
    with live_server(
        [served(three, policy, tier_rules()), served(plain)], RequestLimits(body_bytes=100_000, batch=8)
    ) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(live.address) as client:
        yield client


@pytest.fixture(scope="module")
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, trust_env=False) as http:
        yield http


def logits(live: LiveServer, x: np.ndarray, name: str = "plain") -> np.ndarray:
    return live.models[name].forward(x, LARGE)


def tensor(x: np.ndarray, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput("input", list(x.shape), "FP32")
    made.set_data_from_numpy(x, binary_data=binary)
    return made


def told(result: triton.InferResult) -> dict[str, Any]:
    return result.get_response()["parameters"]


def test_tritonclient_finds_server_and_models(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("three")
    assert client.is_model_ready("three", "1")
    assert not client.is_model_ready("four")
    assert not client.is_model_ready("three", "2")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert [model["name"] for model in client.get_model_repository_index()] == ["three", "plain"]
    config = client.get_model_config("three", "1")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (8, [1, 2, 3])
    assert {model["name"] for model in client.get_inference_statistics()["model_stats"]} == {"three", "plain"}
    metadata = client.get_model_metadata("three", "1")
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 2, 3]}]
    assert [(o["name"], o["datatype"], o["shape"]) for o in metadata["outputs"]] == [
        ("logits", "FP32", [-1, 4]),
        ("label", "INT64", [-1]),
        ("confidence", "FP32", [-1]),
    ]


def test_health_is_reported_in_json_as_the_rest_client_of_kserve_reads_it(http: httpx.Client) -> None:
    # kserve.InferenceRESTClient returns response.json().get("live") and .get("ready").
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True}
    for path in ("/v2/models/three/ready", "/v2/models/three/versions/1/ready"):
        assert http.get(path).json() == {"name": "three", "ready": True}
    assert http.get("/v2/models/four/ready").status_code == 404


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_tritonclient_infers_in_every_form(
    live: LiveServer, client: triton.InferenceServerClient, binary_in: bool, binary_out: bool | None
) -> None:
    x = np.random.default_rng(4).random((5, 1, 2, 3)).astype(np.float32)
    names = ["logits", "label", "confidence"]
    outputs = None if binary_out is None else [triton.InferRequestedOutput(n, binary_data=binary_out) for n in names]
    result = client.infer("plain", [tensor(x, binary=binary_in)], outputs=outputs, request_id="a7")
    expected = logits(live, x)
    assert result.get_response()["id"] == "a7"
    np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-6)
    np.testing.assert_array_equal(result.as_numpy("label"), expected.argmax(axis=1))
    assert result.as_numpy("confidence").dtype == np.float32
    assert told(result)["confidence"] == pytest.approx(float(result.as_numpy("confidence").min()))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(live: LiveServer, client: triton.InferenceServerClient, algorithm: str) -> None:
    result = client.infer("plain", [tensor(X)], request_compression_algorithm=algorithm)
    np.testing.assert_allclose(result.as_numpy("logits"), logits(live, X), rtol=1e-6)


def test_a_timeout_is_a_deadline_that_chooses_the_point(client: triton.InferenceServerClient) -> None:
    generous = told(client.infer("three", [tensor(X)], timeout=20_000_000))
    assert generous["operating_point"] == "version=medium", "large would take 1,000 s"
    assert 0 < generous["slack_us"] < 20_000_000
    assert generous["queue_us"] > 0
    assert generous["compute_us"] > 0
    assert "slack_us" not in told(client.infer("plain", [tensor(X)]))


def test_a_deadline_that_has_passed_is_504_and_counted(live: LiveServer, client: triton.InferenceServerClient) -> None:
    before = live.count("slotool_drops_total", model="three", cause="expired")
    calls = len(live.models["three"].calls)
    with pytest.raises(InferenceServerException, match="deadline passed") as caught:
        client.infer("three", [tensor(X)], timeout=1)
    assert caught.value.status() == "504"
    assert live.count("slotool_drops_total", model="three", cause="expired") == before + 1
    assert len(live.models["three"].calls) == calls
    text = HTTP.get(f"{live.url}/metrics").text
    assert f'slotool_drops_total{{cause="expired",model="three"}} {before + 1}' in text


def test_what_cannot_be_met_is_503_with_the_reason(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match=r"accuracy 0\.99 is out of reach") as caught:
        client.infer("three", [tensor(X)], parameters={"min_accuracy": 0.99})
    assert caught.value.status() == "503"


def test_parameters_choose_the_point_and_the_answer_says_why(client: triton.InferenceServerClient) -> None:
    tier = told(client.infer("three", [tensor(X)], parameters={"tolerance": 0.25, "objective": "cost"}, priority=1))
    assert (tier["rule"], tier["operating_point"].split(",")[0]) == ("cost-0.2", "first=small")
    assert "tier 0.2 of cost" in tier["reason"]
    aclo = told(client.infer("three", [tensor(X)], parameters={"min_accuracy": 0.85}))
    assert aclo["operating_point"] == "version=medium"


def test_an_unknown_model_or_version_is_404(client: triton.InferenceServerClient) -> None:
    for name, version in (("four", ""), ("three", "2")):
        with pytest.raises(InferenceServerException, match=r"unknown model|version") as caught:
            client.infer(name, [tensor(X)], model_version=version)
        assert caught.value.status() == "404"


def image(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray((X[0, 0] * 255).astype(np.uint8)).save(file, form)
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, X[0])
    return file.getvalue()


@pytest.mark.parametrize("kind", ["npy", "raw", "png", "jpeg"])
def test_compute_takes_every_kind_of_body(live: LiveServer, http: httpx.Client, kind: str) -> None:
    body = {"npy": npy(), "raw": X.tobytes(), "png": image("PNG"), "jpeg": image("JPEG")}[kind]
    response = http.post("/compute", content=body, headers={"Model": "plain"})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert {"label", "confidence", "model", "operating_point", "reason", "latency_us"} <= set(answer)
    if kind in ("npy", "raw"):
        assert answer["label"] == int(logits(live, X).argmax())


def test_compute_heeds_the_papers_headers(http: httpx.Client) -> None:
    tier = {"Model": "three", "Tolerance": "0.1", "Objective": "response-time"}
    answer = http.post("/compute", content=X.tobytes(), headers=tier).json()
    assert answer["rule"] == "response-time-0.1"
    deadline = {"Model": "three", "Deadline-Ms": "20000"}
    assert http.post("/compute", content=X.tobytes(), headers=deadline).json()["operating_point"] == "version=medium"


INFER = "/v2/models/three/infer"
ONE = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": [0.5] * 6}
THREE = {"Model": "three"}
BAD_REQUESTS: dict[str, tuple[str, bytes | dict[str, Any], dict[str, str], int]] = {
    "broken JSON": (INFER, b'{"inputs": [', {}, 400),
    "NaN": (INFER, json.dumps({"inputs": [{**ONE, "data": [float("nan")] * 6}]}).encode(), {}, 400),
    "a bad binary header": (INFER, {"inputs": [ONE]}, {"Inference-Header-Content-Length": "x"}, 400),
    "a bad parameter": (INFER, {"inputs": [ONE], "parameters": {"timeout": "soon"}}, {}, 400),
    "no rules": ("/v2/models/plain/infer", {"inputs": [ONE], "parameters": {"tolerance": 0.1}}, {}, 400),
    "overflow": (INFER, {"inputs": [{**ONE, "data": [3e38] * 6}]}, {}, 400),
    "an unknown encoding": (INFER, {"inputs": [ONE]}, {"Content-Encoding": "br"}, 415),
    "cut gzip": (INFER, gzip.compress(b'{"inputs": []}')[:-9], {"Content-Encoding": "gzip"}, 400),
    "a gzip bomb": (INFER, gzip.compress(b" " * 10_000_000), {"Content-Encoding": "gzip"}, 413),
    "a long body": (INFER, b" " * 100_001, {}, 413),
    "an empty body": (INFER, b"", {}, 400),
    "compute: no model named": ("/compute", X.tobytes(), {}, 400),
    "compute: unknown model": ("/compute", X.tobytes(), {"Model": "four"}, 404),
    "compute: bad tolerance": ("/compute", X.tobytes(), THREE | {"Tolerance": "much"}, 400),
    "compute: bad deadline": ("/compute", X.tobytes(), THREE | {"Deadline-Ms": "nan"}, 400),
    "compute: bad body": ("/compute", b"hello", THREE, 400),
    "compute: text by its type": ("/compute", X.tobytes(), THREE | {"Content-Type": "text/plain; charset=utf-8"}, 415),
    "compute: JSON by its type": ("/compute", X.tobytes(), THREE | {"Content-Type": "Application/JSON"}, 415),
    "a page that is not": ("/v3", b"", {}, 404),
    "a method that is not": ("/v2", b"", {}, 405),
}


def test_a_header_of_an_option_that_is_given_twice_is_rejected(http: httpx.Client) -> None:
    for name in ("Tolerance", "Deadline-Ms", "Priority", "Model"):
        headers = [*THREE.items(), (name, "0.1"), (name, "three")]
        answered = http.post("/compute", content=X.tobytes(), headers=headers)
        assert answered.status_code == 400
        assert re.fullmatch(f"header {name.lower()}: it is given [23] times, expected once", answered.json()["error"])
    twice = [("Inference-Header-Content-Length", "9")] * 2
    answered = http.post(INFER, content=json.dumps({"inputs": [ONE]}).encode(), headers=twice)
    assert "inference-header-content-length: it is given 2 times" in answered.json()["error"]
    # Of others several are the rule.
    assert http.post("/compute", content=X.tobytes(), headers=[*THREE.items(), ("Via", "a"), ("Via", "b")]).is_success


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_bad_requests_are_reported_why_and_do_no_harm(http: httpx.Client, what: str) -> None:
    path, body, headers, status = BAD_REQUESTS[what]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = http.post(path, content=content, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    sentence = response.json()["error"]
    assert 5 < len(sentence) < 300
    assert http.post(INFER, json={"inputs": [ONE]}).status_code == 200


def test_a_chunked_body_is_limited_too(http: httpx.Client) -> None:
    response = http.post(INFER, content=(b" " * 10_000 for _ in range(20)))
    assert response.status_code == 413


def test_the_index_and_metrics_describe_the_server(http: httpx.Client) -> None:
    index = http.get("/").json()
    assert index["models"]["three"]["points"] == [point.key for point in POINTS]
    assert index["models"]["three"]["tolerance_tiers"] == [0.1, 0.2, 0.3]
    http.post(INFER, json={"inputs": [ONE]})
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    for line in ('slotool_requests_total{model="three",outcome="ok"}', "slotool_request_latency_seconds_bucket",
                 'slotool_operating_point_requests_total{model="three",point="version=large"}',
                 'slotool_drops_total{cause="bad-request",model="three"}', "slotool_queue_requests 0.0"):  # fmt: skip
        assert line in response.text, line


def test_a_mixed_crowd_is_answered_to_the_last(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"inputs": [ONE]}
    kinds: list[dict[str, Any]] = [
        {"url": INFER, "json": body},
        {"url": INFER, "json": body | {"parameters": {"tolerance": 0.1}}},
        {"url": INFER, "json": body | {"parameters": {"tolerance": 0.2, "objective": "cost"}}},
        {"url": INFER, "json": body | {"parameters": {"min_accuracy": 0.85, "timeout": 60_000_000}}},
        {"url": "/compute", "content": X.tobytes(), "headers": {"Model": "plain"}},
        {"url": INFER, "json": body | {"parameters": {"timeout": 1}}},
        {"url": INFER, "json": {"inputs": []}},
    ]

    async def crowd() -> list[int]:
        limits = httpx.Limits(max_connections=32)
        async with httpx.AsyncClient(base_url=live.url, trust_env=False, limits=limits, timeout=60) as http:
            responses = await asyncio.gather(*(http.post(**kinds[i % len(kinds)]) for i in range(140)))
        return [response.status_code for response in responses]

    statuses = np.array(asyncio.run(crowd())).reshape(-1, len(kinds)).T
    assert [sorted(set(row.tolist())) for row in statuses] == [[200]] * 5 + [[504], [400]]


def request_bytes(x: np.ndarray, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {x.nbytes}\r\n{lines}\r\n"
    return head.encode() + x.tobytes()


def test_a_client_that_left_is_dropped_and_counted_before_any_work() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, live.connect() as patient, live.connect() as leaving:
        model.sleep_s[LARGE] = 0.4
        model.calls.clear()
        patient.sendall(request_bytes(X))
        until(lambda: model.calls)
        leaving.sendall(request_bytes(X))
        leaving.close()
        assert b"200 OK" in patient.recv(1000)
        until(lambda: live.count("slotool_drops_total", model="three", cause="client-gone"))
        assert live.count("slotool_drops_total", model="three", cause="client-gone") == 1
        assert len(model.calls) == 1


def test_a_late_answer_is_given_and_counted_as_late() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live:
        model.sleep_s[LARGE] = 0.3
        headers = {"Deadline-Ms": "250"}
        answer = HTTP.post(f"{live.url}/compute", content=X.tobytes(), headers=headers).json()
        assert answer["slack_us"] < 0
        # Answers are counted once they are sent: before anyone else is answered.
        assert HTTP.get(f"{live.url}/v2/health/ready").status_code == 200
        assert live.count("slotool_requests_total", model="three", outcome="late") == 1


def test_there_is_no_server_of_nothing() -> None:
    with pytest.raises(InputError, match="no model"):
        Router({})


def test_one_model_needs_no_name() -> None:
    model: ElasticModel = ThreeLinear()
    with live_server([served(model)]) as live:
        response = HTTP.post(f"{live.url}/compute", content=b"?")
        assert (response.status_code, live.count("slotool_drops_total", model="three", cause="bad-request")) == (400, 1)
        assert HTTP.post(f"{live.url}/compute", content=X.tobytes()).status_code == 200


def test_metrics_hold_every_answer_that_was_given_before_they_are_read() -> None:
    with live_server([served(ThreeLinear())]) as live:
        for sent in range(1, 20):  # fewer than are counted together, and more
            assert HTTP.post(f"{live.url}/compute", content=X.tobytes()).status_code == 200
            lines = [line.rpartition(" ") for line in HTTP.get(f"{live.url}/metrics").text.splitlines()]
            values = {name: value for name, _, value in lines if not name.startswith("#")}
            assert float(values['slotool_requests_total{model="three",outcome="ok"}']) == sent
            assert float(values['slotool_request_latency_seconds_count{model="three"}']) == sent
        up_to = [float(value) for name, value in values.items() if "latency_seconds_bucket" in name]
        assert up_to == sorted(up_to)
        assert up_to[-1] == 19
        assert 0 < float(values['slotool_request_latency_seconds_sum{model="three"}']) < 19 * 60


def test_handlers_of_the_process_stay_open(tmp_path: Path) -> None:
    """A server in somebody's process closes no log of theirs; one of absl's, say, would close what stderr was."""
    theirs = logging.getLogger("theirs")
    handler = logging.FileHandler(tmp_path / "own.log", mode="w")
    theirs.addHandler(handler)
    try:
        with live_server([served(ThreeLinear())]):
            theirs.warning("while it serves")
        theirs.warning("and after")
    finally:
        theirs.removeHandler(handler)
        handler.close()
    assert (tmp_path / "own.log").read_text().split("\n") == ["while it serves", "and after", ""]
