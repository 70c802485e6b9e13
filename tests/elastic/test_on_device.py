"""SLO-aware networks by PyTorch: the answers of the compiled calls, on the CPU and on CUDA where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.elastic.activators.on_device import DeviceSloNN
from slotool.elastic.activators.rankers.registry import RANKERS
from slotool.errors import InputError
from slotool.testing.elastic import ElasticModelConformance
from tests.cuda_on_cpu import simulated_cuda
from tests.elastic.tiny_slo_nns import FEATURES, dense_model, examples, sparse_model

DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.cuda)]


def needs(device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


class TestOnTheCpu(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> DeviceSloNN:
        return DeviceSloNN(dense_model(), "cpu")

    def plain(self, model: DeviceSloNN, x: np.ndarray) -> np.ndarray:
        return model.model.mlp.logits(x)

    def reload(self, model: DeviceSloNN, folder: object) -> DeviceSloNN:
        return DeviceSloNN(super().reload(model.model, folder), "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranker", list(RANKERS))
@pytest.mark.parametrize("sparse", [False, True])
def test_a_device_answers_as_the_compiled_calls_do(device: str, ranker: str, sparse: bool) -> None:
    needs(device)
    model = sparse_model(ranker) if sparse else dense_model(ranker)
    there, x = DeviceSloNN(model, device), examples(sparse, 50, 7)
    for point in model.points:
        np.testing.assert_allclose(there.forward(x, point), model.forward(x, point), rtol=1e-3, atol=1e-3)
        check_top(there.top(x, 4, point=point), model.top(x, 4, point=point))
    for loss in (0.01, 0.1, 0.3):
        check_top(there.top(x, 2, accuracy=model.target(loss)), model.top(x, 2, accuracy=model.target(loss)))


def check_top(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3, atol=1e-3)
    clear = np.diff(expected[1], axis=1, append=-np.inf) < -1e-2
    np.testing.assert_array_equal(found[0][clear], expected[0][clear])


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 200), at=st.integers(0, 2), sparse=st.booleans(), seed=st.integers(0, 2**16))
def test_gathered_rows_and_whole_products_answer_alike(n: int, at: int, sparse: bool, seed: int) -> None:
    """How many queries come together decides which of both is done."""
    model = sparse_model() if sparse else dense_model()
    there, x = DeviceSloNN(model, "cpu"), examples(sparse, n, seed)
    alone = np.concatenate([there.forward(x[row : row + 1], model.points[at - 1]) for row in range(n)])
    np.testing.assert_allclose(there.forward(x, model.points[at - 1]), alone, rtol=1e-4, atol=1e-4)


def test_a_batch_without_queries_has_no_answers() -> None:
    model = dense_model()
    there, none = DeviceSloNN(model, "cpu"), examples(False, 3, 1)[:0]
    assert there.forward(none, model.points[0]).shape == (0, model.classes)
    for asked in ({"point": model.points[0]}, {"accuracy": model.target(0.3)}):
        assert [found.shape for found in there.top(none, 2, **asked)] == [(0, 2), (0, 2)]


def test_an_int8_model_is_float32_on_a_device() -> None:
    x = examples(True, 20, 0)
    quantized, exact = (DeviceSloNN(model, "cpu").top(x, 3) for model in (sparse_model().at_int8(), sparse_model()))
    np.testing.assert_array_equal(quantized[0], exact[0])


def test_what_a_device_cannot_answer_is_refused() -> None:
    there, x = DeviceSloNN(dense_model(), "cpu"), examples(False, 5, 0)
    x[3, 2] = np.inf
    with pytest.raises(InputError, match="input 3 cannot be answered: it holds NaN or infinite values"):
        there.top(x)
    x[3, 2] = 3e38
    with pytest.raises(InputError, match="input 3 cannot be answered: its values overflow"):
        there.forward(x, there.full)
    many = examples(True, 5, 0)
    many.data[-1] = np.nan
    with pytest.raises(InputError, match="input 4 cannot be answered"):
        DeviceSloNN(sparse_model(), "cpu").top(many)
    many.data[-1], many.indices[0] = 1.0, FEATURES
    with pytest.raises(InputError, match="input 0 cannot be answered: it names features beyond 0 to 59"):
        DeviceSloNN(sparse_model(), "cpu").top(many)
    with simulated_cuda(), pytest.raises(InputError, match="no cuda:77 on this machine; available: cpu, cuda:0"):
        dense_model().on("cuda:77")
    assert dense_model().on("cpu") is dense_model()
