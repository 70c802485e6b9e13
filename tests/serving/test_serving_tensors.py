"""The Open Inference Protocol's messages without a server: round trips, and bytes that mean nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slotool.errors import InputError
from slotool.models import TensorSpec
from slotool.serving.protocol.tensors import InferenceReader, InferRequest, format_response
from slotool.serving.rejections import Rejection
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import Interface
from tests.serving.live_server import ThreeLinear

SHAPE = (2, 3)
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)
numbers = st.floats(-1e6, 1e6, width=32)


def interface(shape: tuple[int, ...] = SHAPE, max_batch: int = 8) -> Interface:
    """Of a model of four classes."""
    inputs = (TensorSpec("input", "FP32", (-1, *shape)),)
    outputs = (
        TensorSpec("logits", "FP32", (-1, 4)),
        TensorSpec("label", "INT64", (-1,)),
        TensorSpec("confidence", "FP32", (-1,)),
    )
    return Interface(inputs, outputs, (), max_batch)


FIXED = interface()


def parse(body: bytes, header_length: str | None = None, like: Interface = FIXED) -> InferRequest:
    return InferenceReader(like).parse(body, header_length)


def tensor(x: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"name": "input", "datatype": "FP32", "shape": list(x.shape), **more}


def json_body(x: np.ndarray, *, nested: bool = False, **more: Any) -> bytes:
    data = x.tolist() if nested else x.ravel().tolist()
    return json.dumps({"inputs": [tensor(x, data=data)], **more}).encode()


def binary_body(x: np.ndarray, **more: Any) -> tuple[bytes, str]:
    head = json.dumps({"inputs": [tensor(x, parameters={"binary_data_size": x.nbytes})], **more}).encode()
    return head + x.tobytes(), str(len(head))


def asking(output: str, classes: Any) -> bytes:
    """A request for the highest scores of an output."""
    outputs = [{"name": output, "parameters": {"classification": classes}}]
    return json_body(np.zeros((1, *SHAPE), np.float32), outputs=outputs)


@given(st.data(), shapes, st.integers(1, 5))
def test_a_tensor_arrives_as_it_was_sent_in_every_form(data: st.DataObject, shape: tuple[int, ...], n: int) -> None:
    x = data.draw(hnp.arrays(np.float32, (n, *shape), elements=numbers))
    body, length = binary_body(x, id="42")
    forms = [(json_body(x), None), (json_body(x, nested=True), None), (body, length)]
    for content, header_length in forms:
        request = parse(content, header_length, interface(shape))
        array = request.x.arrays["input"]
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, x)
    assert request.id == "42"


def test_an_output_that_is_asked_for_twice_is_rejected() -> None:
    with pytest.raises(Rejection, match="label is asked for twice"):
        parse(
            json_body(
                np.zeros((1, *SHAPE), np.float32), outputs=[{"name": name} for name in ("label", "logits", "label")]
            )
        )


@given(st.integers(1, 4), st.lists(st.sampled_from(["logits", "label", "confidence"]), unique=True), st.booleans())
def test_outputs_arrive_as_they_were_formatted(n: int, names: list[str], binary: bool) -> None:
    x = np.zeros((n, *SHAPE), dtype=np.float32)
    outputs = [{"name": name, "parameters": {"binary_data": binary}} for name in names]
    request = parse(json_body(x, outputs=outputs, id="7"))
    tensors: dict[str, np.ndarray] = {
        "logits": np.arange(4 * n, dtype=np.float32).reshape(n, 4) / 3,
        "label": np.arange(n, dtype=np.int64),
        "confidence": np.linspace(0, 1, n, dtype=np.float32),
    }
    content, json_length = format_response("m", "1", FIXED, request, tensors, {"reason": "µ"})
    document = json.loads(content[:json_length])
    assert (document["id"], document["model_name"], document["parameters"]) == ("7", "m", {"reason": "µ"})
    wanted = names or list(tensors)
    assert [output["name"] for output in document["outputs"]] == wanted
    raw = content[json_length:] if json_length else b""
    assert bool(raw) == (binary and bool(names))
    for output in document["outputs"]:
        expected = tensors[output["name"]]
        size = output.get("parameters", {}).get("binary_data_size")
        values = np.array(output["data"]) if size is None else np.frombuffer(raw[:size], expected.dtype)
        raw = raw[size or 0 :]
        np.testing.assert_array_equal(values.astype(expected.dtype).reshape(output["shape"]), expected)
    assert raw == b""


def test_null_is_as_good_as_absent() -> None:
    asked = parse(json_body(X, parameters=None, id=None))
    assert (asked.id, asked.options) == ("", RequestOptions())


def test_binary_data_output_is_the_default_of_outputs_that_say_nothing() -> None:
    x = np.zeros((1, *SHAPE), dtype=np.float32)
    all_binary = parse(json_body(x, parameters={"binary_data_output": True}))
    assert set(all_binary.outputs.values()) == {True}
    outputs = [{"name": "label"}, {"name": "logits", "parameters": {"binary_data": False}}]
    mixed = parse(json_body(x, outputs=outputs, parameters={"binary_data_output": True}))
    assert mixed.outputs == {"label": True, "logits": False}


def test_a_class_that_was_not_computed_is_a_number_in_json_and_infinity_in_binary() -> None:
    x = np.zeros((1, *SHAPE), dtype=np.float32)
    logits = np.array([[-np.inf, 1.0]], dtype=np.float32)
    plain = parse(json_body(x, outputs=[{"name": "logits"}]))
    content, _ = format_response("m", "1", FIXED, plain, {"logits": logits}, {})
    assert json.loads(content)["outputs"][0]["data"] == [-3.4028235e38, 1.0]
    outputs = [{"name": "logits", "parameters": {"binary_data": True}}]
    binary = parse(json_body(x, outputs=outputs))
    content, length = format_response("m", "1", FIXED, binary, {"logits": logits}, {})
    np.testing.assert_array_equal(np.frombuffer(content[length:], np.float32), logits[0])


X = np.zeros((1, *SHAPE), dtype=np.float32)
SIX = [0.0] * 6


def one(**changes: Any) -> bytes:
    return json.dumps({"inputs": [{**tensor(X, data=SIX), **changes}]}).encode()


SHARED = {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 24}}
BAD_JSON = {
    "not JSON": (b"{", "not JSON"),
    "not text": (b"\xff\xfe{", "not JSON"),
    "nested without end": (b"[" * 4_000, "nested more than 100 deep"),
    "a list": (b"[]", "not a JSON object"),
    "no inputs": (b"{}", "a list of tensors is expected"),
    "two inputs": (json.dumps({"inputs": [tensor(X, data=SIX)] * 2}).encode(), "input input: it is given twice"),
    "another name": (one(name="x"), "called 'x'"),
    "another datatype": (one(datatype="INT32"), "datatype 'INT32'"),
    "another shape": (one(shape=[1, 3, 2]), r"\[batch, 2, 3\]"),
    "no batch": (one(shape=[0, 2, 3], data=[]), r"shape \[0"),
    "a negative batch": (one(shape=[-1, 2, 3]), r"shape \[-1"),
    "a fractional shape": (one(shape=[1.0, 2, 3]), r"shape \[1.0"),
    "a true shape": (one(shape=[True, 2, 3]), r"shape \[True"),
    "an empty shape": (one(shape=[]), r"shape \[\]"),
    "a large batch": (one(shape=[9, 2, 3], data=[0.0] * 54), "at most 8"),
    "a monstrous batch": (one(shape=[10**400, 2, 3]), "number is infinity"),
    "a batch beyond 64 bits": (one(shape=[10**40, 2, 3]), r"shape \[1e\+40"),
    "a long text among the data": (one(data=[1.0] * 5 + ["7" * 100]), "not a number"),
    "a truth among the data": (one(data=[1.0] * 5 + [True]), "not a number"),
    "a lone surrogate": (json_body(X, id="?").replace(b'"?"', b'"\\ud800"'), "not JSON"),
    "a long id": (json_body(X, id="7" * 1_025), "1025 characters"),
    "many outputs": (json_body(X, outputs=[{"name": "label"}] * 65), "outputs: there are 65"),
    "many parameters": (json_body(X, parameters={str(i): 1 for i in range(65)}), "there are 65"),
    "many values": (b'{"inputs": [' + b"0," * 5_000 + b"0]}", "more than 1072 values"),
    "many lists": (b'{"inputs": [' + b"[]," * 2_000 + b"0]}", "more than"),
    "many objects": (b'{"inputs": [' + b"{}," * 1_000 + b" " * 4_096 + b"0]}", "more than 512 objects"),
    "too few values": (one(data=SIX[1:]), "5 values"),
    "ragged data": (one(data=[[1.0], [1.0, 2.0]]), "ragged"),
    "text as data": (one(data=["0"] * 6), "not a number"),
    "huge integers": (one(data=[10**400] * 6), "number is infinity"),
    "too large for float32": (one(data=[1e39] * 6), "beyond FP32"),
    "no data": (json.dumps({"inputs": [tensor(X)]}).encode(), "neither"),
    "shared memory": (json.dumps({"inputs": [tensor(X, **SHARED)]}).encode(), "start it with --shared-memory"),
    "shared memory and data": (one(**SHARED), "both a shared_memory_region and values"),
    "shared memory of no size": (one(parameters={"shared_memory_region": "r"}), "shared_memory_byte_size: None is no"),
    "a region of another kind": (one(parameters={"shared_memory_region": 7}), "shared_memory_region 7 is no text"),
    "parameters of another kind": (one(parameters=[]), "not a JSON object"),
    "an unknown output": (json_body(X, outputs=[{"name": "y"}]), "no output is called 'y'"),
    "outputs of another kind": (json_body(X, outputs=[1]), "no output is called 1"),
    "classification of a label": (asking("label", 3), "a number for each class"),
    "classification of none": (asking("logits", 0), "whole number from 1"),
    "classification of true": (asking("logits", True), "whole number from 1"),
    "binary_data of another kind": (
        json_body(X, outputs=[{"name": "label", "parameters": {"binary_data": 1}}]),
        "true",
    ),
    "id of another kind": (json_body(X, id=7), "id"),
    "NaN": (json_body(X).replace(b"0.0", b"NaN", 1), "not JSON"),
    "binary_data_size and data": (one(parameters={"binary_data_size": 24}), "both data and a binary_data_size"),
    "binary_data_size without bytes": (
        json.dumps({"inputs": [tensor(X, parameters={"binary_data_size": 24})]}).encode(),
        "0 bytes follow the JSON, expected 24",
    ),
}


@pytest.mark.parametrize("what", BAD_JSON)
def test_bad_json_is_rejected_with_a_sentence(what: str) -> None:
    body, sentence = BAD_JSON[what]
    with pytest.raises(Rejection, match=sentence) as caught:
        parse(body)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("length", ["", "-1", "1_0", "+5", "１", "9" * 20, "1e3", "100000"])
def test_a_bad_header_length_is_rejected(length: str) -> None:
    with pytest.raises(Rejection, match="Inference-Header-Content-Length"):
        parse(binary_body(X)[0], length)


@pytest.mark.parametrize("size", [23, 25, -24, "24", True, None, 24.0])
def test_a_binary_size_that_is_not_the_shapes_is_rejected(size: object) -> None:
    head = json.dumps({"inputs": [tensor(X, parameters={"binary_data_size": size})]}).encode()
    with pytest.raises(Rejection, match="binary_data_size"):
        parse(head + X.tobytes(), str(len(head)))


@pytest.mark.parametrize("extra", [b"", b"\0" * 25])
def test_more_or_fewer_bytes_than_promised_are_rejected(extra: bytes) -> None:
    head = json.dumps({"inputs": [tensor(X, parameters={"binary_data_size": X.nbytes})]}).encode()
    with pytest.raises(Rejection, match="bytes follow the JSON"):
        parse(head + extra, str(len(head)))


@pytest.mark.parametrize("message", [binary_body(np.full_like(X, np.nan)), (one(data=[None] * 6), None)])
def test_nan_is_for_the_model_to_reject(message: tuple[bytes, str | None]) -> None:
    model = ThreeLinear()
    model.input_shape = SHAPE
    with pytest.raises(InputError, match="input input: it holds NaN or infinity"):
        model.check_inputs(parse(*message).x.arrays)


@given(st.binary(max_size=200), st.none() | st.text(max_size=8))
def test_no_bytes_whatsoever_do_more_than_be_rejected(body: bytes, header_length: str | None) -> None:
    with pytest.raises(Rejection):
        parse(body, header_length)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), json_values)
def test_no_json_value_in_a_tensor_does_more_than_be_rejected(member: str, value: Any) -> None:
    try:
        request = parse(one(**{member: value}))
    except Rejection as rejection:
        if rejection.status != 400:
            raise
    else:
        assert request.x.arrays["input"].shape == (1, *SHAPE)
