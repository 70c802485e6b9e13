"""Sources of networks to capture, as a user names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from slotool.factories import is_factory
from slotool.graphs.capture.zoo import PACKAGES, capture_network
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.libraries import nn

# Name of one of several networks, and a function that captures it.
Candidate = tuple[str, Callable[[], OperatorGraph]]


@dataclass(frozen=True)
class Source:
    """Model and its loader.

    ``framework`` is torch, keras or onnx, or a package of ``zoo.PACKAGES``; ``name`` is for ``load_torch`` or
    ``load_keras``, an .onnx file, or a network of the package. ``input_shape`` (without the batch) and ``input_dtype``
    (None: detected) are for torch and Keras models that are not built, the first also for free axes of ONNX and Keras;
    for several inputs by name. ``arguments`` are for the factory.
    """

    framework: str
    name: str
    input_shape: tuple[int, ...] | Mapping[str, tuple[int, ...]] = ()
    input_dtype: str | Mapping[str, str] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """Name, with the arguments of the factory."""
        arguments = ",".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Source:
        shape = document["input_shape"]
        by_name = isinstance(shape, Mapping)
        read = {name: tuple(sizes) for name, sizes in shape.items()} if by_name else tuple(shape)
        return cls(**{**document, "input_shape": read})


def options_of(text: str) -> str:
    """Return the command-line options for a network's file or factory; empty if ``text`` is neither."""
    by_suffix = {".onnx": "--onnx", ".keras": "--keras", ".h5": "--keras", ".jsonl": "--graph", ".py": "--torch"}
    option = "--torch" if is_factory(text) else by_suffix.get(Path(text).suffix)
    factory = "" if is_factory(text) else ":FACTORY"
    shape = f"{factory} --input-shape 3,32,32" if option == "--torch" else ""
    return f"{option} {quote(text)}{shape}" if option else ""


def captured(source: Source) -> OperatorGraph | Iterator[Candidate]:
    """Return the source's graph, named after it, or candidates where a torch factory makes several modules.

    Factories are run. Raises errors of loading and capturing.
    """
    if source.framework != "torch":
        return capture_source(source)
    from slotool.graphs.capture.loading import load_torch_modules

    loaded = load_torch_modules(source.name, source.arguments)
    if isinstance(loaded, Iterator):
        return ((name, partial(_captured_module, source, name, module)) for name, module in loaded)
    return _captured_module(source, source.called, loaded)


def _captured_module(source: Source, name: str, module: nn.Module) -> OperatorGraph:
    from slotool.graphs.capture.torch.capture import capture_torch

    return replace(capture_torch(module, source.input_shape, source.input_dtype), name=name)


def capture_source(source: Source) -> OperatorGraph:
    """Return the graph of a source of one network that is no torch module; see ``captured``."""
    if source.framework in PACKAGES:
        return capture_network(source.framework, source.name)
    if source.framework == "onnx":
        from slotool.graphs.capture.onnx.capture import capture_onnx

        graph = capture_onnx(source.name, source.input_shape)
    else:
        from slotool.graphs.capture.keras.capture import capture_keras
        from slotool.graphs.capture.loading import forget_models, load_keras

        forget_models()
        graph = capture_keras(load_keras(source.name, source.arguments), source.input_shape, source.input_dtype)
        if is_factory(source.name):
            return replace(graph, name=source.called)
    return replace(graph, name=Path(source.name).stem)
