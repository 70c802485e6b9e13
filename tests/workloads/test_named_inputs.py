"""Load tests of models with a signature: the data set's tensors, by the names and datatypes the server states."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slotool.data.columns import Columns
from slotool.data.dataset import Split
from slotool.errors import InputError
from slotool.models import Signature, TensorSpec
from slotool.workloads import Poisson
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import ServedSignature
from slotool.workloads.client.many_processes import ManyProcesses
from slotool.workloads.client.open_loop import LoadPlan, LocalRun

INPUTS = (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("text", "BYTES", (-1,)), TensorSpec("mask", "BOOL", (-1, 2)))
SCORES = TensorSpec("scores", "FP32", (-1, 3))
TEXT = np.array([b"a", b"\xc3\xa9", b"", b"dd"], dtype=object)
X = Columns({"mask": np.eye(4, 2, dtype=bool), "ids": np.arange(12, dtype=np.int32).reshape(4, 3), "text": TEXT})
CLASSES = np.array([0, 1, 2, 0])


@dataclass
class Stub:
    """Answers with scores of the class ``ids[0] // 3 % 3``. ``requests``: what was sent, JSON documents and tensors."""

    signature: Signature = field(default_factory=lambda: Signature(INPUTS, (SCORES,)))
    extensions: list[str] = field(default_factory=lambda: ["binary_tensor_data"])
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def metadata(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "m", **self.signature.document()})

    async def server(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "stub", "extensions": self.extensions})

    async def infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        split = int(request.headers.get("Inference-Header-Content-Length", len(body)))
        document, at = json.loads(body[:split]), split
        for tensor in document["inputs"]:
            if "data" not in tensor:
                size = tensor["parameters"]["binary_data_size"]
                tensor["data"], at = body[at : at + size], at + size
        assert at == len(body)
        self.requests.append(document)
        ids = next(tensor["data"] for tensor in document["inputs"] if tensor["name"] == "ids")
        first = ids[0] if isinstance(ids, list) else int(np.frombuffer(ids, "<i8")[0])
        outputs = [{"name": "scores", "datatype": "FP32", "shape": [1, 3], "data": scores_of(first)}]
        return web.json_response({"outputs": outputs, "parameters": {"operating_point": "version=v"}})


def scores_of(first: int) -> list[float]:
    return np.eye(3)[first // 3 % 3].tolist()


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub, loop = Stub(), asyncio.new_event_loop()
    app = web.Application()
    app.router.add_get("/v2", stub.server)
    app.router.add_get("/v2/models/m", stub.metadata)
    app.router.add_post("/v2/models/m/infer", stub.infer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield stub
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=60)
    loop.close()


def plan_of(x: Any, y: Any = CLASSES, rate_per_s: float = 60.0) -> LoadPlan:
    return LoadPlan.draw(Poisson(rate_per_s), 0.3, Split(x, y), seed=0)


def test_binary_tensors_by_name_and_datatype(stub: Stub) -> None:
    target = TargetServer(stub.url, "infer", "m").described()
    run = LocalRun(plan_of(X), target)
    run.drive()
    log = run.log()
    assert log.answered.all()
    assert log.effective_accuracy == 1.0
    assert set(log.rows["point"]) == {"version=v"}
    for sent in stub.requests:
        row = int(np.frombuffer(sent["inputs"][0]["data"], "<i8")[0]) // 3
        text = X.arrays["text"][row]
        assert [(t["name"], t["datatype"], t["shape"], t["data"]) for t in sent["inputs"]] == [
            ("ids", "INT64", [1, 3], X.arrays["ids"][row].astype("<i8").tobytes()),
            ("text", "BYTES", [1], len(text).to_bytes(4, "little") + text),
            ("mask", "BOOL", [1, 2], X.arrays["mask"][row].tobytes()),
        ]
        assert [output["name"] for output in sent["outputs"]] == ["scores"]


def test_json_where_the_server_reads_nothing_else(stub: Stub) -> None:
    stub.extensions = []
    run = LocalRun(plan_of(X), TargetServer(stub.url, "infer", "m").described())
    run.drive()
    assert run.log().effective_accuracy == 1.0
    sent = stub.requests[0]["inputs"]
    row = sent[0]["data"][0] // 3
    assert [tensor["data"] for tensor in sent] == [
        X.arrays["ids"][row].tolist(), [X.arrays["text"][row].decode()], X.arrays["mask"][row].tolist()
    ]  # fmt: skip


def test_several_processes_send_named_tensors_too(stub: Stub) -> None:
    run = ManyProcesses(plan_of(X), TargetServer(stub.url, "infer", "m").described(), 2)
    run.drive()
    assert run.log().effective_accuracy == 1.0


def test_where_no_class_is_right_latency_is_measured_and_accuracy_unknown(stub: Stub) -> None:
    stub.signature = Signature(INPUTS, (TensorSpec("scores", "FP32", (-1, 1)),))
    for y in (CLASSES, np.zeros((4, 2)), np.array([0.5, 1.5, 2.5, 3.5])):
        run = LocalRun(plan_of(X, y), TargetServer(stub.url, "infer", "m").described())
        run.drive()
        summary = run.log().summary()
        assert summary["answered"] == summary["requests"]
        assert np.isnan([summary["effective_accuracy"], summary["accuracy_of_answered"]]).all()


def test_tensors_that_the_model_does_not_take_or_the_data_set_lacks() -> None:
    served = ServedSignature(Signature(INPUTS, (SCORES,)), "m")
    with pytest.raises(InputError, match=r"m takes text \(BYTES\[-1\]\), which the data set lacks: it has ids, mask"):
        served.inputs_of(Columns({"ids": X.arrays["ids"], "mask": X.arrays["mask"]}))
    with pytest.raises(InputError, match="it has one tensor without a name"):
        served.inputs_of(np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match="tensor ids: values of type float64, expected INT64"):
        served.inputs_of(Columns({**X.arrays, "ids": np.zeros((4, 3))}))
    with pytest.raises(InputError, match="POST /compute takes one tensor, the data set has mask, ids, text"):
        TargetServer("http://127.0.0.1:1", "compute", "m").examples(X)
    one = ServedSignature(Signature((TensorSpec("image", "FP32", (-1, 4)),), (SCORES,)), "m")
    assert one.inputs_of(np.zeros((2, 4), np.float64)).arrays["image"].dtype == np.float32
    assert one.inputs_of(Columns({"pixels": np.zeros((2, 4), np.uint8)})).names == ("image",)


def test_which_outputs_say_a_class() -> None:
    label, sure = TensorSpec("label", "INT64", (-1,)), TensorSpec("confidence", "FP32", (-1,))
    served = ServedSignature(Signature(INPUTS, (SCORES, label, sure)), "m")
    assert [spec.name for spec in served.outputs] == ["label", "confidence"]
    answer = served.answer({"label": np.array([2]), "confidence": np.array([0.5])}, {"compute_us": 0.0})
    assert (answer.label, answer.confidence, answer.compute_s) == (2, 0.5, 0.0)


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The same over gRPC, with outputs in the field of their type, as some servers send them."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        metadata = service_pb2.ModelMetadataResponse(name="m")
        for side, specs in ((metadata.inputs, INPUTS), (metadata.outputs, (SCORES,))):
            for spec in specs:
                side.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
        return metadata

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        response = service_pb2.ModelInferResponse(model_name="m")
        output = response.outputs.add(name="scores", datatype="FP32", shape=[1, 3])
        output.contents.fp32_contents.extend(scores_of(int(np.frombuffer(request.raw_input_contents[0], "<i8")[0])))
        return response


def test_named_tensors_over_grpc() -> None:
    servicer, server = Servicer(), grpc.server(futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        run = LocalRun(plan_of(X), TargetServer(f"grpc://127.0.0.1:{port}", "grpc", "m").described())
        run.drive()
    finally:
        server.stop(None).wait()
    assert run.log().effective_accuracy == 1.0
    sent = servicer.requests[0]
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in sent.inputs] == [
        ("ids", "INT64", [1, 3]), ("text", "BYTES", [1]), ("mask", "BOOL", [1, 2])
    ]  # fmt: skip
