"""Each adapter answers what its library answers, and says in one sentence what it cannot read."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC

from slotool.errors import InputError, RunError
from slotool.models import Model, Signature, TensorSpec
from slotool.models.adapters.factory import FunctionModel
from slotool.models.adapters.sklearn import SklearnModel
from slotool.models.adapters.torch_program import TorchModuleModel
from slotool.models.loading import load
from slotool.testing.models import ModelConformance

RANDOM = np.random.default_rng(0)
X, Y = load_wine(return_X_y=True)


class TwoTexts(torch.nn.Module):
    """A text classifier of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 8)
        self.readout = torch.nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        weights = attention_mask.unsqueeze(-1).float()
        mean = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1)
        return self.readout(mean)


def onnx_file(path: Path) -> Path:
    """Masked mean of embeddings, then a layer: two INT64 inputs of free length."""
    module = TwoTexts()
    tensors = {
        "table": module.embedding.weight.detach().numpy(),
        "weight": module.readout.weight.detach().numpy().T.copy(),
        "bias": module.readout.bias.detach().numpy(),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["mask_f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["embedded", "mask_f"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask_f", "one"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Gemm", ["mean", "weight", "bias"], ["logits"]),
    ]
    tensors |= {"last": np.array([2]), "one": np.array([1])}
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "t"]) for n in ("input_ids", "attention_mask")]
    logits = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "texts", ids, logits, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def one_node(path: Path, op: str, datatype: int, **attributes: Any) -> Path:
    ends = [helper.make_tensor_value_info(name, datatype, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


TOKENS = {"input_ids": RANDOM.integers(0, 50, (4, 6)), "attention_mask": RANDOM.integers(0, 2, (4, 6))}
TOKENS["attention_mask"][:, 0] = 1


def expected_logits() -> np.ndarray:
    with torch.inference_mode():
        return TwoTexts()(*(torch.from_numpy(TOKENS[name]) for name in TOKENS)).numpy()


def test_an_onnx_file_of_two_integer_inputs(tmp_path: Path) -> None:
    with load(onnx_file(tmp_path / "texts.onnx"), threads=1) as model:
        assert model.name == "texts"
        assert str(model.signature.input("input_ids")) == "INT64[-1, -1]"
        assert model.signature.batched
        np.testing.assert_allclose(model(TOKENS)["logits"], expected_logits(), atol=1e-5)
        with pytest.raises(RunError, match="texts: ONNX Runtime failed"):
            model({"input_ids": [[999]], "attention_mask": [[1]]})


def test_threads_of_onnx_runtime_do_not_spin_between_calls(tmp_path: Path) -> None:
    with load(onnx_file(tmp_path / "texts.onnx"), threads=2) as model:
        options = model._session.get_session_options()  # type: ignore[attr-defined]
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_an_exported_program_of_two_integer_inputs(tmp_path: Path) -> None:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2)
    examples = tuple(torch.ones(2, 6, dtype=torch.int64) for _ in range(2))
    shapes = ({0: batch, 1: length}, {0: batch, 1: length})
    program = torch.export.export(TwoTexts().eval(), examples, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "texts.pt2")
    model = load(tmp_path / "texts.pt2")
    assert [tensor.name for tensor in model.signature.inputs] == ["input_ids", "attention_mask"]
    np.testing.assert_allclose(model(TOKENS)["output"], expected_logits(), atol=1e-5)


def test_an_exported_program_refuses_sizes_beyond_its_own(tmp_path: Path) -> None:
    network, batch = torch.nn.Linear(3, 2), torch.export.Dim("batch", max=8)
    program = torch.export.export(network, (torch.ones(2, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "few.pt2")
    model, x = load(tmp_path / "few.pt2"), RANDOM.random((9, 3), dtype=np.float32)
    (name,) = (tensor.name for tensor in model.signature.inputs)
    wanted = network(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(model({name: x[:8]})["output"], wanted[:8], atol=1e-5)
    with pytest.raises(RunError, match="8"):
        model({name: x})


def test_a_torch_module_with_a_signature() -> None:
    ids = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in TOKENS)
    model = TorchModuleModel(TwoTexts(), Signature(ids, (TensorSpec("logits", "FP32", (-1, 2)),)))
    np.testing.assert_allclose(model(TOKENS)["logits"], expected_logits(), atol=1e-5)


def test_a_keras_file_of_two_inputs(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    y = keras.layers.Dense(4, name="scores")(keras.layers.Concatenate()([a, b]))
    network = keras.Model([a, b], y)
    network.save(tmp_path / "two.keras")
    model = load(tmp_path / "two.keras")
    given = {"a": RANDOM.random((5, 3), dtype=np.float32), "b": RANDOM.random((5, 2), dtype=np.float32)}
    made = model(given)
    assert list(made) == [tensor.name for tensor in model.signature.outputs]
    np.testing.assert_allclose(next(iter(made.values())), network([given["a"], given["b"]]).numpy(), atol=1e-5)


@pytest.mark.parametrize("datatype", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8])
def test_onnx_datatypes_go_through(tmp_path: Path, datatype: int) -> None:
    model = load(one_node(tmp_path / "same.onnx", "Identity", datatype))
    spec = model.signature.inputs[0]
    given = np.array([[1, 2, 3]], dtype=spec.dtype)
    made = model({"x": given})["y"]
    assert made.dtype == given.dtype
    np.testing.assert_array_equal(made, given)


def test_onnx_text_and_bfloat16_go_through(tmp_path: Path) -> None:
    texts = load(one_node(tmp_path / "text.onnx", "Identity", TensorProto.STRING))
    assert texts({"x": [["a", "é", ""]]})["y"].tolist() == [[b"a", "é".encode(), b""]]
    halves = load(one_node(tmp_path / "bf16.onnx", "Identity", TensorProto.BFLOAT16))
    assert halves.signature.inputs[0].datatype == "BF16"
    assert halves({"x": np.array([[1.0, -2.5, 0.0]], dtype=np.float32)})["y"].tolist() == [[1.0, -2.5, 0.0]]


def test_an_sklearn_classifier_from_a_skops_file(tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    forest = RandomForestClassifier(10, random_state=0).fit(X, np.array(["red", "white", "rosé"])[Y])
    io.dump(forest, tmp_path / "forest.skops")
    made = load(tmp_path / "forest.skops")(X[:9])
    np.testing.assert_allclose(made["probabilities"], forest.predict_proba(X[:9]))
    assert forest.classes_[made["probabilities"].argmax(axis=1)].tolist() == forest.predict(X[:9]).tolist()


def test_sklearn_trees_of_both_kinds_and_a_torn_one(tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    boosted = HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    io.dump(boosted, tmp_path / "boosted.skops")
    made = load(tmp_path / "boosted.skops")(X)
    np.testing.assert_allclose(made["probabilities"], boosted.predict_proba(X))
    boosted._predictors[0][0].nodes["left"][0] = 10**6
    io.dump(boosted, tmp_path / "torn.skops")
    with pytest.raises(InputError, match="leads nowhere"):
        load(tmp_path / "torn.skops")


def test_a_forest_whose_trees_read_features_that_it_has_not(tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    forest, narrow = (RandomForestClassifier(2, random_state=0).fit(X[:, :n], Y) for n in (13, 2))
    narrow.estimators_ = forest.estimators_
    io.dump(narrow, tmp_path / "narrow.skops")
    with pytest.raises(InputError, match="leads nowhere"):
        load(tmp_path / "narrow.skops")


@pytest.mark.parametrize(
    "estimator",
    [
        CalibratedClassifierCV(GaussianNB(), cv=2),
        GridSearchCV(GaussianNB(), {"var_smoothing": [1.0]}),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_sklearns_own_private_classes_are_read(tmp_path: Path, estimator: Any) -> None:
    io = pytest.importorskip("skops.io")
    io.dump(estimator.fit(X / 100, Y), tmp_path / "made.skops")
    made = load(tmp_path / "made.skops")(X / 100)["probabilities"]
    np.testing.assert_allclose(made, estimator.predict_proba(X / 100))


def test_compiled_classes_whose_indices_nothing_checks_are_not_read(tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    io.dump(KNeighborsClassifier(algorithm="kd_tree").fit(X, Y), tmp_path / "near.skops")
    with pytest.raises(InputError, match="which is not known to be harmless"):
        load(tmp_path / "near.skops")


def test_sklearn_estimators_without_probabilities() -> None:
    margin = LinearSVC(random_state=0).fit(X, Y == 1)
    made = SklearnModel(margin)(X)
    assert made["scores"].argmax(axis=1).astype(bool).tolist() == margin.predict(X).tolist()
    line = LinearRegression().fit(X[:, :12], X[:, 12])
    np.testing.assert_allclose(SklearnModel(line)(X[:, :12])["value"], line.predict(X[:, :12]))
    with pytest.raises(InputError, match="LinearSVC: not a fitted estimator"):
        SklearnModel(LinearSVC())


def test_xgboost_in_its_own_formats(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    three = xgboost.XGBClassifier(n_estimators=5).fit(X, Y)
    two = xgboost.XGBClassifier(n_estimators=5).fit(X, Y == 1)
    line = xgboost.XGBRegressor(n_estimators=5).fit(X[:, :12], X[:, 12])
    for estimator, name in ((three, "three.ubj"), (two, "two.json"), (line, "line.ubj")):
        estimator.get_booster().save_model(tmp_path / name)
    for estimator, name in ((three, "three.ubj"), (two, "two.json")):
        np.testing.assert_allclose(load(tmp_path / name)(X)["probabilities"], estimator.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(load(tmp_path / "line.ubj")(X[:, :12])["value"], line.predict(X[:, :12]), rtol=1e-6)


def test_lightgbm_in_its_own_format(tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    for truth, name in ((Y, "three.txt"), (Y == 1, "two.txt")):
        estimator = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, truth)
        estimator.booster_.save_model(tmp_path / name)
        made = load(tmp_path / name, threads=1)(X)["probabilities"]
        np.testing.assert_allclose(made, estimator.booster_.predict(X) if made.shape[1] == 3 else _two(estimator))


def _two(estimator: Any) -> np.ndarray:
    second = estimator.booster_.predict(X)
    return np.column_stack([1 - second, second])


def test_a_function_of_one_input_and_what_it_may_not_return() -> None:
    one = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1,)),))

    def summed(x: np.ndarray) -> np.ndarray:
        return x.sum(axis=1)

    model = FunctionModel(summed, one)
    assert model.name == "summed"
    assert model([[1.0, 2.0]])["y"].tolist() == [3.0]
    with pytest.raises(RunError, match="wide returned what its signature does not have: tensor y: shape"):
        FunctionModel(lambda x: x, one, name="wide")([[1.0, 2.0]])
    with pytest.raises(RunError, match="broken failed: ZeroDivisionError"):
        FunctionModel(lambda x: 1 / 0, one, name="broken")([[1.0, 2.0]])


@pytest.mark.parametrize("status", [0, 7])
def test_a_function_that_ends_the_process_has_failed(status: int) -> None:
    def leaves(x: np.ndarray) -> None:
        sys.exit(status)

    one = Signature((TensorSpec("x", "FP32", (-1, 6)),), (TensorSpec("y", "FP32", (-1,)),))
    with pytest.raises(RunError, match=f"leaves failed: SystemExit: {status}"):
        FunctionModel(leaves, one)(np.zeros((1, 6), np.float32))


def test_several_inputs_are_given_by_name() -> None:
    ids = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in TOKENS)
    model: Model = TorchModuleModel(TwoTexts(), Signature(ids, (TensorSpec("logits", "FP32", (-1, 2)),)), name="texts")
    with pytest.raises(
        InputError, match=r"texts has several inputs \(input_ids, attention_mask\): give arrays by name"
    ):
        model(TOKENS["input_ids"])


class _Several(torch.nn.Module):
    """Outputs in a dictionary, or in nested tuples."""

    def __init__(self, is_named: bool) -> None:
        super().__init__()
        self._is_named = is_named

    def forward(self, x: torch.Tensor) -> Any:
        return {"twice": 2 * x, "positive": x > 0} if self._is_named else (2 * x, (x > 0, -x))


@pytest.mark.parametrize(
    ("is_named", "names"), [(True, ["twice", "positive"]), (False, ["output_0", "output_1", "output_2"])]
)
def test_programs_name_the_outputs_of_dictionaries_and_count_those_of_tuples(
    is_named: bool, names: list[str], tmp_path: Path
) -> None:
    x = RANDOM.normal(size=(2, 3)).astype(np.float32)
    sizes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(_Several(is_named).eval(), (torch.from_numpy(x),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "several.pt2")
    model = load(tmp_path / "several.pt2")
    found = model({"x": x})
    assert [spec.name for spec in model.signature.outputs] == list(found) == names
    for array, expected in zip(found.values(), (2 * x, x > 0, -x), strict=False):
        np.testing.assert_array_equal(array, expected)


def test_a_regressor_of_several_values_says_so() -> None:
    forest = RandomForestRegressor(2, random_state=0).fit(X, np.column_stack([Y, 2 * Y]))
    model = SklearnModel(forest)
    assert model.signature.outputs[0].shape[1:] == (2,)
    np.testing.assert_allclose(model(X[:5])["value"], forest.predict(X[:5]))


@pytest.mark.parametrize("name", ["a.onnx", "a.pt2", "a.keras", "a.skops", "a.ubj", "a.txt"])
def test_a_file_that_is_torn_or_foreign(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InputError, match="no such file"):
        load(path)
    path.write_bytes(b"\x00 not a model \xff" * 20)
    with pytest.raises(InputError) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert ("incomplete" in str(raised.value)) == (name == "a.onnx")
    assert "\n" not in str(raised.value)


def test_a_classifier_that_was_exported_with_zipmap_says_how_to_export_it(tmp_path: Path) -> None:
    """As scikit-learn's classifiers are by default."""
    from onnx import TensorProto, helper, save

    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])
    text = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    y = helper.make_value_info("output_probability", helper.make_sequence_type_proto(text))
    node = helper.make_node("ZipMap", ["X"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph([node], "classifier", [x], [y])
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "classifier.onnx")
    with pytest.raises(InputError, match=r'no tensor of a known datatype; export .* options=\{"zipmap": False\}'):
        load(tmp_path / "classifier.onnx")


def test_a_location_that_no_adapter_reads() -> None:
    with pytest.raises(InputError, match=r"net.h5: no adapter reads it; there are adapters for \.onnx, \.pt2"):
        load("net.h5")


class Opens:
    """What a pickle of it would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("ran-by-a-pickle", "w"))


def test_pickles_are_never_read(tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    forest = RandomForestClassifier(2).fit(X, Y)
    forest.n_jobs = Opens()
    io.dump(forest, tmp_path / "evil.skops")
    with pytest.raises(InputError, match="which is not known to be harmless"):
        load(tmp_path / "evil.skops")


class TestFunctionModel(ModelConformance):
    make = staticmethod(
        lambda: FunctionModel(
            lambda ids, flags: {"sum": (ids * flags).sum(axis=1), "name": np.array([b"%d" % row[0] for row in ids])},
            Signature(
                (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("flags", "BOOL", (-1, -1))),
                (TensorSpec("sum", "INT64", (-1,)), TensorSpec("name", "BYTES", (-1,))),
            ),
            name="sums",
        )
    )


class TestOnnxModel(ModelConformance):
    @staticmethod
    def make() -> Model:
        with TemporaryDirectory() as folder:
            return load(onnx_file(Path(folder) / "texts.onnx"))

    def inputs(self, n: int) -> dict[str, np.ndarray]:
        return {name: array[:n] for name, array in TOKENS.items()}


class TestTorchModule(ModelConformance):
    make = staticmethod(
        lambda: TorchModuleModel(
            torch.nn.Linear(3, 2).eval(),
            Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "FP32", (-1, 2)),)),
        )
    )


class TestSklearnModel(ModelConformance):
    make = staticmethod(lambda: SklearnModel(RandomForestClassifier(5, random_state=0).fit(X, Y)))
