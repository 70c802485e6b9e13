"""Graph files: Parquet, written as a stream, and JSON lines, the interchange form.

A JSON line is ``OperatorGraph.document()``: ``{"kind": …, "operators": [{"name", "op", "inputs", "attributes"}, …]}``;
operators that slotool does not know also state ``shape``, ``weights`` and ``flops``. A line may say the graph's
``name``, and its ``id``; that is then checked, as that of a Parquet row is. Parquet holds the same text in the column
``graph``, with columns for choosing without parsing. docs/reference/graph-format.md is the reference for those who
write such files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slotool import strict_json
from slotool.atomic import whole_file
from slotool.errors import GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.regular_files import require_regular
from slotool.tables.schema import METADATA_KEY, read_header

PARQUET, LINES = ".parquet", ".jsonl"
SCHEMA_NAME = "graphs"
SCHEMA_VERSION = 1
ROWS_PER_GROUP = 4096
_FIELDS = {
    "graph_id": pa.string(),
    "kind": pa.string(),
    "name": pa.string(),  # null for a graph without one; files of before have no such column
    "operators": pa.int32(),
    "weights": pa.int64(),
    "flops": pa.int64(),
    "graph": pa.string(),
}


def require_graph_suffix(path: Path) -> None:
    """Raise ``GraphError`` unless ``path`` can be the name of a graph file."""
    if path.suffix not in (PARQUET, LINES):
        raise GraphError(f"{path}: a graph file ends in {PARQUET} or {LINES}")


def write_graphs(
    path: str | Path,
    graphs: Iterable[OperatorGraph],
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write graphs as they come and return how many; ``path`` ends in ``.parquet`` or ``.jsonl``.

    ``path`` appears only when all are written. Same graphs and provenance, same bytes; JSON lines carry no provenance.
    ``progress`` is called with how many were written since its last call. Raises ``GraphError`` for another suffix, or
    when there are no graphs.
    """
    path = Path(path)
    require_graph_suffix(path)
    write = _write_lines if path.suffix == LINES else _write_parquet
    with whole_file(path) as partial:
        count = write(partial, iter(graphs), provenance or {}, progress)
        if not count:
            raise GraphError(f"{path}: there are no graphs to write")
    return count


def read_graphs(path: str | Path, ids: Collection[str] | None = None) -> Iterator[OperatorGraph]:
    """Yield the graphs of a file, one after the other. Raises ``GraphError`` naming file, row or line, and operator.

    ``ids``: ids of the graphs to read from a Parquet file, without parsing the others; None: all.
    """
    path = Path(path)
    require_regular(path, GraphError, "no such graph file")
    return _read_lines(path) if path.suffix == LINES else _read_parquet(path, ids)


def _write_parquet(
    path: Path, graphs: Iterator[OperatorGraph], provenance: Mapping[str, Any], progress: Callable[[int], None]
) -> int:
    header = {"schema": SCHEMA_NAME, "schema_version": SCHEMA_VERSION, "provenance": dict(provenance)}
    schema = pa.schema(list(_FIELDS.items()), metadata={METADATA_KEY: json.dumps(header).encode()})
    count = 0
    # Ids and graphs are all distinct, so a dictionary of them would only cost time.
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=["kind"]) as writer:
        while rows := [_row(graph) for graph in islice(graphs, ROWS_PER_GROUP)]:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, type=kind) for column, kind in zip(columns, _FIELDS.values(), strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(rows)
            progress(len(rows))
    return count


def _write_lines(
    path: Path, graphs: Iterator[OperatorGraph], _: Mapping[str, Any], progress: Callable[[int], None]
) -> int:
    count = 0
    with path.open("w") as file:
        for graph in graphs:
            file.write(f'{{"id":"{graph.id}",{graph.text[1:]}\n')
            count += 1
            progress(1)
    return count


def _row(graph: OperatorGraph) -> tuple[Any, ...]:
    return graph.id, graph.kind, graph.name or None, len(graph.operators), graph.weights, graph.flops, graph.text


def _read_parquet(path: Path, ids: Collection[str] | None) -> Iterator[OperatorGraph]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise GraphError(_why_no_graphs(path, error)) from error
    with file:
        header = read_header(file.schema_arrow, path)
        if header.get("schema") != SCHEMA_NAME:
            raise GraphError(f"{path}: holds {header.get('schema', 'no slotool')} data, not graphs")
        if header.get("schema_version") != SCHEMA_VERSION:
            raise GraphError(f"{path}: graphs schema version {header.get('schema_version')}, expected {SCHEMA_VERSION}")
        missing = [name for name in ("graph_id", "graph") if name not in file.schema_arrow.names]
        if missing:
            raise GraphError(f"{path}: column {', '.join(missing)} is missing")
        if file.metadata.num_rows == 0:
            raise GraphError(f"{path}: the file has no graphs")
        yield from _parse_rows(path, file, ids)


def _why_no_graphs(path: Path, error: Exception) -> str:
    """Return the message for a model in place of a graph file: the command that captures it."""
    if path.suffix == PARQUET:
        return f"{path}: not a readable Parquet file ({' '.join(str(error).split())[:120]})"
    from slotool.graphs.capture.sources import options_of

    flags = options_of(str(path)) or "--torch, --onnx or --keras …"
    return f"{path}: no graph file (.parquet or .jsonl); make one: slotool capture {flags} -o {quote(path.stem)}.jsonl"


def _parse_rows(path: Path, file: pq.ParquetFile, ids: Collection[str] | None) -> Iterator[OperatorGraph]:
    row = 0
    try:
        for batch in file.iter_batches(ROWS_PER_GROUP, columns=["graph_id", "graph"]):
            for graph_id, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                row += 1
                if ids is None or graph_id in ids:
                    yield _parse(text, graph_id, f"{path}: row {row}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise GraphError(f"{path}: damaged after row {row} ({' '.join(str(error).split())[:120]})") from error


def _read_lines(path: Path) -> Iterator[OperatorGraph]:
    number = 0
    has_graphs = False
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    has_graphs = True
                    yield _parse(line, None, f"{path}: line {number}")
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: line {number + 1}: not UTF-8 text") from error
    if not has_graphs:
        raise GraphError(f"{path}: the file has no graphs")


def _parse(text: Any, graph_id: str | None, where: str) -> OperatorGraph:
    with strict_json.assembling(where, "an operator graph", error=GraphError):
        document = strict_json.decode(text if isinstance(text, str) else "")
        try:
            graph = OperatorGraph.from_document(document)
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
    graph_id = document.get("id", graph.id) if graph_id is None else graph_id
    if graph.id != graph_id:
        raise GraphError(f"{where}: states the id {str(graph_id)[:40]}, but its graph's id is {graph.id}")
    return graph
