"""Backend of operator graphs as Keras functional models on TensorFlow, run by a traced concrete function."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.devices import FLOAT32, TF32
from slotool.errors import GraphError, InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operators.keras_values import layer_name
from slotool.profiling.accelerator import Accelerator, NvidiaAccelerator
from slotool.profiling.backends.base import Backend
from slotool.profiling.operator_calls import with_the_rest

if TYPE_CHECKING:
    import keras


class KerasBackend(Backend):
    """Backend that traces the model once with a fixed batch, then calls the concrete function; never ``predict``.

    Images have their channels last, the only layout of TensorFlow on CPUs, so the order of values after ``Flatten``
    differs from torch; cost and shapes are the same.
    """

    name = "keras"
    needs = "tensorflow"
    # The thread that walks the graph computes as well as the intra-op threads.
    oversubscribed = True
    no_device_advice = "TensorFlow sees no other; pip install 'tensorflow[and-cuda]' brings a build that sees GPUs"
    precisions = (FLOAT32, TF32)

    def set_threads(self, threads: int) -> None:
        import keras  # noqa: F401  # imported before the first network
        import tensorflow as tf

        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        except RuntimeError as error:
            raise InputError("TensorFlow has started already; its threads can be set only before") from error

    def threads(self) -> int:
        import tensorflow as tf

        return int(tf.config.threading.get_intra_op_parallelism_threads())

    def devices(self) -> tuple[str, ...]:
        import tensorflow as tf

        return ("cpu", *(f"cuda:{number}" for number in range(len(tf.config.list_physical_devices("GPU")))))

    def open_accelerator(self) -> Accelerator:
        return TensorFlowAccelerator(self.device, self.precision)

    def open(self, request: Mapping[str, Any]) -> OperatorGraph | keras.Model:
        """Open a graph, or the member of ``keras.applications`` that ``request["application"]`` names."""
        if "application" not in request:
            return super().open(request)
        import keras

        from slotool.graphs.capture.loading import load_keras

        keras.backend.clear_session()
        return load_keras(request["application"])

    def prepare(self, subject: OperatorGraph | keras.Model, batch_size: int) -> _Call:
        import keras
        import tensorflow as tf

        from slotool.graphs.keras_model import channels_last, functional_model

        with tf.device(self._place):
            if isinstance(subject, OperatorGraph):
                keras.backend.clear_session()
                model = functional_model(subject, self._initial)
                inputs = [tf.constant(channels_last(values)) for values in self.feeds(subject, batch_size)]
            else:
                model, inputs = subject, [tf.constant(self.inputs(subject.input_shape[1:], batch_size))]
            single = len(inputs) == 1
            traced = tf.function(lambda *x: model(x[0] if single else list(x), training=False), autograph=False)
            concrete = traced.get_concrete_function(*(tf.TensorSpec(x.shape, x.dtype) for x in inputs))
        self._check_place([*inputs, *(variable.value for variable in model.weights)], subject)
        # The concrete function does not own the model's variables, so the call must keep the model.
        return _Call(model, concrete, inputs)

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        """Return durations of TensorFlow's nodes by its trace; the time beyond them is shared equally.

        Fused nodes count for the operator whose name they have.
        """
        if self.device != "cpu":
            return super().walk(subject, batch_size)
        call, calls = self.prepare(subject, batch_size), self.operator_calls(subject, batch_size)
        trace = _Trace(call)
        columns = [at for at, each in enumerate(calls) if each is not None]
        operators = {layer_name(each.name): place for place, each in enumerate(filter(None, calls))}

        def walked(count: int) -> np.ndarray:
            total_s, nodes_s = [], np.zeros((1 + count, len(columns)))
            for row in nodes_s:
                started = time.perf_counter()
                call()
                total_s.append(time.perf_counter() - started)
                for layer, node_s in trace():
                    if layer in operators:
                        row[operators[layer]] += node_s
            seconds = np.zeros((count, 1 + len(calls)))
            seconds[:, [0, *(1 + at for at in columns)]] = with_the_rest(nodes_s[1:], np.array(total_s[1:]))
            return seconds

        return walked

    @property
    def _place(self) -> str:
        """TensorFlow's name of the device: the only GPU that is visible to it, or the CPU."""
        return "/CPU:0" if self.device == "cpu" else "/GPU:0"

    def _check_place(self, tensors: Sequence[Any], subject: Any) -> None:
        """Raise ``GraphError`` for a tensor on another device, where TensorFlow would compute with it."""
        for tensor in tensors:
            if not str(tensor.device).upper().endswith(self._place[1:]):
                name = getattr(subject, "name", "") or getattr(subject, "id", "")
                raise GraphError(f"{name}: TensorFlow put a tensor on {tensor.device}, not on {self.device}")

    def array(self, output: Any) -> np.ndarray:
        values = output.numpy()
        return np.moveaxis(values, -1, 1) if values.ndim == 4 else values

    def _initial(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """Return initial weights: non-zero values, since unwritten pages would share one page of zeros."""
        import tensorflow as tf

        return tf.constant(self.weights(shape), dtype=dtype)


class TensorFlowAccelerator(NvidiaAccelerator):
    """GPU of TensorFlow. Opening it hides other GPUs, and allocates memory when needed instead of all at once.

    It forbids operators without a GPU kernel, which would run on the CPU, and TF32 unless that is the ``precision``.
    """

    def __init__(self, device: str, precision: str):
        import tensorflow as tf

        super().__init__(device)
        gpu = tf.config.list_physical_devices("GPU")[self.number]
        try:
            tf.config.set_visible_devices([gpu], "GPU")
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError as error:
            raise InputError("TensorFlow has started already; its GPU can be chosen only before") from error
        tf.config.experimental.enable_tensor_float_32_execution(precision == TF32)
        tf.config.set_soft_device_placement(False)

    def wait(self) -> None:
        import tensorflow as tf

        tf.test.experimental.sync_devices()

    def settings(self) -> dict[str, Any]:
        import tensorflow as tf

        return {
            "tensorflow": tf.__version__,
            "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
            "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "soft placement": tf.config.get_soft_device_placement(),
            "memory growth": True,
        }


class _Call:
    def __init__(self, model: keras.Model, concrete: Callable[..., Any], inputs: list[Any]):
        self.model, self.concrete, self.inputs = model, concrete, inputs

    def __call__(self) -> Any:
        return self.concrete(*self.inputs)


class _Trace:
    """Runner of the function of ``call`` in a session, which reports the time of each node."""

    def __init__(self, call: _Call):
        import tensorflow as tf
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        frozen, options = convert_variables_to_constants_v2(call.concrete), tf.compat.v1.ConfigProto()
        options.intra_op_parallelism_threads = tf.config.threading.get_intra_op_parallelism_threads()
        options.inter_op_parallelism_threads = tf.config.threading.get_inter_op_parallelism_threads()
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(frozen.graph.as_graph_def(), name="")
        self._session = tf.compat.v1.Session(graph=graph, config=options)
        self._outputs = [tensor.name for tensor in frozen.outputs]
        self._feeds = {tensor.name: x.numpy() for tensor, x in zip(frozen.inputs, call.inputs, strict=True)}

    def __call__(self) -> list[tuple[str, float]]:
        """Run one inference; return the layer and the seconds of each node."""
        import tensorflow as tf

        metadata = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
        self._session.run(self._outputs, self._feeds, options=options, run_metadata=metadata)
        nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
        return [(_layer(node.node_name), 1e-9 * (node.op_end_rel_nanos - node.op_start_rel_nanos)) for node in nodes]


def _layer(node: str) -> str:
    """Return the layer of a node such as ``model/conv__1/Conv2D``."""
    parts = node.split("/")
    return re.sub(r"(?<=_)_\d+$", "", parts[1]) if len(parts) > 1 else ""
