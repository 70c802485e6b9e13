"""``slotool.load`` and ``slotool.save``: files and folders of slotool as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotool.errors import InputError
from slotool.printable import with_article
from slotool.regular_files import require_regular
from slotool.sources import FilePath

# Reasons why a file of this suffix cannot be loaded.
_UNKNOWN = {
    ".json": "neither rules nor a switching plan",
    ".parquet": "no table that slotool knows",
    ".csv": "no table that slotool knows",
}


def load(path: FilePath) -> Any:
    """Read a file or folder that slotool wrote; its kind is recognised by content, not by name.

    Args:
        path: A table (.parquet or .csv), a .json of rules or of a switching plan, a graph file (.parquet or .jsonl), or
            the folder of an artifact.

    Returns:
        A ``LatencyTable``, ``OutcomeTable``, ``ArrivalTable``, ``RequestLog`` or another table of its schema; a
        ``RuleSet`` or ``SwitchingPlan``; a list of ``OperatorGraph``; a ``PredictorArtifact``; for a network,
        family, SLO-NN or supernet an ``ElasticModel``.

    Raises:
        InputError: There is no such path, or slotool did not write it.
        TableError: A table breaks its schema.
        ArtifactError: The artifact is damaged, or of a kind or version that is unknown here.
        GraphError: A graph file is damaged.
    """
    from slotool.artifacts.bundle import is_artifact
    from slotool.graphs.store import SCHEMA_NAME, read_graphs
    from slotool.reports.files import kind_of
    from slotool.tables import schema_name

    path = Path(path)
    if path.is_dir():
        if not is_artifact(path):
            raise InputError(f"{path}: a folder without a manifest, so no artifact")
        return _artifact(path)
    require_regular(path, missing="no such file or folder")
    if path.suffix not in (*_UNKNOWN, ".jsonl"):
        raise InputError(f"{path}: not {', '.join((*_UNKNOWN, '.jsonl'))} or the folder of an artifact")
    if path.suffix == ".jsonl" or (path.suffix == ".parquet" and schema_name(path) == SCHEMA_NAME):
        return list(read_graphs(path))
    if (kind := kind_of(path)) is None:
        raise InputError(f"{path}: {_UNKNOWN[path.suffix]}")
    return kind.load(path)


def save(value: Any, path: FilePath, *, force: bool = False) -> Path:
    """Write a table, rules, a plan or graphs, so that ``load`` and every command read them.

    Args:
        value: A table, ``RuleSet``, ``SwitchingPlan``, ``OperatorGraph``, or a list of graphs.
        path: File to write: .parquet for tables, .json for rules and plans, .parquet or .jsonl for graphs.
        force: Replace it if it exists.

    Returns:
        The path.

    Raises:
        InputError: There is no way to write such a value; artifacts are written by the functions that make them.
        TableError: A table cannot be written under that name.
        GraphError: Graphs cannot be written under that name.
        AlreadyExistsError: ``path`` exists.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.graphs import OperatorGraph
    from slotool.graphs.store import write_graphs
    from slotool.rules.ruleset.rules import RuleSet
    from slotool.rules.switching import SwitchingPlan
    from slotool.tables.schema import Table

    path = Path(path)
    graphs = value if isinstance(value, list | tuple) else [value]
    if graphs and all(isinstance(graph, OperatorGraph) for graph in graphs):
        refuse_existing(path, force)
        write_graphs(path, graphs)
    elif isinstance(value, RuleSet | SwitchingPlan | Table):
        refuse_existing(path, force)
        value.save(path)
    else:
        raise InputError(f"{with_article(type(value).__name__)} cannot be saved; tables, rules, plans and graphs can")
    return path


def _artifact(path: Path) -> Any:
    from slotool.artifacts import open_artifact
    from slotool.elastic import load_model
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.predictors.trained.artifact import KIND as PREDICTOR

    opened = open_artifact(path)
    if opened.kind == PREDICTOR:
        return PredictorArtifact.load(str(path))
    return load_model(opened)
