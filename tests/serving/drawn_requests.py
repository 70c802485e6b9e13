"""Streams of requests that are drawn at random: inferences of all kinds, right and wrong, and other pages."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

INFER = "/v2/models/three/infer"
TENSOR = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3], "parameters": {"binary_data_size": 24}}
RAW_OF_TWO = {"binary_data_size": 48}
# First values of examples on which the model fails, or has no answer.
FAILS, UNDEFINED = 13, 7
ROUNDS, CONNECTIONS = 15, 8


def http(method: str, path: str, body: bytes = b"", version: str = "1.1", **headers: Any) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [] if "transfer_encoding" in headers else [f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def values(drawn: random.Random, first: float | None = None) -> np.ndarray:
    x = np.array([drawn.randint(-5, 5) for _ in range(6)], dtype=np.float32)
    return x if first is None else np.concatenate([[first], x[1:]]).astype(np.float32)


def infer(
    x: np.ndarray,
    tensor: dict[str, Any] | None = None,
    path: str = INFER,
    version: str = "1.1",
    more: bytes = b"",
    headers: dict[str, str] | None = None,
    **document: Any,
) -> bytes:
    head = json.dumps({"inputs": [{**TENSOR, **(tensor or {})}], **document}).encode()
    length = {"inference_header_content_length": len(head)}
    return http("POST", path, head + x.tobytes() + more, version, **{**length, **(headers or {})})


def asks(**parameters: Any) -> Callable[[random.Random], bytes]:
    return lambda drawn: infer(values(drawn), parameters=parameters)


def chunked(drawn: random.Random) -> bytes:
    whole = infer(values(drawn)).partition(b"\r\n\r\n")[2]
    cut, json_length = drawn.randint(1, len(whole) - 1), len(whole) - 24
    parts = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (cut, whole[:cut], len(whole) - cut, whole[cut:])
    headers = {"transfer_encoding": "chunked", "inference_header_content_length": json_length}
    return http("POST", INFER, **headers) + parts


def in_json(drawn: random.Random) -> bytes:
    tensor = {name: value for name, value in TENSOR.items() if name != "parameters"}
    return json.dumps({"inputs": [{**tensor, "data": values(drawn).tolist()}]}).encode()


# By how often they are drawn. A connection ends after those of ``LAST``.
KINDS: dict[str, tuple[int, Callable[[random.Random], bytes]]] = {
    "plain": (30, lambda drawn: infer(values(drawn))),
    "two": (4, lambda drawn: infer(np.tile(values(drawn), 2), {"shape": [2, 1, 2, 3], "parameters": RAW_OF_TWO})),
    "id": (3, lambda drawn: infer(values(drawn), id=f"a{drawn.randint(0, 2)}")),
    "long id": (1, lambda drawn: infer(values(drawn), id="h" * drawn.choice([800, 5_000]))),
    "priority": (4, lambda drawn: infer(values(drawn), parameters={"priority": drawn.randint(1, 3)})),
    "deadline": (2, asks(timeout=60_000_000)),
    "deadline passed": (2, asks(timeout=1)),
    "tolerance": (2, asks(tolerance=0.3)),
    "accuracy": (2, asks(min_accuracy=0.85)),
    "group": (1, asks(group="g")),
    "wrong option": (1, asks(tolerence=0.1)),
    "sequence": (1, asks(sequence_id=4)),
    "raw outputs": (4, asks(binary_data_output=True)),
    "one output": (4, lambda drawn: infer(values(drawn), outputs=[{"name": "label"}])),
    "best": (2, lambda drawn: infer(values(drawn), outputs=[{"name": "logits", "parameters": {"classification": 2}}])),
    "no number": (3, lambda drawn: infer(values(drawn, drawn.choice([np.nan, -np.inf])))),
    "fails": (3, lambda drawn: infer(values(drawn, FAILS))),
    "undefined": (3, lambda drawn: infer(values(drawn, UNDEFINED))),
    "name": (2, lambda drawn: infer(values(drawn), {"name": "inpuX"})),
    "datatype": (2, lambda drawn: infer(values(drawn), {"datatype": "FP64"})),
    "shape": (2, lambda drawn: infer(values(drawn), {"shape": [1, 1, 3, 2]})),
    "too long": (2, lambda drawn: infer(values(drawn), more=b"z" * drawn.randint(1, 9))),
    "model": (2, lambda drawn: infer(values(drawn), path="/v2/models/four/infer")),
    "version": (2, lambda drawn: infer(values(drawn), path=f"/v2/models/three/versions/{drawn.randint(1, 2)}/infer")),
    "trace": (2, lambda drawn: infer(values(drawn), headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})),
    "browser": (1, lambda drawn: infer(values(drawn), headers={"origin": "http://other.example"})),
    "wrong length": (2, lambda drawn: infer(values(drawn), headers={"inference_header_content_length": "9000"})),
    "blank line before": (1, lambda drawn: b"\r\n" + infer(values(drawn))),
    "chunked": (2, chunked),
    "json": (3, lambda drawn: http("POST", INFER, in_json(drawn))),
    "no json": (2, lambda drawn: http("POST", INFER, b"{" * drawn.randint(1, 40))),
    "gzip": (1, lambda drawn: http("POST", INFER, gzip.compress(in_json(drawn), mtime=0), content_encoding="gzip")),
    "compute": (2, lambda drawn: http("POST", "/compute", values(drawn).tobytes())),
    "page": (3, lambda drawn: http("GET", drawn.choice(["/v2", "/v2/health/ready", "/v2/models/three", "/nowhere"]))),
    "method": (1, lambda drawn: http("PUT", INFER, b"x")),
    "last": (2, lambda drawn: infer(values(drawn), headers={"connection": "close"})),
    "HTTP/1.0": (1, lambda drawn: infer(values(drawn), version="1.0")),
}  # fmt: skip
LAST = ("last", "HTTP/1.0")


@dataclass(frozen=True)
class Sent:
    """What a connection sends in a round: requests of these ``kinds``, and only ``at_first`` of the bytes with those of
    other connections."""

    connection: int
    kinds: tuple[str, ...]
    data: bytes
    at_first: int


def stream(drawn: random.Random) -> list[list[Sent]]:
    rounds = []
    for _ in range(ROUNDS):
        variety, sent = drawn.random() ** 3, []
        for connection in range(CONNECTIONS):
            if drawn.random() < 0.1:
                continue
            kinds: list[str] = []
            for _ in range(drawn.choices([1, 2, 4], [8, 2, 1])[0]):
                usual = drawn.random() > variety
                kinds += ["plain"] if usual else drawn.choices(list(KINDS), [share for share, _ in KINDS.values()])
                if kinds[-1] in LAST:
                    break
            data = b"".join(KINDS[kind][1](drawn) for kind in kinds)
            at_first = drawn.randint(1, len(data) - 1) if drawn.random() < 0.1 else len(data)
            sent.append(Sent(connection, tuple(kinds), data, at_first))
        rounds.append(sent)
    return rounds
