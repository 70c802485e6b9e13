"""PNG and JPEG files cut down to what their pixels need, before a decoder sees them.

Decoders read profiles, text, previews and animations too, each a place where a small file can cost seconds. Here only
the frame of a file is read: its size must be the expected one, and what is not pixels is left out. Sources: RFC 2083
(PNG), ITU-T T.81 annex B (JPEG).
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import JpegImagePlugin, PngImagePlugin
from PIL.Image import Image, Resampling

from slotool.errors import InputError

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
# Encoders cut pixels into pieces of 8 KiB or more; metadata comes in a few tens of chunks.
MAX_CHUNKS, MIN_CHUNK_BYTES = 256, 512
# A small file can promise any number of pixels; this many take 192 MiB as RGB.
MAX_PIXELS = 1 << 26
# A progressive JPEG has about ten scans, and each of them costs a pass over the picture.
MAX_SCANS = 32
_PNG_PIXELS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_MARKER = re.compile(rb"\xff++([^\x00\xd0-\xd7])")
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2)
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Tables, restart interval, and Adobe's word about the colour space.
_JPEG_PIXELS = frozenset((*_FRAMES, 0xC4, 0xDB, 0xDD, 0xEE))


class ImageError(InputError):
    """Bytes that are no PNG or JPEG image, or one that is not decoded; the sentence goes on from its source."""


class Frame(NamedTuple):
    """``pixels``: the file without what is not pixels."""

    width: int
    height: int
    bits: int
    pixels: bytes


def decode(body: bytes, channels: int, height: int, width: int) -> np.ndarray:
    """Return float32 [channels, height, width] in [0, 1], grey for one channel, RGB for three.

    Raises ``ImageError`` for a file that is damaged, animated, of another size or of more than 8 bits per channel.
    """
    frame = frame_of(body)
    if (frame.width, frame.height) != (width, height):
        raise ImageError(f"the image is {frame.width}×{frame.height}, expected {width}×{height}")
    pixels = _pixels(frame, channels, lambda image: image).astype(np.float32)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1) / np.float32(255.0)


def decode_covering(body: bytes, channels: int, height: int, width: int) -> np.ndarray:
    """Return an image as uint8 [height, width, channels], scaled bilinearly until it covers them, and cut centrally.

    Raises ``ImageError`` as ``decode`` does, and for an image of more than ``MAX_PIXELS``, whatever its file's size.
    """
    frame = frame_of(body)
    if not 0 < frame.width * frame.height <= MAX_PIXELS:
        raise ImageError(f"the image is {frame.width}×{frame.height}, at most {MAX_PIXELS:,} pixels are decoded")
    scale = max(height / frame.height, width / frame.width)
    left, top = (frame.width - width / scale) / 2, (frame.height - height / scale) / 2
    box = (
        max(0.0, left),
        max(0.0, top),
        min(frame.width, left + width / scale),
        min(frame.height, top + height / scale),
    )

    def covering(image: Image) -> Image:
        same = (frame.width, frame.height) == (width, height)
        return image if same else image.resize((width, height), Resampling.BILINEAR, box)

    return _pixels(frame, channels, covering).reshape(height, width, channels)


def frame_of(body: bytes) -> Frame:
    """Return the size of an image, and its file without what is not pixels. Raises ``ImageError``."""
    if body.startswith(PNG):
        return _png(body)
    if body.startswith(JPEG):
        return _jpeg(body)
    raise ImageError("neither a PNG nor a JPEG image")


def _pixels(frame: Frame, channels: int, change: Callable[[Image], Image]) -> np.ndarray:
    """Return uint8 [height, width] or [height, width, 3]."""
    if frame.bits > 8:
        raise ImageError("the image has more than 8 bits per channel")
    opened = PngImagePlugin.PngImageFile if frame.pixels.startswith(PNG) else JpegImagePlugin.JpegImageFile
    try:
        # Image.open would try formats in turn and read a JPEG's list of further pictures.
        with opened(io.BytesIO(frame.pixels)) as image:
            return np.asarray(change(image.convert("L" if channels == 1 else "RGB")))
    # A decoder fed with hostile bytes raises what it stumbles over: OSError, SyntaxError, ValueError, struct.error …
    except Exception:
        raise _damaged() from None


def _png(body: bytes) -> Frame:
    parts, at, chunks = [PNG], len(PNG), 0
    most = MAX_CHUNKS + len(body) // MIN_CHUNK_BYTES
    size: tuple[int, int, int] | None = None
    while True:
        if at + 12 > len(body):
            raise _damaged("it is cut short")
        length, kind = struct.unpack_from(">I4s", body, at)
        end = at + 12 + length
        chunks += 1
        if end > len(body):
            raise _damaged("it is cut short")
        if chunks > most:
            raise ImageError(f"the image has more than {most} chunks, save it without metadata")
        if kind == b"acTL":
            raise ImageError("the image is animated, one picture is expected")
        if (chunks == 1) != (kind == b"IHDR") or (chunks == 1 and length != 13):
            raise _damaged("it has no header, or two")
        if chunks == 1:
            size = struct.unpack_from(">IIB", body, at + 8)
        if kind in _PNG_PIXELS:
            parts.append(body[at:end])
        if kind == b"IEND":
            assert size is not None
            return Frame(*size, b"".join(parts))
        at = end


def _jpeg(body: bytes) -> Frame:
    parts, at, segments, scans = [b"\xff\xd8"], 2, 0, 0
    most = MAX_CHUNKS + len(body) // MIN_CHUNK_BYTES
    size: tuple[int, int, int] | None = None
    while True:
        marker = _MARKER.match(body, at)
        segments += 1
        if marker is None:
            raise _damaged("it is cut short, or has bytes between its segments")
        if segments > most:
            raise ImageError(f"the image has more than {most} segments, save it without metadata")
        # Filling bytes may precede a marker.
        at, kind = marker.start(1) - 1, marker[1][0]
        if kind == _EOI:
            break
        if at + 4 > len(body) or kind in (_SOI, 0x01):
            raise _damaged()
        end = at + 2 + struct.unpack_from(">H", body, at + 2)[0]
        if kind == _SOS:
            scans += 1
            # Restart markers and stuffed bytes belong to the scan; any other marker ends it.
            following = _MARKER.search(body, end)
            end = following.start() if following else len(body)
        if kind in _FRAMES:
            if size is not None or end < at + 10:
                raise _damaged()
            bits, height, width = struct.unpack_from(">BHH", body, at + 4)
            size = (width, height, bits)
        if kind in _OTHER_FRAMES:
            raise ImageError("the image is a JPEG of a rare kind, only baseline and progressive ones are read")
        if kind in _JPEG_PIXELS or kind == _SOS:
            parts.append(body[at:end])
        at = end
    if size is None or scans > MAX_SCANS:
        raise _damaged("it has no picture, or too many scans")
    return Frame(*size, b"".join([*parts, b"\xff\xd9"]))


def _damaged(why: str = "its data is damaged") -> ImageError:
    return ImageError(f"the image cannot be decoded: {why}")
