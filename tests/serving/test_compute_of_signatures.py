"""``POST /compute`` for models with a signature of one input: images, numbers, texts; answers that are no class."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from live_server import HTTP, LiveServer, live_server
from PIL import Image
from wrapped_model import served_as_is

from slotool.models import Classification, Regression, Signature, Task, Text
from slotool.models.adapters.factory import FunctionModel

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)


def brightest(image: np.ndarray) -> np.ndarray:
    """Scores: the sum of each channel."""
    return image.astype(np.float64).sum(axis=(2, 3)).astype(np.float32)


def double(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(x == 13, np.nan, 2.0 * x)


def shouted(text: np.ndarray) -> np.ndarray:
    return np.array([[value.upper() for value in row] for row in text], dtype=np.object_)


def mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a + b) / 2


def total(x: np.ndarray) -> np.ndarray:
    """The sum of an example's numbers, and its sizes."""
    sizes = [np.full(len(x), size) for size in x.shape[1:]]
    return np.stack([x.sum(axis=(1, 2, 3)), *sizes], axis=1).astype(np.float32)


MODELS: list[tuple[Any, str, Task]] = [
    (brightest, "image=UINT8[-1,3,4,5] -> scores=FP32[-1,3]", Classification("scores")),
    (double, "x=INT64[-1,2] -> y=FP64[-1,2]", Regression("y")),
    (shouted, "text=BYTES[-1,1] -> said=BYTES[-1,1]", Text("said")),
    (total, "x=FP32[-1,3,-1,-1] -> y=FP32[-1,4]", Regression("y")),
    (mean, "a=FP32[-1] b=FP32[-1] -> y=FP32[-1]", Regression("y")),
]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    models = [served_as_is(FunctionModel(made, Signature.parse(text)), task) for made, text, task in MODELS]
    with live_server(models) as live:
        yield live


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def compute(live: LiveServer, model: str, body: bytes) -> tuple[int, dict[str, Any]]:
    response = HTTP.post(f"{live.url}/compute", content=body, headers={"Model": model})
    return response.status_code, response.json()


def test_an_image_of_bytes(live: LiveServer) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    best = int(PIXELS.reshape(-1, 3).sum(axis=0, dtype=np.int64).argmax())
    for body in (file.getvalue(), npy(PIXELS.transpose(2, 0, 1))):
        status, document = compute(live, "brightest", body)
        assert (status, document["label"]) == (200, best)
        assert 0 <= document["confidence"] <= 1
        assert document["operating_point"]


def test_numbers_and_texts_whose_answer_is_no_class(live: LiveServer) -> None:
    assert compute(live, "double", npy(np.array([3, -4])))[1]["answer"] == [6.0, -8.0]
    assert compute(live, "double", npy(np.array([13, 1])))[1]["answer"] == [None, 2.0]
    assert compute(live, "shouted", "wörd".encode())[1]["answer"] == "WöRD"


def test_every_shape_that_the_signature_takes(live: LiveServer) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    for body, sizes in (
        (npy(np.ones((3, 2, 7), np.float32)), (3, 2, 7)),
        (npy(np.ones((1, 3, 5, 1), np.float32)), (3, 5, 1)),
        (file.getvalue(), (3, 4, 5)),
    ):
        status, document = compute(live, "total", body)
        assert (status, tuple(document.get("answer", ())[1:])) == (200, sizes), document
    wide = io.BytesIO()
    Image.new("RGB", (2_000, 1_000)).save(wide, "PNG")
    status, document = compute(live, "total", wide.getvalue())
    assert (status, "the image is 2000×1000, at most" in document["error"]) == (400, True)


@pytest.mark.parametrize(
    ("model", "body", "sentence"),
    [
        ("double", b"1 2", "input x is INT64[-1, 2]: a .npy file of int64 is expected"),
        ("double", npy(np.array([1.0, 2.0])), "the .npy file holds float64, expected int64"),
        ("double", npy(np.array([1, 2, 3])), "holds an array of shape [3], expected [2]"),
        ("double", npy(np.array(["a", "b"])), "the .npy file holds str"),
        ("total", npy(np.ones((4, 2, 2), np.float32)), "holds an array of shape [4, 2, 2], expected [3, -1, -1]"),
        ("total", b"12", "float32 for [3, -1, -1] has no one length"),
        ("mean", b"", "model mean has several inputs (a, b): send them to /v2/models/mean/infer"),
    ],
)
def test_what_is_no_example(live: LiveServer, model: str, body: bytes, sentence: str) -> None:
    status, document = compute(live, model, body)
    assert status == 400
    assert sentence in document["error"]
