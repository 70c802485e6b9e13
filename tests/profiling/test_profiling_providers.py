"""Keras, ONNX Runtime and CUDA graphs on a GPU, by simulated libraries: placed there, waited for, or refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from slotool.errors import GraphError, InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.torch_module import GraphModule
from slotool.profiling.backends.torch_backend import CudaGraphBackend, TorchBackend
from slotool.testing.backends import BackendConformance, narrow_mlp, plain_cnn
from tests.profiling.simulated_cuda import SimulatedCuda

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
needs_onnx = pytest.mark.skipif(
    find_spec("onnxruntime") is None or find_spec("onnx") is None, reason="ONNX Runtime is not installed"
)


class SimulatedOnnxRuntime:
    """ONNX Runtime with a CUDA provider: sessions and values lie on the CPU. ``takes``: the provider that a session
    ends up with; ``refuses``: what it says in place of making one."""

    def __init__(self, patch: pytest.MonkeyPatch):
        import onnxruntime

        self.takes, self.refuses = CUDA, ""
        self.asked: list[Any] = []
        self.placed: list[tuple[str, int]] = []
        self.waited = 0
        real, value = onnxruntime.InferenceSession, onnxruntime.OrtValue
        simulated = self

        class Bound:
            def __init__(self, bound: Any):
                self._bound = bound

            def __getattr__(self, name: str) -> Any:
                return getattr(self._bound, name)

            def synchronize_outputs(self) -> None:
                simulated.waited += 1

        class Session:
            def __init__(self, content: Any, options: Any, providers: list[Any], **more: Any):
                simulated.asked.append(providers)
                if simulated.refuses and providers != [CPU]:
                    raise RuntimeError(simulated.refuses)
                if providers != [CPU]:
                    assert options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
                    assert more.pop("enable_fallback") == 0
                    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
                self._real = real(content, options, providers=[CPU], **more)

            def get_providers(self) -> list[str]:
                return [simulated.takes, CPU]

            def io_binding(self) -> Bound:
                return Bound(self._real.io_binding())

            def run_with_iobinding(self, bound: Bound) -> None:
                self._real.run_with_iobinding(bound._bound)

        def from_numpy(values: np.ndarray, device: str = "cpu", number: int = 0) -> Any:
            simulated.placed.append((device, number))
            return value.ortvalue_from_numpy(values)

        def from_shape(shape: Any, kind: Any, device: str = "cpu", number: int = 0) -> Any:
            simulated.placed.append((device, number))
            return value.ortvalue_from_shape_and_type(shape, kind)

        values = SimpleNamespace(ortvalue_from_numpy=from_numpy, ortvalue_from_shape_and_type=from_shape)
        patch.setattr(onnxruntime, "InferenceSession", Session)
        patch.setattr(onnxruntime, "OrtValue", values)
        patch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
        patch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
        patch.setattr("slotool.profiling.backends.onnx_backend._cuda_devices", lambda: 2)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> SimulatedOnnxRuntime:
    return SimulatedOnnxRuntime(monkeypatch)


@needs_onnx
class TestOnnxOnSimulatedCuda(BackendConformance):
    @pytest.fixture(autouse=True)
    def _runtime(self, runtime: SimulatedOnnxRuntime) -> None:
        """The provider is there."""

    @staticmethod
    def make(device: str = "cuda:0", **options: Any) -> Any:
        from slotool.profiling.backends.onnx_backend import OnnxBackend

        return OnnxBackend(device, **options)


@needs_onnx
def test_onnx_runtime_is_asked_for_cuda_alone_and_waited_for(runtime: SimulatedOnnxRuntime) -> None:
    from slotool.profiling.backends.onnx_backend import OnnxBackend

    backend = OnnxBackend("cuda:1", threads=1)
    runtime.placed.clear()
    call = backend.prepare(narrow_mlp(), 1)
    ((provider, options),) = runtime.asked[-1]
    assert (provider, options["device_id"], options["use_tf32"]) == (CUDA, "1", "0")
    assert runtime.placed[-2:] == [("cuda", 1), ("cuda", 1)]
    call()
    assert runtime.waited == 0
    backend.wait()
    assert runtime.waited == 1
    assert backend.accelerator is not None
    assert backend.accelerator.settings()["use_tf32"] == "0"
    # Its threads are counted without a session on the device.
    backend.threads()
    assert runtime.asked[-1] == [CPU]


@needs_onnx
def test_onnx_runtime_that_falls_back_to_the_cpu_is_refused(runtime: SimulatedOnnxRuntime) -> None:
    from slotool.profiling.backends.onnx_backend import OnnxBackend

    backend = OnnxBackend("cuda:0")
    runtime.refuses = "This session contains graph nodes that are assigned to the default CPU EP"
    with pytest.raises(GraphError, match=r"does not run wholly on cuda:0 in ONNX Runtime \(This session contains"):
        backend.prepare(narrow_mlp(), 1)
    runtime.refuses, runtime.takes = "", CPU
    with pytest.raises(InputError, match=f"took {CPU} in place of {CUDA} for cuda:0"):
        backend.prepare(narrow_mlp(), 1)
    with pytest.raises(InputError, match="took"):
        OnnxBackend("cuda:0")
    runtime.refuses = "Failed to allocate memory for requested buffer of size 4"
    with pytest.raises(RuntimeError) as caught:
        backend.prepare(narrow_mlp(), 1)
    assert backend.is_out_of_memory(caught.value)


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """TensorFlow with a GPU, which is its CPU; what it was told, in order."""
    import tensorflow as tf

    said: list[Any] = []
    real, gpus = tf.device, [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in range(2)]
    listed = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else listed(kind))
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda devices, kind: said.append(("visible", devices[0].name))
    )
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda device, growth: said.append(("growth", device.name, growth))
    )
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: said.append("sync"))

    def device(place: str) -> Any:
        said.append(("device", place))
        return real(place.replace("GPU", "CPU"))

    monkeypatch.setattr(tf, "device", device)
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    yield said
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    tf.config.set_soft_device_placement(True)


@needs_tensorflow
def test_keras_on_a_gpu_takes_memory_as_needed_is_placed_there_and_waited_for(tensorflow: list[Any]) -> None:
    from slotool.profiling.backends.keras_backend import KerasBackend

    backend = KerasBackend("cuda:1")
    assert tensorflow == [
        ("visible", "/physical_device:GPU:1"),
        ("growth", "/physical_device:GPU:1", True),
    ]
    assert backend.accelerator is not None
    settings = backend.accelerator.settings()
    assert (settings["tf32"], settings["soft placement"], settings["memory growth"]) == (False, False, True)
    # The simulated GPU is the CPU, which is what must not happen with a real one.
    with pytest.raises(GraphError, match=r"TensorFlow put a tensor on .*CPU:0, not on cuda:1"):
        backend.prepare(narrow_mlp(), 1)
    assert ("device", "/GPU:0") in tensorflow
    backend.wait()
    assert tensorflow[-1] == "sync"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(
            "keras_backend:KerasBackend",
            r"the keras backend has no device 'cuda:0' here; it has cpu; TensorFlow sees no other; pip install",
            marks=needs_tensorflow,
        ),
        pytest.param(
            "onnx_backend:OnnxBackend",
            r"the onnx backend has no device 'cuda:0' here; it has cpu; CUDA needs the package onnxruntime-gpu",
            marks=needs_onnx,
        ),
        pytest.param(
            "onnx_int8_backend:OnnxInt8Backend", r"the onnx-int8 backend has no device 'cuda:0' here", marks=needs_onnx
        ),
    ],
)
def test_without_a_device_one_sentence_says_what_is_missing(
    make: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotool.profiling.backends import backend_class

    if "keras" in make:
        import tensorflow as tf

        listed = tf.config.list_physical_devices
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [] if kind == "GPU" else listed(kind))
    elif "int8" not in make:
        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CPU])
    with pytest.raises(InputError, match=sentence):
        backend_class(f"slotool.profiling.backends.{make}")("cuda:0")


@pytest.mark.parametrize("graph", [narrow_mlp(), plain_cnn()], ids=["mlp", "cnn"])
def test_a_cuda_graph_is_captured_warm_and_replayed(graph: OperatorGraph) -> None:
    with SimulatedCuda().installed() as cuda:
        backend = CudaGraphBackend("cuda:0")
        call = backend.prepare(graph, 2)
        assert cuda.log == ["stream", "capture"]
        found = backend.array(call())
        backend.array(call())
        assert cuda.log == ["stream", "capture", "replay", "replay"]
    wanted = TorchBackend()
    np.testing.assert_allclose(found, wanted.array(wanted.prepare(graph, 2)()), rtol=1e-5)


def test_a_cuda_graph_holds_the_memory_that_it_reads() -> None:
    """A replay reads weights, input and buffers where they lay at the capture: nothing else may be put there."""
    read = []

    def recorded(module: GraphModule, *args: Any, **kwargs: Any) -> None:
        initialise(module, *args, **kwargs)
        read.append(weakref.ref(module))

    initialise = GraphModule.__init__
    with SimulatedCuda().installed(), mock.patch.object(GraphModule, "__init__", recorded):
        call = CudaGraphBackend("cuda:0").prepare(narrow_mlp(), 2)
        gc.collect()
        assert [module() is not None for module in read] == [True]
        del call
        gc.collect()
        assert [module() is not None for module in read] == [False]


def test_a_cuda_graph_needs_a_device_and_a_network_that_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = r"has no device 'cpu' here; it has none; CUDA graphs need a CUDA device"
    with SimulatedCuda(devices=0).installed(), pytest.raises(InputError, match=sentence):
        CudaGraphBackend()

    def fails(words: str) -> Any:
        def graph(captured: Any, **options: Any) -> Any:
            raise RuntimeError(words)

        return graph

    import torch

    with SimulatedCuda().installed():
        backend = CudaGraphBackend("cuda:0")
        monkeypatch.setattr(torch.cuda, "graph", fails("operation not permitted when stream is capturing"))
        with pytest.raises(GraphError, match=r"cannot be captured as a CUDA graph \(operation not permitted"):
            backend.prepare(narrow_mlp(), 1)
        monkeypatch.setattr(torch.cuda, "graph", fails("CUDA error: out of memory"))
        with pytest.raises(RuntimeError) as caught:
            backend.prepare(narrow_mlp(), 1)
        assert backend.is_out_of_memory(caught.value)
        monkeypatch.undo()
