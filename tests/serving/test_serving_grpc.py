"""The gRPC front end asked by an unmodified ``tritonclient[grpc]``, and by raw calls where that is too polite."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as v2
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from slotool.scheduling import by_demand
from slotool.serving import RequestLimits, rejections
from slotool.serving.front.accounts import CLIENTS_OWN
from slotool.serving.rejections import GRPC_CODES, Rejection
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

LARGE = POINTS[2]
X = np.random.default_rng(3).random((1, 1, 2, 3)).astype(np.float32)
Stub = service_pb2_grpc.GRPCInferenceServiceStub


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    """Two models: ``three`` with rules and known latencies, ``plain`` with neither."""
    policy = by_demand(space(100.0, 50_000.0, 1e9), tier_rules())
    models = [served(ThreeLinear(), policy, tier_rules()), served(ThreeLinear("plain"))]
    with live_server(models, RequestLimits(body_bytes=100_000, batch=8)) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(live.grpc_address) as client:
        yield client


@pytest.fixture(scope="module")
def channel(live: LiveServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live.grpc_address) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return Stub(channel)


def logits(live: LiveServer, x: np.ndarray) -> np.ndarray:
    return live.models["plain"].forward(x, LARGE)


def tensor(x: np.ndarray) -> triton.InferInput:
    made = triton.InferInput("input", list(x.shape), "FP32")
    made.set_data_from_numpy(x)
    return made


def told(result: triton.InferResult) -> dict[str, Any]:
    parameters = result.get_response().parameters
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}


def test_tritonclient_finds_server_and_models(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("three", "1")
    assert not client.is_model_ready("four")
    assert not client.is_model_ready("three", "2")
    assert client.get_server_metadata().name == "slotool"
    assert [model.name for model in client.get_model_repository_index().models] == ["three", "plain"]
    metadata = client.get_model_metadata("three")
    assert [(i.name, i.datatype, list(i.shape)) for i in metadata.inputs] == [("input", "FP32", [-1, 1, 2, 3])]
    assert [o.name for o in metadata.outputs] == ["logits", "label", "confidence"]
    config = client.get_model_config("three").config
    assert (config.max_batch_size, list(config.input[0].dims)) == (8, [1, 2, 3])
    # What Triton's example of an image client reads.
    assert config.input[0].format == config.input[0].FORMAT_NCHW
    with pytest.raises(InferenceServerException, match=r"'plane' is not found; .* did you mean 'plain'"):
        client.get_model_metadata("plane")
    with pytest.raises(InferenceServerException, match="unknown model: 'four'") as caught:
        client.get_model_metadata("four")
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    # Words that Triton's example of explicit contents looks for.
    with pytest.raises(InferenceServerException, match="from specified version string 'wrong_specification'"):
        client.get_model_metadata("three", model_version="wrong_specification")


def test_tritonclient_infers(live: LiveServer, client: triton.InferenceServerClient) -> None:
    x = np.random.default_rng(4).random((5, 1, 2, 3)).astype(np.float32)
    result = client.infer("plain", [tensor(x)], request_id="a7")
    expected = logits(live, x)
    assert result.get_response().id == "a7"
    np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-6)
    np.testing.assert_array_equal(result.as_numpy("label"), expected.argmax(axis=1))
    assert told(result)["operating_point"] == "version=large"
    only = client.infer("plain", [tensor(x)], outputs=[triton.InferRequestedOutput("label")])
    assert only.as_numpy("logits") is None
    np.testing.assert_array_equal(only.as_numpy("label"), expected.argmax(axis=1))


def request(x: np.ndarray | None = X, model: str = "plain", **parameters: Any) -> Any:
    """A request whose tensor, if any, is typed."""
    made = v2.ModelInferRequest(model_name=model)
    for name, value in parameters.items():
        setattr(made.parameters[name], {str: "string_param", int: "int64_param", float: "double_param"}[type(value)],
                value)  # fmt: skip
    if x is not None:
        one = made.inputs.add(name="input", datatype="FP32", shape=x.shape)
        one.contents.fp32_contents.extend(x.ravel().tolist())
    return made


def test_typed_contents_are_read_too(live: LiveServer, stub: Any) -> None:
    response = stub.ModelInfer(request())
    scores = np.frombuffer(response.raw_output_contents[0], np.float32).reshape(1, 4)
    np.testing.assert_allclose(scores, logits(live, X), rtol=1e-6)


def test_parameters_choose_the_point_and_the_answer_says_why(client: triton.InferenceServerClient) -> None:
    tier = told(client.infer("three", [tensor(X)], parameters={"tolerance": 0.25, "objective": "cost"}, priority=1))
    assert tier["rule"] == "cost-0.2"
    aclo = told(client.infer("three", [tensor(X)], parameters={"min_accuracy": 0.85}))
    assert aclo["operating_point"] == "version=medium"
    with pytest.raises(InferenceServerException, match=r"accuracy 0\.99 is out of reach") as caught:
        client.infer("three", [tensor(X)], parameters={"min_accuracy": 0.99})
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


@pytest.mark.parametrize("limits", [{"timeout": 20_000_000}, {"client_timeout": 20.0},
                                    {"timeout": 20_000_000, "client_timeout": 500.0},
                                    {"timeout": 500_000_000, "client_timeout": 20.0}])  # fmt: skip
def test_the_nearer_of_both_deadlines_chooses_the_point(
    client: triton.InferenceServerClient, limits: dict[str, Any]
) -> None:
    answer = told(client.infer("three", [tensor(X)], **limits))
    assert answer["operating_point"] == "version=medium", "large would take 1,000 s"
    assert 10e6 < answer["slack_us"] < 21e6, "gRPC rounds its own up"


def test_a_deadline_that_has_passed_is_reported_and_counted(
    live: LiveServer, client: triton.InferenceServerClient
) -> None:
    before = live.count("slotool_drops_total", model="three", cause="expired")
    calls = len(live.models["three"].calls)
    with pytest.raises(InferenceServerException, match="deadline passed") as caught:
        client.infer("three", [tensor(X)], timeout=1)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert live.count("slotool_drops_total", model="three", cause="expired") == before + 1
    assert len(live.models["three"].calls) == calls


def both() -> Any:
    made = request()
    made.raw_input_contents.append(X.tobytes())
    return made


def changed(**fields: Any) -> Any:
    made = request()
    for name, value in fields.items():
        if name == "shape":
            made.inputs[0].shape[:] = value
        else:
            setattr(made.inputs[0], name, value)
    return made


BAD_REQUESTS = {
    "no input": (request(None), "input input: it is missing", grpc.StatusCode.INVALID_ARGUMENT),
    "too few values": (changed(shape=[2, 1, 2, 3]), "has 6 values", grpc.StatusCode.INVALID_ARGUMENT),
    "another shape": (changed(shape=[1, 6]), "expected [batch, 1, 2, 3]", grpc.StatusCode.INVALID_ARGUMENT),
    "another dtype": (changed(datatype="INT64"), "expected 'FP32'", grpc.StatusCode.INVALID_ARGUMENT),
    "another name": (changed(name="x"), "no input is called 'x'; there is input", grpc.StatusCode.INVALID_ARGUMENT),
    "a batch too large": (changed(shape=[9, 1, 2, 3]), "at most 8", grpc.StatusCode.INVALID_ARGUMENT),
    "raw and typed": (both(), "exactly one of", grpc.StatusCode.INVALID_ARGUMENT),
    "NaN": (request(np.full_like(X, np.nan)), "NaN or infinity", grpc.StatusCode.INVALID_ARGUMENT),
    "overflow": (request(np.full_like(X, 3e38)), "are not numbers", grpc.StatusCode.INVALID_ARGUMENT),
    "a bad parameter": (request(timeout="soon"), "not a number", grpc.StatusCode.INVALID_ARGUMENT),
    "no rules": (request(tolerance=0.1), "no tolerance tiers", grpc.StatusCode.INVALID_ARGUMENT),
    "no model": (request(model="four"), "unknown model", grpc.StatusCode.NOT_FOUND),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_bad_requests_are_reported_why_and_do_no_harm(stub: Any, what: str) -> None:
    message, sentence, code = BAD_REQUESTS[what]
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message)
    assert caught.value.code() == code
    assert sentence in caught.value.details()
    assert len(stub.ModelInfer(request()).raw_output_contents) == 3


def test_bytes_that_are_no_message_or_too_long_are_rejected(live: LiveServer) -> None:
    with grpc.insecure_channel(live.grpc_address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for raw, code in ((b"\xff" * 9, grpc.StatusCode.INVALID_ARGUMENT),
                          (b"\xff" * 100_001, grpc.StatusCode.RESOURCE_EXHAUSTED)):  # fmt: skip
            with pytest.raises(grpc.RpcError) as caught:
                infer(raw)
            assert caught.value.code() == code
        # gRPC's own limit is that of all bodies; it gives no reason of ours, and we count it.
        assert "Received message larger than max (100001 vs. 100000)" in caught.value.details()
        until(lambda: live.count("slotool_drops_total", model="", cause="too-large") == 1)
        # What no model needs is longer than ours.
        with pytest.raises(grpc.RpcError, match=r"the body is longer than \d+ bytes, .* \(--max-body-mib\)") as caught:
            infer(b"\xff" * 99_999)
        assert (caught.value.code(), *caught.value.trailing_metadata()) == (code, ("cause", "too-large"))
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/NoSuchMethod")(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("inference.GRPCInferenceService/CudaSharedMemoryStatus", "CUDA shared memory is not served"),
        ("inference.GRPCInferenceService/CudaSharedMemoryRegister", "CUDA shared memory is not served"),
        ("inference.GRPCInferenceService/LogSettings", "what is logged is set when the server starts: --log"),
        ("inference.GRPCInferenceService/TraceSetting", "what is traced is set when the server starts: --traces"),
        ("inference.GRPCInferenceService/No\x1bMethod", "has no method No\\x1bMethod here"),
        ("grpc.health.v1.Health/Heal", "grpc.health.v1.Health has no method Heal here"),
        ("grpc.Other/Check", "no service grpc.Other: this server has inference.GRPCInferenceService and"),
        ("no-slash", "no service no-slash"),
    ],
)
def test_what_is_not_served_is_a_sentence(channel: grpc.Channel, path: str, sentence: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{path}")(b"")
    assert sentence in caught.value.details()
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_every_method_of_the_protocol_is_answered_in_words(channel: grpc.Channel) -> None:
    for method in v2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        called = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")(iter([b""]))
        try:
            list(called)
        except grpc.RpcError:
            assert " " in called.details()
            assert called.details() != "Method not found!"


def test_requests_of_a_sequence_are_a_sentence(stub: Any) -> None:
    # How tritonclient sends them.
    with pytest.raises(grpc.RpcError, match="no state is kept between requests; send each of them by ModelInfer"):
        next(stub.ModelStreamInfer(iter([request(sequence_id=7)])))


def test_statistics_are_what_happened() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, triton.InferenceServerClient(live.grpc_address) as client:
        model.sleep_s[LARGE] = 0.02
        for batch in (1, 3):
            client.infer("three", [tensor(np.repeat(X, batch, axis=0))])
        with pytest.raises(InferenceServerException):
            client.infer("three", [tensor(X)], timeout=1)
        (stats,) = client.get_inference_statistics().model_stats
        assert (stats.name, stats.inference_count, stats.execution_count) == ("three", 4, 2)
        totals = stats.inference_stats
        assert [t.count for t in (totals.success, totals.queue, totals.compute_infer, totals.fail)] == [2, 2, 2, 1]
        assert totals.compute_input.count == totals.compute_output.count == 2
        parts = (totals.compute_input, totals.queue, totals.compute_infer)
        assert totals.success.ns == pytest.approx(sum(part.ns for part in parts), abs=5)
        assert all(part.ns > 0 for part in parts)
        assert totals.compute_infer.ns >= 2 * 0.02e9
        assert totals.fail.ns > 0
        over_http = HTTP.get(f"{live.url}/v2/models/three/stats").json()["model_stats"]
        assert over_http == HTTP.get(f"{live.url}/v2/models/stats").json()["model_stats"]
        assert over_http[0]["inference_stats"]["compute_infer"] == {
            "count": totals.compute_infer.count,
            "ns": totals.compute_infer.ns,
        }
        assert abs(stats.last_inference / 1e3 - time.time()) < 3600


@pytest.mark.parametrize("leaving", ["cancels", "runs out of time"])
def test_a_client_that_left_is_dropped_and_counted_before_any_work(leaving: str) -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, grpc.insecure_channel(live.grpc_address) as channel:
        stub = Stub(channel)
        stub.ModelInfer(request(model="three"))
        model.sleep_s[LARGE] = 0.5
        model.calls.clear()
        patient = stub.ModelInfer.future(request(model="three"))
        until(lambda: bool(model.calls))
        left = stub.ModelInfer.future(request(model="three"), timeout=0.2 if leaving == "runs out of time" else 30)
        if leaving == "cancels":
            threading.Timer(0.1, left.cancel).start()
        assert patient.result().model_name == "three"
        cause = "client-gone" if leaving == "cancels" else "expired"

        def drops() -> float:
            """Of the model, or of none when the request was cancelled before it was read."""
            return sum(live.count("slotool_drops_total", model=name, cause=cause) for name in ("three", ""))

        until(drops)
        assert drops() == 1
        assert len(model.calls) == 1


def test_what_is_in_flight_when_the_server_ends_is_answered() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live:
        channel = grpc.insecure_channel(live.grpc_address)
        stub = Stub(channel)
        stub.ModelInfer(request(model="three"))
        model.sleep_s[LARGE] = 0.5
        model.calls.clear()
        in_flight = [stub.ModelInfer.future(request(model="three")) for _ in range(2)]
        until(lambda: bool(model.calls))
    assert [response.result().model_name for response in in_flight] == ["three", "three"]
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request(model="three"))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    channel.close()


def test_a_message_that_does_not_come_or_an_empty_stream_is_reported() -> None:
    with live_server([served(ThreeLinear())], RequestLimits(body_s=0.2)) as live:
        with grpc.insecure_channel(live.grpc_address) as channel:
            infer = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            waiting = threading.Event()
            for messages, code in ((iter(waiting.wait, True), grpc.StatusCode.DEADLINE_EXCEEDED),
                                   (iter(()), grpc.StatusCode.INVALID_ARGUMENT)):  # fmt: skip
                with pytest.raises(grpc.RpcError) as caught:
                    infer(messages, timeout=30)
                assert caught.value.code() == code
            waiting.set()
        assert live.count("slotool_drops_total", model="", cause="too-slow") == 1


def test_a_burst_beyond_what_grpc_lets_wait_is_answered_or_told_why() -> None:
    """On one connection streams are held back; over many, our own limit speaks."""
    asked = 1_500
    with live_server([served(ThreeLinear())]) as live, grpc.insecure_channel(live.grpc_address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        raw = request(model="three").SerializeToString()
        calls = [infer.future(raw, timeout=120) for _ in range(asked)]
        rejected = [error for error in (call.exception() for call in calls) if error is not None]
        for error in rejected:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
            assert "cause" in dict(error.trailing_metadata())
        drops = live.router.metrics.registry.collect()
        counted = sum(s.value for m in drops for s in m.samples if s.name == "slotool_drops_total")
        assert counted == len(rejected)


def test_calls_beyond_the_limit_are_rejected_over_all_connections() -> None:
    with live_server([served(ThreeLinear())], RequestLimits(connections=2)) as live:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(live.grpc_address, options) for _ in range(2)]
        waiting = threading.Event()
        infers = [channel.stream_unary("/inference.GRPCInferenceService/ModelInfer") for channel in channels]
        halves: list[Any] = [None, None]

        def told() -> str:
            # A connection that is closed before it is used, as on a busy machine, is made anew.
            for at, half in enumerate(halves):
                if half is None or half.done():
                    halves[at] = infers[at].future(iter(waiting.wait, True), timeout=60)
            return asked()

        def asked() -> str:
            try:
                infers[0](iter([request(model="three").SerializeToString()]), timeout=60)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
            return ""

        until(lambda: told() == "UNAVAILABLE: 2 gRPC calls are open already; try again later")
        for half in halves:
            half.cancel()
        until(lambda: not asked())
        with grpc.insecure_channel(live.grpc_address, options) as third:
            with pytest.raises(grpc.RpcError) as caught:
                Stub(third).ServerLive(v2.ServerLiveRequest(), timeout=60)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        waiting.set()
        for channel in channels:
            channel.close()
        assert live.count("slotool_drops_total", model="", cause="connections") >= 1


def test_the_documents_table_of_rejections_is_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| (\d{3}) \| ([A-Z_]+) \|", text, re.MULTILINE)
    made = [rejections.bad_request(""), rejections.not_found(""), rejections.too_slow(""), rejections.too_large(""),
            rejections.expired(0), rejections.cannot_meet(""), rejections.shed(""), rejections.queue_full(1),
            rejections.too_many_connections(1),
            rejections.no_worker(1, 1, 1.0), rejections.no_version(""), rejections.stopping(),
            rejections.too_many_bytes(1), rejections.client_gone(), rejections.failed(ValueError()),
            Rejection(401, "unauthorized", ""), Rejection(403, "forbidden", ""),
            Rejection(429, "quota", "")]  # fmt: skip
    assert sorted(rows) == sorted((each.cause, str(each.status), GRPC_CODES[each.status]) for each in made)
    servers_own = {cause for cause, *_ in rows} - CLIENTS_OWN
    assert servers_own == {cause for cause, *_ in rows[-len(servers_own) :]}
