"""``POST /compute`` of the Tolerance Tiers paper (§IV-A): options in headers; one example, a file or raw numbers."""

from __future__ import annotations

import asyncio
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from slotool import images
from slotool.data.columns import Columns
from slotool.models.signature import FREE, TensorSpec
from slotool.serving.front.frontend import FrontEnd, explanation
from slotool.serving.protocol import bounds
from slotool.serving.protocol.bodies import client_disconnected
from slotool.serving.protocol.reply import ACCEPTED, Reply, ReplyListener, awaited, listener
from slotool.serving.rejections import Rejection, bad_request
from slotool.serving.request import InferenceResult, Request
from slotool.serving.request_options import DEFAULT_OPTIONS, MODEL, RequestOptions, from_headers, merged, require_single
from slotool.serving.served import LABEL, ServedModel

_NPY = b"\x93NUMPY"
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# The header of an array of numbers has about a hundred bytes.
MAX_NPY_HEADER_BYTES = 1_024
# Types that are no numbers. curl states forms for any data, so these are none of them.
_TEXT_TYPES = ("text/", "multipart/", "application/json", "application/xml")
# Sixteen numbers or more are no float32 if all their bytes are printable.
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e]{64,}")
# A smaller image is decoded in less than a millisecond: no thread is worth it.
INLINE_IMAGE_BYTES, INLINE_IMAGE_NUMBERS = 16 * 2**10, 64 * 64


class Compute:
    """Handler over one ``FrontEnd``; ``routes`` is what the application mounts."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self.routes = [Route("/compute", self.compute, methods=["POST"])]

    async def compute(self, request: HttpRequest) -> Response:
        front = self._front
        arrival_us = front.router.now_us()
        require_single(request.headers.raw)
        served = self.model(request.headers.get(MODEL))
        # One example in any form may be all zeros: no number of bytes is too few for it.
        max_bytes = front.example_bytes(served)
        body = await front.body(request, max_bytes, max_bytes)
        is_disconnected = partial(client_disconnected, request.receive)
        stated = from_headers(request.headers)
        reply = await awaited(partial(self.submit, request.headers, stated, body, arrival_us, is_disconnected))
        request.state.answer = reply.answer
        return reply.encoded(request.headers.get(ACCEPTED, "")).response()

    def submit(
        self,
        headers: Mapping[str, str],
        in_headers: RequestOptions,
        body: bytes,
        arrival_us: float,
        is_disconnected: Callable[[], bool],
        done: ReplyListener,
    ) -> None:
        """Answer one example (``parse_tensor``) with its label or other answer, the operating point and its reason.

        ``headers`` have lower-case names; ``in_headers`` are their options. ``done`` is called once, perhaps before
        this returns. Raises ``Rejection`` for a request that cannot be read.
        """
        served = self.model(headers.get(MODEL))
        options, own_id = merged(DEFAULT_OPTIONS, in_headers), headers.get("x-request-id", "")
        own_id = own_id if len(own_id) <= bounds.MAX_ID_CHARACTERS else ""
        if self._front.may_be_late(arrival_us):
            self._front.require_timely(served, arrival_us, options.timeout_us)
        options = self._front.asked_by(options, headers.get("authorization"), own_id)
        shape, most = served.model.signature.inputs[0].shape[1:], self._front.example_bytes(served)
        if len(body) > most:
            raise bounds.too_large(most)

        def answer(x: Columns) -> None:
            reply = listener(done, partial(_reply, served))
            self._front.submit(Request(served, x, options, arrival_us, is_disconnected, reply))

        if not takes_long(body, shape):
            answer(_example(served, body, headers.get("content-type", ""), most))
            return
        # Decoders release the GIL, so the event loop can serve requests with plain numbers meanwhile.
        decoding = asyncio.get_running_loop().run_in_executor(None, _example, served, body, "", most)
        decoding.add_done_callback(partial(_decoded, answer, done))

    def model(self, name: str | None) -> ServedModel:
        """Return the model of a ``Model`` header, by default the only one. Raises ``Rejection`` (404, 400)."""
        models = self._front.models
        if name is not None:
            return self._front.model(name)
        if len(models) > 1:
            raise bad_request(f"several models are served: name one of {', '.join(models)} in a Model header")
        return next(iter(models.values()))


def _example(served: ServedModel, body: bytes, content_type: str, max_bytes: int) -> Columns:
    """Parse one example. Raises ``Rejection`` (400, and 415 for text in place of numbers)."""
    model = served.model
    first, *others = model.signature.inputs
    if others:
        names = ", ".join(spec.name for spec in model.signature.inputs)
        path = f"/v2/models/{served.name}/infer"
        raise bad_request(f"model {served.name} has several inputs ({names}): send them to {path}")
    if first.datatype != "BYTES" and not body.startswith((_NPY, images.PNG, images.JPEG)):
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type.startswith(_TEXT_TYPES) or _TEXT.fullmatch(body):
            raise Rejection(415, "bad-request", "the body is text: send a .npy file, an image or raw float32 numbers")
    return Columns({first.name: parse_tensor(body, first, model.input_shape or first.shape[1:], max_bytes)})


def _decoded(answer: Callable[[Columns], None], done: ReplyListener, decoding: asyncio.Future[Columns]) -> None:
    try:
        answer(decoding.result())
    except Exception as error:
        done(error)


def _reply(served: ServedModel, answer: InferenceResult) -> Reply:
    latency_us = round(answer.queue_us + answer.compute_us, 1)
    document = {**_answer(answer), "model": served.name, "latency_us": latency_us}
    return Reply.of_json({**document, **explanation(answer)})._replace(answer=answer)


def _answer(answer: InferenceResult) -> dict[str, Any]:
    """Return the class as ``label``, or another task's answer as ``answer``."""
    label = answer.output(LABEL)
    if label is not None and label.dtype.kind in "iu":
        return {"label": int(label.ravel()[0])}
    answers = np.asarray(answer.labels[0])
    if answers.dtype.kind == "f":  # JSON has neither NaN nor infinity
        is_finite = np.isfinite(answers)
        answers = answers.astype(np.object_)
        answers[~is_finite] = None
    plain = answers.tolist()
    return {"answer": plain.decode(errors="replace") if isinstance(plain, bytes) else plain}


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

    The first bytes of the body tell its kind. Floating-point inputs: a floating ``.npy`` array; uint8 pixels, which
    become [0, 1]; a PNG or JPEG of the model's size, converted to grey or RGB as its channels require; anything else is
    one example of little-endian float32. All must be finite. UINT8: an image's values from 0 to 255, or a ``.npy`` file
    of uint8. Other numbers and BOOL: a ``.npy`` file of that type. BYTES: the body is the one text.

    ``usual``: shape of raw float32, and of ``.npy`` files except for axes of length 1; a ``.npy`` file or an image may
    have any shape that ``spec`` allows. ``max_bytes``: most bytes of an image's values, as float32. Raises
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
    """Read an array of numbers or booleans of ``shape``, or of ``usual`` except for axes of length 1."""
    file = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(file)
        read_header = _NPY_HEADERS[version]
        axes, by_columns, dtype = read_header(file, max_header_size=MAX_NPY_HEADER_BYTES)
    # A header is Python source, and old ones are tokenized: SyntaxError, TokenError, RecursionError and more. Their
    # messages may name objects of this process, so they are not repeated.
    except Exception:
        raise bad_request("the .npy file cannot be read: its header is not that of an array of numbers") from None
    # True is an int for NumPy's check, but not for reshape.
    if any(type(length) is not int or length < 0 for length in axes):
        raise bad_request("the .npy file cannot be read: the axes in its header are not numbers from 0")
    fitted = _fitted(axes, shape, usual)
    if fitted is None:
        raise bad_request(f"the .npy file holds an array of shape {list(axes)[:8]}, expected {list(shape)}")
    if dtype.kind not in "fiub":
        raise bad_request(f"the .npy file holds {dtype.name[:40]}, expected float32 (or uint8 pixels)")
    data = body[file.tell() :]
    if len(data) != math.prod(axes) * dtype.itemsize:
        what = "is cut short" if len(data) < math.prod(axes) * dtype.itemsize else "goes on behind its array"
        raise bad_request(f"the .npy file {what}: {len(data)} bytes, expected {math.prod(axes) * dtype.itemsize}")
    return np.frombuffer(data, dtype).reshape(axes, order="F" if by_columns else "C").reshape(fitted)


def _fitted(axes: tuple[int, ...], shape: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of an example in the file; None where it has none."""
    for sizes in (axes, axes[1:] if axes[:1] == (1,) else axes):
        if len(sizes) == len(shape) and all(size in (FREE, got) for size, got in zip(shape, sizes, strict=True)):
            return sizes
    return usual if _long_axes(axes) == _long_axes(usual) else None


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
