"""Backend of operator graphs quantized to int8 in ONNX Runtime on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.profiling.backends.base import Backend
from slotool.profiling.backends.onnx_backend import PROVIDERS, OnnxBackend, disabled_optimizers
from slotool.profiling.operator_calls import OperatorCall, operator_calls

if TYPE_CHECKING:
    import onnx
    import onnxruntime

# Operators of ONNX Runtime that multiply whole numbers.
INT8_PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "MatMulInteger", "ConvInteger")
# Quantized operators: products, and operators between them that need no floating point. The quantizer would also wrap
# softmax and normalisation, which have no int8 kernel and would become slower.
QUANTISED = ["Conv", "Gemm", "MatMul", "Relu", "Clip", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat"]


class OnnxInt8Backend(OnnxBackend):
    """``OnnxBackend`` with networks quantized by ONNX Runtime's static quantizer.

    Activations are uint8, calibrated on one batch of the measured inputs; weights are int8 with a scale per output
    channel. Operators without an int8 kernel stay float32; ``facts`` has the share of FLOPs in int8.
    """

    name = "onnx-int8"
    precisions = ("int8",)
    walks_the_fastest = False
    no_device_advice = "its kernels for whole numbers are those of the CPU"

    _int8_share = 0.0

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    @classmethod
    def operator_calls(cls, graph: OperatorGraph, batch_size: int) -> list[OperatorCall | None]:
        """Return the operators of the graph: their nodes are unknown before a quantization of seconds."""
        return operator_calls(graph, batch_size)

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        return Backend.walk(self, subject, batch_size)

    def facts(self) -> dict[str, Any]:
        return {"int8_share": self._int8_share}

    def _session(
        self, graph: OperatorGraph, batch_size: int, device: str, options: onnxruntime.SessionOptions
    ) -> tuple[onnxruntime.InferenceSession, list[Any]]:
        import onnx
        import onnxruntime

        with TemporaryDirectory(prefix="slotool-int8-") as folder, _quiet():
            quantised, optimised = Path(folder) / "quantised.onnx", Path(folder) / "optimised.onnx"
            self._quantise(graph, batch_size, quantised)
            options.optimized_model_filepath = str(optimised)
            session = onnxruntime.InferenceSession(
                str(quantised), options, providers=PROVIDERS, **disabled_optimizers(graph)
            )
            self._int8_share = int8_share(graph, onnx.load(optimised))
        return session, []

    def _quantise(self, graph: OperatorGraph, batch_size: int, out: Path) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        from slotool.graphs.onnx_model import input_names

        feeds = iter([dict(zip(input_names(graph), self.feeds(graph, batch_size), strict=True))])
        reader = type("OneBatch", (CalibrationDataReader,), {"get_next": lambda _: next(feeds, None)})
        try:
            quantize_static(
                self._with_weights(graph, batch_size), out, reader(),
                quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=QUANTISED,
            )  # fmt: skip
        except Exception as error:
            # The quantizer raises many kinds of errors for unsupported networks.
            words = " ".join(str(error).split())[:200]
            raise GraphError(
                f"{graph.name or graph.id} cannot be quantised ({words}); measure it as float32"
            ) from error

    def _with_weights(self, graph: OperatorGraph, batch_size: int) -> onnx.ModelProto:
        import onnx

        from slotool.graphs.onnx_model import onnx_model

        model, weights = onnx_model(graph, batch_size)
        arrays = {weight.name: array for weight, array in zip(weights, self._filled(weights), strict=True)}
        for tensor in model.graph.initializer:
            if tensor.name in arrays:
                values = np.ascontiguousarray(arrays[tensor.name])
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        _turn_weights(model.graph, arrays)
        return model


def _turn_weights(graph: onnx.GraphProto, arrays: dict[str, np.ndarray]) -> None:
    """Apply transpositions to weights: the quantizer takes outputs of nodes for activations, which stay float32."""
    import onnx

    nodes = []
    for node in graph.node:
        if node.op_type != "Transpose" or node.input[0] not in arrays:
            nodes.append(node)
            continue
        order = next(list(entry.ints) for entry in node.attribute if entry.name == "perm")
        turned = np.ascontiguousarray(arrays[node.input[0]].transpose(order))
        graph.initializer.append(onnx.numpy_helper.from_array(turned, node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    used_tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(used_tensors)


def int8_share(graph: OperatorGraph, optimised: onnx.ModelProto) -> float:
    """Return the share of FLOPs in operators whose product is int8, by the names of nodes."""
    inside = {node.name.rpartition("/")[0] for node in optimised.graph.node if node.op_type in INT8_PRODUCTS}
    flops = sum(operator.flops for operator in graph.operators if operator.name in inside)
    return flops / graph.flops if graph.flops else 0.0


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the advice that the quantizer logs for every network."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
