"""Networks of packages that people take them from, by their names: torchvision, timm and Hugging Face transformers.

They are built without weights, on torch's meta device where they can be: capture reads shapes, and the largest takes no
memory and no time to draw. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from slotool.errors import GraphError
from slotool.extras import import_failed, require
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.libraries import nn, torch

PACKAGES = ("torchvision", "timm", "transformers")
# First network of each module or type.
FAMILIES = "families"
ALL = "all"
# Tokens of a text, and samples of a second of sound.
STEPS, SAMPLES = 128, 16_000
_MAX_MEANT = 3


@dataclass(frozen=True)
class ZooNetwork:
    """A network, the shape of one example by the names of its inputs or of its only one, and their element type."""

    module: nn.Module
    input_shape: tuple[int, ...] | Mapping[str, tuple[int, ...]]
    input_dtype: str | Mapping[str, str] | None = None


def chosen_networks(package: str, names: str) -> list[str]:
    """Return ``all``, ``families`` (one of each module or type), or names with commas between, each once.

    Raises ``GraphError`` for a name that the package does not have, ``MissingPackageError`` where it is not installed.
    """
    with _imported(package) as module:
        families = _names(module, package)
    if names == ALL:
        return list(families)
    if names == FAMILIES:
        first: dict[str, str] = {}
        for name, family in families.items():
            first.setdefault(family, name)
        return list(first.values())
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        if name not in families:
            begins = [each for each in families if each.startswith(name)][:_MAX_MEANT]
            similar = begins or get_close_matches(name, families, _MAX_MEANT)
            hint = (
                f"did you mean {' or '.join(similar)}?"
                if similar
                else f"it has {len(families)}, such as {next(iter(families))}"
            )
            raise GraphError(f"{package} has no network {name!r}; {hint}")
    return chosen


def capture_network(package: str, name: str) -> OperatorGraph:
    """Return the graph of one network; its code is run. Raises ``GraphError`` where it cannot be built or captured."""
    from slotool.graphs.capture.torch.capture import capture_torch, quiet

    build = _BUILDERS[package]
    reasons: list[Exception] = []
    with _imported(package) as module:
        for device in ("meta", "cpu"):
            try:
                with quiet(), torch.device(device):
                    network = build(module, name)
                graph = capture_torch(network.module, network.input_shape, network.input_dtype)
                return replace(graph, name=name)
            except Exception as error:
                # Networks that read numbers while built or run need them; the package's code may raise anything.
                reasons.append(error)
    reason = " ".join(str(reasons[-1]).split())[:200]
    raise GraphError(reason or type(reasons[-1]).__name__) from reasons[-1]


@contextmanager
def _imported(package: str) -> Iterator[Any]:
    """Import the package, for as long as its networks are built."""
    needed_by = f"a network of {package}"
    require(package, needed_by=needed_by)
    with _without_broken_torchvision() if package == "transformers" else nullcontext():
        try:
            module = import_module(package)
        except (ImportError, RuntimeError) as error:
            # A torchvision that was built for another torch raises RuntimeError.
            missing = error if isinstance(error, ImportError) else ImportError(str(error))
            raise import_failed(missing, package, needed_by) from error
        yield module


@contextmanager
def _without_broken_torchvision() -> Iterator[None]:
    """Hide a torchvision that cannot be imported, such as one built for another torch, from transformers.

    Otherwise none of transformers' networks, not even of text, can be imported. Types that need it then report that.
    Afterwards Python searches it again, and importers get its own error.
    """
    if find_spec("torchvision") is None or _can_be_imported("torchvision"):
        yield
        return
    # Python finds no specification of a module that is None.
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torchvision"]


def _can_be_imported(package: str) -> bool:
    try:
        import_module(package)
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def _names(library: Any, package: str) -> dict[str, str]:
    """Return every network of a package, and the family that it is of."""
    if package == "timm":
        return {
            name: module for module in sorted(library.list_modules()) for name in library.list_models(module=module)
        }
    if package == "torchvision":
        names = library.models.list_models(module=library.models)
        return {name: str(library.models.get_model_builder(name).__module__) for name in names}
    mapped = import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
    return {str(name): str(name) for name in sorted(mapped)}


def _of_torchvision(module: Any, name: str) -> ZooNetwork:
    extra = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    size = 299 if name == "inception_v3" else 224
    return ZooNetwork(module.models.get_model(name, weights=None, **extra), (3, size, size))


def _of_timm(module: Any, name: str) -> ZooNetwork:
    network = module.create_model(name, pretrained=False)
    return ZooNetwork(network, tuple(network.pretrained_cfg["input_size"]))


def _of_transformers(module: Any, name: str) -> ZooNetwork:
    config = module.AutoConfig.for_model(name)
    network = module.AutoModel.from_config(config)
    shapes = {network.main_input_name: _shape_of(network.main_input_name, config)}
    if config.is_encoder_decoder:
        shapes["decoder_input_ids"] = (STEPS,)
    whole = {key: "int64" if key.endswith("_ids") else "float32" for key in shapes}
    return ZooNetwork(network, shapes, whole)


def _shape_of(name: str, config: Any) -> tuple[int, ...]:
    """Return an input's shape by its name in transformers. Raises ``GraphError`` if the configuration lacks a size."""
    if name == "input_ids":
        return (STEPS,)
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return (getattr(config, "num_channels", 3), height, width)
    if name == "input_values":
        bins, frames = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
        return (frames, bins) if isinstance(bins, int) and isinstance(frames, int) else (SAMPLES,)
    if name == "input_features" and hasattr(config, "max_source_positions"):
        return (config.num_mel_bins, 2 * config.max_source_positions)
    raise GraphError(f"it takes {name}, of which no shape is known here; capture it by --torch module:factory")


_BUILDERS: Mapping[str, Callable[[Any, str], ZooNetwork]] = {
    "torchvision": _of_torchvision,
    "timm": _of_timm,
    "transformers": _of_transformers,
}
