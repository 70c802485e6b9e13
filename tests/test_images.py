"""Images of any size, cut to what a model takes; and files that promise more than they hold."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from slotool import images


def encoded(pixels: np.ndarray, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes that promises so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    packed = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return images.PNG + b"".join(packed)


def test_an_image_of_the_right_size_stays_as_it_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(images.decode_covering(encoded(pixels), 3, 5, 7), pixels)


@pytest.mark.parametrize(("shape", "middle"), [((8, 24), np.s_[:, 8:16]), ((24, 8), np.s_[8:16, :])])
def test_the_middle_is_kept_in_its_proportions(shape: tuple[int, int], middle: tuple[slice, slice]) -> None:
    pixels = np.zeros(shape, dtype=np.uint8)
    pixels[middle] = 200
    assert (images.decode_covering(encoded(pixels), 1, 8, 8) == 200).all()
    # At its edges a smaller pixel has a share of what lies beyond.
    assert (images.decode_covering(encoded(pixels), 1, 4, 4)[1:3, 1:3] == 200).all()


def test_grey_becomes_colour_and_colour_grey() -> None:
    assert images.decode_covering(encoded(np.full((4, 4), 9, np.uint8)), 3, 2, 2).tolist() == [[[9] * 3] * 2] * 2
    assert images.decode_covering(encoded(np.full((4, 4, 3), 9, np.uint8), "JPEG"), 1, 4, 4).shape == (4, 4, 1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (claiming(60_000, 60_000), "60000×60000, at most 67,108,864 pixels"),
        (claiming(0, 5), "0×5"),
        (claiming(64, 64), "cannot be decoded"),
        (encoded(np.zeros((9, 9), np.uint8))[:-20], "cut short"),
        (b"GIF89a", "neither a PNG nor a JPEG"),
    ],
)
def test_what_is_no_image_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(images.ImageError, match=sentence):
        images.decode_covering(body, 3, 8, 8)
