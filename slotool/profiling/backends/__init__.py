"""Backends, which execute subjects: one file each, imported at first use."""

from __future__ import annotations

from importlib import import_module

from slotool.errors import InputError
from slotool.extras import missing_package
from slotool.plugins import Registry
from slotool.profiling.backends.base import Backend

__all__ = ["BACKENDS", "Backend", "backend_class"]

BACKENDS = {
    "torch": "slotool.profiling.backends.torch_backend:TorchBackend",
    "keras": "slotool.profiling.backends.keras_backend:KerasBackend",
    "elastic": "slotool.profiling.backends.elastic_backend:ElasticBackend",
    "onnx": "slotool.profiling.backends.onnx_backend:OnnxBackend",
    "onnx-int8": "slotool.profiling.backends.onnx_int8_backend:OnnxInt8Backend",
    "torch-compile": "slotool.profiling.backends.torch_backend:CompileBackend",
    "torch-cuda-graph": "slotool.profiling.backends.torch_backend:CudaGraphBackend",
}
registry: Registry[type[Backend]] = Registry("backends", BACKENDS, Backend)


def backend_class(name: str) -> type[Backend]:
    """Return the class of a backend: one of ``BACKENDS``, a plugin's, or ``package.module:Class``.

    Raises ``InputError`` for an unknown name, ``MissingPackageError`` for one whose library is not installed,
    ``PluginError`` for a plugin that cannot be loaded.
    """
    is_plugin = name not in BACKENDS and ":" not in name
    chosen = registry.load(name) if is_plugin else _resolve(BACKENDS.get(name, name))
    missing = chosen.missing()
    if missing:
        raise missing_package(missing, f"the {name} backend")
    return chosen


def _resolve(name: str) -> type[Backend]:
    module, _, attribute = name.partition(":")
    try:
        chosen = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"backend {name!r} cannot be imported ({error})") from error
    if not (isinstance(chosen, type) and issubclass(chosen, Backend)):
        raise InputError(f"backend {name!r} is no subclass of slotool.profiling.backends.Backend")
    return chosen
