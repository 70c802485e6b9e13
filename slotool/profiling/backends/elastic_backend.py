"""An elastic model at one operating point, exactly as a server calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from slotool.elastic import ElasticModel, load_model
from slotool.elastic.model_family import ModelFamily
from slotool.elastic.queries import Queries, dataset_of
from slotool.process import limit_threads
from slotool.profiling.backends.torch_backend import OnTorch
from slotool.tables import OperatingPoint


class ModelAtPoint(NamedTuple):
    """A subject of this backend."""

    model: ElasticModel
    point: OperatingPoint
    data: str = ""


class ElasticBackend(OnTorch):
    """Calls ``model.forward(x, point)``; the request names the artifact's folder and the point.

    When it names a data set too, a call gives the best label of one of its validation examples, another each time, or
    of as many as the batch holds.
    """

    name = "elastic"

    def set_threads(self, threads: int) -> None:
        import torch

        torch.set_flush_denormal(True)
        limit_threads(threads)

    def open(self, request: Mapping[str, Any]) -> ModelAtPoint:
        return ModelAtPoint(_load(request["path"]), OperatingPoint.parse(request["point"]), request.get("data", ""))

    def prepare(self, subject: ModelAtPoint, batch_size: int) -> Callable[[], np.ndarray]:
        model, point, data = subject
        model.require(point)
        if self.device != "cpu":
            model = _on(model, self.device)
        if data:
            return _each_in_turn(model, point, data, batch_size)
        if isinstance(model, ModelFamily) and model.signature is not None:
            return _own_tensors(model, point, batch_size)
        x = self.inputs(model.input_shape, batch_size)
        if not model.negative_inputs:
            x = np.abs(x)
        return lambda: model.forward(x, point)

    def array(self, output: np.ndarray) -> np.ndarray:
        return output


def _own_tensors(model: ModelFamily, point: OperatingPoint, batch_size: int) -> Callable[[], np.ndarray]:
    """Answers to the examples that the family keeps: random numbers may be no input of it."""
    x = model.examples[np.arange(batch_size) % len(model.examples)]
    return lambda: model.respond(x, point)[model.task.output]


def _each_in_turn(model: ElasticModel, point: OperatingPoint, data: str, batch_size: int) -> Callable[[], Any]:
    queries = Queries(model, _data(model, data).validation)
    if batch_size > 1:
        batches = cycle(queries.batches(batch_size, point)[: max(1, MAX_EXAMPLES // batch_size)])
        return lambda: _next(batches)
    label, numbers = queries.answer(point).label, cycle(range(min(len(queries), MAX_EXAMPLES)))
    return lambda: np.array([label(next(numbers))])


def _next(calls: Iterator[Callable[[], Any]]) -> Any:
    return next(calls)()


# So many different examples: enough to keep caches as cold as in service.
MAX_EXAMPLES = 4_096
_data = lru_cache(maxsize=2)(dataset_of)
# A campaign shuffles points, so a model comes up again and again.
_load = lru_cache(maxsize=4)(load_model)


@lru_cache(maxsize=4)
def _on(model: ElasticModel, device: str) -> ElasticModel:
    return model.on(device)
