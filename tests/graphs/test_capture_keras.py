"""Capture from Keras: the graph that the same network gives in torch, the weights that Keras counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import slotool
from slotool.errors import GraphError, MissingPackageError
from slotool.graphs import GraphBuilder
from slotool.graphs.capture import capture_keras, capture_torch, load_keras
from slotool.graphs.capture.sources import Source, capture_source
from slotool.graphs.torch_module import GraphModule
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.graphs.operator_cases import shared_backend


@pytest.fixture(scope="module")
def keras() -> Any:
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    return pytest.importorskip("keras")


def test_one_cnn_in_keras_and_in_torch_is_one_graph(keras: Any) -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, padding="same"),
            layers.ReLU(),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, (3, 5), strides=2, use_bias=False, groups=2),
            layers.BatchNormalization(),
            layers.Activation("silu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.5),
            layers.Dense(12, activation="tanh"),
            layers.Dense(10),
            layers.Softmax(),
        ]
    )
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, (3, 5), stride=2, bias=False, groups=2),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Linear(12, 10),
        nn.Softmax(dim=1),
    )
    graph = capture_keras(model)
    assert graph.id == capture_torch(module, (3, 16, 16)).id
    assert not graph.unknown
    assert graph.weights == model.count_params()
    assert [o.op for o in graph.operators].count("ReLU") == 0


def test_branches_nested_models_and_shared_activations(keras: Any) -> None:
    layers = keras.layers
    inner_input = keras.Input((8, 8, 4))
    inner = keras.Model(inner_input, layers.Conv2D(4, 3, padding="same", activation="relu")(inner_input))
    x = keras.Input((8, 8, 3))
    stem = layers.Conv2D(4, 1)(x)
    # The stem has two users, so its ReLU stays a layer of its own.
    outer = layers.Add()([stem, inner(layers.ReLU()(stem))])
    model = keras.Model(x, layers.Dense(5)(layers.Flatten()(outer)))

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
            self.head = nn.Linear(256, 5)

        def forward(self, x: Any) -> Any:
            stem = self.stem(x)
            return self.head((stem + self.conv(stem.relu()).relu()).flatten(1))

    graph = capture_keras(model)
    assert graph.id == capture_torch(Twin(), (3, 8, 8)).id
    assert [o.op for o in graph.operators].count("ReLU") == 1
    assert graph.weights == model.count_params()


def test_unknown_layers_are_kept_by_name(keras: Any) -> None:
    layers = keras.layers
    x = keras.Input((1,), dtype="string")
    words = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=5)(x)
    model = keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.Embedding(10, 4)(words))))
    graph = capture_keras(model)
    assert [(o.op, o.shape) for o in graph.unknown] == [("keras.TextVectorization", (5,))]
    assert graph.weights == model.count_params()


def test_a_layer_along_another_axis_of_an_image_works_along_it(keras: Any) -> None:
    x = keras.Input((4, 5, 6))
    model = keras.Model(x, keras.layers.Softmax(axis=1)(keras.layers.BatchNormalization(axis=2)(x)))
    graph = capture_keras(model)
    found = [(o.op, dict(o.attributes)) for o in graph.operators if o.op in ("BatchNormalization", "Softmax")]
    # Channels are first here: rows are axis 1, columns axis 2.
    assert found == [("BatchNormalization", {"axis": 2}), ("Softmax", {"axis": 1})]
    assert graph.weights == model.count_params() == 4 * 5


def test_sums_and_products_with_numbers_are_rescalings(keras: Any) -> None:
    x = keras.Input((6, 6, 4))
    model = keras.Model(x, (keras.layers.Conv2D(4, 1)(x) + 3.0) * (1 / 6))

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: Any) -> Any:
            return (self.conv(x) + 3.0) * (1 / 6)

    graph = capture_keras(model)
    assert [o.op for o in graph.operators] == ["InputLayer", "Conv2D", "Rescaling", "Rescaling"]
    assert graph.id == capture_torch(Twin(), (4, 6, 6)).id


def test_layers_of_the_applications_own_are_known(keras: Any) -> None:
    """A block of ConvNeXt's, which scales each channel, and one of InceptionResNetV2's, which scales a branch."""
    from keras.src.applications.convnext import LayerScale
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

    x = keras.Input((6, 6, 4))
    branch = LayerScale(1e-6, 4)(keras.layers.Conv2D(4, 3, padding="same")(x))
    model = keras.Model(x, CustomScaleLayer(0.17)([x, branch]))

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.scale = nn.Conv2d(4, 4, 3, padding=1), nn.Parameter(torch.ones(4, 1, 1))

        def forward(self, x: Any) -> Any:
            return x + self.scale * self.conv(x) * 0.17

    graph = capture_keras(model)
    assert [o.op for o in graph.operators] == ["InputLayer", "Conv2D", "LayerScale", "Rescaling", "Add"]
    assert graph.weights == model.count_params() == 4 * 4 * 9 + 4 + 4
    assert graph.id == capture_torch(Twin(), (4, 6, 6)).id


def test_a_layer_scale_built_in_keras_multiplies_every_channel(keras: Any) -> None:
    from slotool.graphs.keras_model import functional_model

    builder = GraphBuilder()
    builder.add("LayerScale", builder.add("InputLayer", shape=[3, 2, 2]))
    model = functional_model(builder.graph(), lambda shape, dtype=None: keras.ops.arange(1.0, shape[0] + 1))
    assert np.asarray(model(np.ones((1, 2, 2, 3)))).tolist() == [[[[1, 2, 3]] * 2] * 2]


# The members whose layers are quickest to build of each family that has layers of its own.
@pytest.mark.parametrize(
    ("name", "gigaflops"),
    [("MobileNetV2", 0.60), ("EfficientNetB0", 0.78), ("MobileNetV3Small", 0.12), ("ConvNeXtTiny", 8.9)],
)
def test_applications_have_the_weights_keras_counts_and_published_flops(
    keras: Any, name: str, gigaflops: float
) -> None:
    """Published multiply-adds (MobileNetV2: 300 M, EfficientNetB0: 0.39 B, ConvNeXt-T: 4.5 G, MobileNetV3-Small: 56 M
    before its head of 1×1 convolutions), twice; ours add what is not a product."""
    model = load_keras(name)
    graph = capture_keras(model)
    assert graph.weights == model.count_params()
    assert not graph.unknown
    assert graph.flops / 1e9 == pytest.approx(gigaflops, rel=0.05)
    rebuilt = GraphModule(graph, device="meta")
    statistics = sum(b.numel() for n, b in rebuilt.named_buffers() if not n.endswith("num_batches_tracked"))
    assert sum(p.numel() for p in rebuilt.parameters()) + statistics == model.count_params()


def test_an_application_is_the_same_alone_and_in_company(keras: Any) -> None:
    first, second = (capture_source(Source("keras", name)) for name in ("MobileNet", "MobileNetV2"))
    assert (first.name, second.name) == ("MobileNet", "MobileNetV2")
    assert capture_source(Source("keras", "MobileNetV2")).document() == second.document()


def test_a_saved_model_is_read_and_bad_files_are_explained(keras: Any, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.save(tmp_path / "net.keras")
    assert capture_keras(load_keras(str(tmp_path / "net.keras"))).weights == 15
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x + 1)]).save(tmp_path / "code.keras")
    (tmp_path / "torn.keras").write_bytes((tmp_path / "net.keras").read_bytes()[:200])
    (tmp_path / "net.h5").write_bytes(b"")
    for name, sentence in {
        "code.keras": "it has a Lambda layer, whose code is not run from a file",
        "torn.keras": "not a model saved by Keras, or a torn one",
        "net.h5": "only .keras files are read",
        "none.keras": "no such file",
    }.items():
        with pytest.raises(GraphError, match=sentence):
            load_keras(str(tmp_path / name))
    with pytest.raises(GraphError, match=r"neither a \.keras file nor in keras\.applications; did you mean ResNet50\?"):
        load_keras("ResNet5000")
    with pytest.raises(GraphError, match=r"nor in keras\.applications; there are ConvNeXt"):
        load_keras("nothing")


def test_models_that_have_no_graph_are_explained(keras: Any) -> None:
    class Subclassed(keras.Model):
        def call(self, x: Any) -> Any:
            return np.asarray(x) + 1

    class OfTwo(keras.Model):
        def call(self, x: Any, y: Any, training: bool = False) -> Any:
            return x + y

    numeric = Subclassed()
    numeric.build((None, 3))
    for model, sentence in (
        (Subclassed(), r"is not built, .*: say that of one example, as --input-shape 28,28,1"),
        (OfTwo(), r"several inputs, .*: say each by its name, as --input-shape 'x=28;y=28'"),
        (numeric, r"does not run on inputs of \[3\] and float32; .* as --input-dtype int32"),
        (keras.Sequential([keras.layers.Dense(3)]), r"is not built, .*: say that of one example"),
    ):
        with pytest.raises(GraphError, match=sentence):
            capture_keras(model)

    free = keras.Sequential([keras.Input((None, None, 3)), keras.layers.Conv2D(2, 3)])
    with pytest.raises(GraphError, match=r"has a free axis in its shape .*say the sizes of one example"):
        capture_keras(free)


def test_sizes_of_free_axes_are_said_or_refused(keras: Any, tmp_path: Path) -> None:
    layers = keras.layers
    tokens, facts = keras.Input((None,), dtype="int32", name="tokens"), keras.Input((3,), name="facts")
    x = layers.MultiHeadAttention(2, 4)(*[layers.Embedding(20, 8)(tokens)] * 2)
    x = layers.Concatenate()([layers.GlobalAveragePooling1D()(x), facts])
    model = keras.Model({"tokens": tokens, "facts": facts}, layers.Dense(2)(x))
    with pytest.raises(GraphError, match=r"takes 2 inputs \(.*\): say the shape of each by its name"):
        capture_keras(model, (6,))
    for shapes, sentence in (({"text": (6,)}, "takes no input 'text'"), ({"facts": (4,)}, r"is \[3\], not \[4\]")):
        with pytest.raises(GraphError, match=sentence):
            capture_keras(model, shapes)
    graph = capture_keras(model, {"tokens": (6,)})
    assert not graph.unknown
    assert graph.weights == model.count_params()
    assert graph.matrix_flops == 2 * (6 * 4 * 8 * 8 + 2 * 2 * 6 * 6 * 4 + 11 * 2)

    text = keras.Model(tokens, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Embedding(20, 8)(tokens))))
    text.save(tmp_path / "text.keras")
    (captured,) = slotool.capture(str(tmp_path / "text.keras"), input_shape=(6,)).graphs
    assert captured.inputs[0].shape == (6,)
    assert captured.id == slotool.capture(text, input_shape=(6,)).graphs[0].id


def test_without_keras_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingPackageError, match=r"keras, which is not installed; pip install 'slotool\[keras\]'"):
        load_keras("ResNet50")


@pytest.mark.parametrize(
    ("dtype", "form"), [("float32", "float32"), ("mixed_float16", "float16"), ("bfloat16", "bfloat16")]
)
def test_the_element_type_of_a_model_is_its_graphs(keras: Any, dtype: str, form: str) -> None:
    dense = keras.layers.Dense(4, dtype=dtype)
    assert capture_keras(keras.Sequential([keras.Input((8,)), dense])).form == form


def test_a_transformer_and_a_decoder_of_images_are_captured_and_run(keras: Any) -> None:
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = layers.EinsumDense("abc,cde->abde", output_shape=(6, 2, 6), bias_axes="de")(x)
    x = layers.EinsumDense("abde,dec->abc", output_shape=(6, 8), bias_axes="c")(x)
    x = layers.Conv1D(5, 3, padding="causal", activation="gelu")(x)
    x = layers.GlobalAveragePooling1D()(layers.MaxPooling1D(2)(x))
    text = capture_keras(keras.Model(tokens, layers.Dense(3)(x)))
    products = [(6, 8, 24), (6, 8, 8), (6, 8, 12), (6, 12, 8), (6, 24, 5), (1, 5, 3)]
    assert text.matrix_flops == sum(2 * a * b * c for a, b, c in products) + 2 * 2 * 6 * 6 * (4 + 4)
    assert text.inputs[0].attributes["dtype"] == "int32"

    image = keras.Input((6, 8, 4))
    x = layers.GroupNormalization(2)(layers.Conv2DTranspose(6, 3, strides=2, padding="same")(image))
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Reshape((24 * 32, 6))(x)
    model = keras.Model(image, layers.Dense(2)(layers.MultiHeadAttention(3, 2)(x, x)))
    decoder = capture_keras(model)
    for graph in (text, decoder):
        assert not graph.unknown
        backend = shared_backend(TorchBackend)
        assert backend.array(backend.prepare(graph, 2)()).shape == (2, *graph.output_shape)
    assert decoder.weights == model.count_params()
    turned = [o.attributes["axes"] for o in decoder.operators if o.op == "Transpose"]
    assert turned[0] == (1, 2, 0)


def test_whole_numbers_are_looked_up_by_the_keras_backend() -> None:
    pytest.importorskip("tensorflow", reason="the Keras backend needs TensorFlow, which is not installed")
    from slotool.profiling.backends.keras_backend import KerasBackend

    builder, backend = GraphBuilder(), KerasBackend()
    builder.add("Embedding", builder.add("InputLayer", shape=[4], dtype="int64"), vocabulary=5, units=2)
    assert backend.array(backend.prepare(builder.graph(), 3)()).shape == (3, 4, 2)
