"""Tensors of every datatype come out of their packed form as they went in."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.errors import InputError, RunError
from slotool.models.packing import Packed, pack, unpack
from slotool.models.signature import DTYPES

NUMBERS = [dtype for name, dtype in DTYPES.items() if name not in ("BF16", "BYTES")]


def texts(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


@pytest.mark.parametrize("copy", [False, True])
def test_every_datatype_and_shape(copy: bool) -> None:
    random = np.random.default_rng(0)
    given = {dtype.name: random.integers(0, 2, (2, 3, 5)).astype(dtype) for dtype in NUMBERS}
    given |= {"text": texts(b"", b"\x00\xff", "é".encode() * 40).reshape(3, 1), "none": np.zeros((0, 4), np.float32)}
    given |= {"": np.arange(6.0).reshape(3, 2).T, "no text": texts().reshape(0, 2)}
    found = unpack(pack(given), copy=copy)
    assert list(found) == list(given)
    for name, array in given.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable or not copy


def test_tensors_lie_aligned_so_that_views_of_them_are_fast() -> None:
    packed = Packed({"a": np.zeros(1, np.int8), "b": np.arange(4.0)})
    memory = np.zeros(packed.size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    packed.write(memory.data[first:])
    assert unpack(memory.data[first:])["b"].ctypes.data % 64 == 0


def test_what_is_no_tensor() -> None:
    for array in (np.array([{}], dtype=object), np.array(["text"], dtype=object)):
        with pytest.raises(InputError, match="tensor t: a value is not of type bytes"):
            pack({"t": array})
    for array in (np.array(["text"]), np.zeros(1, "datetime64[s]"), np.zeros(1, np.complex64)):
        with pytest.raises(InputError, match=r"tensor t: values of type .* cannot be sent"):
            pack({"t": array})


def test_bytes_that_are_no_tensors() -> None:
    whole = pack({"t": texts(b"abc", b"d"), "n": np.arange(3)})
    for cut in (b"", whole[:3], whole[:20], whole[:70], b"\xff" * 80, whole.replace(b"int64", b"int65")):
        with pytest.raises(RunError, match="packed tensors cannot be read"):
            unpack(cut)
