"""JSON from outside, read strictly: RFC 8259 by orjson, with limits on size and depth, and one kind of error.

What orjson does where the standard leaves room: NaN, Infinity, numbers beyond float64 and lone surrogates are refused;
an integer beyond 64 bits is read as a float, so it never has thousands of digits; of equal keys the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import orjson

from slotool.errors import InputError
from slotool.regular_files import open_regular

MAX_BYTES = 32 * 2**20
# Far below the depth at which Python's own recursion, in whatever walks the value later, would end.
MAX_DEPTH = 100
_OPENS, _CLOSES = b"[{", b"]}"
T = TypeVar("T")
# Errors of Python when parts of a document have unexpected types or values.
_MISFITS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, AssertionError)


class JsonError(InputError, ValueError):
    """Bytes that are not JSON, or more of it than is read; ``str(error)`` is the reason, without a source."""


def decode(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value of a JSON text (UTF-8). Raises ``JsonError``."""
    if isinstance(data, str):
        data = data.encode(errors="surrogatepass")
    if len(data) > max_bytes:
        raise JsonError(f"{len(data)} bytes, at most {max_bytes} are read")
    if is_too_deep(data):
        raise JsonError(f"nested more than {MAX_DEPTH} deep")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise JsonError(" ".join(str(error).split())[:120]) from None


def decode_object(data: bytes | str, source: object, *, error: type[InputError] = InputError) -> dict[str, Any]:
    """Return the JSON object in ``data``. Raises ``error``, whose message begins with ``source``."""
    try:
        document = decode(data)
    except JsonError as reason:
        raise error(f"{source}: not JSON ({reason})") from reason
    if not isinstance(document, dict):
        raise error(f"{source}: a JSON object is expected, this is {kind_of(document)}")
    return document


def read(path: Path, *, error: type[InputError] = InputError) -> Any:
    """Return the value in a file. Raises ``error`` naming the file; ``OSError`` for an unreadable one."""
    try:
        with open_regular(path) as file:
            return decode(file.read(MAX_BYTES + 1))
    except JsonError as reason:
        raise error(f"{path}: not a JSON file ({reason})") from reason


def convert(value: Any, kind: type[T]) -> T:
    """Return a decoded value as ``kind``, a dataclass or a type such as ``dict[str, float]``, with every part checked.

    Raises ``JsonError`` naming a part that is missing or of another type; keys absent from ``kind`` are ignored.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise JsonError(str(error).replace("$", "the document", 1)) from None


@contextmanager
def assembling(source: object, what: str, *, error: type[InputError] = InputError) -> Iterator[None]:
    """Raise ``error``, naming ``source``, if the block fails to build ``what`` from a file's parts.

    An ``error`` raised by the block passes unchanged.
    """
    try:
        yield
    except JsonError as reason:
        raise error(f"{source}: not {what} ({reason})") from reason
    except InputError:
        raise
    except _MISFITS as reason:
        sentence = " ".join(f"{type(reason).__name__}: {reason}".split())[:160]
        raise error(f"{source}: not {what}, its parts do not belong together ({sentence})") from reason


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, for messages."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def is_too_deep(data: bytes) -> bool:
    """True if lists and objects nest more than ``MAX_DEPTH`` deep; brackets inside strings count too."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    characters = np.frombuffer(data, dtype=np.uint8)
    opens = (characters == _OPENS[0]) | (characters == _OPENS[1])
    closes = (characters == _CLOSES[0]) | (characters == _CLOSES[1])
    steps = opens.astype(np.int8) - closes.astype(np.int8)
    return bool(np.cumsum(steps[steps != 0], dtype=np.int64).max(initial=0) > MAX_DEPTH)
