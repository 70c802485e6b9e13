"""Bodies of ``POST /compute``: every kind of example, and bytes that are none."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from slotool.models.signature import FREE, TensorSpec
from slotool.serving.front.compute import parse_tensor
from slotool.serving.rejections import Rejection

SHAPE = (1, 8, 8)
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def parse_example(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    return parse_tensor(body, TensorSpec("input", "FP32", (FREE, *shape)), shape, 1 << 20)


def image(pixels: np.ndarray, form: str = "PNG", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(file, form)
    return file.getvalue()


def test_every_kind_of_body_is_the_same_example() -> None:
    x = (PIXELS / 255.0).astype(np.float32)
    kinds = [npy(x), npy(x[None]), npy(x[None, None]), npy(x.astype(np.float64)), npy(PIXELS), x.tobytes(),
             image(PIXELS), image(PIXELS, mode="RGB")]  # fmt: skip
    for body in kinds:
        example = parse_example(body, SHAPE)
        assert (example.shape, example.dtype) == ((1, *SHAPE), np.float32)
        np.testing.assert_allclose(example[0, 0], x, atol=1e-6)


def test_a_jpeg_comes_close() -> None:
    smooth = np.tile(np.arange(0, 256, 32, dtype=np.uint8), (8, 1))
    np.testing.assert_allclose(parse_example(image(smooth, "JPEG"), SHAPE)[0, 0], smooth / 255.0, atol=0.05)


def test_colours_become_channels_first() -> None:
    colours = np.random.default_rng(1).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    example = parse_example(image(colours), (3, 4, 5))
    np.testing.assert_allclose(example[0], colours.transpose(2, 0, 1) / 255.0, atol=1e-6)


def claims(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """A .npy header that promises more than the file has."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def header(shape: str) -> bytes:
    """A .npy header with these characters as its shape."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.filterwarnings("ignore:Reading .* required additional header parsing:UserWarning")
def test_an_axis_as_python_2_wrote_it_is_a_number() -> None:
    np.testing.assert_array_equal(parse_example(header("(8L, 8L)") + b"\0" * 256, SHAPE), np.zeros((1, *SHAPE)))


BAD = {
    "nothing": (b"", "0 bytes"),
    "text": (b"hello", "neither .npy, PNG nor JPEG"),
    "one byte short": (b"\0" * 255, "255 bytes"),
    "infinity": (np.full(64, np.inf, np.float32).tobytes(), "NaN or infinity"),
    "a float64 too large": (npy(np.full((8, 8), 1e300)), "NaN or infinity"),
    "an array of another shape": (npy(np.zeros((4, 16), np.float32)), r"shape \[4, 16\]"),
    "an array of terabytes": (claims((10**12,)), "shape"),
    "a cut array": (npy(PIXELS)[:-1], "cut short"),
    "a cut header": (npy(PIXELS)[:20], "cannot be read"),
    "an unknown npy version": (b"\x93NUMPY\x09\x00" + b"\0" * 100, "cannot be read"),
    "a shape of truth values": (header("(True, 8, 8)") + b"\0" * 256, "cannot be read"),
    "a negative axis": (header("(-8, -8)") + b"\0" * 256, "cannot be read"),
    "python objects": (npy(np.array([[None] * 8] * 8, dtype=object)), "holds object"),
    "integers": (npy(np.zeros((8, 8), np.int32)), "holds int32"),
    "an image of another size": (image(np.zeros((8, 9), np.uint8)), "9×8, expected 8×8"),
    "a cut image": (image(PIXELS)[:60], "cannot be decoded"),
    "an image in name only": (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "cannot be decoded"),
    "a JPEG in name only": (b"\xff\xd8\xff" + b"\0" * 50, "cannot be decoded"),
    "sixteen bits": (image(PIXELS.astype(np.uint16)), "8 bits"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_body_is_rejected_with_a_sentence(what: str) -> None:
    body, sentence = BAD[what]
    with pytest.raises(Rejection, match=sentence) as caught:
        parse_example(body, SHAPE)
    assert caught.value.status == 400


def test_a_model_without_images_says_so() -> None:
    with pytest.raises(Rejection, match="not images"):
        parse_example(image(PIXELS), (64,))


@given(st.sampled_from([npy(PIXELS), image(PIXELS), image(PIXELS, "JPEG")]), st.data())
def test_no_altered_file_does_more_than_be_rejected(body: bytes, data: st.DataObject) -> None:
    altered = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        altered[data.draw(st.integers(8, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        example = parse_example(bytes(altered), SHAPE)
    except Rejection as rejection:
        if rejection.status != 400:
            raise
    else:
        assert example.shape == (1, *SHAPE)
