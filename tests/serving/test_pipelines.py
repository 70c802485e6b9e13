"""Chains of models served as one, and compressed answers, by real servers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper

from tests.serving.live_server import HTTP, until
from tests.serving.onnx_files import save
from tests.serving.test_serve_command import WAIT_S, serving

Slotool = Callable[..., Any]
F, D = TensorProto.FLOAT, TensorProto.DOUBLE
SERVICE = """
engine = "local"

[[models]]
artifact = "double.onnx"

[[models]]
name = "chain"
steps = ["double", "weigh.onnx"]
"""


def scaled(path: Path, by: float) -> None:
    """``y`` is ``x`` times a number."""
    factor = helper.make_node("Constant", [], ["by"], value=helper.make_tensor("v", F, [], [by]))
    save(path, [factor, helper.make_node("Mul", ["x", "by"], ["y"])], [("x", F, ["n", 3])], [("y", F, ["n", 3])])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scaled(tmp_path / "double.onnx", 2)
    # Another precision than the step before, and a tensor of the request's own.
    add = [helper.make_node("Add", ["y", "weight"], ["z"])]
    rows = [("y", D, ["n", 3]), ("weight", D, ["n", 3])]
    save(tmp_path / "weigh.onnx", add, rows, [("z", D, ["n", 3])])
    save(tmp_path / "one.onnx", [helper.make_node("Relu", ["x"], ["y"])], [("x", F, [1, 3])], [("y", F, [1, 3])])
    save(tmp_path / "wide.onnx", [helper.make_node("Relu", ["y"], ["z"])], [("y", F, ["n", 4])], [("z", F, ["n", 4])])
    (tmp_path / "service.toml").write_text(SERVICE)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    with serving(folder, "--config", "service.toml") as (process, ready):
        yield process, ready


def asked(url: str, x: np.ndarray, weight: np.ndarray, **options: Any) -> Any:
    arrays = {"x": x.astype(np.float32), "weight": weight}
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, array.shape, "FP32" if name == "x" else "FP64"))
        inputs[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        return client.infer("chain", inputs, **options)


def test_a_chain_answers_as_one_model_and_follows_the_files_of_its_steps(folder: Path, server: Any) -> None:
    process, ready = server
    metadata = HTTP.get(f"{ready['url']}/v2/models/chain").json()
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["x", "weight"]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["z"]
    x, weight = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    assert np.array_equal(asked(ready["url"], x, weight).as_numpy("z"), 2 * x + 1)
    # A deadline that has passed: no step is computed.
    body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]},
                       {"name": "weight", "shape": [1, 3], "datatype": "FP64", "data": [0, 0, 0]}],
            "parameters": {"timeout": 1}}  # fmt: skip
    late = HTTP.post(f"{ready['url']}/v2/models/chain/infer", content=json.dumps(body))
    assert (late.status_code, "deadline" in late.json()["error"]) == (504, True)
    scaled(folder / "double.onnx", 10)
    process.send_signal(signal.SIGHUP)
    until(lambda: np.array_equal(asked(ready["url"], x, weight).as_numpy("z"), 10 * x + 1), WAIT_S)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_answers_are_compressed_for_who_asks_for_one_encoding(server: Any, encoding: str) -> None:
    _, ready = server
    x, weight = np.zeros((1_000, 3)), np.zeros((1_000, 3))
    result = asked(ready["url"], x, weight, response_compression_algorithm=encoding)
    assert not result.as_numpy("z").any()
    url = f"{ready['url']}/v2/models/double/infer"
    body = {"inputs": [{"name": "x", "shape": [1_000, 3], "datatype": "FP32", "data": [0] * 3_000}]}
    plain, short = (
        HTTP.post(url, json=body, headers={"accept-encoding": sent}) for sent in ("gzip, deflate", encoding)
    )
    assert "content-encoding" not in plain.headers
    assert short.headers["content-encoding"] == encoding
    assert 10 * int(short.headers["content-length"]) < int(plain.headers["content-length"])
    assert short.json()["outputs"] == plain.json()["outputs"]
    # A body of one packet stays as it is, also on the way that compressed requests take.
    body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0] * 3}]}
    assert "content-encoding" not in HTTP.post(url, json=body, headers={"accept-encoding": encoding}).headers


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('name = "c"\nsteps = ["double.onnx"]', "models[0].steps"),
        ('steps = ["double.onnx", "weigh.onnx"]', "models[0]: a pipeline has steps and a name, and no artifact"),
        ('name = "c"\nsteps = ["double.onnx", "none.onnx"]', "models[0].artifact: there is no folder"),
        ('name = "c"\nsteps = ["one.onnx", "weigh.onnx"]', "step one computes one request a call"),
        ('name = "c"\nsteps = ["double.onnx", "wide.onnx"]', "step wide takes y as FP32[-1, 4], but y is made as FP32"),
        ('name = "c"\nsteps = ["weigh.onnx", "weigh.onnx"]', "step weigh takes y, weight, none of which"),
        ("", "models[0]: the key 'artifact' is missing"),
    ],
)
def test_steps_that_are_no_chain_are_sentences(folder: Path, slotool: Slotool, table: str, sentence: str) -> None:
    (folder / "service.toml").write_text(f"[[models]]\n{table}\n")
    refused = slotool("serve", "--config", folder / "service.toml", "--check-config")
    assert refused.exit_code == 2
    assert sentence in refused.stderr
