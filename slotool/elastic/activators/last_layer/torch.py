"""PyTorch modules, cut before their last linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.elastic.activators.last_layer.cutting import Cut, dense_layer
from slotool.errors import InputError
from slotool.graphs.capture.loading import load_torch
from slotool.graphs.capture.torch import inference, quiet
from slotool.models.adapters.torch_program import TorchModuleModel, datatype_of_torch
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.printable import reason

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

ENDINGS = ("softmax", "_softmax", "log_softmax", "_log_softmax", "dropout", "clone", "contiguous", "alias", "detach")
# An example of a traced batch; 1 would be taken for a fixed size.
BATCH = 2


def cut_torch(name: str, input_shape: Sequence[int], folder: Path) -> Cut:
    """As ``cut``; ``name`` is module:factory."""
    module = load_torch(name).cpu()
    return cut_module(module, name, input_shape, folder)


def cut_module(module: nn.Module, name: str, input_shape: Sequence[int], folder: Path) -> Cut:
    """As ``cut``, of a module in memory, which is left in inference mode."""
    import torch

    module = module.eval().requires_grad_(False)
    with inference(module), quiet():
        program, dtype = _traced(module, name, input_shape)
        features, weights, bias, label = _last_layer(name, program)
        front = program.module(check_guards=False)
        _end_at(front, features)
        traced = _exported(front, name, input_shape, dtype)
        path = folder / "front.pt2"
        torch.export.save(traced, path)
    specs = (TensorSpec("input", datatype_of_torch(dtype), (FREE, *input_shape)),)
    made = datatype_of_torch(next(iter(program.parameters())).dtype)
    signature = Signature(specs, (TensorSpec("output", made, (FREE, len(weights))),))
    return Cut(path, dense_layer(label, weights, bias), TorchModuleModel(module, signature, name=name), "PyTorch")


def _traced(module: nn.Module, name: str, input_shape: Sequence[int]) -> tuple[ExportedProgram, Any]:
    """The module on inputs of the datatype of its weights or, where it takes none of these, on whole numbers."""
    import torch

    own = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    try:
        return _exported(module, name, input_shape, own), own
    except InputError as error:
        try:
            return _exported(module, name, input_shape, torch.int64), torch.int64
        except InputError:
            raise error from error.__cause__


def _exported(module: Any, name: str, input_shape: Sequence[int], dtype: Any) -> ExportedProgram:
    """With a batch of any size where the module allows that, else of one example."""
    import torch

    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad():
            example = torch.zeros(BATCH, *input_shape, dtype=dtype)
            return torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    except Exception:
        # Export reports what it cannot trace through dozens of classes; one example may be traced where any number
        # cannot.
        try:
            with torch.no_grad():
                return torch.export.export(module, (torch.zeros(1, *input_shape, dtype=dtype),))
        except Exception as error:
            raise InputError(f"{name} cannot be traced on inputs {tuple(input_shape)} ({reason(error)})") from error


def _last_layer(name: str, program: ExportedProgram) -> tuple[str, Any, Any, str]:
    """The call that makes the features, weights [classes, features], bias, and the layer's name."""
    from slotool.graphs.capture.torch_calls import arguments_of, call_name, label_of, parameters

    signature, constants = program.graph_signature, parameters(program)
    if len(signature.user_outputs) != 1:
        raise InputError(f"{name} gives {len(signature.user_outputs)} outputs; tables need a network of one")
    nodes = {node.name: node for node in program.graph.nodes}
    last = nodes[str(signature.user_outputs[0])]
    while call_name(last) in ENDINGS:
        last = last.all_input_nodes[0]
    arguments = arguments_of(last, constants)
    features = arguments.get("input")
    if call_name(last) != "linear" or features is None or len(features.meta["val"].shape) != 2:
        what = call_name(last)
        raise InputError(f"{name}: the last layer {label_of(last)!r} is {what}, not a linear layer on features")
    bias = arguments["bias"]
    weight = arguments["weight"].float().numpy()
    return features.name, weight, None if bias is None else bias.float().numpy(), label_of(last)


def _end_at(front: Any, features: str) -> None:
    """Let a traced module give what the call ``features`` makes, and nothing else."""
    import torch

    graph = front.graph
    output = next(node for node in graph.nodes if node.op == "output")
    made = next(node for node in graph.nodes if node.name == features)
    output.args = ((made,),)
    graph.eliminate_dead_code()
    graph._codegen = torch.fx.graph.CodeGen()
    front.delete_all_unused_submodules()
    front.recompile()
