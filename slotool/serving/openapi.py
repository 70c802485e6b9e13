"""The OpenAPI 3.1 document of everything served over HTTP, for the models that this server has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slotool import __version__
from slotool.models.signature import DTYPES
from slotool.rules.ruleset import OBJECTIVES
from slotool.serving.interface import Interface
from slotool.serving.limits import Limits
from slotool.serving.request_options import MAX_GROUP_CHARACTERS, MAX_PRIORITY, MAX_TIMEOUT_US
from slotool.serving.served import VERSION, ServedModel
from slotool.serving.shared_memory import MAX_BYTES, MAX_NAME_CHARACTERS

Document = dict[str, Any]
_REJECTIONS = {
    400: "The request cannot be understood",
    401: "The token is missing or wrong",
    403: "A page of another site may not do this",
    404: "No such model, version or page",
    408: "The body did not arrive in time",
    413: "The body is too long",
    415: "The body's encoding is not known",
    431: "The headers are too long",
    499: "The client is gone",
    500: "The model failed",
    503: "What was asked for cannot be met, or too many requests are waiting",
    504: "The deadline passed before the request could be served",
}
_ASKING = (400, 401, 404, 408, 413, 415, 431, 499, 500, 503, 504)
_LABELLING = (400, 401, 403, 404, 408, 413, 415, 431, 499)
_LOOKING = (401, 404, 431)
_NUMBER, _TEXT, _OBJECT = {"type": "number"}, {"type": "string"}, {"type": "object"}
_JSON_TYPES = dict.fromkeys(DTYPES, "number") | {"BOOL": "boolean", "BYTES": "string"}
_WHOLE: Document = {"type": "integer", "minimum": 0}


def document(
    models: Mapping[str, ServedModel], limits: Limits, *, has_token: bool, shared_memory: bool = False
) -> Document:
    """The whole document, as plain JSON values."""
    interfaces = [Interface.of(served.model, limits.batch) for served in models.values()]
    made: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "slotool serve",
            "version": __version__,
            "description": "Open Inference Protocol V2 and the Tolerance Tiers service, with deadlines and tolerances.",
        },
        "paths": {
            **_pages(),
            **_server(),
            **_shared_memory(can_register=shared_memory),
            **_models(list(models), limits),
            **_compute(list(models)),
        },
        "components": {"schemas": {**_messages(list(models), interfaces), **_others(models)}},
    }
    if has_token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _pages() -> Document:
    """What a person or Prometheus looks at."""
    live, index = _ref("Live"), _answers("What this server serves; for browsers the live page", _object(["models"]))
    index["responses"]["200"]["content"]["text/html"] = {"schema": _TEXT}
    asked = (400, 401, 403, 408, 413, 415, 431)
    return {
        "/": {"get": index},
        "/live": {
            "get": _answers("Figures of the last seconds", live)
            | {
                "parameters": [
                    _parameter("query", "since", _WHOLE, "Number of the last second known"),
                    _parameter("query", "model", _TEXT, "Figures of this model only"),
                ]
            },
            "post": _answers("Set policy, default tolerance or workers", live, asked) | _body(_ref("RuntimeSettings")),
        },
        "/metrics": {"get": _answers("Counts and latencies for Prometheus", _TEXT, kind="text/plain")},
        "/openapi.json": {"get": _answers("This document", _object(["openapi"]))},
    }


def _server() -> Document:
    """The Open Inference Protocol of the server; probes show no token."""
    index = _answers("The models", {"type": "array"}, (400, 401, 408, 413, 415, 431, 499))
    index["requestBody"] = {"content": _json(_OBJECT)}
    flag = _object(["live"], live={"type": "boolean"})
    return {
        "/v2": {"get": _answers("Name, version and extensions", _ref("Server"))},
        "/v2/health/live": {"get": _answers("Whether the server runs", flag, (431,)) | {"security": []}},
        "/v2/health/ready": {"get": _ready("Whether a worker can take a request", (431,)) | {"security": []}},
        "/v2/models/stats": {"get": _answers("Counts and durations of all models", _ref("Statistics"))},
        "/v2/repository/index": {"post": index},
    }


def _shared_memory(*, can_register: bool) -> Document:
    """Regions that clients register; Triton's clients unregister also where they cannot register any."""
    name = _parameter("path", "region", {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS})
    size = {"type": "integer", "minimum": 0, "maximum": MAX_BYTES}
    asked = _object(["key", "byte_size"], key=_TEXT, byte_size={**size, "minimum": 1}, offset=size)
    changing = (400, 401, 403, 404, 408, 413, 415, 431, 499)
    register = _answers("Register a region of a shared memory object", _OBJECT, changing) | _body(asked)
    unregister = {"post": _answers("Forget a region, or all of this client's", _OBJECT, changing)}
    status = {"get": _answers("Regions of this client", {"type": "array"})}
    paths: Document = {}
    for path in ("/v2/systemsharedmemory", "/v2/cudasharedmemory"):
        paths[f"{path}/region/{{region}}/unregister"] = {"parameters": [name], **unregister}
        paths[f"{path}/unregister"] = unregister
    if can_register:
        path = "/v2/systemsharedmemory"
        paths[f"{path}/region/{{region}}/register"] = {"parameters": [name], "post": register}
        paths[f"{path}/region/{{region}}/status"] = {"parameters": [name], **status}
        paths[f"{path}/status"] = status
    return paths


def _models(names: list[str], limits: Limits) -> Document:
    """The Open Inference Protocol of a model, and labels for its answers."""
    model = _parameter("path", "model", {"type": "string", "enum": names})
    version = _parameter("path", "version", {"type": "string", "enum": [VERSION]})
    path = "/v2/models/{model}"
    paths: Document = {
        f"{path}/feedback": {
            "parameters": [model],
            "get": _answers("Accuracy and alarms from labels", _ref("Feedback")),
            "post": _answers("Send the true classes of answered examples", _ref("Feedback"), _LABELLING)
            | _body(_ref("Labels")),
        },
    }
    config = _object(["name", "input"])
    for at, parameters in ((path, [model]), (f"{path}/versions/{{version}}", [model, version])):
        for page, operation in (
            ("", {"get": _answers("Inputs and outputs of a model", _ref("Metadata"))}),
            ("/ready", {"get": _ready("Whether a model is ready")}),
            ("/config", {"get": _answers("Triton's configuration of a model", config)}),
            ("/stats", {"get": _answers("Counts and durations of a model", _ref("Statistics"))}),
            ("/infer", {"post": _infer(limits)}),
        ):
            paths[f"{at}{page}"] = {"parameters": parameters, **operation}
    return paths


def _infer(limits: Limits) -> Document:
    length = {"type": "integer", "minimum": 0, "maximum": limits.body_bytes}
    said = "Length of the JSON in bytes, when binary tensors follow it"
    operation = _answers("Answer a batch of examples", _ref("InferResponse"), _ASKING) | _body(_ref("InferRequest"))
    operation["parameters"] = [_parameter("header", "Inference-Header-Content-Length", length, said)]
    for content in (operation["responses"]["200"]["content"], operation["requestBody"]["content"]):
        content["application/octet-stream"] = {"schema": {}}
    return operation


def _compute(names: list[str]) -> Document:
    headers = (
        ("Model", {"type": "string", "enum": names}, "Which model; needed when there are several"),
        ("Deadline-Ms", _up_to(MAX_TIMEOUT_US / 1e3), "Milliseconds until the answer is worthless"),
        ("Tolerance", {"type": "number", "minimum": 0}, "Error degradation accepted"),
        ("Objective", {"type": "string", "enum": list(OBJECTIVES)}, "What the tolerance is to save"),
        ("Min-Accuracy", _up_to(1), "Accuracy the answer should have"),
        ("Priority", _up_to(MAX_PRIORITY, "integer"), "0 is none; 1 goes first"),
        ("Group", {"type": "string", "maxLength": MAX_GROUP_CHARACTERS}, "Whose guarantee its label counts for"),
    )
    kinds = ("application/octet-stream", "application/x-npy", "image/png", "image/jpeg")
    operation = _answers("Answer one example", _ref("ComputeResponse"), _ASKING)
    operation["parameters"] = [_parameter("header", *header) for header in headers]
    operation["requestBody"] = {"required": True, "content": {kind: {"schema": {}} for kind in kinds}}
    return {"/compute": {"post": operation}}


def _messages(names: list[str], interfaces: Sequence[Interface]) -> Document:
    """Requests for inferences, and their answers."""
    name: Document = {"type": "string", "enum": names}
    outputs = [tensor for interface in interfaces for tensor in interface.output_by_name.values()]
    output = _object(
        ["name", "datatype", "shape"],
        name={"enum": _unique(tensor.name for tensor in outputs)},
        # Classification gives texts in place of scores.
        datatype={"enum": _unique(["BYTES", *(tensor.datatype for tensor in outputs)])},
        shape=_list({"type": "integer"}),
        data=_list({"type": [*_unique(["string", *(_JSON_TYPES[tensor.datatype] for tensor in outputs)]), "null"]}),
        parameters=_OBJECT,
    )
    asked = _object(
        [],
        timeout={**_up_to(MAX_TIMEOUT_US), "description": "µs from arrival to the deadline; 0 is none"},
        tolerance={"type": "number", "minimum": 0},
        objective={"enum": list(OBJECTIVES)},
        min_accuracy=_up_to(1),
        priority=_up_to(MAX_PRIORITY, "integer"),
        group={"type": ["string", "integer"], "maxLength": MAX_GROUP_CHARACTERS},
        binary_data_output={"type": "boolean"},
    )
    wanted = _list(_object(["name"], name={"enum": _unique(t.name for t in outputs)}, parameters=_OBJECT))
    version, why = {"enum": [VERSION]}, _ref("Explanation")
    computed: Document = {"label": {"type": "integer"}, "answer": {}, "model": name, "latency_us": _NUMBER}
    needed = ["operating_point", "reason", "request", "queue_us", "compute_us"]
    explained: Document = dict.fromkeys(("operating_point", "reason", "rule", "request"), _TEXT)
    explained |= dict.fromkeys(("queue_us", "compute_us", "slack_us", "confidence"), _NUMBER)
    explained["batch"] = {"type": "integer"}
    return {
        "InferRequest": _object(["inputs"], id=_TEXT, parameters=asked, inputs=_inputs(interfaces), outputs=wanted),
        "InferResponse": _object(["model_name", "outputs"], model_name=name, model_version=version, id=_TEXT,
                                 parameters=why, outputs=_list(output)),
        "ComputeResponse": {"allOf": [_object(["model", "latency_us"], **computed), why]},
        "Explanation": _object(needed, **explained),
    }  # fmt: skip


def _inputs(interfaces: Sequence[Interface]) -> Document:
    """The tensors of a request, in any order."""
    by_tensor = {tensor: interface for interface in interfaces for tensor in interface.inputs}
    tensors = [
        _object(
            ["name", "datatype", "shape"],
            name={"const": tensor.name},
            datatype={"const": tensor.datatype},
            shape=_list({"type": "integer"}) | {"description": f"{tensor}, batch at most {interface.max_batch}"},
            data={"type": "array", "description": "The values, flat or nested; absent in binary form"},
            parameters=_OBJECT,
        )
        for tensor, interface in by_tensor.items()
    ]
    counts = [len(interface.inputs) for interface in interfaces]
    return _list(tensors[0] if len(tensors) == 1 else {"anyOf": tensors}) | {
        "minItems": min(counts),
        "maxItems": max(counts),
    }


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _others(models: Mapping[str, ServedModel]) -> Document:
    some: Document = {"type": "array"}
    tolerance, share = {"type": ["number", "null"], "minimum": 0}, {"type": ["number", "null"]}
    number: Document = {"type": "integer", "minimum": 1}
    metadata: Document = {"name": {"type": "string", "enum": list(models)}, "versions": _list(_TEXT), "platform": _TEXT}
    classes = max(1, *(served.model.classes for served in models.values()))
    numbers, names = _list(_up_to(classes - 1, "integer")), _list(_TEXT)
    labels = {"anyOf": [numbers | {"minItems": 1}, names | {"minItems": 1}]}
    counts: Document = {"labelled": {"type": "integer"}, "accuracy": share, "effective_accuracy": share}
    counts |= {"alarms": some, "confirmed": some}
    group = {"type": "string", "maxLength": MAX_GROUP_CHARACTERS}
    return {
        "Error": _object(["error"], error=_TEXT),
        "Server": _object(["name", "version"], name=_TEXT, version=_TEXT, extensions=some),
        "Metadata": _object(list(metadata), **metadata, inputs=some, outputs=some),
        "Statistics": _object(["model_stats"], model_stats=some),
        "RuntimeSettings": _object([], policy=_TEXT, tolerance=tolerance, replicas=number, threads=number)
        | {"additionalProperties": False},
        "Live": _live(models, tolerance),
        "Labels": _object(["request", "labels"], request=_TEXT, labels=labels, group={"anyOf": [group, _list(group)]}),
        "Feedback": _object(list(counts), **counts),
    }


def _live(models: Mapping[str, ServedModel], tolerance: Document) -> Document:
    """What the live page shows."""
    perhaps: Document = {"type": ["string", "null"]}
    worker: Document = {"type": "string", "enum": ["idle", "busy", "starting", "dead"]}
    properties: Document = {
        "version": _TEXT,
        "up_s": {"type": "number", "minimum": 0},
        "models": _list({"type": "string", "enum": list(models)} if models else _TEXT),
        "guarantees": {"type": "object", "additionalProperties": _OBJECT},
        "workers": _WHOLE,
        "all_workers": _WHOLE,
        "busy": _WHOLE,
        "worker_states": _list(_object(["state", "model", "device"], state=worker, model=perhaps, device=_TEXT)),
        "threads": {"type": ["integer", "null"]},
        "can_reconfigure": {"type": "boolean"},
        "unready": perhaps,
        "policy": perhaps,
        "policies": _list(_TEXT),
        "tolerance": tolerance,
        "tiers": _list({"type": "number", "minimum": 0}),
        "seconds": _list(_object(["number", "answered", "waiting"])),
    }
    return _object(list(properties), **properties)


def _answers(
    summary: str, schema: Document, rejections: Sequence[int] = _LOOKING, kind: str = "application/json"
) -> Document:
    """An operation, what it is answered with, and the statuses with which it may be rejected."""
    rejected = {str(s): {"description": _REJECTIONS[s], "content": _json(_ref("Error"))} for s in rejections}
    answered = {"description": "Answered", "content": {kind: {"schema": schema}}}
    return {"summary": summary, "responses": {"200": answered, **rejected}}


def _ready(summary: str, rejections: Sequence[int] = _LOOKING) -> Document:
    operation = _answers(summary, _object(["ready"], ready={"type": "boolean"}), rejections)
    unready = _object(["ready", "error"], ready={"const": False}, error=_TEXT)
    operation["responses"]["503"] = {"description": "Not ready", "content": _json(unready)}
    return operation


def _parameter(where: str, name: str, schema: Document, description: str | None = None) -> Document:
    needed = {"required": True} if where == "path" else {"description": description}
    return {"name": name, "in": where, **needed, "schema": schema}


def _body(schema: Document) -> Document:
    return {"requestBody": {"required": True, "content": _json(schema)}}


def _object(required: list[str], **properties: Document) -> Document:
    if not properties:
        return {"type": "object", "required": required}
    return {"type": "object", "properties": properties, "required": required}


def _list(of: Document) -> Document:
    return {"type": "array", "items": of}


def _up_to(most: float, kind: str = "number") -> Document:
    return {"type": kind, "minimum": 0, "maximum": most}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}
