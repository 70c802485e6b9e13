"""Plugins of installed packages: found by entry point, imported when requested by name.

A package's ``pyproject.toml`` names what it adds::

    [project.entry-points."slotool.policies"]
    steady = "my_package.policies:Steady"

Built-in names are looked up first and cost no search, so that no plugin can take one. A plugin that cannot be imported
is an error only where its name is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from inspect import isabstract
from pathlib import Path
from traceback import walk_tb
from typing import Any, Generic, TypeVar

from slotool.errors import InputError, PluginError
from slotool.printable import did_you_mean, printable, reason

# Entry-point groups (``slotool.<group>``), and the noun for a plugin of each.
GROUPS = {
    "models": "adapter of models",
    "datasets": "data set",
    "predictors": "predictor",
    "policies": "policy",
    "rankers": "ranker",
    "rule_generators": "method",
    "backends": "backend",
    "engines": "engine",
}
_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True)
class Plugin:
    """Entry point: ``name`` in ``group`` is ``place`` (``module:attribute``) of an installed package."""

    group: str
    name: str
    place: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"{GROUPS[self.group]} {self.name!r} of {self.package} {self.version}"

    def load(self) -> Any:
        """Import and return the attribute. Raises ``PluginError`` with the first line of any error of the import."""
        try:
            return metadata.EntryPoint(self.name, self.place, self.group).load()
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {reason(error)}"
            raise PluginError(f"{self} ({self.place}) cannot be imported: {why}") from error


@cache
def installed(group: str) -> tuple[Plugin, ...]:
    """Return the plugins of a group of ``GROUPS``, by name. Nothing of them is imported.

    Raises ``PluginError`` when the entry points of some installed package, of whatever kind, cannot be read.
    """
    try:
        points = metadata.entry_points(group=f"slotool.{group}")
    except Exception as error:
        why = f"{type(error).__name__}: {reason(error)}"
        raise PluginError(f"the entry points of installed packages cannot be read: {why}") from error
    plugins = []
    for point in points:
        package, version = (point.dist.name, point.dist.version) if point.dist else ("an unknown package", "")
        plugins.append(Plugin(group, *map(printable, (point.name, point.value, package, version))))
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.package)))


def package_that_raised(error: BaseException) -> str | None:
    """Return the package of plugins whose code raised ``error``, itself or by a library; None if slotool's code did.

    Raises ``PluginError`` as ``installed`` does.
    """
    authors: dict[Path, str | None] = {}
    for plugin in (plugin for group in GROUPS for plugin in installed(group)):
        module, _, attribute = plugin.place.partition(":")
        package = f"{plugin.package} {plugin.version}".strip()
        if isinstance(error, TypeError) and str(error).startswith(f"{attribute}."):
            # Arguments that a method does not take: Python raises this in the caller.
            return package
        authors[_code_of(module.partition(".")[0])] = package
    authors |= {_code_of("slotool"): None}
    for frame, _ in reversed([*walk_tb(error.__traceback__)]):
        # A frame of a compiled function has a file, but no module.
        file = Path(frame.f_code.co_filename)
        if (code := next((place for place in (file, *file.parents) if place in authors), None)) is not None:
            return authors[code]
    return None


def _code_of(package: str) -> Path:
    """Return the folder of an imported package, or the file of a module; of no other one a path that no code has."""
    module = sys.modules.get(package)
    folders = list(getattr(module, "__path__", ()))
    return Path(folders[0] if folders else getattr(module, "__file__", None) or f"<{package}>")


class Registry(Generic[_Loaded]):
    """Things of one kind by name: slotool's own, which ``built_in`` holds, and those of installed packages.

    ``base``: what plugins are subclasses of; None where they are functions. A class that has a ``name`` has that of its
    entry point, since tables and artifacts keep it.
    """

    def __init__(self, group: str, built_in: Collection[str], base: type[Any] | None = None):
        self.group, self.built_in, self.base = group, built_in, base

    @property
    def plugins(self) -> list[str]:
        """Names that installed packages add. Reads the metadata of installed packages, once per process."""
        return sorted({plugin.name for plugin in installed(self.group)} - set(self.built_in))

    def names(self) -> list[str]:
        """Return built-in names, then those of plugins."""
        return [*self.built_in, *self.plugins]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.plugins

    def load(self, name: str) -> _Loaded:
        """Return the plugin called ``name``.

        Raises ``InputError`` for a name that no package has, ``PluginError`` for a plugin that cannot be used.
        """
        matches = [plugin for plugin in installed(self.group) if plugin.name == name]
        if not matches or name in self.built_in:
            raise InputError(self.unknown(name))
        cls: _Loaded = self._checked(matches)
        return cls

    def unknown(self, name: str, *more: str) -> str:
        """Return the sentence for an unknown name; ``more`` lists choices beside the built-in names."""
        names = [*self.built_in, *more]
        sentence = f"no {GROUPS[self.group]} {name!r}; there are {', '.join(names)}"
        plugins = f", and of plugins {', '.join(self.plugins)}" if self.plugins else ""
        return f"{sentence}{plugins}{did_you_mean(name, [*names, *self.plugins])}"

    def problem(self, plugin: Plugin) -> str | None:
        """Import a plugin and return the reason why it cannot be used, or None."""
        if plugin.name in self.built_in:
            return f"{plugin} is not used: slotool has one of that name itself"
        try:
            self._checked([each for each in installed(self.group) if each.name == plugin.name])
        except PluginError as error:
            return str(error)
        return None

    def _checked(self, matches: list[Plugin]) -> Any:
        plugin = matches[0]
        if len(matches) > 1:
            packages = " and ".join(f"{each.package} {each.version}" for each in matches)
            raise PluginError(f"{GROUPS[self.group]} {plugin.name!r} is in {packages}: uninstall all but one")
        value = plugin.load()
        if self.base is None:
            if not callable(value):
                raise PluginError(f"{plugin}: {plugin.place} cannot be called")
        elif not (isinstance(value, type) and issubclass(value, self.base)):
            raise PluginError(f"{plugin}: {plugin.place} is no subclass of {self.base.__module__}.{self.base.__name__}")
        elif isabstract(value):
            lacking = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
            raise PluginError(f"{plugin}: {plugin.place} does not define {lacking}")
        elif (stated := getattr(value, "name", plugin.name)) != plugin.name:
            raise PluginError(f"{plugin}: its class is called {stated!r}; both must have one name")
        return value
