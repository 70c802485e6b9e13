"""OpenTelemetry spans of requests, as a collector receives them."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from slotool.errors import InputError, MissingPackageError
from slotool.serving.monitoring.access_log import AccessLog
from slotool.serving.monitoring.traces import Traces, otlp_exporter
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, until
from tests.serving.test_access_log import INFER, PARENT, TRACE, TRACEPARENT, lines

PATH = "/v2/models/three/infer"
GRPC = "inference.GRPCInferenceService/ModelInfer"
LINE: dict[str, Any] = {"protocol": "http", "path": PATH, "model": "three", "status": 503, "total_us": 5.0,
                        "bytes_in": 1, "bytes_out": 2, "peer": None, "answer": {}}  # fmt: skip


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())]) as live:
        yield live


@pytest.fixture
def spans(live: LiveServer) -> Iterator[InMemorySpanExporter]:
    """What the server has sent, once its traces are closed."""
    exporter = InMemorySpanExporter()
    live.front.traces = Traces(exporter)
    yield exporter
    live.front.traces = None


def finished(live: LiveServer, exporter: InMemorySpanExporter, count: int = 3) -> list[ReadableSpan]:
    """So many spans: a request that is answered has three."""
    traces = live.front.traces
    assert traces is not None
    traces.close()
    found = list(exporter.get_finished_spans())
    assert len(found) == count
    return found


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Trace, span, and the span above it."""
    assert span.context is not None
    above = None if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", above


def test_a_request_has_a_span_below_its_callers_and_two_of_its_own(
    live: LiveServer, spans: Any, tmp_path: Path
) -> None:
    live.front.access_log = AccessLog(tmp_path / "access.jsonl")
    try:
        answered = HTTP.post(live.url + PATH, json=INFER, headers={"traceparent": TRACEPARENT})
        (line,) = lines(tmp_path, 1)
    finally:
        live.front.access_log = None
    queue, call, request = finished(live, spans)
    trace, own, above = ids(request)
    assert (trace, above, request.kind) == (TRACE, PARENT, SpanKind.SERVER)
    assert [ids(span)[::2] for span in (queue, call)] == [(TRACE, own), (TRACE, own)]
    assert len({ids(span)[1] for span in (request, queue, call)}) == 3
    assert answered.headers["traceparent"] == TRACEPARENT
    assert line["trace"] == TRACE
    said = answered.json()["parameters"]
    assert request.attributes is not None
    assert request.attributes["slotool.operating_point"] == said["operating_point"]
    assert request.attributes["slotool.request"] == said["request"]
    assert request.attributes["http.response.status_code"] == 200
    assert request.resource.attributes["service.name"] == "slotool"
    for span, took_us in ((queue, said["queue_us"]), (call, said["compute_us"])):
        assert span.end_time - span.start_time == round(1e3 * took_us)
    assert request.start_time == queue.start_time
    assert queue.end_time == call.start_time
    assert call.end_time <= request.end_time


def test_every_way_of_asking_is_traced_and_no_other_page(live: LiveServer, spans: Any) -> None:
    for page in ("/metrics", "/v2/health/ready", "/v2/models/three"):
        assert "traceparent" not in HTTP.get(live.url + page).headers
    # The application answers a header that is given twice.
    HTTP.post(live.url + PATH, json=INFER, headers=[("x-many", "1"), ("x-many", "2")])
    HTTP.post(f"{live.url}/compute", content=b"nothing", headers={"model": "m" * 1_000})
    tensor = triton.InferInput("input", [1, 1, 2, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1, 2, 3), np.float32))
    with triton.InferenceServerClient(live.grpc_address) as client:
        client.infer("three", [tensor], headers={"traceparent": TRACEPARENT})
    found = finished(live, spans, 7)
    requests = [span for span in found if span.kind == SpanKind.SERVER]
    assert [span.name for span in requests] == ["POST /v2/models/{model}/infer", "POST /compute", GRPC]
    assert [span.attributes.get("http.response.status_code") for span in requests] == [200, 404, None]
    assert requests[1].attributes["slotool.model"] == "m" * 200
    assert ids(requests[0])[2] is None
    assert ids(requests[2])[::2] == (TRACE, PARENT)


def attributes_of(**line: Any) -> tuple[dict[str, Any], bool]:
    """What the span of such a request says, and whether it is an error."""
    exporter = InMemorySpanExporter()
    traces = Traces(exporter)
    said = {"model": "m", "total_us": 5.0, "bytes_in": 1, "bytes_out": 2, "peer": "10.0.0.1", "answer": {}, **line}
    traces.add({}, **said)
    traces.close()
    (span,) = exporter.get_finished_spans()
    return dict(span.attributes or {}), span.status.status_code == StatusCode.ERROR


def test_attributes_are_those_of_the_semantic_conventions() -> None:
    path = "/v2/models/m/versions/1/infer"
    said, failed = attributes_of(protocol="http", path=path, status=503)
    assert failed
    assert said == {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/versions/{version}/infer",
        "url.path": path,
        "network.peer.address": "10.0.0.1",
        "http.response.status_code": 503,
        "http.request.body.size": 1,
        "http.response.body.size": 2,
        "error.type": "503",
        "slotool.model": "m",
    }
    for status, code, is_error in ((200, "OK", False), (429, "RESOURCE_EXHAUSTED", False), (503, "UNAVAILABLE", True)):
        said, failed = attributes_of(protocol="grpc", path=f"/{GRPC}", status=status)
        assert failed == is_error
        assert said == {
            "rpc.system.name": "grpc",
            "rpc.method": GRPC,
            "rpc.response.status_code": code,
            "network.peer.address": "10.0.0.1",
            "slotool.model": "m",
            **({"error.type": str(status)} if is_error else {}),
        }


def test_the_caller_decides_whether_its_trace_is_recorded_and_the_share_of_others() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(exporter, share=0.25)
    try:
        assert traces.add({"traceparent": f"00-{TRACE}-{PARENT}-00"}, **LINE) is None
        assert traces.add({"traceparent": TRACEPARENT}, **LINE) == TRACE
        chosen = [trace for _ in range(2_000) if (trace := traces.add({}, **LINE))]
        assert 400 < len(chosen) < 600, "about a quarter"
        assert len(set(chosen)) == len(chosen)
    finally:
        traces.close()
    assert {ids(span)[0] for span in exporter.get_finished_spans()} == {TRACE, *chosen}


def test_a_collector_gets_them_over_http() -> None:
    """The exporter that the command line makes, at an address without a path."""
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as collector, live_server([served(ThreeLinear())]) as live:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        live.front.traces = Traces(otlp_exporter(f"http://127.0.0.1:{collector.server_port}"))
        HTTP.post(live.url + PATH, json=INFER, headers={"traceparent": TRACEPARENT}).raise_for_status()
        live.front.traces.close()
        until(lambda: got, within_s=20)
        collector.shutdown()
    path, body = got[0]
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["queue", "call", "POST /v2/models/{model}/infer"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}


def test_a_collector_that_is_not_there_is_one_sentence_and_delays_no_end(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:  # bound, and refusing connections
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        traces = Traces(otlp_exporter(url))
        traces.add({}, **LINE)
        ends = threading.Thread(target=traces.close, daemon=True)
        ends.start()
        # The library itself goes on for ten seconds and more: nothing here waits so long.
        ends.join(8)
        assert not ends.is_alive()
    # It draws the time of its next try by Python's random numbers, which Hypothesis forbids while it draws an example.
    for thread in threading.enumerate():
        if thread.name == "traces-end":
            thread.join(60)
    said = capfd.readouterr().err
    assert said == f"slotool: spans do not reach the collector at {url}, and are lost: does one listen there?\n"


def test_no_collector_and_no_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("collector:4318", "ftp://collector", "http://", "http://collector:99999"):
        with pytest.raises(InputError, match="is no address of a collector"):
            otlp_exporter(address)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'slotool\[otel\]'"):
        otlp_exporter("http://127.0.0.1:4318")
