"""Find the model that a person names: ``module:factory`` for torch, an application's name or a file for Keras."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.extras import import_failed
from slotool.printable import reason

if TYPE_CHECKING:
    import keras
    from torch import nn

# Of the applications that take images of any size: what most of the others take.
APPLICATION_INPUT = (224, 224, 3)


def load_torch(name: str) -> nn.Module:
    """``module:factory``, the module from the current directory or installed, or by its path, such as ``../nets.py``
    or ``../nets``; its code is run.

    The factory is an ``nn.Module``, or what makes one when called without arguments (a class, a function).
    Raises ``GraphError`` when module or factory are missing, fail, or give no ``nn.Module``.
    """
    module_name, _, factory_name = name.partition(":")
    if not module_name or not factory_name:
        raise GraphError(f"{name!r} is not module:factory, such as nets:tiny or ../nets.py:tiny")
    folder, module_name = _located(module_name)
    with _importing_from(folder):
        made = _imported(module_name, folder)
        _require_from(made, folder, name)
        from torch import nn

        for part in factory_name.split("."):
            if not hasattr(made, part):
                raise GraphError(f"module {module_name} has no {factory_name}")
            made = getattr(made, part)
        if not isinstance(made, nn.Module):
            made = _called(made, name)
    if not isinstance(made, nn.Module):
        raise GraphError(f"{name} makes no torch.nn.Module, but something of type {type(made).__name__}")
    return made


def load_keras(name: str) -> keras.Model:
    """A network of ``keras.applications`` by its name, weights random (nothing is downloaded) on its
    usual input, or a ``.keras`` file.

    Files are read in Keras' safe mode, which runs no code of theirs. Raises ``GraphError`` for an unknown name or a
    file that cannot be read, ``MissingPackageError`` without Keras or TensorFlow.
    """
    path = Path(name)
    is_file = path.suffix in (".keras", ".h5", ".hdf5") or path.exists() or os.sep in name
    if is_file and not path.is_file():
        raise GraphError(f"{path}: no such file")
    if is_file and path.suffix != ".keras":
        raise GraphError(f"{path}: only .keras files are read; save the model again with model.save('name.keras')")
    if is_file and not zipfile.is_zipfile(path):
        raise GraphError(f"{path}: not a model saved by Keras, or a torn one")
    with _muted():
        keras = _keras()
        return _saved(keras, path) if is_file else _application(keras, name)


def application_names() -> list[str]:
    """The members of ``keras.applications``, sorted. Raises ``MissingPackageError`` when Keras is not installed."""
    with _muted():
        return sorted(name for name in vars(_keras().applications) if name[0].isupper())


def chosen_applications(names: str) -> list[str]:
    """``all``, or names with commas between, each once. Raises ``GraphError`` naming one that Keras does not have."""
    known = application_names()
    chosen = known if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name.endswith(".keras"):
            raise GraphError(
                f"{name}: only members of keras.applications are taken here; make a graph file of it: "
                f"slotool capture --keras {name} -o {Path(name).stem}.jsonl"
            )
        if name not in known:
            raise GraphError(f"{name!r} is not in keras.applications; {_meant(name, known)}")
    return list(dict.fromkeys(chosen))


def _meant(name: str, known: Sequence[str]) -> str:
    """The member that a name written otherwise stands for, else all there are."""
    alike = [each for each in known if each.lower() == name.lower()]
    return f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"


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
    # Some leave the size of the image open; what they cost depends on it.
    open_size = None in model.input_shape[1:]
    return applications[name](weights=None, input_shape=APPLICATION_INPUT) if open_size else model


def _saved(keras: Any, path: Path) -> keras.Model:
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # Keras raises whatever its layers do on a file that is torn, foreign or unsafe.
        raise GraphError(f"{path}: Keras cannot read it ({reason(error)})") from error
    if not isinstance(model, keras.Model):
        raise GraphError(f"{path}: holds no model, but something of type {type(model).__name__}")
    return model


@contextmanager
def _muted() -> Iterator[None]:
    """TensorFlow's start-up remarks, which its C++ writes to the process's stderr, are not about the user's model."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _located(name: str) -> tuple[Path, str]:
    """The folder to import from first, and the module's name there, of a module given by its name or its path."""
    path = Path(name)
    is_path = os.sep in name or path.suffix == ".py"
    if not is_path:
        return Path.cwd(), name
    found = path if path.suffix == ".py" or path.is_dir() else path.with_name(f"{path.name}.py")
    if not found.exists():
        raise GraphError(
            f"{found}: no such file; a torch module is given as module:factory or path/to/module.py:factory"
        )
    if not found.stem.isidentifier():
        raise GraphError(f"{found}: {found.stem!r} is no name that Python can import; rename the file")
    return found.parent.absolute(), found.stem


def _require_from(module: Any, folder: Path, name: str) -> None:
    """A module given by its path is that one, not another of its name that was imported before."""
    file = getattr(module, "__file__", None)
    is_path = os.sep in name.partition(":")[0] or name.partition(":")[0].endswith(".py")
    if is_path and file is not None and not Path(file).resolve().is_relative_to(folder.resolve()):
        raise GraphError(f"{name}: Python has imported another {module.__name__} already, {file}; rename one of them")


def _imported(name: str, folder: Path) -> Any:
    try:
        found = find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        where = "the current directory" if folder == Path.cwd() else folder
        raise GraphError(f"no module {name} in {where} or installed")
    return _guarded(lambda: importlib.import_module(name), f"importing {name}")


def _called(factory: Any, name: str) -> Any:
    if not callable(factory):
        kind = type(factory).__name__
        raise GraphError(f"{name} is neither a torch.nn.Module nor a function making one, but of type {kind}")
    return _guarded(factory, f"calling {name}()")


def _guarded(run: Any, doing: str) -> Any:
    """Run code of the user's; whatever it raises becomes one sentence."""
    try:
        return run()
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:200]
        raise GraphError(f"{doing} failed: {type(error).__name__}: {text}") from error


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
