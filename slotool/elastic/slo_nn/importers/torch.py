"""PyTorch networks as chains of layers with ReLU: any module that torch.export can trace, or what it made."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.elastic.slo_nn.importers.chain import Chain
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import GraphError, InputError
from slotool.graphs.capture.torch.capture import BATCH, WANTS_WHOLE_NUMBERS, inference, quiet, without_cache
from slotool.graphs.capture.torch.program import export

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

PASSED_ON = ("dropout", "alpha_dropout", "feature_dropout", "detach", "detach_", "alias", "clone", "contiguous", "to")
RESHAPING = ("flatten", "view", "reshape", "_unsafe_view")
NORMALISING = ("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "native_batch_norm")


def from_torch(module: nn.Module, input_shape: Sequence[int]) -> MLP:
    """Return the network of a PyTorch module in inference mode; the module itself does not change.

    ``input_shape``: shape of one example, without the batch. Raises ``InputError`` naming the call that breaks the
    chain, or when torch.export cannot trace the module.
    """
    import torch

    example, name = torch.zeros(BATCH, *input_shape), type(module).__name__
    with inference(module), without_cache(module), quiet():
        try:
            program = export(module, [example])
        except Exception as error:
            # Export reports what it cannot trace through dozens of classes.
            refused = _refusal(module, example.long())
            if refused is None:
                raise InputError(f"{name} takes whole numbers, such as token ids, and a chain takes others") from error
            # A network of tokens says of other numbers only that they are none.
            said = refused if WANTS_WHOLE_NUMBERS in str(error) else error
            text = " ".join(str(said).split())[:160]
            raise GraphError(f"{name} cannot be traced on inputs {tuple(input_shape)} ({text})") from said
    return mlp_of_program(program)


def _refusal(module: nn.Module, example: Any) -> Exception | None:
    """Why torch.export does not trace it on ``example``; None where it does."""
    try:
        export(module, [example])
    except Exception as error:
        return error
    return None


def mlp_of_program(program: ExportedProgram) -> MLP:
    """The network of an exported program of one input. Raises ``InputError`` naming the call that breaks the chain."""
    signature = program.graph_signature
    constants = _constants(program)
    inputs = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in signature.user_inputs]
    if len(inputs) != 1:
        raise InputError(f"the network takes {len(inputs)} inputs, not one")
    chain = Chain(tuple(int(size) for size in inputs[0].meta["val"].shape[1:]))
    current = inputs[0]
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        data = [value for value in node.all_input_nodes if value not in constants]
        if not data:
            _fold(node, constants)
            continue
        if data != [current]:
            raise chain.refuse(node.name, "where the network branches")
        _add(chain, node, constants)
        current = node
    if signature.user_outputs != (current.name,):
        raise InputError(
            f"the network gives {len(signature.user_outputs)} outputs; it must have one, that of its last layer"
        )
    return chain.mlp()


def _constants(program: ExportedProgram) -> dict[Any, Any]:
    """Parameters and buffers by the node that stands for them."""
    signature, state = program.graph_signature, {**program.constants, **program.state_dict}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names.update(getattr(signature, "inputs_to_lifted_tensor_constants", {}))
    return {n: state[names[n.name]].detach() for n in program.graph.nodes if n.op == "placeholder" and n.name in names}


def _fold(node: Any, constants: dict[Any, Any]) -> None:
    """Compute what hangs on weights alone, such as their transpose."""
    import torch

    with torch.no_grad():
        args = torch.fx.node.map_arg(node.args, lambda n: constants[n])
        constants[node] = node.target(*args, **torch.fx.node.map_arg(node.kwargs, lambda n: constants[n]))


def _add(chain: Chain, node: Any, constants: dict[Any, Any]) -> None:
    """One call on the network's data. Constants among its arguments come as arrays."""
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    args = [_array(constants[a]) if a in constants else a for a in map(_hashable, node.args)]
    if name == "linear":
        chain.dense(_label(node), args[1], args[2] if len(args) > 2 else None)
    elif name == "addmm" and isinstance(args[2], np.ndarray):
        chain.dense(_label(node), args[2].T, args[0])
    elif name in ("mm", "matmul") and isinstance(args[1], np.ndarray):
        chain.dense(_label(node), args[1].T, None)
    elif name in ("relu", "relu_"):
        chain.relu(node.name)
    elif name in NORMALISING:
        chain.scale(node.name, *_normalisation(node, constants))
    elif name in ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_") and not node.kwargs:
        chain.scale(node.name, *_arithmetic(chain, node, name.rstrip("_"), args))
    elif name in ("softmax", "_softmax", "log_softmax", "_log_softmax"):
        chain.softmax(node.name)
    elif name in RESHAPING and len(node.meta["val"].shape) == 2 and node.meta["val"].shape[0] == BATCH:
        chain.flatten(node.name)
    elif not (name in PASSED_ON or node.target is operator.getitem):
        raise chain.refuse(node.name, name)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().double().numpy())


def _label(node: Any) -> str:
    """The module's own name where the trace knows it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return path.removeprefix("L['self'].").strip(".") or node.name


def _normalisation(node: Any, constants: dict[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset of a batch normalisation in inference mode."""
    schema = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(schema, node.args, strict=False)), **node.kwargs}
    values = {key: _array(constants[value]) for key, value in given.items() if value in constants}
    mean, variance = values["running_mean"], values["running_var"]
    factor = values.get("weight", np.ones_like(mean)) / np.sqrt(variance + float(given["eps"]))
    return factor, values.get("bias", np.zeros_like(mean)) - mean * factor


def _arithmetic(chain: Chain, node: Any, name: str, args: list[Any]) -> tuple[Any, Any]:
    """Factor and offset of data ± · ÷ a constant, or a constant + · data."""
    first, second = args[:2]
    other = second if not isinstance(second, type(node)) else first
    if not isinstance(other, int | float | np.ndarray) or (other is first and name in ("sub", "div")):
        raise chain.refuse(node.name, name)
    values, shape = np.asarray(other, dtype=np.float64), tuple(node.meta["val"].shape[1:])
    each = values.shape[-len(shape) :] == (shape[0], *[1] * (len(shape) - 1)) or values.ndim == len(shape) == 1
    if not each and values.size not in (1, np.prod(shape)):
        raise chain.refuse(node.name, f"{name} along some axes")
    return {"add": (1.0, values), "sub": (1.0, -values), "mul": (values, 0.0), "div": (1.0 / values, 0.0)}[name]
