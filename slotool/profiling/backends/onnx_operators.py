"""Nodes that ONNX Runtime runs for a graph once it has fused and laid out its operators, each as a model of its own."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.profiling.operator_calls import OperatorCall

if TYPE_CHECKING:
    import onnx
    import onnxruntime

# Larger constants are weights, whose values count for nothing.
MAX_VALUES = 64
BYTES_PER_VALUE = 4
# Bytes of constants that are written apart, and not read back.
EXTERNAL = 1024
WEIGHTS_FILE = "weights.bin"


@dataclass(frozen=True)
class OptimisedNode(OperatorCall):
    """One node. ``node``: as a serialised NodeProto without names; ``inputs``: each a serialised TensorProto, that of a
    weight or of a value without data, or empty for one that is left out; ``fed``: which of them are values."""

    node: bytes
    inputs: tuple[bytes, ...]
    fed: tuple[bool, ...]
    outputs: int

    def request(self) -> dict[str, Any]:
        return {
            "node": base64.b64encode(self.node).decode(),
            "inputs": [base64.b64encode(each).decode() for each in self.inputs],
            "fed": list(self.fed),
            "outputs": self.outputs,
            "copies": self.copies,
        }


def optimised_calls(graph: OperatorGraph, batch_size: int, disabled: Mapping[str, Any]) -> Iterator[OptimisedNode]:
    """Yield the nodes that ONNX Runtime runs for ``graph``, in order; ``disabled``: optimisers to leave out, as
    arguments of a session."""
    import onnx

    with TemporaryDirectory() as folder:
        model = _optimised(graph, batch_size, disabled, Path(folder))
        shapes = _shapes(model, Path(folder))
    constants = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        inputs, fed = [], []
        for name in node.input:
            tensor = onnx.TensorProto()
            if name in constants:
                tensor.CopyFrom(constants[name])
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                if math.prod(tensor.dims) > MAX_VALUES:
                    for data in ("raw_data", "float_data", "int64_data", "int32_data"):
                        tensor.ClearField(data)
            elif name:
                kind, dims = shapes[name]
                tensor.data_type = kind
                tensor.dims.extend(dims)
            tensor.ClearField("name")
            inputs.append(tensor)
            fed.append(bool(name) and name not in constants)
        yield _call(node, inputs, fed, [shapes[name][1] for name in node.output if name in shapes], batch_size)


def _call(
    node: onnx.NodeProto,
    inputs: Sequence[onnx.TensorProto],
    fed: Sequence[bool],
    outputs: Sequence[Sequence[int]],
    batch_size: int,
) -> OptimisedNode:
    import onnx

    unnamed = onnx.NodeProto()
    unnamed.CopyFrom(node)
    for name in ("name", "input", "output", "doc_string"):
        unnamed.ClearField(name)
    content = unnamed.SerializeToString(deterministic=True)
    tensors = tuple(tensor.SerializeToString(deterministic=True) for tensor in inputs)
    sizes = [math.prod(tensor.dims) for tensor in inputs]
    weights = sum(size for size, is_value in zip(sizes, fed, strict=True) if not is_value)
    made = sum(math.prod(dims) for dims in outputs)
    texts = [base64.b64encode(part).decode() for part in (content, *tensors)]
    return OptimisedNode(
        key=f"{node.op_type} {' '.join(texts)} {''.join('01'[is_value] for is_value in fed)}",
        op=node.op_type,
        flops=_flops(node.op_type, inputs, made),
        bytes=BYTES_PER_VALUE * (sum(sizes) + made),
        weight_bytes=BYTES_PER_VALUE * weights,
        batch_size=batch_size,
        node=content,
        inputs=tensors,
        fed=tuple(fed),
        outputs=len(node.output),
    )


def _flops(op: str, inputs: Sequence[onnx.TensorProto], made: int) -> int:
    """Return FLOPs of a product or convolution with so many output values; 0 of all else."""
    if op in ("Conv", "FusedConv"):
        return 2 * made * int(math.prod(inputs[1].dims[1:]))
    if op in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm"):
        return 2 * made * int(inputs[0].dims[-1] if inputs[0].dims else 1)
    return 0


def _optimised(graph: OperatorGraph, batch_size: int, disabled: Mapping[str, Any], folder: Path) -> onnx.ModelProto:
    """Return the model as a session has it after its optimisations, large constants without their values."""
    import onnx
    import onnxruntime

    from slotool.graphs.onnx_model import onnx_model

    model, weights = onnx_model(graph, batch_size)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(folder / "model.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(EXTERNAL))
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(weight.shape, np.float32)) for weight in weights]
    if values:
        options.add_external_initializers([weight.name for weight in weights], values)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"], **disabled)
    return onnx.load(str(folder / "model.onnx"), load_external_data=False)


def _shapes(model: onnx.ModelProto, folder: Path) -> dict[str, tuple[int, list[int]]]:
    """Return element type and shape of each value, by name, as ONNX Runtime infers them."""
    import onnx
    import onnxruntime

    every = onnx.ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    every.graph.output.extend(
        onnx.ValueInfoProto(name=name) for node in model.graph.node for name in node.output if name
    )
    onnx.save(every, str(folder / "every.onnx"))
    session = onnxruntime.InferenceSession(str(folder / "every.onnx"), _plain(), providers=["CPUExecutionProvider"])
    known = {
        each.name: (_kind(each.type), list(each.shape)) for each in (*session.get_inputs(), *session.get_outputs())
    }
    return known


def _kind(text: str) -> int:
    import onnx

    name = text.removeprefix("tensor(").removesuffix(")")
    names = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16"}
    return int(onnx.TensorProto.DataType.Value(names.get(name, name.upper())))


def _plain() -> onnxruntime.SessionOptions:
    """Return options that run a model as it is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def repeated(request: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a model of ``copies`` of a node, of the same values, each with constants of its own."""
    import onnx

    node = onnx.NodeProto.FromString(base64.b64decode(request["node"]))
    inputs = [onnx.TensorProto.FromString(base64.b64decode(each)) for each in request["inputs"]]
    rng = np.random.default_rng(0)
    nodes, starts, constants, names = [], [], list[onnx.TensorProto](), [f"x{at}" for at in range(len(inputs))]
    for name, tensor, fed in zip(names, inputs, request["fed"], strict=True):
        if fed:
            starts.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    for copy in range(request["copies"]):
        own = onnx.NodeProto()
        own.CopyFrom(node)
        for name, tensor, fed in zip(names, inputs, request["fed"], strict=True):
            if fed or not tensor.data_type:
                own.input.append(name if fed else "")
                continue
            own.input.append(f"{name}_{copy}")
            constants.append(_filled(tensor, rng, f"{name}_{copy}"))
        own.output.extend(f"y{at}_{copy}" for at in range(request["outputs"]))
        nodes.append(own)
    ends = [onnx.ValueInfoProto(name=name) for own in nodes for name in own.output]
    body = onnx.helper.make_graph(nodes, "operator", starts, ends, constants)
    opsets = [onnx.helper.make_opsetid("", 20)] + [
        onnx.helper.make_opsetid(domain, 1) for domain in ("com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml")
    ]
    return onnx.helper.make_model(body, opset_imports=opsets, ir_version=9)


def _filled(tensor: onnx.TensorProto, rng: np.random.Generator, name: str) -> onnx.TensorProto:
    import onnx

    if math.prod(tensor.dims) <= MAX_VALUES:
        own = onnx.TensorProto()
        own.CopyFrom(tensor)
        own.name = name
        return own
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return onnx.numpy_helper.from_array(_values(tuple(tensor.dims), dtype, rng), name)


def _values(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """Return values without denormals; whole numbers are ones, which are places of any lookup."""
    if np.issubdtype(dtype, np.floating):
        return (0.02 * rng.standard_normal(shape, dtype=np.float32) + 0.01).astype(dtype)
    return np.ones(shape, dtype)


def bound(model: onnx.ModelProto, options: onnxruntime.SessionOptions) -> Callable[[], None]:
    """Return a call that runs ``model`` as it is, inputs and outputs bound to memory once."""
    import onnx
    import onnxruntime

    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, rng = session.io_binding(), np.random.default_rng(0)
    for each in model.graph.input:
        kind = each.type.tensor_type
        shape = tuple(axis.dim_value for axis in kind.shape.dim)
        values = _values(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), rng)
        binding.bind_ortvalue_input(each.name, onnxruntime.OrtValue.ortvalue_from_numpy(values))
    for each in session.get_outputs():
        binding.bind_output(each.name, "cpu")
    return lambda: session.run_with_iobinding(binding)
