"""The body of ``POST /compute`` as one example: a NumPy file, a PNG or JPEG image, or raw float32."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np

from slotool import images
from slotool.models.signature import FREE, TensorSpec
from slotool.serving.rejections import bad_request

_NPY = b"\x93NUMPY"
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# The header of an array of numbers has about a hundred bytes.
MAX_NPY_HEADER_BYTES = 1_024
# Decoding an image that is neither longer nor larger takes less than a millisecond: no thread is worth it.
INLINE_IMAGE_BYTES, INLINE_IMAGE_NUMBERS = 16 * 2**10, 64 * 64


def takes_long(body: bytes, input_shape: Sequence[int]) -> bool:
    """True if ``parse_tensor`` is better called in a thread than in the event loop."""
    image = body.startswith((images.PNG, images.JPEG))
    unknown = FREE in input_shape
    return image and (unknown or len(body) > INLINE_IMAGE_BYTES or math.prod(input_shape) > INLINE_IMAGE_NUMBERS)


def _floats(body: bytes, shape: tuple[int, ...], usual: tuple[int, ...], max_bytes: int) -> np.ndarray:
    if body.startswith(_NPY):
        x = _npy(body, shape, usual)
    elif body.startswith((images.PNG, images.JPEG)):
        x = _image(body, shape, usual, max_bytes)
    else:
        x = _raw(body, usual)
    if not np.isfinite(x).all():
        raise bad_request("the example holds NaN or infinity")
    return x[None]


def parse_tensor(body: bytes, spec: TensorSpec, usual: Sequence[int], max_bytes: int) -> np.ndarray:
    """Return one example of a model's only input: an array of its datatype, whose first size is 1.

    The body tells its kind by its first bytes. ``usual``: the shape of raw float32, and of ``.npy`` files but for axes
    of length 1; a ``.npy`` file or an image may have any shape that ``spec`` takes. ``max_bytes``: most bytes of an
    image's values, as float32. Floating-point numbers, which are finite: a floating ``.npy`` array, or uint8 pixels,
    which become [0, 1]; PNG and JPEG of as many pixels as the model takes, made grey or RGB as its channels want;
    anything else is exactly one example of little-endian float32. UINT8: an image's values from 0 to 255, or a ``.npy``
    file of uint8. Other numbers and BOOL: a ``.npy`` file of that type. BYTES: the body is the one text. Raises
    ``Rejection`` (400) naming what is wrong, whatever the bytes are.
    """
    if spec.datatype == "BYTES":
        text = np.empty((1,) * len(spec.shape), dtype=np.object_)
        text[...] = body
        return text
    shape, usual = spec.shape[1:], tuple(usual)
    if spec.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return _floats(body, shape, usual, max_bytes).astype(spec.dtype)
    if spec.datatype == "UINT8" and body.startswith((images.PNG, images.JPEG)):
        return np.rint(_image(body, shape, usual, max_bytes) * 255.0).astype(np.uint8)[None]
    if not body.startswith(_NPY):
        raise bad_request(f"input {spec.name} is {spec}: a .npy file of {spec.dtype.name} is expected")
    array = _npy_array(body, shape, usual)
    if array.dtype != spec.dtype:
        raise bad_request(f"the .npy file holds {array.dtype.name[:40]}, expected {spec.dtype.name}")
    return array.astype(spec.dtype)[None]


def _raw(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    if FREE in shape:
        raise bad_request(f"the body is neither .npy, PNG nor JPEG, and float32 for {list(shape)} has no one length")
    expected = 4 * math.prod(shape)
    if len(body) != expected:
        raise bad_request(
            f"the body is neither .npy, PNG nor JPEG, nor one example of float32: it has {len(body)} bytes, "
            f"an example of shape {list(shape)} has {expected}"
        )
    return np.frombuffer(body, dtype="<f4").astype(np.float32).reshape(shape)


def _npy(body: bytes, shape: tuple[int, ...], usual: tuple[int, ...]) -> np.ndarray:
    array = _npy_array(body, shape, usual)
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise bad_request(f"the .npy file holds {array.dtype.name[:40]}, expected float32 (or uint8 pixels)")
    with np.errstate(over="ignore"):
        return array.astype(np.float32) / (np.float32(255.0) if array.dtype == np.uint8 else np.float32(1.0))


def _npy_array(body: bytes, shape: tuple[int, ...], usual: tuple[int, ...]) -> np.ndarray:
    """The numbers or truth values of a file of a shape that ``shape`` takes, else of ``usual`` but for axes of length
    1."""
    file = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(file)
        read_header = _NPY_HEADERS[version]
        found, by_columns, dtype = read_header(file, max_header_size=MAX_NPY_HEADER_BYTES)
    # A header is Python source, and old ones are tokenized: SyntaxError, TokenError, RecursionError and more. What they
    # say may name objects of this process, so it is not repeated.
    except Exception:
        raise bad_request("the .npy file cannot be read: its header is not that of an array of numbers") from None
    # To Python True is an integer, so that numpy lets it pass; to reshape it is not.
    if any(type(length) is not int or length < 0 for length in found):
        raise bad_request("the .npy file cannot be read: the axes in its header are not numbers from 0")
    fitted = _fitted(found, shape, usual)
    if fitted is None:
        raise bad_request(f"the .npy file holds an array of shape {list(found)[:8]}, expected {list(shape)}")
    if dtype.kind not in "fiub":
        raise bad_request(f"the .npy file holds {dtype.name[:40]}, expected float32 (or uint8 pixels)")
    data = body[file.tell() :]
    if len(data) != math.prod(found) * dtype.itemsize:
        what = "is cut short" if len(data) < math.prod(found) * dtype.itemsize else "goes on behind its array"
        raise bad_request(f"the .npy file {what}: {len(data)} bytes, expected {math.prod(found) * dtype.itemsize}")
    return np.frombuffer(data, dtype).reshape(found, order="F" if by_columns else "C").reshape(fitted)


def _fitted(found: tuple[int, ...], shape: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of an example from a file's; None where it is none."""
    for sizes in (found, found[1:] if found[:1] == (1,) else found):
        if len(sizes) == len(shape) and all(size in (FREE, got) for size, got in zip(shape, sizes, strict=True)):
            return sizes
    return usual if _long_axes(found) == _long_axes(usual) else None


def _image(body: bytes, shape: tuple[int, ...], usual: tuple[int, ...], max_bytes: int) -> np.ndarray:
    channels = next((sizes[0] for sizes in (shape, usual) if sizes and sizes[0] != FREE), 3)
    if len(shape) != 3 or channels not in (1, 3):
        raise bad_request(f"this model takes inputs of shape {list(shape)}, not images")
    try:
        height, width = shape[1:]
        if FREE in (height, width):
            frame = images.frame_of(body)
            height, width = (frame.height if height == FREE else height), (frame.width if width == FREE else width)
            if 4 * channels * height * width > max_bytes:
                raise bad_request(
                    f"the image is {width}×{height}, at most {max_bytes // (4 * channels)} pixels are read"
                )
        return images.decode(body, channels, height, width)
    except images.ImageError as error:
        raise bad_request(str(error)) from None


def _long_axes(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]
