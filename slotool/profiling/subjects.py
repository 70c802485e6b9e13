"""Subjects of a campaign: operator graphs and the operating points of model artifacts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.artifacts import open_artifact
from slotool.data.options import DataSource
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs
from slotool.tables import FULL

# Rough sizes of a member of keras.applications, to predict time and memory without building it.
APPLICATION_BYTES = 200 << 20
APPLICATION_FLOPS = 8 * 10**9
APPLICATION_OPERATORS = 200


@dataclass(frozen=True, slots=True)
class Subject:
    """Network or operating point to measure.

    ``name`` and ``point`` are the row's subject and point; ``content`` identifies the model (a graph's or an artifact's
    id); ``request`` is the argument of a backend's ``open``. ``backend`` is the only one that runs it, or empty if the
    campaign chooses. ``title``: name for people, if it differs. Sizes are of one example.
    """

    name: str
    content: str
    request: Mapping[str, Any]
    backend: str = ""
    point: str = FULL.key
    weight_bytes: int = 0
    output_bytes: int = 0
    flops: int = 0
    operators: int = 1
    title: str = ""

    @property
    def label(self) -> str:
        """Name in rows of its co-runners."""
        return self.name if self.point == FULL.key else f"{self.name}@{self.point}"

    def memory_bytes(self, batch_size: int) -> int:
        """Return an upper estimate of its memory at a batch size, bytes."""
        return self.weight_bytes + batch_size * self.output_bytes


def graph_subject(graph: OperatorGraph) -> Subject:
    """Return the subject of an operator graph; its name is the graph's id.

    Raises ``InputError`` for one that is not plain float32, since the network built from it would be.
    """
    if not graph.plain:
        raise InputError(
            f"graph {graph.name or graph.id} is of a {graph.form} network, and slotool builds float32 networks from "
            "graphs: what it would measure is not that network; leave it out, or capture the float32 module"
        )
    return Subject(
        name=graph.id,
        content=graph.id,
        request={"graph": json.dumps(graph.document())},
        weight_bytes=4 * graph.weights,
        output_bytes=graph.memory_bytes(1) - 4 * graph.weights,
        flops=graph.flops,
        operators=len(graph.operators),
        title=graph.name,
    )


def application_subject(name: str) -> Subject:
    """Return a network of ``keras.applications`` by name, which the worker builds with random weights."""
    return Subject(
        name=name,
        content=f"keras.applications.{name}",
        request={"application": name},
        backend="keras",
        weight_bytes=APPLICATION_BYTES,
        flops=APPLICATION_FLOPS,
        operators=APPLICATION_OPERATORS,
    )


def artifact_subjects(path: str | Path, data: str | DataSource = "") -> list[Subject]:
    """Return a subject for each operating point of a model artifact.

    ``data``: data set of the inputs, instead of random ones. Raises ``ArtifactError``, and ``InputError`` for a model
    of sparse inputs without one, since random dense inputs take other work.
    """
    from slotool.elastic import load_model

    artifact = open_artifact(path)
    model = load_model(artifact)
    if model.sparse and not data:
        raise InputError(f"{path}: {model.name} takes sparse examples, and profiling draws dense ones only")
    inputs = {"data": DataSource.of(data).document()} if data else {}
    weight_bytes = sum(entry["bytes"] for entry in artifact.manifest["files"].values())
    return [
        Subject(
            name=model.name,
            content=artifact.id[:16],
            request={"path": str(Path(path).resolve()), "point": point.key, **inputs},
            backend="elastic",
            point=point.key,
            weight_bytes=weight_bytes,
        )
        for point in model.points
    ]


def read_subjects(paths: Sequence[Path]) -> Iterator[Subject]:
    """Yield the subjects of graph files and artifact folders, each once, in order.

    Raises ``InputError`` if two different artifacts have one name.
    """
    contents: dict[tuple[str, str], str] = {}
    for path in paths:
        for subject in artifact_subjects(path) if path.is_dir() else map(graph_subject, read_graphs(path)):
            key = (subject.name, subject.point)
            if key not in contents:
                contents[key] = subject.content
                yield subject
            elif contents[key] != subject.content:
                raise InputError(f"{path}: another input is called {subject.name} too; rename one of the folders")
