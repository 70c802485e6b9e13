"""Keras layers that no symbol of Keras follows: exported by torch as Keras' backend, with all that they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotool.errors import SlotoolError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import Source, all_captured_apart, capture_keras

FILE = Path(__file__).with_name("keras_models.py")
WINDOWS = 5 * 2 * 64 * 12 * 12 + 2 * 2 * 64 * 16 * 12 + 2 * 64 * 12 * 5
# By function and argument: FLOPs of products, weights.
MODELS: dict[tuple[str, Any], tuple[int, int]] = {
    ("positions", None): (0, 32 * 8),
    ("windows", "functional"): (WINDOWS, 845),
    ("windows", "layer"): (WINDOWS, 845),
    ("attention_over_axes", 1): (4 * 2 * 24 * 8 * 8 + 2 * 2 * 24 * 24 * 8, 288),
    ("attention_over_axes", 2): (4 * 2 * 24 * 8 * 8 + 2 * 2 * 24 * 4 * 8, 288),
    ("low_rank", None): (2 * (20 * 64 + 64 * 3) + 2 * 20 * 4 * 64, 21 * 64 + 65 * 3 + 4 * (20 + 64)),
    ("inner_sizes", None): (2 * 7 * 8 * 5, 20 * 8 + 9 * 5),
    ("number", None): (2 * 6 * 4, 7 * 4),
    **{
        ("operation", name): (0, 0)
        for name in ("associative_scan", "map", "median", "quantile", "cumprod", "fori_loop")
    },
}
UNKNOWN = (("of_tensorflow", None), ("spectrogram", None))


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[str, Any], OperatorGraph | SlotoolError]:
    """Every model of the file, captured in one process."""
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    names = {"windows": "form", "attention_over_axes": "first", "operation": "name"}
    models = [*MODELS, *UNKNOWN]
    sources = [
        Source("keras", f"{FILE}:{function}", arguments={} if given is None else {names[function]: given})
        for function, given in models
    ]
    return dict(zip(models, all_captured_apart(sources), strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_of_ones_own_has_its_products_and_weights(graphs: Any, model: tuple[str, Any]) -> None:
    graph = graphs[model]
    assert not graph.unknown
    assert (graph.matrix_flops, graph.weights) == MODELS[model]


def test_a_layer_written_in_tensorflow_is_kept_by_its_name_with_its_weights(graphs: Any) -> None:
    graph = graphs[UNKNOWN[0]]
    assert [each.op for each in graph.unknown] == ["keras.Mixer"]
    assert graph.weights == 16 * 24


def test_a_spectrogram_has_the_flops_of_its_transforms(graphs: Any) -> None:
    (transform,) = [each for each in graphs[UNKNOWN[1]].operators if each.op == "keras._fft_r2c"]
    assert transform.flops == pytest.approx(9 * 2.5 * 256 * 8)


def test_windows_in_the_axis_of_the_batch_are_refused_where_torch_is_not_the_backend() -> None:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "torch":
        pytest.skip("torch is the backend")
    inputs = keras.Input((8, 6))
    rows = keras.layers.Dense(6)(keras.ops.reshape(inputs, (-1, 4, 6)))
    with pytest.raises(SlotoolError, match="KERAS_BACKEND=torch"):
        capture_keras(keras.Model(inputs, keras.ops.reshape(rows, (-1, 8, 6))))
