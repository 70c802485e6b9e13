"""What a request asks for: the same options as parameters and as headers, and values that cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from slotool.errors import InputError
from slotool.scheduling import by_demand
from slotool.serving.rejections import Rejection
from slotool.serving.request_options import (
    OPTIONS,
    RequestOptions,
    from_headers,
    from_parameters,
    merged,
    set_deadline_headers,
)
from tests.serving.live_server import HTTP, ThreeLinear, live_server, served, space, tier_rules


def of_request(parameters: dict[str, Any], headers: dict[str, str]) -> RequestOptions:
    return merged(from_parameters(parameters), from_headers(headers))


def test_parameters_and_headers_say_the_same() -> None:
    parameters = {"timeout": 1_500, "tolerance": 0.01, "objective": "cost", "priority": 2, "sequence_id": 0}
    headers = {"deadline-ms": "1.5", "tolerance": "0.01", "objective": "cost", "priority": "2", "host": "x"}
    assert from_parameters(parameters) == from_headers(headers) == RequestOptions(1_500.0, 0.01, "cost", None, 2)
    assert (
        from_parameters({"min_accuracy": 0.9})
        == from_headers({"min-accuracy": "0.9"})
        == RequestOptions(min_accuracy=0.9)
    )


@pytest.mark.parametrize(("name", "value"), [("sequence_id", 9), ("sequence_id", "a"), ("sequence_start", True)])
def test_a_request_of_a_sequence_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Rejection, match=f"parameter {name}: sequences are not served") as caught:
        from_parameters({name: value})
    assert caught.value.status == 400


def test_nothing_asked_for_and_a_timeout_of_zero_mean_no_deadline() -> None:
    assert from_parameters({}) == from_headers({}) == from_parameters({"timeout": 0}) == RequestOptions()
    assert RequestOptions().timeout_us == math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", -1),
        ("timeout", 1e13),
        ("timeout", 10**400),
        ("timeout", True),
        ("timeout", "soon"),
        ("timeout", [1]),
        ("tolerance", -0.1),
        ("tolerance", "nan"),
        ("tolerance", "inf"),
        ("tolerance", math.inf),
        ("tolerance", "0,01"),
        ("tolerance", "1_0"),
        ("tolerance", ""),
        ("min_accuracy", 1.01),
        ("min_accuracy", {}),
        ("objective", "fame"),
        ("objective", 1),
        ("priority", 1.5),
        ("priority", -1),
        ("priority", 2**40),
    ],
)
def test_a_value_that_cannot_be_meant_is_rejected_by_name(name: str, value: Any) -> None:
    with pytest.raises(Rejection, match=f"parameter {name}") as caught:
        from_parameters({name: value})
    assert caught.value.status == 400


def test_infinity_is_rejected_in_plain_words() -> None:
    with pytest.raises(Rejection, match="parameter tolerance: inf is not a finite number from 0"):
        from_parameters({"tolerance": math.inf})


def test_tolerance_and_minimum_accuracy_together_are_rejected() -> None:
    for parameters, headers in (
        ({}, {"tolerance": "0.1", "min-accuracy": "0.9"}),
        ({"tolerance": 0.1, "min_accuracy": 0.9}, {}),
        ({"tolerance": 0.1}, {"min-accuracy": "0.9"}),
    ):
        with pytest.raises(Rejection, match="contradict"):
            of_request(parameters, headers)


@pytest.mark.parametrize(
    ("read", "name", "meant"),
    [
        (from_parameters, "tolerence", "tolerance"),
        (from_parameters, "Timeout", "timeout"),
        (from_parameters, "min-accuracy", "min_accuracy"),
        (from_parameters, "deadline_ms", "timeout"),
        (from_parameters, "Deadline-Ms", "timeout"),
        (from_headers, "deadline", "deadline-ms"),
        (from_headers, "tolerence", "tolerance"),
        (from_headers, "deadline_ms", "deadline-ms"),
        (from_headers, "objektive", "objective"),
    ],
)
def test_a_misspelt_option_is_rejected_and_the_one_meant_is_named(read: Any, name: str, meant: str) -> None:
    with pytest.raises(Rejection, match=f"{name}.* is no option: did you mean {meant}") as caught:
        read({name: "0.1"})
    assert caught.value.status == 400


def test_names_of_others_are_ignored() -> None:
    protocol = ("binary_data_output", "bogus", "headers", "triton_enable_empty", "")
    assert from_parameters(dict.fromkeys(protocol, 1)) == RequestOptions()
    sent = "host accept connection origin referer content-type content-length user-agent x-priority cookie model "
    sent += "accept-encoding accept-language cache-control traceparent dnt date range te via upgrade pragma forwarded"
    assert from_headers(dict.fromkeys(sent.split(), "1")) == RequestOptions()


def test_a_deadline_in_a_header_counts_beside_one_in_the_parameters() -> None:
    cases = [({}, "20", 2e4), ({"timeout": 5e3}, "20", 5e3), ({"timeout": 5e5}, "20", 2e4), ({}, "0", math.inf)]
    for parameters, header, expected_us in cases:
        assert of_request(parameters, {"deadline-ms": header, "priority": "u=1"}).timeout_us == expected_us
    with pytest.raises(Rejection, match="header deadline-ms"):
        of_request({}, {"deadline-ms": "soon"})


def test_a_deadline_in_a_header_holds_for_the_protocol_over_http_and_grpc() -> None:
    x = np.zeros((1, 1, 2, 3), np.float32)
    url, tensor = "/v2/models/three/infer", triton.InferInput("input", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    content = {"inputs": [{"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": [0.0] * 6}]}
    with live_server([served(ThreeLinear())]) as live, triton.InferenceServerClient(live.grpc_address) as client:

        def slack_us(headers: dict[str, str]) -> list[float | None]:
            over_http = HTTP.post(f"{live.url}{url}", json=content, headers=headers).json()["parameters"]
            over_grpc = client.infer("three", [tensor], headers=headers).get_response().parameters
            shown = over_grpc["slack_us"].double_param if "slack_us" in over_grpc else None
            return [over_http.get("slack_us"), shown]

        assert slack_us({}) == [None, None]
        assert all(0 < slack < 6e8 for slack in slack_us({"deadline-ms": "600000"}) if slack is not None)
        assert None not in slack_us({"deadline-ms": "600000"})
        assert HTTP.post(f"{live.url}{url}", json=content, headers={"Deadline-Ms": "1e-6"}).status_code in (503, 504)
        with pytest.raises(InferenceServerException, match="deadline"):
            client.infer("three", [tensor], headers={"deadline-ms": "1e-6"})


@pytest.mark.parametrize(("there", "absent"), [("cost", "response-time"), ("response-time", "cost")])
def test_rules_of_one_objective_answer_a_tolerance_alone_and_refuse_the_other_one(there: str, absent: str) -> None:
    tiers = tier_rules()
    rules = replace(tiers, rules=tuple(rule for rule in tiers.rules if rule.objective == there))
    with live_server([served(ThreeLinear(), by_demand(space(), rules), rules)]) as live:

        def ask(**headers: str) -> httpx.Response:
            return HTTP.post(f"{live.url}/compute", content=np.zeros((1, 2, 3), np.float32).tobytes(), headers=headers)

        assert ask(Tolerance="0.2").json()["rule"] == f"{there}-0.2"
        assert ask(Tolerance="0.2", Objective=there).json()["rule"] == f"{there}-0.2"
        refused = ask(Tolerance="0.2", Objective=absent)
        assert (refused.status_code, there in refused.json()["error"]) == (400, True)


def test_an_objective_without_a_tolerance_is_rejected() -> None:
    with pytest.raises(Rejection, match="objective: it says what a tolerance saves: give tolerance too"):
        of_request({"objective": "cost"}, {})


@given(st.sampled_from(["deadline-ms", "tolerance", "objective", "min-accuracy", "priority"]), st.text(max_size=30))
def test_no_header_text_does_more_than_be_rejected(name: str, text: str) -> None:
    try:
        options = from_headers({name: text})
    except Rejection as rejection:
        if rejection.status != 400:
            raise
    else:
        assert options.timeout_us >= 0


def test_each_header_of_the_table_holds_on_every_path_of_http_and_as_metadata_of_grpc() -> None:
    """Another value than the option takes is rejected in the header's name, wherever it is stated."""
    x = np.zeros((1, 1, 2, 3), np.float32)
    tensor = triton.InferInput("input", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    content = {"inputs": [{"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": [0.0] * 6}]}
    wrong = dict.fromkeys((option.header for option in OPTIONS if option.header), "no such value") | {
        "group": "g" * 101
    }
    with live_server([served(ThreeLinear())]) as live, triton.InferenceServerClient(live.grpc_address) as client:
        for name, value in wrong.items():
            headers = {name: value}
            for answer in (
                HTTP.post(f"{live.url}/v2/models/three/infer", json=content, headers=headers),
                HTTP.post(f"{live.url}/compute", content=x.tobytes(), headers=headers),
            ):
                assert (answer.status_code, f"header {name}: " in answer.json()["error"]) == (400, True)
            with pytest.raises(InferenceServerException, match=f"header {name}: "):
                client.infer("three", [tensor], headers=headers)


def test_the_urgency_of_a_response_that_browsers_state_is_no_priority() -> None:
    for urgency in ("u=1", "u=3, i", "i", "i, u=0"):
        assert from_headers({"priority": urgency}) == RequestOptions()
    assert from_headers({"priority": "2"}).priority == 2


@pytest.fixture
def gateway_headers() -> Iterator[None]:
    set_deadline_headers(["x-envoy-expected-rq-timeout-ms=ms", "X-Time-Left=s"])
    yield
    set_deadline_headers([])


@pytest.mark.usefixtures("gateway_headers")
def test_a_gateways_headers_state_deadlines() -> None:
    assert from_headers({"x-envoy-expected-rq-timeout-ms": "20"}).timeout_us == 20_000
    assert from_headers({"x-time-left": "1.5", "deadline-ms": "2000"}).timeout_us == 1_500_000
    with pytest.raises(Rejection, match="x-time-left"):
        from_headers({"x-time-left": "soon"})


def test_headers_that_cannot_state_deadlines_are_refused() -> None:
    for text in ("x-time", "x-time=minutes", "x time=s", "deadline-ms=s", "Authorization=s", "content-length=s"):
        with pytest.raises(InputError, match=text.partition("=")[0].lower()):
            set_deadline_headers([text])
    assert from_headers({"x-time": "1"}) == RequestOptions()
