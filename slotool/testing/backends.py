"""Conformance of measuring backends.

A new backend passes with one line: ``class TestMine(BackendConformance): make = MyBackend``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from slotool.errors import GraphError, InputError
from slotool.graphs import Effect, GraphBuilder, OperatorGraph
from slotool.profiling.backends import Backend

Case = tuple[Any, tuple[int, ...]]


class BackendConformance:
    """Set ``make``: the class, or a function from ``device`` and ``seed`` to a backend.

    A backend that runs something else than operator graphs overrides ``cases`` and sets ``runs_graphs`` to False.
    """

    make: ClassVar[Callable[..., Backend]]
    runs_graphs: ClassVar[bool] = True

    def cases(self) -> list[Case]:
        """Return the subjects, each with the output shape of one example."""
        return [(graph, graph.output_shape) for graph in (narrow_mlp(), plain_cnn(), branched_cnn())]

    def backend(self, **options: Any) -> Backend:
        return type(self).make(**options)

    def test_it_runs_on_the_cpu_and_rejects_an_unknown_device(self) -> None:
        assert "cpu" in self.backend().devices()
        sentence = error_message(lambda: self.backend(device="abacus:0"), InputError)
        assert "abacus:0" in sentence
        assert "cpu" in sentence

    def test_outputs_have_their_shape_are_normal_numbers_and_the_same_in_any_batch(self) -> None:
        backend, differ = self.backend(), []
        for subject, shape in self.cases():
            alone, batch = (backend.array(backend.prepare(subject, batch_size)()).copy() for batch_size in (1, 3))
            assert (alone.shape, batch.shape) == ((1, *shape), (3, *shape))
            for output in (alone, batch):
                size = np.abs(output)
                assert np.isfinite(size).all()
                assert size.max() > 0
                assert not ((size > 0) & (size < np.finfo(np.float32).tiny)).any(), "an output is a denormal"
            np.testing.assert_allclose(batch[:1], alone, rtol=1e-3, atol=1e-5)
            differ.append(not np.array_equal(batch[0], batch[1]))
        assert any(differ), "all examples of a batch have the same output"

    def test_calls_repeat_and_subjects_can_come_back(self) -> None:
        backend = self.backend()
        (first, _), *others = self.cases()
        call = backend.prepare(first, 2)
        expected = backend.array(call())
        np.testing.assert_allclose(backend.array(call()), expected, rtol=1e-5)
        for other, _ in others:
            backend.prepare(other, 2)()
        np.testing.assert_allclose(backend.array(backend.prepare(first, 2)()), expected, rtol=1e-5)

    def test_the_seed_decides_the_inputs(self) -> None:
        backend, again, other = self.backend(seed=1), self.backend(seed=1), self.backend(seed=2)
        assert np.array_equal(backend.inputs((3, 2), 4), again.inputs((3, 2), 4))
        assert not np.array_equal(backend.inputs((3, 2), 4), other.inputs((3, 2), 4))

    def test_an_unknown_operator_is_named(self) -> None:
        if not self.runs_graphs:
            return
        builder = GraphBuilder()
        builder.add("Wavelet", builder.add("InputLayer", shape=[4]), name="odd", stated=Effect((4,)))
        sentence = error_message(lambda: self.backend().prepare(builder.graph(), 1), GraphError)
        assert "odd" in sentence
        assert "Wavelet" in sentence


def error_message(call: Callable[[], object], kind: type[Exception]) -> str:
    """Return the message with which ``call`` raises ``kind``; fail if it does not."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def narrow_mlp() -> OperatorGraph:
    """Return a graph down to one unit, in which weights alone would shrink values to denormals."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[5])
    for units in (1, 64, 1, 1, 8, 1, 1, 2, 1, 3):
        last = builder.add("Dense", last, units=units, activation="tanh")
    return builder.graph()


def plain_cnn() -> OperatorGraph:
    """Return a graph with strides and both paddings, pooling, a dense head."""
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=[3, 9, 9])
    last = builder.add("Conv2D", last, filters=4, kernel=3, stride=2, padding="same", activation="relu")
    last = builder.add("MaxPooling2D", last, kernel=2)
    last = builder.add("Conv2D", last, filters=6, kernel=2)
    last = builder.add("Flatten", last)
    builder.add("Dense", last, units=7, activation="softmax")
    return builder.graph()


def branched_cnn() -> OperatorGraph:
    """Return a residual sum, a concatenation, batch normalisation and a depthwise convolution."""
    builder = GraphBuilder("cnn")
    start = builder.add("InputLayer", shape=[4, 6, 6])
    first = builder.add("ReLU", builder.add("BatchNormalization", start))
    second = builder.add("DepthwiseConv2D", first, kernel=3, padding="same", bias=False)
    joined = builder.add("Concatenate", [builder.add("Add", [first, second]), second])
    last = builder.add("Conv2D", joined, filters=5, kernel=1, groups=1)
    builder.add("GlobalAveragePooling2D", last)
    return builder.graph()
