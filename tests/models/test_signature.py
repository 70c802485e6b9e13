"""Signatures: what fits, what does not and why, and what keeps two models from being versions of one service."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slotool.errors import InputError
from slotool.models import Signature, TensorSpec
from slotool.models.inference_messages import of_bfloat16_bits, of_bytes, to_bfloat16_bits, to_bytes
from slotool.models.signature import DTYPES

TEXT = Signature(
    (TensorSpec("input_ids", "INT64", (-1, -1)), TensorSpec("attention_mask", "INT64", (-1, -1))),
    (TensorSpec("logits", "FP32", (-1, 2)),),
)


def test_inputs_become_arrays_in_the_signatures_order() -> None:
    made = TEXT.conform({"attention_mask": [[1, 1]], "input_ids": np.array([[4, 5]], dtype=np.int32)})
    assert list(made) == ["input_ids", "attention_mask"]
    assert made["input_ids"].dtype == np.int64
    assert made["input_ids"].tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"input_ids": [[1]]}, "input 'attention_mask' (INT64[-1, -1]) is missing"),
        ({"ids": [[1]]}, "no input is called 'ids'; there are input_ids, attention_mask"),
        ({"input_ids": [[0.5]], "attention_mask": [[1]]}, "tensor input_ids: values of type float64, expected INT64"),
        ({"input_ids": [1], "attention_mask": [[1]]}, "tensor input_ids: shape [1], expected [-1, -1]"),
        ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, "different numbers of examples: input_ids 2, attention_m"),
        ({"input_ids": [["a"]], "attention_mask": [[1]]}, "tensor input_ids: values of type <U1, expected INT64"),
    ],
)
def test_what_does_not_fit_is_named(inputs: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as raised:
        TEXT.conform(inputs)
    assert says in str(raised.value)


def test_a_number_is_never_cast_to_another_one() -> None:
    small = TensorSpec("x", "INT8", (-1,))
    assert small.conform([127]).dtype == np.int8
    with pytest.raises(InputError, match="beyond INT8"):
        small.conform([128])
    with pytest.raises(InputError, match="beyond FP32"):
        TensorSpec("x", "FP32", (-1,)).conform([2**24 + 1])
    with pytest.raises(InputError, match="expected BYTES"):
        TensorSpec("x", "BYTES", (-1,)).conform([3])


def changed(side: int, **change: object) -> Signature:
    """``TEXT`` with the first tensor of a side changed."""
    sides = [list(TEXT.inputs), list(TEXT.outputs)]
    first = sides[side][0]
    sides[side][0] = TensorSpec(**({"name": first.name, "datatype": first.datatype, "shape": first.shape} | change))
    return Signature(tuple(sides[0]), tuple(sides[1]))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (changed(0, name="tokens"), "input 'input_ids' (INT64[-1, -1]) is missing; there are tokens, attention_mask"),
        (changed(0, datatype="FP32"), "input 'input_ids' is FP32[-1, -1], expected INT64[-1, -1]"),
        (changed(1, shape=(-1, 3)), "output 'logits' is FP32[-1, 3], expected FP32[-1, 2]"),
        (Signature(TEXT.inputs, (*TEXT.outputs, TensorSpec("b", "BOOL", ()))), "output 'b' (BOOL[]) is one too many"),
    ],
)
def test_the_tensor_that_differs_is_named(other: Signature, says: str) -> None:
    assert says in (TEXT.difference(other) or "")


@pytest.mark.parametrize(
    ("inputs", "held"),
    [
        ({"x": np.ones((2, 3), np.float32), "ids": np.ones((2, 1), np.int64)}, True),
        ({"x": np.ones((2, 3), np.float64), "ids": np.ones((2, 1), np.int64)}, False),
        ({"x": np.ones((2, 4), np.float32), "ids": np.ones((2, 1), np.int64)}, False),
        ({"x": np.ones((2, 3, 1), np.float32), "ids": np.ones((2, 1), np.int64)}, False),
        ({"ids": np.ones((2, 1), np.int64), "x": np.ones((2, 3), np.float32)}, False),
        ({"x": np.ones((2, 3), np.float32)}, False),
        ({"x": np.ones((2, 3), ">f4"), "ids": np.ones((2, 1), np.int64)}, False),
    ],
)
def test_arrays_are_held_that_need_no_cast(inputs: dict[str, np.ndarray], held: bool) -> None:
    signature = Signature((TensorSpec("x", "FP32", (-1, 3)), TensorSpec("ids", "INT64", (-1, -1))), TEXT.outputs)
    assert signature.holds(inputs) == held
    if held:
        conformed = signature.conform(inputs)
        assert all(conformed[name] is array for name, array in inputs.items())


def test_text_is_always_looked_at() -> None:
    spec = TensorSpec("word", "BYTES", (-1,))
    assert not spec.holds(np.array([1], dtype=np.object_))
    with pytest.raises(InputError, match="expected BYTES"):
        spec.conform(np.array([1], dtype=np.object_))


def test_versions_may_differ_where_a_size_is_free() -> None:
    assert TEXT.difference(changed(0, shape=(-1, 128))) is None
    assert TEXT.difference(TEXT) is None


def test_a_signature_is_the_protocols_metadata() -> None:
    assert Signature.of_document(TEXT.document()) == TEXT
    with pytest.raises(InputError, match="inputs: a list of tensors is expected"):
        Signature.of_document({"outputs": []})
    with pytest.raises(InputError, match="is not a tensor with name, datatype and shape"):
        Signature.of_document({"inputs": [{"name": "x"}], "outputs": []})


def test_a_signature_is_written_in_one_line() -> None:
    for between in (" ", ", ", ","):
        said = f"input_ids=INT64[-1, -1]{between}attention_mask=INT64[-1,-1] -> logits=FP32[-1,2]"
        assert Signature.parse(said) == TEXT
    for wrong in ("x=FP32[-1]", "-> y=FP32[-1]", "x=FP32[-1] -> y"):
        with pytest.raises(InputError):
            Signature.parse(wrong)


def test_the_signature_of_two_versions_has_the_sizes_that_either_fixes() -> None:
    fixed = changed(0, shape=(-1, 128))
    assert TEXT.common(fixed) == fixed == fixed.common(TEXT)


def test_a_tensor_is_written_as_on_the_command_line() -> None:
    assert TensorSpec.parse("image=fp32[-1,3,8,8]") == TensorSpec("image", "FP32", (-1, 3, 8, 8))
    for wrong in ("image", "image=FP32", "image=FP32[a]", "image=FLOAT[1]", "=FP32[1]"):
        with pytest.raises(InputError):
            TensorSpec.parse(wrong)


NUMBERS = sorted(set(DTYPES) - {"BYTES", "BF16"})


@given(st.data())
def test_a_tensors_bytes_are_read_back(data: st.DataObject) -> None:
    spec = TensorSpec("x", data.draw(st.sampled_from(NUMBERS)), (-1, -1))
    array = data.draw(hnp.arrays(spec.dtype, hnp.array_shapes(min_dims=2, max_dims=2, max_side=4)))
    np.testing.assert_array_equal(of_bytes(spec, to_bytes(spec, array), array.shape), array)


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_texts_are_read_back(texts: list[bytes]) -> None:
    spec = TensorSpec("x", "BYTES", (-1,))
    array = np.array([*texts, None], dtype=object)[:-1]
    content = to_bytes(spec, array)
    assert of_bytes(spec, content, array.shape).tolist() == texts
    with pytest.raises(ValueError, match="more bytes"):
        of_bytes(spec, content + b"x", array.shape)


@given(hnp.arrays(np.uint16, 20))
def test_every_bfloat16_survives(bits: np.ndarray) -> None:
    values = of_bfloat16_bits(bits)
    again = to_bfloat16_bits(values)
    np.testing.assert_array_equal(again[~np.isnan(values)], bits[~np.isnan(values)])
    assert np.isnan(of_bfloat16_bits(again[np.isnan(values)])).all()


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16_bits(values), expected)
