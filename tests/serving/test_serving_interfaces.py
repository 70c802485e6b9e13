"""What a client encodes is what the model gets, and back: tensors of any signature, by Triton's own encoders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request

from slotool.data.columns import Columns
from slotool.models import TensorSpec
from slotool.models.signature import DTYPES, FREE
from slotool.serving.grpc import messages as grpc_messages
from slotool.serving.protocol.tensors import InferenceReader, InferRequest, format_response
from slotool.serving.rejections import Rejection
from slotool.serving.served import Interface

MAX_BATCH = 4
# BF16 values as NumPy has them: float32 whose lower half is 0.
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "BF16": st.integers(0, 2**16 - 1).map(lambda bits: np.uint32(bits << 16).view(np.float32)),
    "BYTES": st.binary(max_size=5),
}
datatypes = st.sampled_from(list(DTYPES))
trailing_shapes = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn, max_tensors: int = 3) -> dict[TensorSpec, np.ndarray]:
    """Tensors of one number of examples, with specifications that they fit."""
    count, made = draw(st.integers(1, MAX_BATCH)), {}
    for number in range(draw(st.integers(1, max_tensors))):
        datatype, sizes = draw(datatypes), draw(trailing_shapes)
        free = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
        shape = (FREE, *(FREE if is_free else size for size, is_free in zip(sizes, free, strict=True)))
        array = draw(hnp.arrays(DTYPES[datatype], (count, *sizes), elements=ELEMENTS.get(datatype)))
        made[TensorSpec(f"tensor {number}", datatype, shape)] = array
    return made


NUMBER = TensorSpec("y", "FP32", (FREE,))


def interface(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec] = (NUMBER,)) -> Interface:
    return Interface(tuple(inputs), tuple(outputs), (), MAX_BATCH)


def as_clients_have_it(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16) if spec.datatype == "BF16" else array


def http_request(given: dict[TensorSpec, np.ndarray], in_json: set[str]) -> InferRequest:
    """As the server reads what Triton's HTTP client sends; tensors of ``in_json`` are not in binary form."""
    inputs = []
    for spec, array in given.items():
        inputs.append(triton_http.InferInput(spec.name, list(array.shape), spec.datatype))
        inputs[-1].set_data_from_numpy(as_clients_have_it(spec, array), binary_data=spec.name not in in_json)
    body, length = triton_http.InferenceServerClient.generate_request_body(inputs)
    return InferenceReader(interface(given)).parse(body, None if length is None else str(length))


def grpc_request(given: dict[TensorSpec, np.ndarray]) -> InferRequest:
    inputs = []
    for spec, array in given.items():
        inputs.append(triton_grpc.InferInput(spec.name, list(array.shape), spec.datatype))
        inputs[-1].set_data_from_numpy(as_clients_have_it(spec, array))
    message = _get_inference_request("m", inputs, "", "", None, 0, False, False, 0, None, None)
    return grpc_messages.parse_infer(parsed(message), interface(given))


def parsed(message: Any) -> Any:
    return grpc_messages.parse(message.SerializeToString(), service_pb2.ModelInferRequest)


def typed_request(given: dict[TensorSpec, np.ndarray]) -> InferRequest:
    """The same with each tensor in its own contents."""
    message = service_pb2.ModelInferRequest(model_name="m")
    for spec, array in given.items():
        tensor = message.inputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
        getattr(tensor.contents, grpc_messages.CONTENTS[spec.datatype]).extend(array.ravel().tolist())
    return grpc_messages.parse_infer(parsed(message), interface(given))


def assert_same(x: Any, given: dict[TensorSpec, np.ndarray]) -> None:
    assert isinstance(x, Columns)
    assert x.names == tuple(spec.name for spec in given)
    for spec, expected in given.items():
        array = x.arrays[spec.name]
        assert (array.dtype, array.shape) == (spec.dtype, expected.shape)
        assert array.flags.writeable
        # NaN is NaN, whatever its bits.
        np.testing.assert_array_equal(array, expected)


@given(tensors())
def test_binary_tensors_arrive_as_they_were_sent_over_http_and_grpc(given: dict[TensorSpec, np.ndarray]) -> None:
    assert_same(http_request(given, set()).x, given)
    assert_same(grpc_request(given).x, given)


def in_json(spec: TensorSpec, array: np.ndarray) -> bool:
    """Whether JSON can hold it, and Triton's client writes it there."""
    if spec.datatype == "BYTES":
        return all(b"\0" not in text and text.isascii() for text in array.flat)
    return spec.datatype != "BF16" and (array.dtype.kind != "f" or bool(np.isfinite(array).all()))


@given(tensors(), st.integers(0, 7))
def test_json_and_binary_tensors_may_be_mixed(given: dict[TensorSpec, np.ndarray], chosen: int) -> None:
    names = {s.name for i, (s, array) in enumerate(given.items()) if chosen & 1 << i and in_json(s, array)}
    assert_same(http_request(given, names).x, given)


@given(tensors().map(lambda made: {s: a for s, a in made.items() if s.datatype in grpc_messages.CONTENTS}))
def test_typed_contents_arrive_as_they_were_sent(given: dict[TensorSpec, np.ndarray]) -> None:
    if given:
        assert_same(typed_request(given).x, given)


def without_what_json_lacks(array: np.ndarray) -> np.ndarray:
    return np.nan_to_num(array, nan=1.0, posinf=1.0, neginf=1.0) if array.dtype.kind == "f" else array


def as_array(answer: Any, name: str) -> np.ndarray:
    """Of JSON, Triton's client leaves text as it is."""
    got: np.ndarray = answer.as_numpy(name)
    if got.dtype == object:
        for at, text in np.ndenumerate(got):
            got[at] = text.encode() if isinstance(text, str) else text
    return got


@given(tensors(), st.booleans())
def test_outputs_arrive_as_the_model_gave_them(made: dict[TensorSpec, np.ndarray], binary: bool) -> None:
    like = interface([NUMBER], made)
    if not binary:
        made = {s: without_what_json_lacks(a) for s, a in made.items() if s.datatype != "BYTES" or in_json(s, a)}
    arrays = {spec.name: array for spec, array in made.items()}
    asked = InferRequest(np.zeros(1), dict.fromkeys(arrays, binary))
    body, length = format_response("m", "1", like, asked, arrays, {})
    over_http = triton_http.InferenceServerClient.parse_response_body(body, header_length=length)
    message = grpc_messages.format_infer("m", "1", like, asked, arrays, {})
    over_grpc = triton_grpc.InferResult(service_pb2.ModelInferResponse.FromString(message.SerializeToString()))
    for spec, array in made.items():
        for answer in (over_http, over_grpc):
            np.testing.assert_array_equal(as_array(answer, spec.name).astype(spec.dtype), array)


def test_nan_and_infinity_come_and_go_as_far_as_each_form_has_them() -> None:
    given = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    assert_same(http_request({NUMBER: given}, set()).x, {NUMBER: given})
    body = {"inputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [None, 1.5]}]}
    x = InferenceReader(interface([NUMBER])).parse(json.dumps(body).encode(), None).x
    assert_same(x, {NUMBER: np.array([np.nan, 1.5], dtype=np.float32)})
    asked = InferRequest(given, {"y": False})
    written, _ = format_response("m", "1", interface([NUMBER]), asked, {"y": given}, {})
    most = float(np.finfo(np.float32).max)
    assert json.loads(written)["outputs"][0]["data"] == [None, pytest.approx(most), pytest.approx(-most), 1.0]


def test_text_that_is_not_utf_8_is_answered_in_binary_form_only() -> None:
    text = TensorSpec("said", "BYTES", (FREE,))
    array = np.array([b"\xff"], dtype=object)
    with pytest.raises(Rejection, match="output said: it is not UTF-8 text; ask for it in binary form"):
        format_response(
            "m", "1", interface([NUMBER], [text]), InferRequest(array, {"said": False}), {"said": array}, {}
        )
    with pytest.raises(Rejection, match="output said: the model's task gives none"):
        format_response("m", "1", interface([NUMBER], [text]), InferRequest(array, {"said": True}), {"said": None}, {})


SPECS = (
    TensorSpec("ids", "INT64", (FREE, FREE)),
    TensorSpec("kept", "BOOL", (FREE, 2)),
    TensorSpec("word", "BYTES", (FREE,)),
    TensorSpec("small", "INT8", (FREE,)),
    TensorSpec("half", "FP16", (FREE,)),
)
DATA: dict[str, list[Any]] = {"ids": [1, 2, 3], "kept": [True, False], "word": ["a"], "small": [1], "half": [0.5]}
SHAPES = {"ids": [1, 3], "kept": [1, 2], "word": [1], "small": [1], "half": [1]}
MIXED = interface(SPECS)


def entry(spec: TensorSpec, **changes: Any) -> dict[str, Any]:
    made = {"name": spec.name, "datatype": spec.datatype, "shape": SHAPES[spec.name], "data": DATA[spec.name]}
    return {name: value for name, value in (made | changes).items() if value is not ...}


def body_with(changes: dict[str, dict[str, Any]]) -> bytes:
    return json.dumps({"inputs": [entry(spec, **changes.get(spec.name, {})) for spec in SPECS]}).encode()


def raw(size: int) -> dict[str, Any]:
    return {"data": ..., "parameters": {"binary_data_size": size}}


BAD = {
    "twice": ({"ids": {"name": "kept", "datatype": "BOOL", "shape": [1, 2]}}, b"", "input kept: it is given twice"),
    "unknown": (
        {"ids": {"name": "id"}},
        b"",
        "there are ids, kept, word, small, half; did you mean 'ids'",
    ),
    "no name": ({"ids": {"name": ["ids"]}}, b"", r"no input is called \['ids'\]"),
    "datatype": ({"ids": {"datatype": "FP32"}}, b"", "input ids: datatype 'FP32', expected 'INT64'"),
    "rank": ({"ids": {"shape": [3]}}, b"", r"input ids: shape \[3\], expected \[batch, any\]$"),
    "no examples": ({"ids": {"shape": [0, 3]}}, b"", r"expected \[batch, any\], a batch of 1 or more"),
    "beyond 64 bits": ({"ids": {"shape": [2**64, 3]}}, b"", r"\[batch, any\] of whole numbers up to 2147483648"),
    "fixed size": ({"kept": {"shape": [1, 3]}}, b"", r"input kept: shape \[1, 3\], expected \[batch, 2\]"),
    "negative size": ({"ids": {"shape": [1, -1]}}, b"", r"shape \[1, -1\], expected .*, sizes of 0 or more"),
    "huge shape": ({"ids": {"shape": [1, 2**40]}}, b"", "input ids: .* has too many values"),
    "other batch": ({"ids": {"shape": [3, 1]}}, b"", "different numbers of examples: ids 3, kept 1"),
    "too many examples": ({"small": {"shape": [5]}}, b"", "input small: a batch of 5, but at most 4"),
    "whole numbers": (
        {"ids": {"data": [1, 2, 3.5]}},
        b"",
        "input ids: data holds something that is not a whole number",
    ),
    "truth": ({"kept": {"data": [True, 1]}}, b"", "input kept: .* not true or false"),
    "text": ({"word": {"data": [1]}}, b"", "input word: .* not text"),
    "below 64 bits": ({"ids": {"data": [1, 2, -(2**63) - 1]}}, b"", "input ids: -9.2.* is beyond INT64"),
    "range": ({"small": {"data": [128]}}, b"", "input small: 128 is beyond INT8"),
    "half range": ({"half": {"data": [70000.0]}}, b"", "input half: data holds a number beyond FP16"),
    "count": ({"ids": {"data": [1, 2]}}, b"", "input ids: data has 2 values, but its shape has 3"),
    "too few bytes": ({"ids": raw(24)}, bytes(23), "23 bytes follow the JSON, expected 24"),
    "too many bytes": ({"ids": raw(24)}, bytes(25), "25 bytes follow the JSON, expected 24"),
    "size": ({"ids": raw(32)}, bytes(32), "input ids: binary_data_size 32, but this shape has 24 bytes"),
    "truth bytes": ({"kept": raw(2)}, b"\1\2", "input kept: a BOOL is a byte of 0 or 1"),
    "cut text": ({"word": raw(8)}, b"\5\0\0\0abcd", "input word: 8 bytes, which are not 1 texts"),
    "long text": ({"word": raw(9)}, b"\4\0\0\0abcde", "input word: 9 bytes, which are not 1 texts"),
    "no length": ({"word": raw(3)}, b"abc", "input word: binary_data_size 3, but this shape has at least 4 bytes"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_gets_one_sentence_that_names_the_tensor(what: str) -> None:
    changes, following, sentence = BAD[what]
    head = body_with(changes)
    with pytest.raises(Rejection, match=sentence) as caught:
        InferenceReader(MIXED).parse(head + following, str(len(head)))
    assert caught.value.status == 400
    assert len(str(caught.value)) < 300


def test_an_input_that_is_missing_is_named() -> None:
    body = json.dumps({"inputs": [entry(spec) for spec in SPECS[1:]]}).encode()
    with pytest.raises(Rejection, match=r"input ids: it is missing; INT64\[-1, -1\] is expected"):
        InferenceReader(MIXED).parse(body, None)


def typed(changes: dict[str, dict[str, Any]], raw: tuple[bytes, ...] = ()) -> Any:
    """``changes``: by input, fields of its contents."""
    message = service_pb2.ModelInferRequest(raw_input_contents=raw)
    for spec in SPECS[:4]:
        tensor = message.inputs.add(name=spec.name, datatype=spec.datatype, shape=SHAPES[spec.name])
        values = [v.encode() if isinstance(v, str) else v for v in DATA[spec.name]]
        for field, filling in changes.get(spec.name, {grpc_messages.CONTENTS[spec.datatype]: values}).items():
            getattr(tensor.contents, field).extend(filling)
    return message


BAD_TYPED = {
    "another field": (
        {"ids": {"int_contents": [1, 2, 3]}},
        (),
        "input ids: INT64 is read from int64_contents, not from",
    ),
    "two fields": ({"ids": {"int64_contents": [1, 2, 3], "fp32_contents": [1.0]}}, (), "not from .*fp32_contents"),
    "count": ({"word": {"bytes_contents": []}}, (), "input word: bytes_contents has 0 values, but its shape has 1"),
    "range": ({"small": {"int_contents": [-129]}}, (), "input small: -129 is beyond INT8"),
    "raw too": ({}, (b"", b"", b"", b""), "input ids: exactly one of int64_contents and raw_input_contents"),
    "raw of some": ({}, (b"",), "raw_input_contents: there are 1 for 4 inputs"),
}


@pytest.mark.parametrize("what", BAD_TYPED)
def test_bad_typed_contents_get_one_sentence_that_names_the_tensor(what: str) -> None:
    changes, raw, sentence = BAD_TYPED[what]
    with pytest.raises(Rejection, match=sentence) as caught:
        grpc_messages.parse_infer(typed(changes, raw), interface(SPECS[:4]))
    assert caught.value.status == 400


def test_the_documents_table_of_datatypes_is_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text()
    rows = re.findall(r"^\| ([A-Z0-9, ]+) \|.*\| (?:`(\w+)`|none)[^|]*\|$", text, re.MULTILINE)
    stated = {datatype: field for datatypes, field in rows for datatype in datatypes.split(", ")}
    assert stated == {datatype: grpc_messages.CONTENTS.get(datatype, "") for datatype in DTYPES}


def test_half_precision_has_no_typed_contents() -> None:
    message = service_pb2.ModelInferRequest()
    message.inputs.add(name="half", datatype="FP16", shape=[1])
    with pytest.raises(Rejection, match="input half: FP16 is read from raw_input_contents only"):
        grpc_messages.parse_infer(message, interface(SPECS[4:]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(SPECS), st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), json_values)
def test_no_json_value_in_a_tensor_does_more_than_be_rejected(spec: TensorSpec, member: str, value: Any) -> None:
    try:
        x = InferenceReader(MIXED).parse(body_with({spec.name: {member: value}}), None).x
    except Rejection as rejection:
        if rejection.status != 400:
            raise
    else:
        assert isinstance(x, Columns)
        assert x.names == tuple(spec.name for spec in SPECS)


@given(st.sampled_from(SPECS), st.binary(max_size=30))
def test_no_bytes_of_a_tensor_do_more_than_be_rejected(spec: TensorSpec, content: bytes) -> None:
    head = body_with({spec.name: raw(len(content))})
    try:
        InferenceReader(MIXED).parse(head + content, str(len(head)))
    except Rejection as rejection:
        if rejection.status != 400:
            raise
