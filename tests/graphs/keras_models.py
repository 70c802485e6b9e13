"""Keras models that no symbols of Keras follow, as a user's file has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops


def positions() -> Any:
    class Positions(layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(32, shape[-1]))

        def call(self, x: Any) -> Any:
            steps, features = ops.shape(x)[1:]
            return ops.broadcast_to(ops.slice(self.table, (0, 0), (steps, features)), ops.shape(x))

    inputs = keras.Input((12, 8))
    return keras.Model(inputs, inputs + Positions()(inputs))


def windowed(layer: Callable[[Any], Any]) -> Any:
    """Return a call that takes of an image of 8 × 8 of 12 channels its four windows as examples of their own."""

    def call(x: Any) -> Any:
        rows = ops.transpose(ops.reshape(x, (-1, 2, 4, 2, 4, 12)), (0, 1, 3, 2, 4, 5))
        made = layer(ops.reshape(rows, (-1, 16, 12)))
        back = ops.transpose(ops.reshape(made, (-1, 2, 2, 4, 4, 12)), (0, 1, 3, 2, 4, 5))
        return x + ops.reshape(back, (-1, 8, 8, 12))

    return call


def windows(form: str) -> Any:
    attention, dense = layers.MultiHeadAttention(3, 4), layers.Dense(12)
    call = windowed(lambda rows: dense(attention(rows, rows)))

    class Block(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.dense = attention, dense

        def build(self, shape: Any) -> None:
            self.attention.build((None, 16, 12), (None, 16, 12))
            self.dense.build((None, 16, 12))

        def call(self, x: Any) -> Any:
            return call(x)

    inputs = keras.Input((8, 8, 12))
    outputs = call(inputs) if form == "functional" else Block()(inputs)
    return keras.Model(inputs, layers.Conv2D(5, 1)(outputs))


def attention_over_axes(first: int) -> Any:
    inputs = keras.Input((6, 4, 8))
    return keras.Model(inputs, layers.MultiHeadAttention(2, 4, attention_axes=(*range(first, 3),))(inputs, inputs))


def low_rank() -> Any:
    inputs, dense = keras.Input((20,)), layers.Dense(64)
    model = keras.Model(inputs, layers.Dense(3)(dense(inputs)))
    dense.enable_lora(4)
    return model


def inner_sizes() -> Any:
    tokens = keras.Input((None,), dtype="int32")
    inner = keras.Model(tokens, layers.Dense(5)(layers.Embedding(20, 8)(tokens)))
    outer = keras.Input((7,), dtype="int32", name="ids")
    return keras.Model(outer, inner(outer))


def number() -> Any:
    inputs = {"x": keras.Input((6,), name="x"), "strength": keras.Input((), name="strength")}
    return keras.Model(inputs, layers.Dense(4)(inputs["x"]) * ops.expand_dims(inputs["strength"], -1))


def operation(name: str) -> Any:
    calls: dict[str, Callable[[Any], Any]] = {
        "associative_scan": lambda x: ops.associative_scan(lambda a, b: a + b, x, axis=1),
        "map": lambda x: ops.transpose(ops.map(lambda row: row * 2, ops.transpose(x, (1, 0, 2))), (1, 0, 2)),
        "median": lambda x: ops.median(x, axis=-1),
        "quantile": lambda x: ops.quantile(x, 0.3, axis=-1),
        "cumprod": lambda x: ops.cumprod(x, axis=1),
        "fori_loop": lambda x: ops.fori_loop(0, 3, lambda _, a: a * 2, x),
    }
    inputs = keras.Input((8, 4))
    return keras.Model(inputs, calls[name](inputs))


def spectrogram() -> Any:
    inputs = keras.Input((1024,))
    return keras.Model(inputs, ops.stft(inputs, 256, 128, 256)[0])


def of_tensorflow() -> Any:
    import tensorflow as tf

    class Mixer(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(16, 24))

        def call(self, x: Any) -> Any:
            return tf.matmul(x, self.kernel)

    inputs = keras.Input((10, 16))
    return keras.Model(inputs, Mixer()(inputs))
