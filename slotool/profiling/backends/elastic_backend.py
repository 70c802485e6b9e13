"""Backend of elastic models at one operating point, called as a server does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import orjson

from slotool import devices
from slotool.artifacts import open_artifact
from slotool.data.columns import Inputs
from slotool.elastic import ElasticModel, load_model
from slotool.elastic.family import KIND
from slotool.elastic.queries import Queries, dataset_of
from slotool.process import limit_threads, torch_threads
from slotool.profiling.backends.torch_backend import OnTorch
from slotool.tables import OperatingPoint


class ModelAtPoint(NamedTuple):
    """Subject of this backend."""

    model: ElasticModel
    point: OperatingPoint
    data: Any = ""


class ElasticBackend(OnTorch):
    """Backend that calls ``model.run(inputs, point)``; the request names the artifact's folder and the point.

    With a data set in the request, each call returns the best labels of the next batch of its validation examples.
    """

    name = "elastic"
    precisions = devices.PRECISIONS
    # A server of such models keeps its memory, and campaigns return to loaded models.
    forks = False

    def _offers(self, device: str) -> bool:
        # Without torch, which takes longer to import than a family of ONNX files to measure.
        return device == devices.CPU or super()._offers(device)

    def set_threads(self, threads: int) -> None:
        limit_threads(threads)

    def threads(self) -> int:
        return torch_threads()

    def open(self, request: Mapping[str, Any]) -> ModelAtPoint:
        return ModelAtPoint(_load(request["path"]), OperatingPoint.parse(request["point"]), request.get("data", ""))

    def prepare(self, subject: ModelAtPoint, batch_size: int) -> Callable[[], np.ndarray]:
        model, point, data = subject
        model.require(point)
        if (self.device, self.precision) != (model.device, model.precision):
            model = _on(model, self.device, self.precision)
        if data:
            return _each_in_turn(model, point, data, batch_size)
        inputs = model.inputs(self._inputs_of(model, batch_size))
        return lambda: next(iter(model.run(inputs, point).values()))

    def _inputs_of(self, model: ElasticModel, batch_size: int) -> Inputs:
        if model.examples is not None:
            # Random numbers may be invalid inputs.
            return model.examples[np.arange(batch_size) % len(model.examples)]
        x = self.inputs(model.input_shape, batch_size)
        # Ids 0 and 1 are in every vocabulary.
        return (x > 0).astype(np.float32) if model.whole_inputs else x

    def release(self) -> None:
        _on.cache_clear()
        super().release()

    def array(self, output: np.ndarray) -> np.ndarray:
        return output


def _each_in_turn(model: ElasticModel, point: OperatingPoint, data: Any, batch_size: int) -> Callable[[], Any]:
    queries = _queries(model, orjson.dumps(data, option=orjson.OPT_SORT_KEYS))
    if batch_size > 1:
        batches = cycle(queries.batches(batch_size, point)[: max(1, MAX_EXAMPLES // batch_size)])
        return lambda: _next(batches)
    call, numbers = queries.call(point), cycle(range(min(len(queries), MAX_EXAMPLES)))
    return lambda: call(next(numbers))


def _next(calls: Iterator[Callable[[], Any]]) -> Any:
    return next(calls)()


# Number of different examples, enough to keep caches as cold as in service.
MAX_EXAMPLES = 4_096


@lru_cache(maxsize=2)
def _queries(model: ElasticModel, data: bytes) -> Queries:
    """Return queries of the data set that the JSON ``data`` describes, with labels or without."""
    return Queries(model, dataset_of(model, orjson.loads(data), needs_labels=False).validation, limit=MAX_EXAMPLES)


# A campaign shuffles points, so a model comes up again and again.
@lru_cache(maxsize=4)
def _load(path: str) -> ElasticModel:
    artifact = open_artifact(path)
    # All models of a family may be of libraries without torch.
    if artifact.kind != KIND:
        _flush_denormals()
    model = load_model(artifact)
    if "torch" in sys.modules:
        _flush_denormals()
    return model


def _flush_denormals() -> None:
    """Flush denormals in this thread, and in those that it starts: before torch starts any."""
    import torch

    torch.set_flush_denormal(True)


@lru_cache(maxsize=4)
def _on(model: ElasticModel, device: str, precision: str) -> ElasticModel:
    return model.on(device, precision)
