"""ONNX files, run by ONNX Runtime on the CPU or a GPU."""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotool import devices, extras
from slotool.errors import InputError, RunError, SlotoolWarning
from slotool.models.inference_messages import of_bfloat16_bits, to_bfloat16_bits
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.regular_files import require_regular
from slotool.tables import FULL, OperatingPoint

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"
# ONNX Runtime's type names → datatypes.
_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
NO_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
_ONNX_BF16 = 16  # onnx.TensorProto.BFLOAT16


class OnnxModel(Model):
    """An ONNX model file; its weights may lie in files beside it.

    ``threads``: of the session; None leaves it to ONNX Runtime. Raises ``InputError`` when the file is missing or
    ONNX Runtime cannot load it, or would compute it on the CPU though ``device`` is a GPU; ``MissingPackageError``
    without ONNX Runtime. Warns with ``SlotoolWarning`` where some operators stay on the CPU.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        threads: int | None = None,
        device: str = devices.CPU,
        precision: str = devices.FLOAT32,
    ):
        extras.require("onnxruntime", needed_by="an ONNX model")
        import onnxruntime

        path = Path(path)
        require_regular(path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it reports is raised as well
        if threads is not None:
            options.intra_op_num_threads = threads
        # Threads that spin until the next call take cores from others: seven times what calls at 5 a second need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.device, self.precision = devices.parsed(device), precision
        self._session = _session(path, options, self.device, precision)
        self.name, self._path, self._threads = path.stem, path, threads
        inputs, outputs = (
            tuple(_spec(path, tensor) for tensor in side)
            for side in (self._session.get_inputs(), self._session.get_outputs())
        )
        if not inputs:
            raise InputError(f"{path}: it has no input, so that no request could ask it anything")
        self.signature = Signature(inputs, outputs)
        self._texts = [spec.name for spec in self.signature.inputs if spec.datatype == "BYTES"]
        self._named = _shared_dimensions(self._session.get_inputs())
        self.checks_inputs = bool(self._texts or self._named)
        self._outputs = [tensor.name for tensor in self.signature.outputs]
        self._has_bf16 = any(spec.datatype == "BF16" for spec in (*self.signature.inputs, *self.signature.outputs))

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        if (devices.parsed(device), precision) == (self.device, self.precision):
            return self
        return OnnxModel(self._path, threads=self._threads, device=device, precision=precision)

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        for name in self._texts:
            for text in inputs[name].ravel():
                try:
                    text.decode()
                except UnicodeDecodeError:
                    raise InputError(f"input {name}: it holds bytes that are not UTF-8 text") from None
        for dimension, places in self._named.items():
            sizes = [inputs[name].shape[axis] for name, axis in places]
            if len(set(sizes)) > 1:
                listed = ", ".join(f"{name} {size}" for (name, _), size in zip(places, sizes, strict=True))
                raise InputError(f"inputs differ in the size of their dimension {dimension!r}: {listed}")

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            if self._has_bf16:
                return self._run_bf16(inputs)
            arrays = self._session.run(self._outputs, self._with_texts(inputs) if self._texts else inputs)
        except Exception as error:
            raise RunError(f"{self.name}: ONNX Runtime failed ({reason(error, limit=400)})") from error
        return {spec.name: spec.conform(array) for spec, array in zip(self.signature.outputs, arrays, strict=True)}

    def _with_texts(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the text goes in as Python strings, and comes out as such."""
        decoded = np.vectorize(bytes.decode, otypes=[np.object_])
        return {**inputs, **{name: decoded(inputs[name]) for name in self._texts}}

    def _run_bf16(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run with bfloat16 values as their 16 bits, since NumPy lacks the type."""
        import onnxruntime

        values = {}
        for spec in self.signature.inputs:
            if spec.datatype == "BF16":
                of_bits = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
                values[spec.name] = of_bits(to_bfloat16_bits(inputs[spec.name]), _ONNX_BF16)
            else:
                values[spec.name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(inputs[spec.name]))
        arrays = self._session.run_with_ort_values(self._outputs, values)
        return {
            spec.name: of_bfloat16_bits(_bits(value)) if spec.datatype == "BF16" else value.numpy()
            for spec, value in zip(self.signature.outputs, arrays, strict=True)
        }


def _session(path: Path, options: Any, device: str, precision: str) -> Any:
    """Open a session; on a GPU first strictly, to notice operators that ONNX Runtime would leave on the CPU."""
    import onnxruntime

    devices.required_precision(precision, device)
    if precision not in (devices.FLOAT32, devices.TF32):
        raise InputError(f"{path}: ONNX Runtime computes in the formats of the file, not in {precision}")
    if not devices.is_cuda(device):
        return _opened(path, options, [CPU_PROVIDER])
    available = onnxruntime.get_available_providers()
    if CUDA_PROVIDER not in available:
        raise InputError(
            f"{path}: this ONNX Runtime computes on the CPU alone (it has {', '.join(available)}), not on {device}; "
            "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
        )
    # The same algorithms at each start, as for PyTorch.
    cuda_options = {"device_id": device.removeprefix("cuda:"), "use_tf32": str(int(precision == devices.TF32))}
    cuda_options["cudnn_conv_algo_search"] = "HEURISTIC"
    options.use_deterministic_compute = True
    providers = [(CUDA_PROVIDER, cuda_options), CPU_PROVIDER]
    options.add_session_config_entry(NO_CPU_FALLBACK, "1")
    try:
        session = _opened(path, options, providers)
    except InputError as strict:
        options.add_session_config_entry(NO_CPU_FALLBACK, "0")
        session = _opened(path, options, providers)
        warnings.warn(f"part of it is computed on the CPU: {strict}", SlotoolWarning, stacklevel=3)
    if CUDA_PROVIDER not in session.get_providers():
        raise InputError(f"{path}: ONNX Runtime cannot use {device}: CUDA or cuDNN of its version is not installed")
    return session


def _opened(path: Path, options: Any, providers: list[Any]) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:
        # ONNX Runtime's exceptions share no base class.
        torn = "the file is incomplete, or no ONNX model; " if "INVALID_PROTOBUF" in str(error) else ""
        raise InputError(f"{path}: {torn}ONNX Runtime cannot load it ({reason(error)})") from error


def _shared_dimensions(tensors: Sequence[Any]) -> dict[str, list[tuple[str, int]]]:
    """Return free dimensions that several tensors share, by name, with the tensors and axes.

    The first, which counts examples, is left out: a signature has it everywhere.
    """
    places: dict[str, list[tuple[str, int]]] = {}
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape):
            if axis and isinstance(size, str) and size:
                places.setdefault(size, []).append((tensor.name, axis))
    return {name: axes for name, axes in places.items() if len(axes) > 1}


def _bits(value: Any) -> np.ndarray:
    """Return a copy of a bfloat16 value, which ONNX Runtime gives no array of."""
    if value.device_name() != "cpu":
        raise RunError(f"a bfloat16 output came back on {value.device_name()}, where it cannot be read")
    shape = value.shape()
    stored = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.array(stored, dtype=np.uint16).reshape(shape)


def _spec(path: Path, tensor: Any) -> TensorSpec:
    if tensor.type not in _DATATYPES:
        problem = f"{path}: {tensor.name} is a {tensor.type}, which is no tensor of a known datatype"
        if tensor.type.startswith("seq(map("):
            problem += '; export the classifier without ZipMap, by options={"zipmap": False} of skl2onnx.to_onnx'
        raise InputError(problem)
    # A free dimension has a name, or none at all.
    shape = tuple(size if isinstance(size, int) else FREE for size in tensor.shape)
    return TensorSpec(tensor.name, _DATATYPES[tensor.type], shape)
