"""The body of ``POST /compute`` as one example: a NumPy file, a PNG or JPEG image, or raw float32."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, JpegImagePlugin, PngImagePlugin

from slotool.serving.refusals import Refusal, bad_request

# Naming the plugins loads them here, and not in the first request.
_FORMATS = (PngImagePlugin.PngImageFile.format, JpegImagePlugin.JpegImageFile.format)
_NPY, _PNG, _JPEG = b"\x93NUMPY", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


def parse_example(body: bytes, input_shape: Sequence[int]) -> np.ndarray:
    """float32 [1, *input_shape], finite, from a body that tells its kind by its first bytes.

    ``.npy``: one floating array of that shape (axes of length 1 may differ), or uint8 pixels, which become [0, 1].
    PNG and JPEG: as many pixels as the model takes, made grey or RGB as its channels want. Anything else must be
    exactly one example of little-endian float32. Raises ``Refusal`` (400) naming what is wrong, whatever the bytes are.
    """
    shape = tuple(input_shape)
    if body.startswith(_NPY):
        x = _npy(body, shape)
    elif body.startswith((_PNG, _JPEG)):
        x = _image(body, shape)
    else:
        x = _raw(body, shape)
    if not np.isfinite(x).all():
        raise bad_request("the example holds NaN or infinity")
    return x.reshape(1, *shape)


def _raw(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    expected = 4 * math.prod(shape)
    if len(body) != expected:
        raise bad_request(
            f"the body is neither .npy, PNG nor JPEG, nor one example of float32: it has {len(body)} bytes, "
            f"an example of shape {list(shape)} has {expected}"
        )
    return np.frombuffer(body, dtype="<f4").astype(np.float32)


def _npy(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    file = io.BytesIO(body)
    try:
        major, _ = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        found, _, dtype = read_header(file)
    # A header is Python source, and old ones are tokenized: SyntaxError, TokenError, RecursionError and more.
    except Exception as error:
        raise bad_request(f"the .npy file cannot be read: {' '.join(str(error).split())[:120]}") from None
    # Checked before the array is read, since reading allocates whatever the header claims.
    if _long_axes(found) != _long_axes(shape):
        raise bad_request(f"the .npy file holds an array of shape {list(found)[:8]}, expected {list(shape)}")
    if dtype.kind != "f" and dtype != np.uint8:
        raise bad_request(f"the .npy file holds {dtype.name}, expected float32 (or uint8 pixels)")
    file.seek(0)
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise bad_request(f"the .npy file is cut short: {' '.join(str(error).split())[:120]}") from None
    with np.errstate(over="ignore"):
        return array.astype(np.float32) / (np.float32(255.0) if dtype == np.uint8 else np.float32(1.0))


def _image(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise bad_request(f"this model takes inputs of shape {list(shape)}, not images")
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(body), formats=_FORMATS) as image:
            if image.size != (width, height):
                raise bad_request(f"the image is {image.width}×{image.height}, expected {width}×{height}")
            if image.mode.startswith(("I", "F")):
                raise bad_request("the image has more than 8 bits per channel")
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.float32)
    except Refusal:
        raise
    # A decoder fed with hostile bytes raises what it stumbles over: OSError, SyntaxError, ValueError, struct.error …
    except Exception as error:
        raise bad_request(f"the image cannot be decoded: {' '.join(str(error).split())[:120]}") from None
    return pixels.reshape(height, width, channels).transpose(2, 0, 1) / np.float32(255.0)


def _long_axes(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]
