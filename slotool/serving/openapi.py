"""The OpenAPI 3.1 document of everything served over HTTP, for the models that this server has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slotool import __version__
from slotool.rules.ruleset import OBJECTIVES
from slotool.serving.frontend import VERSION, Limits
from slotool.serving.request_options import MAX_PRIORITY, MAX_TIMEOUT_US
from slotool.serving.served import ServedModel
from slotool.serving.tensors import INPUT, OUTPUTS

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
_NUMBER = {"type": "number"}
_WHOLE = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}


def document(models: Mapping[str, ServedModel], limits: Limits, *, has_token: bool) -> Document:
    """The whole document, as plain JSON values."""
    made: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "slotool serve",
            "version": __version__,
            "description": "Open Inference Protocol V2 and the Tolerance Tiers service, with deadlines and tolerances.",
        },
        "paths": {**_pages(), **_protocol(models, limits), **_compute(models), **_feedback(models)},
        "components": {"schemas": _schemas(models, limits)},
    }
    if has_token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _pages() -> Document:
    text = {"text/plain": {"schema": _TEXT}}
    live = _json(_ref("Live"))
    since = {"name": "since", "in": "query", "description": "Number of the last second known", "schema": _WHOLE}
    settings = {"required": True, "content": _json(_ref("RuntimeSettings"))}
    page = {"text/html": {"schema": _TEXT}}
    return {
        "/": {
            "get": _operation(
                "What this server serves; for browsers the live page",
                _json({"type": "object", "required": ["models"]}) | page,
            )
        },
        "/live": {
            "get": _operation("Figures of the last seconds", live) | {"parameters": [since]},
            "post": _operation("Set the policy or the default tolerance", live, (400, 401, 403, 408, 413, 415, 431))
            | {"requestBody": settings},
        },
        "/metrics": {"get": _operation("Counts and latencies for Prometheus", text)},
        "/openapi.json": {"get": _operation("This document", _json({"type": "object", "required": ["openapi"]}))},
    }


def _protocol(models: Mapping[str, ServedModel], limits: Limits) -> Document:
    name = _path_parameter("model", list(models))
    version = _path_parameter("version", [VERSION])
    paths: Document = {
        "/v2": {"get": _operation("Name, version and extensions", _json(_ref("Server")))},
        "/v2/health/live": {"get": _probe(_operation("Whether the server runs", _json(_flag("live")), (431,)))},
        "/v2/health/ready": {"get": _probe(_ready("Whether a worker can take a request", (431,)))},
        "/v2/models/stats": {"get": _operation("Counts and durations of all models", _json(_ref("Statistics")))},
        "/v2/repository/index": {
            "post": _operation("The models", _json({"type": "array"}), (400, 401, 408, 413, 415, 431, 499))
            | {"requestBody": {"content": _json({"type": "object"})}}
        },
    }
    for path, parameters in (
        ("/v2/models/{model}", [name]),
        ("/v2/models/{model}/versions/{version}", [name, version]),
    ):
        paths[path] = {
            "parameters": parameters,
            "get": _operation("Inputs and outputs of a model", _json(_ref("Metadata"))),
        }
        paths[f"{path}/ready"] = {"parameters": parameters, "get": _ready("Whether a model is ready")}
        for page, summary, schema in (
            ("config", "Triton's configuration of a model", {"type": "object", "required": ["name", "input"]}),
            ("stats", "Counts and durations of a model", _ref("Statistics")),
        ):
            paths[f"{path}/{page}"] = {"parameters": parameters, "get": _operation(summary, _json(schema))}
        paths[f"{path}/infer"] = {"parameters": parameters, "post": _infer(limits)}
    return paths


def _infer(limits: Limits) -> Document:
    length = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "description": "Length of the JSON in bytes, when binary tensors follow it",
        "schema": {"type": "integer", "minimum": 0, "maximum": limits.body_bytes},
    }
    binary: Document = {"application/octet-stream": {"schema": {}}}
    operation = _operation("InferenceResult a batch of examples", _json(_ref("InferResponse")) | binary, _ASKING)
    body = {"required": True, "content": _json(_ref("InferRequest")) | binary}
    return operation | {"parameters": [length], "requestBody": body}


def _compute(models: Mapping[str, ServedModel]) -> Document:
    def header(name: str, schema: Document, description: str) -> Document:
        return {"name": name, "in": "header", "description": description, "schema": schema}

    parameters = [
        header("Model", {"type": "string", "enum": list(models)}, "Which model; needed when there are several"),
        header("Deadline-Ms", _number_to(MAX_TIMEOUT_US / 1e3), "Milliseconds until the answer is worthless"),
        header("Tolerance", {"type": "number", "minimum": 0}, "Error degradation accepted"),
        header("Objective", {"type": "string", "enum": list(OBJECTIVES)}, "What the tolerance is to save"),
        header("Min-Accuracy", _number_to(1), "Accuracy the answer should have"),
        header("Priority", _whole_to(MAX_PRIORITY), "0 is none; 1 goes first"),
    ]
    kinds = ("application/octet-stream", "application/x-npy", "image/png", "image/jpeg")
    body = {"required": True, "content": {kind: {"schema": {}} for kind in kinds}}
    operation = _operation("InferenceResult one example", _json(_ref("ComputeResponse")), _ASKING)
    return {"/compute": {"post": operation | {"parameters": parameters, "requestBody": body}}}


def _feedback(models: Mapping[str, ServedModel]) -> Document:
    body = {"required": True, "content": _json(_ref("Labels"))}
    summary = _json(_ref("Feedback"))
    return {
        "/v2/models/{model}/feedback": {
            "parameters": [_path_parameter("model", list(models))],
            "get": _operation("Accuracy and alarms from labels", summary),
            "post": _operation("Send the true classes of answered examples", summary, _LABELLING)
            | {"requestBody": body},
        }
    }


def _schemas(models: Mapping[str, ServedModel], limits: Limits) -> Document:
    shape = {"type": "array", "items": {"type": "integer"}}
    names = {"type": "string", "enum": list(models)}
    tensor = {
        "name": {"const": INPUT},
        "datatype": {"const": "FP32"},
        "shape": shape | {"description": f"[batch, *input_shape], batch at most {limits.batch}"},
        "data": {"type": "array", "description": "The values, flat or nested; absent in binary form"},
        "parameters": {"type": "object"},
    }
    output = {
        "name": {"enum": list(OUTPUTS)},
        "datatype": {"enum": ["FP32", "INT64"]},
        "shape": shape,
        "data": {"type": "array", "items": _NUMBER},
        "parameters": {"type": "object"},
    }
    wanted = _object({"name": {"enum": list(OUTPUTS)}, "parameters": {"type": "object"}}, ["name"])
    infer = {
        "id": _TEXT,
        "parameters": _parameters(),
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": _object(tensor, ["name", "datatype", "shape"]),
        },
        "outputs": {"type": "array", "items": wanted},
    }
    answer = {
        "model_name": names,
        "model_version": {"const": VERSION},
        "id": _TEXT,
        "parameters": _ref("Explanation"),
        "outputs": {"type": "array", "items": _object(output, ["name", "datatype", "shape"])},
    }
    metadata = {"name": names, "versions": {"type": "array", "items": _TEXT}, "platform": _TEXT}
    policy, tolerance = {"type": ["string", "null"]}, {"type": ["number", "null"], "minimum": 0}
    seconds = {"type": "array", "items": {"type": "object", "required": ["number", "answered", "waiting"]}}
    classes = {"type": "integer", "minimum": 0, "maximum": max(served.model.classes for served in models.values()) - 1}
    labelled = {"request": _TEXT, "labels": {"type": "array", "minItems": 1, "items": classes}}
    share = {"type": ["number", "null"]}
    feedback = {
        "labelled": {"type": "integer"},
        "accuracy": share,
        "effective_accuracy": share,
        "alarms": {"type": "array"},
    }
    computed = {"label": {"type": "integer"}, "model": names, "latency_us": _NUMBER}
    return {
        "Error": _object({"error": _TEXT}, ["error"]),
        "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": {"type": "array"}}, ["name", "version"]),
        "Metadata": _object(metadata | {"inputs": {"type": "array"}, "outputs": {"type": "array"}}, list(metadata)),
        "InferRequest": _object(infer, ["inputs"]),
        "InferResponse": _object(answer, ["model_name", "outputs"]),
        "ComputeResponse": {"allOf": [_object(computed, list(computed)), _ref("Explanation")]},
        "Explanation": _explanation(),
        "Statistics": _object({"model_stats": {"type": "array"}}, ["model_stats"]),
        "RuntimeSettings": {**_object({"policy": _TEXT, "tolerance": tolerance}, []), "additionalProperties": False},
        "Live": _object({"policy": policy, "tolerance": tolerance, "seconds": seconds}, ["seconds"]),
        "Labels": _object(labelled, list(labelled)),
        "Feedback": _object(feedback, list(feedback)),
    }


def _parameters() -> Document:
    asked = {
        "timeout": {**_number_to(MAX_TIMEOUT_US), "description": "µs from arrival to the deadline; 0 is none"},
        "tolerance": {"type": "number", "minimum": 0},
        "objective": {"enum": list(OBJECTIVES)},
        "min_accuracy": _number_to(1),
        "priority": _whole_to(MAX_PRIORITY),
        "binary_data_output": {"type": "boolean"},
    }
    return _object(asked, [])


def _explanation() -> Document:
    """Why and how a request was answered as it was."""
    times = dict.fromkeys(("queue_us", "compute_us", "slack_us", "confidence"), _NUMBER)
    parameters = {
        "operating_point": _TEXT,
        "reason": _TEXT,
        "rule": _TEXT,
        "request": _TEXT,
        "batch": {"type": "integer"},
        **times,
    }
    return _object(parameters, ["operating_point", "reason", "request", "queue_us", "compute_us", "confidence"])


def _operation(summary: str, content: Document | None, rejections: Sequence[int] = _LOOKING) -> Document:
    answered: Document = {"description": "Answered"} | ({"content": content} if content is not None else {})
    rejected = {str(s): {"description": _REJECTIONS[s], "content": _json(_ref("Error"))} for s in rejections}
    return {"summary": summary, "responses": {"200": answered, **rejected}}


def _probe(operation: Document) -> Document:
    """Probes show no token."""
    return operation | {"security": []}


def _flag(name: str) -> Document:
    return _object({name: {"type": "boolean"}}, [name])


def _ready(summary: str, rejections: Sequence[int] = _LOOKING) -> Document:
    operation = _operation(summary, _json(_flag("ready")), rejections)
    unready = _object({"ready": {"const": False}, "error": _TEXT}, ["ready", "error"])
    operation["responses"]["503"] = {"description": "Not ready", "content": _json(unready)}
    return operation


def _path_parameter(name: str, values: list[str]) -> Document:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "enum": values}}


def _object(properties: Document, required: list[str]) -> Document:
    return {"type": "object", "properties": properties, "required": required}


def _number_to(most: float) -> Document:
    return {"type": "number", "minimum": 0, "maximum": most}


def _whole_to(most: int) -> Document:
    return {"type": "integer", "minimum": 0, "maximum": most}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Document) -> Document:
    return {"application/json": {"schema": schema}}
