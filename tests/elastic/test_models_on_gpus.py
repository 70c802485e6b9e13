"""Families, supernets and last-layer SLO-NNs on GPUs: simulated, of tensors without values, and real.

What only a real device shows is marked ``cuda``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slotool.elastic.best_labels import BestLabels
from slotool.elastic.family import Family
from slotool.elastic.model import ElasticModel
from slotool.elastic.network import Network
from slotool.elastic.slo_nn.importers.cutting import Features
from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
from slotool.elastic.supernets.supernet import Supernet
from slotool.errors import InputError
from slotool.models import Signature, TensorSpec
from slotool.models.adapters.torch_program import TorchModuleModel
from tests.cuda_on_cpu import fake_cuda, simulated_cuda
from tests.elastic.elastic_conformance import ElasticModelConformance
from tests.elastic.test_supernets import supernet
from tests.elastic.tiny_slo_nns import CLASSES, FEATURES, INPUTS, dense_model, examples, network, sparse_model


@cache
def family(sparse: bool = False) -> Family:
    first, last = (FEATURES, CLASSES) if sparse else (INPUTS, 5)
    widths = [(first, 8, last), (first, 24, 16, last)]
    return Family.of("family", [Network.of_mlp(f"of-{len(w)}", network(*w), sparse=sparse) for w in widths])


def images(n: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, 1, 8, 8), dtype=np.float32)


@cache
def last_layer() -> LastLayerSloNN:
    """A layer of PyTorch's in front of an SLO-NN."""
    torch.manual_seed(0)
    tensors = (TensorSpec("x", "FP32", (-1, 7)),), (TensorSpec("features", "FP32", (-1, INPUTS)),)
    front = TorchModuleModel(torch.nn.Sequential(torch.nn.Linear(7, INPUTS), torch.nn.ReLU()), Signature(*tensors))
    return LastLayerSloNN("cut", Features(front, (7,)), dense_model(), Path())


MODELS: dict[str, tuple[Callable[[], ElasticModel], Callable[[int], Any]]] = {
    "family": (family, lambda n: examples(False, n, n)),
    "sparse family": (lambda: family(True), lambda n: examples(True, n, n)),
    "last layer": (last_layer, lambda n: np.random.default_rng(n).random((n, 7), dtype=np.float32)),
    "convolutions": (lambda: supernet("convolutional"), images),
    "attention": (lambda: supernet("transformer"), images),
}


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.cuda)])
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with simulated_cuda() if request.param == "simulated" else nullcontext():
        yield "cuda:0"


@pytest.mark.parametrize("name", list(MODELS))
def test_a_gpu_answers_as_the_cpu_does(name: str, gpu: str) -> None:
    make, inputs = MODELS[name]
    model, x = make(), inputs(7)
    there = model.on(gpu)
    assert (there.device, there.points, there.classes) == (gpu, model.points, model.classes)
    assert there.on(gpu) is there
    for point in model.points:
        expected = model.forward(x, point)
        np.testing.assert_allclose(there.forward(x, point), expected, rtol=1e-3, atol=1e-3)
        labels, scores = there.top(x, 3, point=point)
        np.testing.assert_allclose(scores, model.top(x, 3, point=point)[1], rtol=1e-3, atol=1e-3)
        found = np.take_along_axis(expected, np.maximum(labels, 0).astype(np.int64), axis=1)
        np.testing.assert_allclose(np.where(labels < 0, -np.inf, found), scores, rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match="no_such"):
        there.forward(x, model.points[0].parse("no_such=1"))


class TestFamilyConformance(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> Iterator[ElasticModel]:
        with simulated_cuda():
            yield family().on("cuda:1")

    def reload(self, model: Any, folder: Any) -> ElasticModel:
        return super().reload(family(), folder).on("cuda:1")


class TestSupernetConformance(TestFamilyConformance):
    @pytest.fixture
    def model(self) -> Iterator[ElasticModel]:
        with simulated_cuda():
            yield supernet("convolutional").on("cuda:1")

    def reload(self, model: Any, folder: Any) -> ElasticModel:
        return ElasticModelConformance.reload(self, supernet("convolutional"), folder).on("cuda:1")


@pytest.mark.parametrize("name", list(MODELS))
def test_all_tensors_are_on_the_gpu_and_the_host_waits_for_the_answers_alone(name: str) -> None:
    """An operator on tensors of two devices fails here, and so does one whose result the host has to know."""
    make, inputs = MODELS[name]
    model = make()
    # What needs values of the CPU's is made before.
    points, x = model.points, inputs(6)
    if isinstance(model, Family):
        assert all(version.mlp.layers for version in model.networks)
    with fake_cuda():
        there = model.on("cuda:0")
        for point in points:
            assert there.forward(x, point).shape == (6, model.classes)


def test_subnets_share_their_weights_on_a_gpu(gpu: str) -> None:
    """To go from one subnet to another copies nothing."""
    model = supernet("convolutional")
    there = model.on(gpu)
    assert isinstance(there, Supernet)
    assert there.weight_bytes == model.weight_bytes
    addresses = {id(parameter) for parameter in model.module.parameters()}
    assert not addresses & {id(parameter) for parameter in there.module.parameters()}
    x = images(2)
    for point in there.points:
        there.forward(x, point)
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated(gpu)
        for point in there.points:
            there.forward(x, point)
        assert torch.cuda.memory_allocated(gpu) == before


@pytest.mark.parametrize("broken", ["beyond", "width"])
def test_features_that_there_are_not_do_not_reach_a_gpu(broken: str, gpu: str) -> None:
    """There they would be addresses."""
    there, x = family(True).on(gpu), examples(True, 3, 2)
    if broken == "beyond":
        x.indices[0] = FEATURES
    else:
        x.resize(3, FEATURES + 5)
    with pytest.raises(InputError, match=r"features|inputs"):
        there.forward(x, there.points[0])


@pytest.mark.parametrize("model", [dense_model, sparse_model, lambda: BestLabels(sparse_model())])
def test_an_slo_nn_computes_on_the_cpu_only(model: Callable[[], ElasticModel]) -> None:
    with simulated_cuda(), pytest.raises(InputError, match="computes on cpu only, not on cuda:0"):
        model().on("cuda:0")
    assert dense_model().on("cpu") is dense_model()
