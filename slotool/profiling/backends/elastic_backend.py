"""An elastic model at one operating point, exactly as a server calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from slotool.elastic.model import ElasticModel, load_model
from slotool.profiling.backends.base import Backend
from slotool.tables import OperatingPoint


class ModelAtPoint(NamedTuple):
    """A subject of this backend."""

    model: ElasticModel
    point: OperatingPoint


class ElasticBackend(Backend):
    """Calls ``model.forward(x, point)``; the request names the artifact's folder and the point."""

    name = "elastic"
    needs = "torch"

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def set_threads(self, threads: int) -> None:
        import torch

        torch.set_flush_denormal(True)
        torch.set_num_threads(threads)

    def threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def open(self, request: Mapping[str, Any]) -> ModelAtPoint:
        return ModelAtPoint(_load(request["path"]), OperatingPoint.parse(request["point"]))

    def prepare(self, subject: ModelAtPoint, batch_size: int) -> Callable[[], np.ndarray]:
        model, point = subject
        model.require(point)
        x = self.inputs(model.input_shape, batch_size)
        return lambda: model.forward(x, point)

    def array(self, output: np.ndarray) -> np.ndarray:
        return output


# A campaign shuffles points, so a model comes up again and again.
_load = lru_cache(maxsize=4)(load_model)
