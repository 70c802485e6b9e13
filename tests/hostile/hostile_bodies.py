"""Bodies of at most 64 KB that cost a server far more than they cost their sender, by name."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image

MAX_BODY_BYTES = 64 * 2**10
SIZE = 64  # An example has 1×8×8 numbers, an image for ``picture`` 3×224×224.
INFER, COMPUTE, FEEDBACK = "/v2/models/flat/infer", "/compute", "/v2/models/flat/feedback"


class Hostile(NamedTuple):
    path: str
    body: bytes
    headers: dict[str, str]


def infer_json(data: str = "0.5", *, shape: str = "[1,1,8,8]", more: str = "") -> bytes:
    tensor = f'{{"name":"input","datatype":"FP32","shape":{shape},"data":[{data}]}}'
    return f'{{"inputs":[{tensor}]{more}}}'.encode()


def repeated(piece: str, *, longest: int = MAX_BODY_BYTES - 200) -> str:
    return ",".join([piece] * (longest // (len(piece) + 1)))


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *between: bytes, pixels: bytes | None = None) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    raw = b"".join(b"\0" + bytes(width) for _ in range(height)) if pixels is None else pixels
    return b"".join([b"\x89PNG\r\n\x1a\n", header, *between, chunk(b"IDAT", zlib.compress(raw)), chunk(b"IEND")])


def jpeg(width: int = 224, height: int = 224, *, progressive: bool = False) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint8)).save(file, "JPEG", progressive=progressive)
    return file.getvalue()


def many_scans() -> bytes:
    """A progressive JPEG whose last scan comes thousands of times."""
    whole = jpeg(progressive=True)
    last = whole.rindex(b"\xff\xda")
    scan = whole[last:-2]
    return whole[:last] + scan * ((MAX_BODY_BYTES - len(whole)) // len(scan)) + whole[-2:]


def npy(header: str) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def _json_bodies() -> dict[str, bytes]:
    outputs = repeated('{"name":"label"}')
    return {
        "empty lists": infer_json(repeated("[]")),
        "empty objects": infer_json(repeated("{}")),
        "empty texts": infer_json(repeated('""')),
        "nulls": infer_json(repeated("null")),
        "zeros": infer_json(repeated("0")),
        "many outputs": infer_json(more=f',"outputs":[{outputs}]'),
        "many inputs": f'{{"inputs":[{repeated("{}")}]}}'.encode(),
        "many parameters": infer_json(more=',"parameters":{' + repeated('"a":1') + "}"),
        "equal keys": ("{" + repeated('"inputs":0') + "}").encode(),
        "other keys": ("{" + ",".join(f'"{i}":0' for i in range(7_000)) + "}").encode(),
        "deep lists": b"[" * MAX_BODY_BYTES,
        "deep lists that end": b"[" * (MAX_BODY_BYTES // 2) + b"]" * (MAX_BODY_BYTES // 2),
        "deep data": infer_json("[" * 30_000 + "]" * 30_000),
        "deep objects": b'{"a":' * (MAX_BODY_BYTES // 5),
        "ninety deep": infer_json("[" * 90 + "]" * 90),
        "one integer": infer_json("9" * 65_000),
        "long integers": infer_json(repeated("9" * 300)),
        "an exponent": infer_json("1e" + "9" * 65_000),
        "long fractions": infer_json(repeated("0." + "1234567890" * 75)),
        "subnormal fractions": infer_json(repeated("4.9406564584124654e-324")),
        "a long id": infer_json(repeated("0.5", longest=256), more=f',"id":"{"7" * 60_000}"'),
        "escapes": infer_json(more=',"id":"' + "\\u0000" * 10_000 + '"'),
        "half a surrogate": infer_json(more=',"id":"\\ud800"'),
        "a text among numbers": infer_json(repeated("1", longest=30_000) + ',"' + "7" * 30_000 + '"'),
        "a BYTES tensor": infer_json(f'"{"QUJD" * 16_000}"').replace(b"FP32", b"BYTES"),
        "a long shape": infer_json(shape=f"[{repeated('1')}]"),
        "a large list for a name": b'{"inputs":[{"name":[' + repeated("0").encode() + b"]}]}",
        "a large list for a timeout": infer_json(
            repeated("0.5", longest=256), more=f',"parameters":{{"timeout":[{repeated("0", longest=60_000)}]}}'
        ),
        "blanks": b" " * MAX_BODY_BYTES,
        "bytes that are no text": b"\xff" * MAX_BODY_BYTES,
    }


def _zipped_bodies() -> dict[str, bytes]:
    million = 2**20
    return {
        "zipped zeros": infer_json("0," * 8 * million + "0"),
        "zipped empty lists": infer_json("[]," * 5 * million + "[]"),
        "zipped empty objects": infer_json("{}," * 3 * million + "{}"),
        "zipped texts": infer_json('"",' * 3 * million + '""'),
        "zipped outputs": infer_json(more=',"outputs":[' + '{"name":"label"},' * 900_000 + '{"name":"label"}]'),
        "zipped depth": b"[" * 16 * million,
        "zipped blanks": b" " * 16 * million,
        "zipped keys": b"{" + b",".join(b'"%d":0' % i for i in range(15_000)) + b"}",
    }


def _examples() -> dict[str, bytes]:
    bomb = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**24)))
    profile = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**24)))
    picture, of_224, of_65500 = jpeg(), struct.pack(">HH", 224, 224), struct.pack(">HH", 65_500, 65_500)
    return {
        "a PNG of empty chunks": png(224, 224, chunk(b"zzzz") * 5_000),
        "a PNG of empty pixels": png(224, 224, chunk(b"IDAT") * 5_000),
        "a PNG of texts": png(224, 224, chunk(b"tEXt", b"a\0b") * 4_000),
        "a PNG with a bomb for text": png(224, 224, bomb),
        "a PNG with a bomb for a profile": png(224, 224, profile),
        "a PNG of a gigapixel": png(2**15, 2**15, pixels=bytes(2**20)),
        "a PNG with more pixels than it says": png(224, 224, pixels=bytes(2**24)),
        "an animated PNG": png(224, 224, chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
        "a JPEG of segments": picture[:2] + b"\xff\xe1\x00\x02" * 16_000 + picture[2:],
        "a JPEG of a gigapixel": picture.replace(of_224, of_65500),
        "a JPEG of scans": many_scans(),
        "an .npy of brackets": npy("(" * 60_000),
        "an .npy of minuses": npy("-" * 9_000 + "1"),
        "an .npy of terabytes": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }"),
        "text": b"a" * MAX_BODY_BYTES,
    }  # fmt: skip


def hostile_bodies() -> dict[str, Hostile]:
    """Every one of them, as a request."""
    made = {name: Hostile(INFER, body, {}) for name, body in _json_bodies().items()}
    for name, body in _zipped_bodies().items():
        for model in ("flat", "picture"):
            path = INFER.replace("flat", model)
            made[f"{name} for {model}"] = Hostile(path, gzip.compress(body), {"Content-Encoding": "gzip"})
    for name, body in _examples().items():
        made[name] = Hostile(COMPUTE, body, {"Model": "picture"})
    large = infer_json("0," * (3 * 224 * 224 - 1) + "0", shape="[1,3,224,224]")
    made["all of a large input"] = Hostile(
        INFER.replace("flat", "picture"), gzip.compress(large), {"Content-Encoding": "gzip"}
    )
    zipped = {"Content-Encoding": "gzip", "Model": "flat"}
    made["zipped raw numbers for a picture"] = Hostile(
        COMPUTE, gzip.compress(bytes(2**25)), {**zipped, "Model": "picture"}
    )
    made["zipped raw numbers"] = Hostile(COMPUTE, gzip.compress(bytes(2**24)), zipped)
    made["zipped twice"] = Hostile(COMPUTE, gzip.compress(bytes(256)) * 2, zipped)
    labels = f'{{"request":"a","labels":[{repeated("1")}]}}'.encode()
    made["many labels"] = Hostile(FEEDBACK, labels, {})
    made["labels of another kind"] = Hostile(FEEDBACK, labels.replace(b"1,1", b"[]"), {})
    made["a request named by half a surrogate"] = Hostile(FEEDBACK, b'{"request":"\\udfff","labels":[1]}', {})
    return made


def honest() -> bytes:
    """An inference request of one example."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * SIZE}
    return json.dumps({"id": "mine", "inputs": [tensor]}).encode()
