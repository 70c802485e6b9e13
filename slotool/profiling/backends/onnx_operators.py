"""Nodes that ONNX Runtime runs for a graph after its optimisations, and their times."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool import strict_json
from slotool.graphs import OperatorGraph
from slotool.profiling.operator_calls import OperatorCall, heat, touched_bytes

if TYPE_CHECKING:
    import onnx
    import onnxruntime

# Larger constants are weights, whose values do not change the time.
MAX_VALUES = 64
BYTES_PER_VALUE = 4
# Size of constants, in bytes, from which they are written to another file, which is not read.
EXTERNAL = 1024
WEIGHTS_FILE = "weights.bin"
# End of the name of a node's time event; name of the event of a run.
KERNEL_TIME, RUN = "_kernel_time", "model_run"


def node_seconds(profile: Path) -> list[dict[str, float]]:
    """Return seconds of each node by name, a mapping for each run, from a profile of ONNX Runtime.

    Raises ``InputError`` for another file.
    """
    events = strict_json.convert(strict_json.read(profile), list[dict[str, Any]])
    runs: list[dict[str, float]] = []
    nodes: dict[str, float] = {}
    for event in sorted(events, key=lambda event: float(event["ts"]) + float(event["dur"])):
        name = str(event["name"])
        if name.endswith(KERNEL_TIME):
            nodes[name.removesuffix(KERNEL_TIME)] = 1e-6 * float(event["dur"])
        elif name == RUN:
            runs.append(nodes)
            nodes = {}
    return runs


def profiled_names(calls: Sequence[OperatorCall], nodes: Sequence[str]) -> list[str]:
    """Return the names of ``calls`` in a profile with ``nodes``, in the order of execution; empty for absent ones.

    A node without a name, as some fused ones are, is there by its type and a number.
    """
    named = {call.name for call in calls}
    unnamed = [node for node in nodes if node not in named]
    names = []
    for call in calls:
        name = call.name or next((node for node in unnamed if node.startswith(f"{call.op}_")), "")
        if not call.name and name:
            unnamed.remove(name)
        names.append(name)
    return names


def optimised_calls(graph: OperatorGraph, batch_size: int, disabled: Mapping[str, Any]) -> Iterator[OperatorCall]:
    """Yield the nodes that ONNX Runtime runs for ``graph``; ``disabled``: session arguments of disabled optimisers."""
    import onnx

    with TemporaryDirectory() as folder:
        model = _optimised(graph, batch_size, disabled, Path(folder))
        shapes = _shapes(model, Path(folder))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
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
        outputs = [shapes[name][1] for name in node.output if name in shapes]
        yield _call(node, inputs, fed, outputs, touched_bytes(graph, batch_size))


def _call(
    node: onnx.NodeProto,
    inputs: Sequence[onnx.TensorProto],
    fed: Sequence[bool],
    outputs: Sequence[Sequence[int]],
    network_bytes: int,
) -> OperatorCall:
    import onnx

    unnamed = onnx.NodeProto()
    unnamed.CopyFrom(node)
    for name in ("name", "input", "output", "doc_string"):
        unnamed.ClearField(name)
    content = unnamed.SerializeToString(deterministic=True)
    tensors = tuple(tensor.SerializeToString(deterministic=True) for tensor in inputs)
    sizes = [math.prod(tensor.dims) for tensor in inputs]
    weights = sum(size for size, is_value in zip(sizes, fed, strict=True) if not is_value)
    output_values = sum(math.prod(dims) for dims in outputs)
    texts = [base64.b64encode(part).decode() for part in (content, *tensors)]
    return OperatorCall(
        key=f"{node.op_type} {' '.join(texts)} {''.join('01'[is_value] for is_value in fed)}"
        + heat(BYTES_PER_VALUE * weights, network_bytes),
        op=node.op_type,
        flops=_flops(node.op_type, inputs, output_values),
        bytes=BYTES_PER_VALUE * (sum(sizes) + output_values),
        name=node.name,
    )


def _flops(op: str, inputs: Sequence[onnx.TensorProto], outputs: int) -> int:
    """Return the FLOPs of a product or convolution with ``outputs`` values; 0 for other operators."""
    if op in ("Conv", "FusedConv"):
        return 2 * outputs * int(math.prod(inputs[1].dims[1:]))
    if op in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm"):
        return 2 * outputs * int(inputs[0].dims[-1] if inputs[0].dims else 1)
    return 0


def _optimised(graph: OperatorGraph, batch_size: int, disabled: Mapping[str, Any], folder: Path) -> onnx.ModelProto:
    """Return the model after a session's optimisations, without the values of large constants."""
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
    by_name = {
        value.name: (_kind(value.type), list(value.shape)) for value in (*session.get_inputs(), *session.get_outputs())
    }
    return by_name


def _kind(text: str) -> int:
    import onnx

    name = text.removeprefix("tensor(").removesuffix(")")
    names = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16"}
    return int(onnx.TensorProto.DataType.Value(names.get(name, name.upper())))


def _plain() -> onnxruntime.SessionOptions:
    """Return session options without optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options
