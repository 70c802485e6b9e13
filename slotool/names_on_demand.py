"""Names that a package offers and imports only when somebody asks for one: short processes do without the rest."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def names_on_demand(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562) that offers what it imports ``if TYPE_CHECKING:``.

    The source states each name's module once, for type checkers, and is read for it here. A name stays in ``package``
    once it was asked for. Raises ``AttributeError`` for other names.
    """
    modules = _checked_imports(Path(str(sys.modules[package].__file__)))

    def ask(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return ask


def _checked_imports(source: Path) -> dict[str, str]:
    """Return the module of each name that a file imports ``if TYPE_CHECKING:``."""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    checked = next(node.body for node in body if isinstance(node, ast.If))
    imports = [node for node in checked if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def modules_on_demand(*names: str) -> tuple[Any, ...]:
    """Return what stands for each of these modules and imports it when one of its names is first used."""
    return tuple(map(_OnDemand, names))


class _OnDemand:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        # The next use finds it without a call, which compilers of torch's cannot follow.
        vars(self)[attribute] = value
        return value
