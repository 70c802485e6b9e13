"""Answers of both protocols as they were, byte for byte: ``tests/golden/transcripts.json``.

One network of one float32 input and one model with a signature are asked over HTTP (JSON, binary tensors, ``/compute``,
documents of a model) and gRPC. ``python -m tests.serving.test_golden_transcripts`` records the transcripts anew.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as v2
from tritonclient.grpc import service_pb2_grpc

from slotool.elastic import ElasticModel
from slotool.models import Classification, Signature
from slotool.models.adapters.factory import FunctionModel
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import ServedModel
from slotool.tables import FULL, OperatingPoint
from tests.serving.live_server import HTTP, LiveServer, live_server
from tests.serving.wrapped_model import served_as_is

GOLDEN = Path(__file__).parents[1] / "golden" / "transcripts.json"
# Differ between two runs: times, the id of a request, and lengths in bytes, which depend on the digits of both.
TIMES = re.compile(rb'("(?:queue_us|compute_us|latency_us)":)[0-9.e-]+')
REQUEST_ID = re.compile(rb'("request":)"[^"]*"')
VARYING_PARAMETERS = ("queue_us", "compute_us", "request")
VARYING_HEADERS = ("content-length", "inference-header-content-length")
OVERFLOWING = 3e38


class Sums(ElasticModel):
    """Ten times the first three of six numbers: scores whose confidence is the same on every machine."""

    name, input_shape, classes, points = "sums", (1, 2, 3), 3, (FULL,)

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        return 10 * x.reshape(len(x), -1)[:, :3]


def scored(ids: np.ndarray, word: np.ndarray) -> dict[str, np.ndarray]:
    scores = np.where(np.arange(3) == ids.sum(axis=1, keepdims=True) % 3, 1e4, 0.0).astype(np.float32)
    scores[ids[:, 0] < 0] = np.nan
    return {"scores": scores, "said": np.array([value + b"!" for value in word], dtype=np.object_)}


def asked() -> dict[str, str]:
    """Name of each exchange and its answer, with what varies left out."""
    signature = Signature.parse("ids=INT64[-1,2] word=BYTES[-1] -> scores=FP32[-1,3] said=BYTES[-1]")
    pixels = Signature.parse("x=FP32[-1,2] -> scores=FP32[-1,2]")
    sums = Sums()
    models = [
        ServedModel(sums.name, sums, by_demand(ControlSpace(sums.points))),
        served_as_is(FunctionModel(scored, signature, name="named"), Classification("scores")),
        served_as_is(FunctionModel(lambda x: 1e4 * x, pixels, name="single"), Classification("scores")),
    ]
    with live_server(models) as live:
        return {**_over_http(live), **_over_grpc(live)}


X = {
    "one": np.array([[0, 1e4, 0, 5, 6, 7]], np.float32).reshape(1, 1, 2, 3),
    "two": np.array([[2, 2, -1e4, 0, 0, 0], [1e4, 0, 0, 0, 0, 0]], np.float32).reshape(2, 1, 2, 3),
    "overflow": np.full((1, 1, 2, 3), OVERFLOWING, np.float32),
}
IDS = {"one": [[1, 0]], "two": [[3, 5], [0, 0]], "not a number": [[-1, 0]]}


def _inputs(name: str, of: str) -> list[dict[str, Any]]:
    if name == "sums":
        return [{"name": "input", "datatype": "FP32", "shape": list(X[of].shape), "data": X[of].ravel().tolist()}]
    ids = IDS[of]
    words = ["a", "wörd"][: len(ids)]
    return [
        {"name": "ids", "datatype": "INT64", "shape": [len(ids), 2], "data": [number for row in ids for number in row]},
        {"name": "word", "datatype": "BYTES", "shape": [len(ids)], "data": words},
    ]


CASES = [
    *(("sums", of) for of in X),
    *(("named", of) for of in IDS),
]
REQUESTED = {"sums": ["confidence", "logits"], "named": ["said", "label", "confidence"]}


def _over_http(live: LiveServer) -> dict[str, str]:
    found = {}
    for name, of in CASES:
        document = {"id": "a7", "inputs": _inputs(name, of)}
        outputs = [{"name": output} for output in REQUESTED[name]]
        found[f"http {name} {of}"] = _posted(live, name, document)
        found[f"http {name} {of} requested"] = _posted(live, name, {**document, "outputs": outputs})
        found[f"http {name} {of} binary"] = _posted(
            live, name, {**document, "parameters": {"binary_data_output": True}}
        )
        classes = [{"name": outputs[1]["name"] if name == "sums" else "scores", "parameters": {"classification": 2}}]
        found[f"http {name} {of} classes"] = _posted(live, name, {**document, "outputs": classes})
    raw = {"id": "", "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3],
                                 "parameters": {"binary_data_size": 24}}]}  # fmt: skip
    head = json.dumps(raw).encode()
    for what, x in (("one", X["one"]), ("not a number", np.full((1, 1, 2, 3), np.nan, np.float32))):
        answer = HTTP.post(f"{live.url}/v2/models/sums/infer", content=head + x.tobytes(),
                           headers={"Inference-Header-Content-Length": str(len(head))})  # fmt: skip
        found[f"http sums binary in, {what}"] = _text(answer)
    for name in ("sums", "named", "single"):
        for path in ("", "/config", "/ready"):
            found[f"http {name}{path}"] = _text(HTTP.get(f"{live.url}/v2/models/{name}{path}"))
    for name, x in (("sums", X["one"][0]), ("sums", X["overflow"][0]), ("single", np.array([0, 1], np.float32))):
        file = io.BytesIO()
        np.save(file, x)
        found[f"compute {name} {x.max():g}"] = _text(
            HTTP.post(f"{live.url}/compute", content=file.getvalue(), headers={"Model": name})
        )
    return found


def _posted(live: LiveServer, model: str, document: dict[str, Any]) -> str:
    return _text(HTTP.post(f"{live.url}/v2/models/{model}/infer", content=json.dumps(document)))


def _text(answer: Any) -> str:
    headers = {name: "…" if name in VARYING_HEADERS else value for name, value in answer.headers.items()}
    body = REQUEST_ID.sub(rb'\1"id"', TIMES.sub(rb"\g<1>0", answer.content))
    return f"{answer.status_code} {json.dumps(headers, ensure_ascii=False)}\n{body.decode('latin-1')}"


def _over_grpc(live: LiveServer) -> dict[str, str]:
    found = {}
    with grpc.insecure_channel(live.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, of in CASES:
            request = v2.ModelInferRequest(model_name=name, id="b")
            for tensor in _inputs(name, of):
                one = request.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
                field = {"FP32": "fp32_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}
                values = [value.encode() if isinstance(value, str) else value for value in tensor["data"]]
                getattr(one.contents, field[tensor["datatype"]]).extend(values)
            found[f"grpc {name} {of}"] = _inferred(stub, request)
            for output in REQUESTED[name]:
                request.outputs.add(name=output)
            found[f"grpc {name} {of} requested"] = _inferred(stub, request)
        for name in ("sums", "named", "single"):
            found[f"grpc {name}"] = text_format.MessageToString(stub.ModelMetadata(v2.ModelMetadataRequest(name=name)))
            found[f"grpc {name} config"] = text_format.MessageToString(
                stub.ModelConfig(v2.ModelConfigRequest(name=name))
            )
    return found


def _inferred(stub: Any, request: Any) -> str:
    try:
        answer = stub.ModelInfer(request)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    for name in VARYING_PARAMETERS:
        answer.parameters[name].Clear()
    return str(text_format.MessageToString(answer))


def test_answers_are_as_recorded() -> None:
    recorded, answers = json.loads(GOLDEN.read_text()), asked()
    assert list(answers) == list(recorded)
    for name, answer in answers.items():
        assert answer == recorded[name], name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(asked(), indent=1, ensure_ascii=False) + "\n")
