"""Models of any signature are served under their own tensor names, to Triton's unmodified clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from slotool.data.columns import Columns
from slotool.errors import InputError, RunError
from slotool.models import Classification, Model, Regression, Signature, TensorSpec, Text
from slotool.models.adapters.factory import FunctionModel
from slotool.models.adapters.onnx import OnnxModel
from slotool.models.model import batched
from slotool.models.signature import DTYPES, FREE
from slotool.scheduling import Decision, EdfQueue, Policy, Query
from slotool.serving import RequestLimits, Router, ServedModel
from slotool.serving.request_options import RequestOptions
from slotool.tables import FULL, OperatingPoint
from tests.serving.live_server import HTTP, LiveServer, live_server, until
from tests.serving.wrapped_model import Wrapped, served_as_is

tensor = helper.make_tensor_value_info
CLIENTS = [triton_http, triton_grpc]


def saved(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any]) -> OnnxModel:
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return OnnxModel(path, threads=1)


def classifier(path: Path) -> OnnxModel:
    """Two classes: sums of embeddings of the tokens that the mask keeps. INT64 [n, s] twice → logits FP32 [n, 2]."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["column"]),
        helper.make_node("Mul", ["embedded", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["logits"], keepdims=0),
    ]
    inputs = [tensor(name, TensorProto.INT64, ["n", "s"]) for name in ("input_ids", "attention_mask")]
    table = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    constants = {"table": table, "last": [-1], "middle": [1]}
    return saved(path, nodes, inputs, [tensor("logits", TensorProto.FLOAT, ["n", 2])], constants)


def halves(path: Path) -> OnnxModel:
    """``half`` FP16 [n, 2] and ``brain`` BF16 [n, 2], each in the datatype of the other."""
    nodes = [
        helper.make_node("Cast", ["half"], ["as_brain"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["brain"], ["as_half"], to=TensorProto.FLOAT16),
    ]
    inputs = [tensor("half", TensorProto.FLOAT16, ["n", 2]), tensor("brain", TensorProto.BFLOAT16, ["n", 2])]
    outputs = [tensor("as_brain", TensorProto.BFLOAT16, ["n", 2]), tensor("as_half", TensorProto.FLOAT16, ["n", 2])]
    return saved(path, nodes, inputs, outputs, {})


def words(path: Path) -> OnnxModel:
    """``word`` BYTES [n, s] as it is, as ``said``."""
    word, said = (tensor(name, TensorProto.STRING, ["n", "s"]) for name in ("word", "said"))
    return saved(path, [helper.make_node("Identity", ["word"], ["said"])], [word], [said], {})


def echo() -> Model:
    """A tensor of each datatype, and one without further dimensions, as they came."""
    tensors = tuple(TensorSpec(datatype.lower(), datatype, (FREE, 2, FREE)) for datatype in DTYPES)
    tensors = (*tensors, TensorSpec("label", "INT32", (FREE,)))
    return FunctionModel(lambda **inputs: inputs, Signature(tensors, tensors), name="echo")


IDS = np.array([[1, 2, 3], [4, 5, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("models")
    models = [
        served_as_is(classifier(folder / "classifier.onnx"), Classification("logits")),
        served_as_is(halves(folder / "halves.onnx"), Regression("as_half")),
        served_as_is(words(folder / "words.onnx"), Text("said")),
        served_as_is(echo(), Regression("fp64")),
    ]
    with live_server(models, RequestLimits(batch=8)) as live:
        yield live


@pytest.fixture(params=CLIENTS, ids=["http", "grpc"])
def client(request: pytest.FixtureRequest, live: LiveServer) -> Iterator[tuple[Any, Any]]:
    """One of Triton's client modules, and a client of it."""
    address = live.address if request.param is triton_http else live.grpc_address
    with request.param.InferenceServerClient(address) as made:
        yield request.param, made


def given(module: Any, arrays: dict[str, np.ndarray], datatypes: dict[str, str]) -> list[Any]:
    made = []
    for name, array in arrays.items():
        made.append(module.InferInput(name, list(array.shape), datatypes[name]))
        made[-1].set_data_from_numpy(array)
    return made


TEXT = {"input_ids": IDS, "attention_mask": MASK}
INT64 = dict.fromkeys(TEXT, "INT64")


def test_a_model_of_two_integer_inputs_answers_in_its_own_words(live: LiveServer, client: tuple[Any, Any]) -> None:
    module, asked = client
    expected = live.models["classifier"].model(TEXT)["logits"]
    # In another order than the model's.
    answer = asked.infer("classifier", given(module, dict(reversed(TEXT.items())), INT64))
    np.testing.assert_array_equal(answer.as_numpy("logits"), expected)
    assert answer.as_numpy("label") is None
    wanted = [module.InferRequestedOutput(name) for name in ("label", "confidence")]
    answer = asked.infer("classifier", given(module, TEXT, INT64), outputs=wanted)
    assert answer.as_numpy("label").tolist() == expected.argmax(axis=1).tolist()
    assert answer.as_numpy("confidence").min() >= 0.5


def test_a_model_whose_rows_do_not_count_examples_is_refused_at_the_start(tmp_path: Path) -> None:
    """One row is right of one example, and silently wrong of the requests of a batch."""
    nodes = [helper.make_node("Slice", ["x", "zero", "one"], ["logits"])]
    x, logits = (tensor(name, TensorProto.FLOAT, [n, 2]) for name, n in (("x", "n"), ("logits", "m")))
    first = saved(tmp_path / "first.onnx", nodes, [x], [logits], {"zero": [0], "one": [1]})
    with pytest.raises(RunError, match=r"first cannot run: output logits has shape \[1, 2\], expected one row"):
        Router({"first": served_as_is(first, Classification("logits"))})
    nodes = [helper.make_node("ReduceSum", ["x", "zero"], ["sums"], keepdims=0)]
    summed = saved(tmp_path / "summed.onnx", nodes, [x], [tensor("sums", TensorProto.FLOAT, [2])], {"zero": [0]})
    with pytest.raises(InputError, match=r"sums is FP32\[2\]; its first dimension must be free, or fixed alike in all"):
        batched(summed)


def test_rows_that_depend_on_the_data_are_a_clear_500_and_harm_nobody_else(tmp_path: Path) -> None:
    """The rows of ``logits`` are those of ``x`` whose first value is not 0."""
    nodes = [
        helper.make_node("Gather", ["x", "zero"], ["first"], axis=1),
        helper.make_node("Cast", ["first"], ["kept"], to=TensorProto.BOOL),
        helper.make_node("Compress", ["x", "kept"], ["logits"], axis=0),
    ]
    x, logits = (tensor(name, TensorProto.FLOAT, [n, 2]) for name, n in (("x", "n"), ("logits", "m")))
    kept = served_as_is(saved(tmp_path / "kept.onnx", nodes, [x], [logits], {"zero": 0}), Classification("logits"))
    kept.model.examples = Columns({"x": np.ones((1, 2), np.float32)})

    def ask(client: Any, *rows: float) -> Any:
        x = np.array([[row, 1] for row in rows], np.float32)
        return client.infer("kept", given(triton_http, {"x": x}, {"x": "FP32"}))

    with live_server([kept]) as live, triton_http.InferenceServerClient(live.address) as client:
        for rows in ((0.0,), (1.0, 0.0)):
            said = rf"output logits has shape \[{len(rows) - 1}, 2\], expected one row for"
            with pytest.raises(InferenceServerException, match=said) as caught:
                ask(client, *rows)
            assert caught.value.status() == "500"
            assert ask(client, 1.0, 2.0).as_numpy("logits").tolist() == [[1, 1], [2, 1]]
        for outcome in ("ok", "failed"):
            until(lambda outcome=outcome: live.count("slotool_requests_total", model="kept", outcome=outcome) == 2)
        assert live.router.worker_states()[0]["state"] == "idle"


def test_text_goes_through(client: tuple[Any, Any]) -> None:
    module, asked = client
    arrays = {"word": np.array([["ä".encode(), b""], [b"a b", b"c"]], dtype=object)}
    answer = asked.infer("words", given(module, arrays, {"word": "BYTES"}))
    assert answer.as_numpy("said").tolist() == arrays["word"].tolist()


def test_half_precision_goes_through(client: tuple[Any, Any]) -> None:
    module, asked = client
    x = np.array([[1.5, -2.0], [0.25, 65504.0]])
    arrays = {"half": x.astype(np.float16), "brain": x.astype(ml_dtypes.bfloat16)}
    answer = asked.infer("halves", given(module, arrays, {"half": "FP16", "brain": "BF16"}))
    np.testing.assert_array_equal(answer.as_numpy("as_brain"), x.astype(np.float16).astype(ml_dtypes.bfloat16))
    assert np.isposinf(answer.as_numpy("as_half")[1, 1])  # 65504 is 65536 in BF16


def test_every_datatype_comes_back_as_it_was_sent(live: LiveServer, client: tuple[Any, Any]) -> None:
    module, asked = client
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for datatype, dtype in DTYPES.items():
        bits = random.integers(0, 256, (3, 2, 4, dtype.itemsize), dtype=np.uint8)
        arrays[datatype.lower()] = (
            bits.view(dtype)[..., 0] if datatype not in ("BOOL", "BYTES", "BF16") else bits[..., 0]
        )
    arrays["bool"] = arrays["bool"] > 127
    arrays["bf16"] = arrays["bf16"].astype(ml_dtypes.bfloat16)
    arrays["bytes"] = np.array([random.bytes(size) for size in range(24)], dtype=object).reshape(3, 2, 4)
    arrays["label"] = np.arange(3, dtype=np.int32)
    datatypes = {spec.name: spec.datatype for spec in live.models["echo"].signature.inputs}
    answer = asked.infer("echo", given(module, arrays, datatypes))
    for name, array in arrays.items():
        np.testing.assert_array_equal(answer.as_numpy(name), array)
    assert live.models["echo"].given[-1].names == tuple(spec.name for spec in live.models["echo"].signature.inputs)


def test_metadata_and_configuration_are_the_signature(live: LiveServer, client: tuple[Any, Any]) -> None:
    module, asked = client
    as_json = {"as_json": True} if module is triton_grpc else {}
    metadata = asked.get_model_metadata("echo", **as_json)
    signature = live.models["echo"].signature
    assert Signature.of_document(metadata) == signature
    config = asked.get_model_config("echo", **as_json)
    config = config.get("config", config)
    assert config["max_batch_size"] == 8
    for side, kind in (("input", signature.inputs), ("output", signature.outputs)):
        assert [entry["name"] for entry in config[side]] == [spec.name for spec in kind]
    by_name = {entry["name"]: entry for entry in config["input"]}
    assert by_name["bytes"]["data_type"] == "TYPE_STRING"
    assert by_name["bf16"]["data_type"] == "TYPE_BF16"
    assert [int(size) for size in by_name["fp16"]["dims"]] == [2, -1]
    assert [int(size) for size in by_name["label"]["dims"]] == [1]
    assert by_name["label"]["reshape"] == ({"shape": []} if module is triton_http else {})


def test_json_requests_without_a_client(live: LiveServer) -> None:
    url = f"{live.url}/v2/models/classifier/infer"
    inputs = [{"name": n, "datatype": "INT64", "shape": [2, 3], "data": a.tolist()} for n, a in TEXT.items()]
    answer = HTTP.post(url, json={"inputs": inputs}).json()
    assert [output["name"] for output in answer["outputs"]] == ["logits"]
    assert 0.5 <= answer["parameters"]["confidence"] <= 1
    rejected = HTTP.post(url, json={"inputs": inputs[:1]})
    assert rejected.status_code == 400
    assert rejected.json() == {"error": "input attention_mask: it is missing; INT64[-1, -1] is expected"}
    assert HTTP.get(f"{live.url}/openapi.json").status_code == 200
    assert HTTP.get(live.url).json()["models"]["classifier"]["inputs"] == [
        "input_ids INT64[-1, -1]",
        "attention_mask INT64[-1, -1]",
    ]


def test_a_bad_tensor_is_named_to_the_client(client: tuple[Any, Any]) -> None:
    module, asked = client
    short = {**TEXT, "attention_mask": MASK[:1]}
    for arrays, sentence in (
        (short, "different numbers of examples"),
        ({"input_ids": IDS}, "attention_mask: it is missing"),
    ):
        with pytest.raises(InferenceServerException, match=sentence):
            asked.infer("classifier", given(module, arrays, INT64))
    narrow = {"input_ids": IDS, "attention_mask": MASK[:, :2]}
    with pytest.raises(InferenceServerException, match="dimension 's': input_ids 3, attention_mask 2") as refused:
        asked.infer("classifier", given(module, narrow, INT64))
    assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    texts = np.array([[b"caf\xc3\xa9", b"\xff\xfe"]], dtype=np.object_)
    with pytest.raises(InferenceServerException, match="input word: it holds bytes that are not UTF-8 text") as refused:
        asked.infer("words", given(module, {"word": texts}, {"word": "BYTES"}))
    assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    outputs = [module.InferRequestedOutput("scores")]
    with pytest.raises(
        InferenceServerException, match="no output is called 'scores'; there are logits, label, confidence"
    ):
        asked.infer("classifier", given(module, TEXT, INT64), outputs=outputs)


def test_an_input_that_only_the_runtime_finds_wrong_is_named_to_its_sender(
    live: LiveServer, client: tuple[Any, Any]
) -> None:
    module, asked = client
    unknown = {**TEXT, "input_ids": IDS + 90}
    for _ in range(2):
        with pytest.raises(InferenceServerException) as refused:
            asked.infer("classifier", given(module, unknown, INT64))
        assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        sentence = "the model fails on this input (input_ids [2, 3], attention_mask [2, 3]), while it answers others"
        assert sentence in str(refused.value)
        assert "must be within the inclusive range [-10,9]" in str(refused.value)
    assert asked.infer("classifier", given(module, TEXT, INT64)).as_numpy("logits").shape == (2, 2)
    assert live.count("slotool_drops_total", model="classifier", cause="failed") == 0


class EightAtOnce(Policy):
    points = (FULL,)

    def decide(self, now_us: float, queue: EdfQueue) -> Decision:
        return Decision(FULL, 8, "as many as fit")

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        return True


def test_only_requests_of_one_shape_share_a_call(tmp_path: Path) -> None:
    model = Wrapped(classifier(tmp_path / "classifier.onnx"), Classification("logits"))
    served = ServedModel("classifier", model, EightAtOnce())
    parts = [Columns({name: array[:, :size] for name, array in TEXT.items()}) for size in (3, 3, 2, 3)]

    async def asked(router: Router) -> list[Any]:
        now_us = router.now_us()
        return await asyncio.gather(
            *(router.answer("classifier", part, RequestOptions(), now_us, lambda: False) for part in parts)
        )

    with asyncio.Runner() as runner:
        router = Router({"classifier": served})
        model.given.clear()
        answers = runner.run(asked(router))
        router.close()
    for part, answer in zip(parts, answers, strict=True):
        np.testing.assert_array_equal(answer.output("logits"), model.model(part.arrays)["logits"])
    assert [columns.arrays["input_ids"].shape for columns in model.given] == [(6, 3), (2, 2)]
