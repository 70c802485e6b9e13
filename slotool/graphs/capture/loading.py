"""Find the model that a person names: ``module:factory``, or for Keras an application's name or a file."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from slotool import factories
from slotool.errors import GraphError
from slotool.extras import import_failed
from slotool.graphs.libraries import nn
from slotool.printable import nearest, reason
from slotool.process import standard_error_closed
from slotool.regular_files import require_regular

if TYPE_CHECKING:
    import keras
# Size for applications that accept any: that of most others.
APPLICATION_INPUT = (224, 224, 3)


def load_torch(name: str, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """Load ``module:factory``, from the current directory, installed, or by path, such as ``../nets.py``; code is run.

    The factory is an ``nn.Module``, or makes one when called with these ``arguments``. Raises ``GraphError`` if module
    or factory are missing, fail, or return no ``nn.Module``.
    """
    module = load_torch_modules(name, arguments)
    if not isinstance(module, nn.Module):
        raise GraphError(f"{name} makes several modules, and one is needed")
    return module


def load_torch_modules(
    name: str, arguments: Mapping[str, Any] | None = None
) -> nn.Module | Iterator[tuple[str, nn.Module]]:
    """Load as ``load_torch`` a module, or several by name that the factory holds or makes one after another.

    Several are a mapping by name, or a list or iterator of modules or of pairs of name and module; modules without a
    name are called by their number, such as ``nets:make[3]``.
    """
    is_made = partial(_is_one_or_several, nn.Module)
    product = factories.make(name, is_made=is_made, what="a torch.nn.Module", error=GraphError, arguments=arguments)
    several = isinstance(product, Iterable) and not isinstance(product, str | bytes) and not _is_keras_model(product)
    if not isinstance(product, nn.Module) and not several:
        hint = f": a Keras model is captured by --keras {quote(name)}" if _is_keras_model(product) else ""
        raise GraphError(f"{name} makes no torch.nn.Module, but something of type {type(product).__name__}{hint}")
    return product if isinstance(product, nn.Module) else _named(name, product)


def _is_one_or_several(kind: type, value: Any) -> bool:
    return isinstance(value, kind | Mapping | list | tuple)


def _named(name: str, product: Iterable[Any]) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules by name. Raises ``GraphError`` for anything else, and where the code that makes them fails."""
    entries = iter(product.items() if isinstance(product, Mapping) else product)
    at = 0
    while (entry := factories.guarded(lambda: next(entries, None), f"making {name}[{at}]", GraphError)) is not None:
        called, module = entry if isinstance(entry, tuple) and len(entry) == 2 else (f"{name}[{at}]", entry)
        if not isinstance(module, nn.Module):
            named = called if entry is module else f"{called} of {name}"
            raise GraphError(f"{named} is no torch.nn.Module, but of type {type(module).__name__}")
        yield str(called), module
        at += 1


def _is_keras_model(value: Any) -> bool:
    """Without importing Keras, which a value of it has done."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def forget_models() -> None:
    """Release models that Keras built before, and restart its numbering of layers."""
    _keras().utils.clear_session()


def load_keras(name: str, arguments: Mapping[str, Any] | None = None) -> keras.Model:
    """Load a model of ``keras.applications``, a ``.keras`` file, or ``module:factory`` called with ``arguments``.

    An application has random weights (nothing is downloaded) and its usual input. Files are read in Keras' safe mode,
    which runs no code of theirs; that of a factory is run. Raises ``GraphError`` for an unknown name, an unreadable
    file and a factory that fails, ``MissingPackageError`` without Keras or TensorFlow.
    """
    if factories.is_factory(name):
        return _by_factory(name, arguments)
    path = Path(name)
    is_file = path.suffix in (".keras", ".h5", ".hdf5") or os.path.lexists(path) or os.sep in name
    if is_file:
        require_regular(path, GraphError)
    if is_file and path.suffix != ".keras":
        raise GraphError(
            f"{path}: only .keras files are read; save the model again with model.save('name.keras'), or give a "
            "function that loads it, as --keras nets:load"
        )
    if is_file and not zipfile.is_zipfile(path):
        raise GraphError(f"{path}: not a model saved by Keras, or a torn one")
    with standard_error_closed():
        keras = _keras()
        return _saved(keras, path) if is_file else _application(keras, name)


def _by_factory(name: str, arguments: Mapping[str, Any] | None) -> keras.Model:
    with standard_error_closed():
        keras = _keras()
        if keras.backend.backend() == "tensorflow":
            import tensorflow

            # The first look for devices is remarked on; the model's own words are to be heard.
            tensorflow.config.list_physical_devices()
    module = factories.make(name, is_made=_is_keras_model, what="a keras.Model", error=GraphError, arguments=arguments)
    if not isinstance(module, keras.Model):
        torch = sys.modules.get("torch")
        hint = (
            f": give it by --torch {quote(name)}" if torch is not None and isinstance(module, torch.nn.Module) else ""
        )
        raise GraphError(f"{name} makes no keras.Model, but something of type {type(module).__name__}{hint}")
    return module


def application_names() -> list[str]:
    """Return the members of ``keras.applications``, sorted. Raises ``MissingPackageError`` without Keras."""
    with standard_error_closed():
        return sorted(name for name in vars(_keras().applications) if name[0].isupper())


def chosen_applications(names: str) -> list[str]:
    """Return ``all``, or comma-separated names, each once. Raises ``GraphError`` for one that Keras lacks."""
    all_names = application_names()
    chosen = all_names if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name.endswith(".keras"):
            raise GraphError(
                f"{name}: only members of keras.applications are taken here; make a graph file of it: "
                f"slotool capture --keras {quote(name)} -o {quote(Path(name).stem)}.jsonl"
            )
        if name not in all_names:
            raise GraphError(f"{name!r} is not in keras.applications; {_meant(name, all_names)}")
    return list(dict.fromkeys(chosen))


def _meant(name: str, names: Sequence[str]) -> str:
    """Return the member for a misspelt name, else all members."""
    same = [each for each in names if each.lower() == name.lower()]
    suggestion = same[0] if same else nearest(name, names)
    return f"did you mean {suggestion}?" if suggestion else f"there are {', '.join(names)}"


def _keras() -> Any:
    try:
        import keras
    except ImportError as error:
        raise import_failed(error, "keras", "a Keras model") from error
    return keras


def _application(keras: Any, name: str) -> keras.Model:
    applications = {key: value for key, value in vars(keras.applications).items() if key[0].isupper()}
    if name not in applications:
        raise GraphError(
            f"{name!r} is neither a .keras file nor in keras.applications; {_meant(name, sorted(applications))}"
        )
    model = applications[name](weights=None)
    # Some leave the image size open, which their cost depends on.
    open_size = None in model.input_shape[1:]
    return applications[name](weights=None, input_shape=APPLICATION_INPUT) if open_size else model


def _saved(keras: Any, path: Path) -> keras.Model:
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # Keras raises whatever its layers do on a file that is torn, foreign or unsafe.
        if "`Lambda` layer" in str(error):
            raise GraphError(
                f"{path}: it has a Lambda layer, whose code is not run from a file: if you trust it, give a function "
                "that loads it with safe_mode=False, as --keras nets:load, or the model itself to slotool.capture"
            ) from error
        if "Could not locate class" in str(error):
            raise GraphError(
                f"{path}: it has layers of a class of your own, whose code is not in the file: give a function that "
                "makes or loads the model, as --keras nets:make, or the model itself to slotool.capture"
            ) from error
        raise GraphError(f"{path}: Keras cannot read it ({reason(error)})") from error
    if not isinstance(model, keras.Model):
        raise GraphError(f"{path}: holds no model, but something of type {type(model).__name__}")
    return model
