"""The peer of ``profiling``: what a Keras user writes to time networks. Build, compile, ``predict``, one by one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs


def plain_model(graph: OperatorGraph) -> keras.Model:
    """A chain of Dense, Conv2D and pooling layers, weights as Keras draws them."""
    shape = graph.input_shape
    layers: list[keras.layers.Layer] = [keras.Input((*shape[1:], shape[0]) if len(shape) == 3 else shape)]
    for operator in graph.operators[1:]:
        options = operator.attributes
        if operator.op == "Dense":
            layers.append(keras.layers.Dense(options["units"], activation=options.get("activation")))
        elif operator.op == "Conv2D":
            layers.append(keras.layers.Conv2D(options["filters"], 3, padding="same", activation="relu"))
        else:
            layers.append(getattr(keras.layers, operator.op)())
    return keras.Sequential(layers)


def median_s(graph: OperatorGraph, runs: int) -> float:
    model = plain_model(graph)
    model.compile()
    x = np.random.default_rng(0).standard_normal((1, *model.input_shape[1:]), dtype=np.float32)
    model.predict(x, verbose=0)
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        model.predict(x, verbose=0)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def main() -> None:
    graphs, runs = list(read_graphs(Path(sys.argv[1]))), int(sys.argv[2])
    started = time.perf_counter()
    medians = [median_s(graph, runs) for graph in graphs]
    print(json.dumps({"seconds": time.perf_counter() - started, "medians_s": medians}))


if __name__ == "__main__":
    main()
