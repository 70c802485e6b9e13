"""Backend of operator graphs in ONNX Runtime, on the CPU or by its CUDA provider."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slotool.devices import FLOAT32, TF32
from slotool.errors import GraphError, InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.machine import gpu_models
from slotool.profiling.accelerator import Accelerator, NvidiaAccelerator
from slotool.profiling.backends.base import Backend
from slotool.profiling.operator_calls import OperatorCall, with_the_rest

if TYPE_CHECKING:
    import onnxruntime

    from slotool.graphs.onnx_model import Weight

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDERS = [CPU_PROVIDER]
# Kernels are chosen by cuDNN's heuristic: a search may choose others each time.
CUDA_OPTIONS = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
POOLING = ("MaxPooling2D", "AveragePooling2D")


class OnnxBackend(Backend):
    """Optimised ONNX models of a fixed batch size, with input and output bound to memory once.

    Binding saves Python's wrapping of arrays (some 2 µs), which a server in another language does not need. Threads
    spin between operators and a moment after a run, the default of ONNX Runtime: they are awake for the next call, as
    under load, and co-runners feel their spinning, as in a deployment. ONNX Runtime reads weights in place but packs
    copies of matrices and convolutions, so a network may take twice its weights.
    """

    name = "onnx"
    needs = "onnxruntime"
    no_device_advice = "CUDA needs the package onnxruntime-gpu in place of onnxruntime, and a GPU"

    precisions: ClassVar[tuple[str, ...]] = (FLOAT32, TF32)
    walks_the_fastest: ClassVar[bool] = True
    _threads = 0  # onnxruntime's own choice

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() or (None if find_spec("onnx") else "onnx")

    def set_threads(self, threads: int) -> None:
        """Set the threads of later sessions, each of which has its own pool."""
        if threads < 1:
            raise InputError(f"{threads} threads cannot compute anything")
        self._threads = threads

    def threads(self) -> int:
        """Return the calling thread and those that a session starts, counted by the system."""
        builder = GraphBuilder()
        builder.add("ReLU", builder.add("InputLayer", shape=[1]))
        # With the first session, libraries start further threads.
        for _ in range(2):
            before = set(os.listdir("/proc/self/task"))
            session = self._session(builder.graph(), 1, "cpu", self._options())[0]
            started = set(os.listdir("/proc/self/task")) - before
            del session
        return 1 + len(started)

    @classmethod
    def operator_calls(cls, graph: OperatorGraph, batch_size: int) -> list[OperatorCall | None]:
        """Return the nodes of the optimised model, fused ones included."""
        from slotool.profiling.backends.onnx_operators import optimised_calls

        if graph.unknown:
            return super().operator_calls(graph, batch_size)
        return list(optimised_calls(graph, batch_size, disabled_optimizers(graph)))

    def prepare(self, subject: OperatorGraph, batch_size: int) -> Callable[[], onnxruntime.OrtValue | None]:
        call = self._call(subject, batch_size, self._options())
        if isinstance(self.accelerator, OnnxAccelerator):
            self.accelerator.waits_for = call.wait
        return call

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        """Return durations of nodes by ONNX Runtime's profile; the executor's time beyond them is shared equally."""
        from slotool.profiling.backends.onnx_operators import node_seconds, profiled_names

        calls = [call for call in self.operator_calls(subject, batch_size) if call is not None]
        whole = self.prepare(subject, batch_size)

        def walked(count: int) -> np.ndarray:
            total_s = [_seconds(whole) for _ in range(1 + count)][1:]
            with TemporaryDirectory() as folder:
                options = self._options()
                options.enable_profiling = True
                options.profile_file_prefix = str(Path(folder) / "profile")
                profiled = self._call(subject, batch_size, options)
                for _ in range(1 + count):
                    profiled()
                runs = node_seconds(Path(profiled.session.end_profiling()))[1:]
            names = profiled_names(calls, list(runs[0]))
            if any(run.keys() != set(names) for run in runs):
                raise GraphError(f"{subject.name or subject.id}: ONNX Runtime runs other nodes than it had planned")
            nodes_s = np.array([[run[name] for name in names] for run in runs])
            return with_the_rest(nodes_s, np.array(total_s))

        return walked

    def _call(self, graph: OperatorGraph, batch_size: int, options: onnxruntime.SessionOptions) -> _Call:
        import onnxruntime

        from slotool.graphs.onnx_model import input_names

        session, weights = self._session(graph, batch_size, self.device, options)
        feeds, place = self.feeds(graph, batch_size), self._place
        inputs = [onnxruntime.OrtValue.ortvalue_from_numpy(values, *place) for values in feeds]
        y = onnxruntime.OrtValue.ortvalue_from_shape_and_type((batch_size, *graph.output_shape), np.float32, *place)
        return _Call(session, weights, dict(zip(input_names(graph), inputs, strict=True)), y)

    def devices(self) -> tuple[str, ...]:
        import onnxruntime

        if CUDA_PROVIDER not in onnxruntime.get_available_providers():
            return ("cpu",)
        return ("cpu", *(f"cuda:{number}" for number in range(_cuda_devices())))

    def _offers(self, device: str) -> bool:
        # Without importing its library.
        return device == "cpu" or super()._offers(device)

    def open_accelerator(self) -> Accelerator:
        """Open the device. Raises ``InputError`` if ONNX Runtime falls back to another provider, which is silent."""
        import onnxruntime

        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()  # of CUDA and cuDNN, from other packages
        builder = GraphBuilder()
        builder.add("ReLU", builder.add("InputLayer", shape=[1]))
        self._session(builder.graph(), 1, self.device, self._options())
        return OnnxAccelerator(self.device, self._cuda_options)

    def array(self, output: onnxruntime.OrtValue) -> np.ndarray:
        """Return a copy, as the next call writes to the same memory."""
        return np.array(output.numpy())

    @property
    def _cuda_options(self) -> dict[str, str]:
        return {"use_tf32": str(int(self.precision == TF32)), **CUDA_OPTIONS}

    @property
    def _place(self) -> tuple[str, int]:
        """ONNX Runtime's name of the device of input and output."""
        return ("cpu", 0) if self.device == "cpu" else ("cuda", int(self.device.partition(":")[2]))

    def _session(
        self, graph: OperatorGraph, batch_size: int, device: str, options: onnxruntime.SessionOptions
    ) -> tuple[onnxruntime.InferenceSession, list[Any]]:
        import onnxruntime

        from slotool.graphs.onnx_model import onnx_model

        model, weights = onnx_model(graph, batch_size)
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._filled(weights)]
        if values:
            options.add_external_initializers([weight.name for weight in weights], values)
        content, disabled = model.SerializeToString(), disabled_optimizers(graph)
        if device == "cpu":
            return onnxruntime.InferenceSession(content, options, providers=PROVIDERS, **disabled), values
        # Networks that do not run wholly on the device are rejected: a part on the CPU is another measurement.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        cuda = (
            CUDA_PROVIDER,
            {"device_id": device.partition(":")[2], **self._cuda_options},
        )
        try:
            session = onnxruntime.InferenceSession(content, options, providers=[cuda], enable_fallback=0, **disabled)
        except Exception as error:  # its class varies
            if self.is_out_of_memory(error):
                raise
            words = " ".join(str(error).split())[:200]
            raise GraphError(
                f"{graph.name or graph.id} does not run wholly on {device} in ONNX Runtime ({words}); "
                "use --backend torch, or --device cpu"
            ) from error
        took = session.get_providers()[0]
        if took != CUDA_PROVIDER:
            raise InputError(
                f"ONNX Runtime took {took} in place of {CUDA_PROVIDER} for {device}; "
                "it finds no CUDA, cuDNN or driver of the versions that it was built for"
            )
        return session, values

    def _options(self) -> onnxruntime.SessionOptions:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        # The first session of a process decides this for the calling thread, every session for its pool.
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        options.log_severity_level = 3
        return options

    def _filled(self, weights: Sequence[Weight]) -> list[np.ndarray]:
        """Return values of each weight; statistics are all ones."""
        return [
            self.weights(weight.shape) if weight.trained else np.ones(weight.shape, np.float32) for weight in weights
        ]


class _Call:
    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        weights: list[Any],
        inputs: dict[str, onnxruntime.OrtValue],
        y: onnxruntime.OrtValue,
    ):
        # The session does not own the weights' memory.
        self.session, self._weights, self._y = session, weights, y
        self._bound = session.io_binding()
        for name, values in inputs.items():
            self._bound.bind_ortvalue_input(name, values)
        self._bound.bind_ortvalue_output("output", y)

    def __call__(self) -> onnxruntime.OrtValue:
        self.session.run_with_iobinding(self._bound)
        return self._y

    def wait(self) -> None:
        self._bound.synchronize_outputs()


class OnnxAccelerator(NvidiaAccelerator):
    """GPU of ONNX Runtime; ``waits_for`` waits for the output of the newest call; ``options``: the provider's."""

    def __init__(self, device: str, options: Mapping[str, str]):
        super().__init__(device)
        self._options = options
        self.waits_for: Callable[[], None] = lambda: None

    def wait(self) -> None:
        self.waits_for()

    def settings(self) -> dict[str, Any]:
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__, **self._options}


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _cuda_devices() -> int:
    """Return the number of CUDA devices: by torch if it has CUDA, else by the driver."""
    import torch

    return torch.cuda.device_count() or len(gpu_models())


def disabled_optimizers(graph: OperatorGraph) -> dict[str, list[str]]:
    """Return session arguments that disable fusing padding into pooling, which fails for windows below the padding."""
    padded = {operator.name for operator in graph.operators if operator.op == "ZeroPadding2D"}
    pools = any(padded & set(operator.inputs) for operator in graph.operators if operator.op in POOLING)
    return {"disabled_optimizers": ["Pad_Fusion"]} if pools else {}
