"""Graphs of published networks that ship with slotool and are known by name, without their package and its capture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq

from slotool.data.registry import shipped_table
from slotool.errors import ArgumentError, GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.store import read_graphs

FILES = {"timm": "timm-networks.parquet"}
MAX_SIMILAR = 3


@dataclass(frozen=True)
class ShippedNetworks:
    """Networks of a package by name: ``resnet50`` with images of the usual size, or ``resnet50@288``.

    Attributes:
        package: Name of the package.
        path: Graph file.
        ids: Graph id of each network by its name; equal networks have one id.
    """

    package: str
    path: Path
    ids: Mapping[str, str]

    @classmethod
    def of(cls, package: str) -> Self:
        """Return the networks of a package. Raises ``ArgumentError`` if none of it ship."""
        if package not in FILES:
            available = ", ".join(FILES)
            raise ArgumentError("networks", f"no networks of {package!r} ship with slotool; available: {available}")
        path = shipped_table(FILES[package])
        names, ids = (column.to_pylist() for column in pq.read_table(path, columns=["name", "graph_id"]).columns)
        return cls(package, path, dict(zip(names, ids, strict=True)))

    def name_of(self, text: str) -> str:
        """Return the name of the network that ``text`` means, which may state a tag of weights behind a point.

        Raises ``GraphError`` for an unknown model, and for images of another side than is known.
        """
        stated, _, side = text.partition("@")
        model = stated.partition(".")[0]
        if (name := f"{model}@{side}" if side else model) in self.ids:
            return name
        models = [name for name in self.ids if "@" not in name]
        if model in models:
            sides = " and ".join(name.partition("@")[2] for name in self.ids if name.startswith(f"{model}@"))
            raise GraphError(f"{model} is known with images of {sides}, not of {side}")
        begins = [name for name in models if name.startswith(model)][:MAX_SIMILAR]
        similar = begins or get_close_matches(model, models, MAX_SIMILAR)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "capture it, and give that file instead"
        raise GraphError(f"{stated!r} is none of the {len(models)} models of {self.package} that ship; {hint}")

    def graphs(self, names: Iterable[str] | None = None) -> list[OperatorGraph]:
        """Return the graphs of ``names``, as ``name_of`` returns them, in the order of the file.

        None stands for all, where an image of the usual side is not a network of its own.
        """
        chosen = set(names) if names is not None else {name for name in self.ids if not self._is_usual_side(name)}
        graphs = read_graphs(self.path, {self.ids[name] for name in chosen})
        return [graph for graph in graphs if graph.name in chosen]

    def _is_usual_side(self, name: str) -> bool:
        """True if ``name`` states the side of images that the model has without one."""
        model, _, side = name.partition("@")
        return bool(side) and self.ids[name] == self.ids.get(model)
