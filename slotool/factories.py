"""Objects that a person names as ``module:factory``: their module is imported and its code is run.

Code that a person names is run. Code that an artifact names is run only where that is allowed: by ``allow_code``, or by
``SLOTOOL_ALLOW_CODE=1`` in the environment, which worker processes inherit.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slotool.errors import InputError
from slotool.regular_files import open_regular

ALLOW_VARIABLE = "SLOTOOL_ALLOW_CODE"
_NAME = re.compile(r"([\w./~-]+|[^:]+\.py):[A-Za-z_][\w.]*")


def is_factory(text: str) -> bool:
    """True if ``text`` has the form ``module:factory`` or ``path/module.py:factory``."""
    return _NAME.fullmatch(text) is not None


def make(
    name: str,
    *,
    is_made: Callable[[Any], bool],
    what: str,
    error: type[InputError] = InputError,
    arguments: Mapping[str, Any] | None = None,
) -> Any:
    """Return the object that ``module:factory`` names if ``is_made`` accepts it, else the result of calling it.

    The module lies in the current directory, is installed, or is given by its path: ``../nets.py`` or ``../nets``.
    ``what`` names the expected kind in messages. Raises ``error`` if module or factory are missing or fail.
    """
    module_name, _, factory_name = name.partition(":")
    if not module_name or not factory_name:
        raise error(f"{name!r} is not module:factory, such as nets:tiny or ../nets.py:tiny")
    folder, module_name = _located(module_name, error)
    with _importing_from(folder):
        module = _imported(module_name, folder, error)
        _require_from(module, folder, name, error)
        member = module
        for part in factory_name.split("."):
            if not hasattr(member, part):
                raise error(f"module {module_name} has no {factory_name}")
            member = getattr(member, part)
        if is_made(member) and arguments:
            raise error(f"{name} is {what} already and takes no arguments: name a function that makes one")
        if not is_made(member):
            if not callable(member):
                kind = type(member).__name__
                raise error(f"{name} is neither {what} nor a function making one, but of type {kind}")
            keywords = dict(arguments or {})
            shown = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
            member = guarded(partial(member, **keywords), f"calling {name}({shown})", error)
    return member


def arguments_of(text: str, error: type[InputError] = InputError) -> dict[str, Any]:
    """Parse ``depth=12,width=(64,128),norm=layer``: numbers, texts, booleans, lists; a bare word is a text.

    No code is run. Raises ``error`` for anything else.
    """
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("no list of arguments")
        keywords = {str(each.arg or ""): _literal(each.value) for each in call.keywords}
        if not keywords or "" in keywords or len(keywords) != len(call.keywords):
            raise ValueError("an argument without a name, or named twice")
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as reason:
        raise error(f"{text!r} is no list of arguments such as depth=12,width=64") from reason
    return keywords


def _literal(value: ast.expr) -> Any:
    return value.id if isinstance(value, ast.Name) else ast.literal_eval(value)


def allow_code() -> None:
    """Run code that artifacts name, in this process and those that it starts from now on."""
    os.environ[ALLOW_VARIABLE] = "1"


def is_allowed() -> bool:
    """True if code that artifacts name may be run."""
    return os.environ.get(ALLOW_VARIABLE) == "1"


def require_allowed(what: str, error: type[InputError] = InputError) -> None:
    """Raise ``error``, which explains how to allow it, unless code that the artifact ``what`` names may be run."""
    if not is_allowed():
        raise error(f"{what}, which is code; if you trust it, set {ALLOW_VARIABLE}=1 or give --allow-code")


def located(name: str, error: type[InputError] = InputError) -> tuple[str, str]:
    """Return a name for the factory that is valid in any directory, and the SHA-256 of its module's source.

    A module in a folder becomes its path, an installed one keeps its name. Raises ``error`` as ``make`` does.
    """
    module_name, _, factory_name = name.partition(":")
    folder, module_name = _located(module_name, error)
    with _importing_from(folder):
        try:
            spec = find_spec(module_name)
        except (ImportError, ValueError):
            spec = None
    if spec is None or spec.origin is None:
        raise error(f"{name}: no source file of module {module_name} was found")
    file = Path(spec.origin).resolve()
    in_folder = file.parent == folder.resolve() and file.suffix == ".py"
    return f"{file if in_folder else module_name}:{factory_name}", _checksum(file, error)


def source_file(name: str) -> Path:
    """Return the source file of the module of ``module:factory``, unless it is in a package.

    Raises ``InputError`` for a path without a file.
    """
    folder, module_name = _located(name.partition(":")[0], InputError)
    return folder / f"{module_name}.py"


def require_same(name: str, sha256: str, error: type[InputError] = InputError) -> None:
    """Raise ``error`` if the source of the module that ``name`` names has another checksum."""
    if located(name, error)[1] != sha256:
        raise error(f"{name} has changed since it was recorded")


def _located(name: str, error: type[InputError]) -> tuple[Path, str]:
    """Return the folder to import a module from first, given its name or path, and its name there."""
    path = Path(name)
    is_path = os.sep in name or path.suffix == ".py"
    if not is_path:
        return Path.cwd(), name
    source = path if path.suffix == ".py" or path.is_dir() else path.with_name(f"{path.name}.py")
    if not source.exists():
        raise error(f"{source}: no such file; code is given as module:factory or path/to/module.py:factory")
    if "." in source.stem:
        raise error(f"{source}: Python cannot import a name with a point, {source.stem!r}; rename the file")
    return source.parent.absolute(), source.stem


def _require_from(module: Any, folder: Path, name: str, error: type[InputError]) -> None:
    """Raise ``error`` if ``module`` is another one of the same name that was imported before."""
    file = getattr(module, "__file__", None)
    is_path = os.sep in name.partition(":")[0] or name.partition(":")[0].endswith(".py")
    if is_path and file is not None and not Path(file).resolve().is_relative_to(folder.resolve()):
        raise error(f"{name}: Python has imported another {module.__name__} already, {file}; rename one of them")


def _imported(name: str, folder: Path, error: type[InputError]) -> Any:
    try:
        exists = find_spec(name) is not None
    except (ImportError, ValueError):
        exists = False
    if not exists:
        where = "the current directory" if folder == Path.cwd() else folder
        raise error(f"no module {name} in {where} or installed")
    return guarded(lambda: importlib.import_module(name), f"importing {name}", error)


def guarded(run: Callable[[], Any], doing: str, error: type[InputError]) -> Any:
    """Return what code of the user's returns; whatever it raises becomes one sentence as ``error``."""
    try:
        return run()
    except (Exception, SystemExit) as raised:
        text = " ".join(str(raised).split())[:200]
        raise error(f"{doing} failed: {type(raised).__name__}: {text}") from raised


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _checksum(file: Path, error: type[InputError]) -> str:
    try:
        with open_regular(file) as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as reason:
        raise error(f"{file}: cannot be read ({reason.strerror})") from reason
