"""Models of other libraries on GPUs: simulated ones, and real ones where there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
import pytest
import torch

from slotool.errors import ArgumentError, InputError, SlotoolWarning
from slotool.models import Signature, TensorSpec
from slotool.models.adapters import onnx as onnx_adapter
from slotool.models.adapters.factory import FunctionModel
from slotool.models.adapters.onnx import CPU_PROVIDER, CUDA_PROVIDER, NO_CPU_FALLBACK, OnnxModel
from slotool.models.adapters.remote import HttpModel
from slotool.models.adapters.torch_program import TorchModuleModel, TorchProgramModel
from slotool.models.model import BatchedModel, Model, RenamedModel, Renames, unwrapped
from tests.cuda_on_cpu import fake_cuda, simulated_cuda
from tests.models.test_model_adapters import onnx_file

SIGNATURE = Signature(
    (TensorSpec("ids", "INT64", (-1, 6)), TensorSpec("scale", "FP32", (-1, 1))),
    (TensorSpec("scores", "FP32", (-1, 3)), TensorSpec("half", "BF16", (-1, 3)), TensorSpec("best", "INT64", (-1,))),
)


class Scores(torch.nn.Module):
    """Outputs of three types; an embedding shares its weights with a layer; a buffer is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 3)
        self.shared = self.embedding.weight
        self.register_buffer("shift", torch.arange(3.0))

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.embedding(ids).sum(dim=1) * scale + self.shift + self.shared.sum()
        return scores, scores.to(torch.bfloat16), scores.argmax(dim=1)


def inputs(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {"ids": rng.integers(10, size=(n, 6)), "scale": rng.random((n, 1), dtype=np.float32)}


def module_model() -> TorchModuleModel:
    torch.manual_seed(0)
    return TorchModuleModel(Scores(), SIGNATURE)


def program_model(folder: Path) -> TorchProgramModel:
    torch.manual_seed(0)
    example = tuple(torch.from_numpy(array) for array in inputs(2).values())
    dynamic = {"ids": {0: torch.export.Dim("n")}, "scale": {0: torch.export.Dim("n")}}
    torch.export.save(torch.export.export(Scores(), example, dynamic_shapes=dynamic), folder / "scores.pt2")
    return TorchProgramModel(folder / "scores.pt2")


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.cuda)])
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with simulated_cuda() if request.param == "simulated" else nullcontext():
        yield "cuda:0"


@pytest.mark.parametrize("kind", ["module", "program"])
def test_torch_answers_on_a_gpu_as_on_the_cpu(kind: str, gpu: str, tmp_path: Path) -> None:
    model = module_model() if kind == "module" else program_model(tmp_path)
    there = model.on(gpu)
    assert (model.device, there.device, there.signature) == ("cpu", gpu, model.signature)
    assert there.on(gpu) is there
    assert there.on("cpu").device == "cpu"
    for n in (1, 5):
        for name, array in model.run(inputs(n)).items():
            found = there.run(inputs(n))[name]
            assert found.dtype == array.dtype
            np.testing.assert_allclose(found, array, rtol=1e-4)


def test_every_tensor_of_a_module_goes_to_the_gpu_once() -> None:
    model = module_model()
    with fake_cuda():
        there = model.on("cuda:0")
        assert isinstance(there, TorchModuleModel)
        module: Any = there._module
        assert module.shared is module.embedding.weight
        assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"cuda"}
        assert there.run(inputs(4))["scores"].shape == (4, 3)
    assert {tensor.device.type for tensor in model._module.parameters()} == {"cpu"}


def test_models_under_other_names_and_in_fixed_batches_go_with_their_model() -> None:
    model = module_model()
    renamed = RenamedModel(model, Renames({"ids": "words"}, {"best": "answer"}))
    with simulated_cuda():
        there = BatchedModel(renamed, 2).on("cuda:1")
        assert (there.device, unwrapped(there).device) == ("cuda:1", "cuda:1")
        given = {"words": inputs(3)["ids"], "scale": inputs(3)["scale"]}
        np.testing.assert_array_equal(there.run(given)["answer"], model.run(inputs(3))["best"])


def test_what_cannot_be_on_a_gpu_says_so() -> None:
    function = FunctionModel(lambda ids, scale: {}, SIGNATURE, name="mine")
    assert function.on("cpu") is function
    with simulated_cuda():
        with pytest.raises(InputError, match="mine computes on cpu only, not on cuda:0"):
            function.on("cuda:0")
        with pytest.raises(ArgumentError, match="no cuda:9"):
            module_model().on("cuda:9")
    # Where a model behind another server computes is that server's business.
    remote = object.__new__(HttpModel)
    assert remote.on("cuda:0") is remote


class Session:
    """ONNX Runtime's session, where CUDA is there or said to be."""

    def __init__(self, own: Any, providers: list[str]):
        self._own, self._providers = own, providers

    def get_providers(self) -> list[str]:
        return self._providers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class Runtime:
    """``leaves_some``: an operator has no kernel for GPUs. ``works``: CUDA's libraries can be loaded."""

    def __init__(self, *, leaves_some: bool = False, works: bool = True):
        self.leaves_some, self.works = leaves_some, works
        self.asked: list[tuple[Any, str]] = []

    def opened(self, path: Path, options: Any, providers: list[Any]) -> Session:
        strict = options.get_session_config_entry(NO_CPU_FALLBACK)
        self.asked.append((providers[0], strict))
        if strict == "1" and self.leaves_some:
            raise InputError("some nodes are assigned to the CPU")
        own = onnxruntime.InferenceSession(str(path), providers=[CPU_PROVIDER])
        return Session(own, [CUDA_PROVIDER, CPU_PROVIDER] if self.works else [CPU_PROVIDER])

    def place(self, model: Model) -> Model:
        known = mock.patch.object(onnxruntime, "get_available_providers", return_value=[CUDA_PROVIDER, CPU_PROVIDER])
        with known, mock.patch.object(onnx_adapter, "_opened", self.opened), simulated_cuda():
            return model.on("cuda:1")


def test_onnx_runtime_is_asked_for_the_gpu_and_not_believed(tmp_path: Path) -> None:
    model = OnnxModel(onnx_file(tmp_path / "two.onnx"), threads=1)
    with pytest.raises(InputError, match=r"computes on the CPU alone .*not on cuda:1; pip uninstall onnxruntime, then"):
        model.on("cuda:1")
    with pytest.raises(InputError, match="ONNX Runtime cannot use cuda:1: CUDA or cuDNN of its version"):
        Runtime(works=False).place(model)
    runtime = Runtime()
    there = runtime.place(model)
    (((name, own), strict),) = runtime.asked
    assert (name, own["device_id"], own["use_tf32"], strict) == (CUDA_PROVIDER, "1", "0", "1")
    assert (there.device, model.device) == ("cuda:1", "cpu")
    partly = Runtime(leaves_some=True)
    with pytest.warns(SlotoolWarning, match="part of it is computed on the CPU: some nodes are assigned"):
        partly.place(model)
    assert [strict for _, strict in partly.asked] == ["1", "0"]


def test_keras_does_not_fall_back_to_the_cpu() -> None:
    keras = pytest.importorskip("keras")
    from slotool.models.adapters.keras import KerasModel

    built = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    model = KerasModel(built)
    assert model.on("cpu") is model
    with pytest.raises(InputError, match="cannot be on cuda:0: TensorFlow finds no GPU"):
        model.on("cuda:0")
    x = np.ones((2, 4), dtype=np.float32)
    np.testing.assert_allclose(next(iter(model(x).values())), built(x).numpy(), rtol=1e-5)
    # Left alone, it would take a GPU that is there.
    import tensorflow as tf

    with mock.patch.object(tf, "device", wraps=tf.device) as placed:
        model(x)
    placed.assert_called_with("/CPU:0")


@pytest.mark.cuda
@pytest.mark.parametrize("library", ["onnx", "keras"])
def test_a_real_gpu_answers_as_the_cpu_does(library: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if library == "onnx":
        if CUDA_PROVIDER not in onnxruntime.get_available_providers():
            pytest.skip("ONNX Runtime without CUDA")
        model: Model = OnnxModel(onnx_file(tmp_path / "two.onnx"))
        given = {"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.array([[1, 1, 0]])}
    else:
        keras = pytest.importorskip("keras", reason="TensorFlow is not installed")
        import tensorflow as tf

        from slotool.models.adapters.keras import KerasModel

        if not tf.config.list_physical_devices("GPU"):
            pytest.skip("TensorFlow without CUDA")
        model = KerasModel(keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)]))
        given = {model.signature.inputs[0].name: np.ones((2, 4), dtype=np.float32)}
    for name, array in model(given).items():
        np.testing.assert_allclose(model.on("cuda:0")(given)[name], array, rtol=1e-3, atol=1e-4)
