"""Programs that ``torch.export.save`` wrote (``.pt2``), and torch modules with a signature."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool import devices
from slotool.errors import InputError, RunError
from slotool.llvm import without_late_triton
from slotool.models.adapters.torch_archive import require_harmless
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.regular_files import require_regular
from slotool.tables import FULL, OperatingPoint
from slotool.transfers import Link, moved

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

_DATATYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}


class TorchProgramModel(Model):
    """A ``.pt2`` file. Inputs are called as the exported module's arguments, outputs ``output``, or ``output_0``…

    Such a file is a program: its operators run. Only pure ones of ATen do, unless code of artifacts is allowed; pickles
    in it are never read. Raises ``InputError`` when the file cannot be read, does or holds more, or cannot be moved to
    ``device``.
    """

    def __init__(self, path: str | Path, device: str = devices.CPU):
        import torch

        link = Link(device)
        path = Path(path)
        require_regular(path)
        require_harmless(path)
        try:
            with warnings.catch_warnings(), without_late_triton():
                # Before torch 2.13 it says of its own buffers that one could write to them.
                warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
                program = torch.export.load(path)
        except Exception as error:
            raise InputError(f"{path}: torch cannot load it ({reason(error)})") from error
        self.name, self.device, self._path = path.stem, link.name, path
        self.signature = _signature(path, program)
        if devices.is_cuda(link.name):
            program = _moved(path, program, link)
        self._run = _Runner(self.name, self.signature, _callable(program), link)

    def on(self, device: str) -> Model:
        return self if devices.required(device) == self.device else TorchProgramModel(self._path, device)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        return self._run(inputs)


class TorchModuleModel(Model):
    """An ``nn.Module`` in eval mode, called with the inputs in the signature's order.

    It returns a tensor, a sequence of them in the order of the signature's outputs, or a mapping by name.
    """

    def __init__(self, module: nn.Module, signature: Signature, *, name: str | None = None, device: str = devices.CPU):
        self.name = name or type(module).__name__
        self.signature = signature
        link = Link(device)
        self.device, self._module = link.name, module.eval()
        self._run = _Runner(self.name, signature, self._module, link)

    def on(self, device: str) -> Model:
        """A copy whose parameters and buffers are on the device, where that is another; tensors that the module keeps
        otherwise stay where they are."""
        if devices.required(device) == self.device:
            return self
        module = moved(self._module, Link(device))
        return TorchModuleModel(module, self.signature, name=self.name, device=device)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        return self._run(inputs)


def _callable(program: ExportedProgram) -> Callable[..., Any]:
    """What runs the program. Its guards are code too; ``Signature.conform`` checks what comes in. So do hooks of the
    module, once more and for some 40 µs a call: they are of use where a free dimension has a greatest size only."""
    import torch

    module: Any = program.module(check_guards=False)
    for part in module.modules():
        calls = list(part.graph.nodes) if isinstance(part, torch.fx.GraphModule) else []
        for node in calls:
            if node.target is torch.ops.aten.lstm.input:
                node.target = _lstm
        if any(node.target is _lstm for node in calls):
            part.recompile()
    bounded = any(str(sizes.upper) != "int_oo" for sizes in program.range_constraints.values())
    call: Callable[..., Any] = module if bounded else module.forward
    return call


def _lstm(
    x: Any, states: Any, weights: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool, first: bool
) -> Any:
    """Call ``aten.lstm``, whose kernel follows the sizes of its weights and states without looking."""
    import torch

    hidden, directions, width = states[0].shape[-1], 1 + both, x.shape[-1]
    shapes: list[tuple[int, ...]] = []
    for _ in range(layers):
        shapes += [(4 * hidden, width), (4 * hidden, hidden), *[(4 * hidden,)] * 2 * biases] * directions
        width = hidden * directions
    begins = [(layers * directions, x.shape[0 if first else 1], hidden)] * 2
    given = [tuple(each.shape) for each in (*weights, *states)]
    if x.dim() != 3 or 0 in (*x.shape, hidden) or given != shapes + begins:
        raise ValueError("sizes of an LSTM's weights and states do not fit each other")
    if len({each.dtype for each in (x, *weights, *states)}) > 1:
        raise ValueError("an LSTM's weights and states differ in type")
    return torch.ops.aten.lstm.input(x, states, weights, biases, layers, dropout, train, both, first)


class _Runner:
    """Calls a module, which is on the device of ``link``, with arrays and returns arrays."""

    def __init__(self, name: str, signature: Signature, module: Callable[..., Any], link: Link):
        import torch

        self._name, self._signature, self._module, self._link = name, signature, module, link
        self._types = {name: getattr(torch, torch_name) for torch_name, name in _DATATYPES.items()}

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        import torch

        try:
            given = [
                self._link.to_device(np.ascontiguousarray(inputs[spec.name])).to(self._types[spec.datatype])
                for spec in self._signature.inputs
            ]
            with torch.inference_mode():
                made = self._module(*given)
            if isinstance(made, torch.Tensor):
                made = [made]
            values = [made[spec.name] for spec in self._signature.outputs] if isinstance(made, Mapping) else list(made)
            specs = self._signature.outputs
            plain = [
                value.float() if spec.datatype == "BF16" else value for spec, value in zip(specs, values, strict=True)
            ]
            arrays = self._link.to_host(*plain)
            return {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
        except Exception as error:
            raise RunError(f"{self._name}: torch failed ({reason(error)})") from error


def datatype_of_torch(dtype: Any) -> str:
    """The datatype of torch's ``dtype``. Raises ``InputError`` for one that the protocol has no name for."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DATATYPES:
        raise InputError(f"torch's {name} has no datatype; there are {', '.join(_DATATYPES)}")
    return _DATATYPES[name]


def _moved(path: Path, program: ExportedProgram, link: Link) -> ExportedProgram:
    """The program with its weights on the device, and the device that its own operators name."""
    from torch.export.passes import move_to_device_pass

    try:
        return move_to_device_pass(program, link.device)
    except Exception as error:
        raise InputError(f"{path}: torch cannot move it to {link.name} ({reason(error)})") from error


def _signature(path: Path, program: ExportedProgram) -> Signature:
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    outputs = list(signature.user_outputs)
    names = ["output"] if len(outputs) == 1 else [f"output_{at}" for at in range(len(outputs))]
    return Signature(
        tuple(_spec(path, str(name), nodes.get(str(name))) for name in signature.user_inputs),
        tuple(_spec(path, name, nodes.get(str(node))) for name, node in zip(names, outputs, strict=True)),
    )


def _spec(path: Path, name: str, value: Any) -> TensorSpec:
    import torch

    datatype = _DATATYPES.get(str(value.dtype).removeprefix("torch.")) if isinstance(value, torch.Tensor) else None
    if datatype is None:
        raise InputError(f"{path}: {name} is no tensor of a known datatype")
    return TensorSpec(name, datatype, tuple(size if isinstance(size, int) else FREE for size in value.shape))
