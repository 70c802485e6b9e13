"""Choice of the adapter for a model's location."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slotool import factories
from slotool.errors import InputError, SlotoolError
from slotool.models.model import Model
from slotool.names_on_demand import modules_on_demand
from slotool.plugins import Registry
from slotool.printable import reason
from slotool.regular_files import open_regular

if TYPE_CHECKING:
    from slotool.models.adapters import boosting, keras, onnx, remote, sklearn, torch_program
else:
    boosting, keras, onnx, remote, sklearn, torch_program = modules_on_demand(
        *(
            f"slotool.models.adapters.{name}"
            for name in ("boosting", "keras", "onnx", "remote", "sklearn", "torch_program")
        )
    )


def load(location: str | Path, *, threads: int | None = None) -> Model:
    """Return the model at ``location``: a file, or the URL of a model behind another server.

    ``.onnx`` · ``.pt2`` (torch.export) · ``.keras`` · ``.skops`` (scikit-learn) · ``.ubj`` or ``.json`` (XGBoost) ·
    ``.txt`` (LightGBM) · ``http://host:8000/v2/models/NAME`` · ``grpc://host:8001/NAME`` · ``.KIND`` or ``KIND://`` of
    an adapter called ``KIND`` that an installed package adds, or code that makes the model, ``module:factory`` (see
    ``load_factory``). ``threads``: of a library that takes a number of threads
    for one model. Raises ``InputError`` when no adapter reads it, and what the adapter raises; a package that is
    missing is named with the command that installs it.
    """
    text = str(location)
    if is_code(text):
        from slotool.models.adapters.factory import load_factory

        return load_factory(text)
    kind = urlsplit(text).scheme if "://" in text else Path(text).suffix.lower()
    adapter = (_BY_SCHEME | _BY_SUFFIX).get(kind)
    if adapter is None:
        adapter = _of_plugin(text, kind.removeprefix("."))
    return adapter(text, threads)


def is_code(text: str) -> bool:
    """True if ``text`` names code that makes a model, ``module:factory``."""
    return Path(text).suffix.lower() not in _BY_SUFFIX and factories.is_factory(text)


def is_location(text: str) -> bool:
    """True if the name has an adapter's suffix, or is code that makes a model."""
    suffix = Path(text).suffix.lower()
    return suffix in _BY_SUFFIX or suffix[1:] in registry.plugins or is_code(text)


def is_model_file(path: Path) -> bool:
    """True if an adapter reads the file; of ``.json`` and ``.txt``, which hold other things too, by how it begins."""
    begins = _BEGINNINGS.get(path.suffix.lower())
    if begins is None:
        return is_location(path.name)
    try:
        with open_regular(path) as file:
            return begins in file.read(64)
    except OSError:
        return False


def _of_plugin(text: str, kind: str) -> _Adapter:
    if kind in registry.plugins:
        return partial(_by_plugin, registry.load(kind))
    kinds = [*_BY_SUFFIX, *(f"{scheme}://" for scheme in _BY_SCHEME), *(f".{name}" for name in registry.plugins)]
    raise InputError(f"{text}: no adapter reads it; there are adapters for {', '.join(kinds)}, and module:factory")


def _by_plugin(adapter: _Adapter, text: str, threads: int | None) -> Model:
    """Return the model from the adapter of an installed package. Raises ``InputError`` if it fails."""
    try:
        model: object = adapter(text, threads)
    except SlotoolError:
        raise
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {reason(error)}"
        raise InputError(f"{text}: its adapter, of a plugin, failed: {why}") from error
    if not isinstance(model, Model):
        raise InputError(f"{text}: its adapter, of a plugin, returned a {type(model).__name__}, not a Model")
    return model


_Adapter = Callable[[str, int | None], Model]
_BY_SUFFIX: dict[str, _Adapter] = {
    ".onnx": lambda path, threads: onnx.OnnxModel(path, threads=threads),
    ".pt2": lambda path, _: torch_program.TorchProgramModel(path),
    ".keras": lambda path, _: keras.KerasModel.load(path),
    ".skops": lambda path, _: sklearn.SklearnModel.load(path),
    ".ubj": lambda path, threads: boosting.XGBoostModel(path, threads=threads),
    ".json": lambda path, threads: boosting.XGBoostModel(path, threads=threads),
    ".txt": lambda path, threads: boosting.LightGBMModel(path, threads=threads),
}
_BEGINNINGS = {".json": b'"learner"', ".txt": b"tree"}
_BY_SCHEME: dict[str, _Adapter] = {
    **dict.fromkeys(("http", "https"), lambda url, _: remote.HttpModel(url)),
    "grpc": lambda url, _: remote.GrpcModel(url),
}
# A plugin's adapter is called as those here are: with the location and the number of threads, or None.
registry: Registry[_Adapter] = Registry("models", [*_BY_SCHEME, *(suffix[1:] for suffix in _BY_SUFFIX)])
