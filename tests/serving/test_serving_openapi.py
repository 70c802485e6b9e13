"""The OpenAPI document tells of every route, and what is made up from it never breaks the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks
from schemathesis.generation import GenerationMode

from slotool.scheduling import by_demand
from slotool.serving import RequestLimits, Router, create_app
from slotool.serving.operations.app import openapi_document
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, space, tier_rules

MODEL = served(ThreeLinear(), by_demand(space(100.0, 50_000.0, 1e6), tier_rules()), tier_rules())
LIMITS = RequestLimits(body_bytes=100_000, batch=8)
SCHEMA = schemathesis.openapi.from_dict(openapi_document(["three"], has_token=False))
CHECKS = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
# Rejected on purpose: what was asked for cannot be had. Any other 5xx is a fault.
MAY_BE_REJECTED = {503, 504}


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([MODEL], LIMITS) as live:
        yield live


def test_every_route_is_in_the_document(live: LiveServer) -> None:
    assert HTTP.get(f"{live.url}/openapi.json").json() == SCHEMA.raw_schema
    for shared_memory in (False, True):
        document = openapi_document(["three"], has_token=False, shared_memory=shared_memory)
        app = create_app(Router({"three": MODEL}), shared_memory=shared_memory)
        routes: Any = app.routes
        served_paths = {(route.path_format, method.lower()) for route in routes for method in route.methods - {"HEAD"}}
        paths = document["paths"].items()
        assert {(path, method) for path, item in paths for method in set(item) - {"parameters"}} == served_paths


def operations() -> list[tuple[str, str, GenerationMode]]:
    """Path, method, and whether requests are as the document has them or not; the latter where there is a choice."""
    found = []
    for path, item in SCHEMA.raw_schema["paths"].items():
        for method in sorted(set(item) - {"parameters"}):
            found.append((path, method, GenerationMode.POSITIVE))
            if "parameters" in item or "requestBody" in item[method]:
                found.append((path, method, GenerationMode.NEGATIVE))
    return found


@pytest.mark.parametrize(("path", "method", "mode"), operations())
def test_requests_made_up_from_the_document_are_answered_as_it_says(
    live: LiveServer, path: str, method: str, mode: GenerationMode
) -> None:
    # A path with a version is answered by the same code as one without; what carries tensors has the most to go wrong.
    examples = 4 if method != "post" or "version" in path else 25 if path.endswith(("infer", "compute")) else 10

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(SCHEMA[path][method].as_strategy(generation_mode=mode))
    def answered(case: Any) -> None:
        response = case.call(base_url=live.url)
        assert response.status_code < 500 or response.status_code in MAY_BE_REJECTED, response.text
        case.validate_response(response, checks=CHECKS)

    answered()


def test_answers_are_as_the_document_has_them(live: LiveServer) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "data": [0.5] * 6}
    infer = SCHEMA["/v2/models/{model}/infer"]["post"]
    body = {"id": "a", "inputs": [tensor], "parameters": {"tolerance": 0.25, "timeout": 9_000_000}}
    asked = infer.Case(path_parameters={"model": "three"}, body=body, media_type="application/json")
    compute = SCHEMA["/compute"]["post"]
    example = compute.Case(body=bytes(24), media_type="application/octet-stream", headers={"Min-Accuracy": "0.85"})
    for case in (asked, example):
        response = case.call(base_url=live.url)
        assert response.status_code == 200, response.text
        case.validate_response(response, checks=CHECKS)


def test_the_live_figures_are_described_with_all_their_keys(live: LiveServer) -> None:
    schemas = HTTP.get(f"{live.url}/openapi.json").json()["components"]["schemas"]
    assert set(schemas["Live"]["properties"]) == set(HTTP.get(f"{live.url}/live").json())
