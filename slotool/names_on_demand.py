"""Names that a package offers and imports only when somebody asks for one: short processes do without the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_on_demand(
    package: str, modules: Mapping[str, str], within: str = "", successors: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """``__getattr__`` of ``package`` (PEP 562). ``modules``: by name, the module that has it, of ``package`` or of the
    one that ``within`` names. What was asked for stays in ``package``. Raises ``AttributeError`` for other names; for
    one that left, with its successor."""

    def ask(name: str) -> Any:
        if successors and name in successors:
            raise AttributeError(f"{package}.{name} is now {package}.{successors[name]}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{within or package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return ask
