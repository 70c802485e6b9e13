"""Measured networks for training and scoring: latency tables, and files of the networks in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError
from slotool.printable import duration
from slotool.sources import Paths, paths_of

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.labels import LabelledSet
    from slotool.tables import LatencyTable

# Columns by which rows of a latency table are selected.
ROW_FILTERS = ("device", "backend", "precision", "threads", "batch_size", "machine")


@dataclass(frozen=True)
class MeasuredNetworks:
    """Latency tables and graph files; ``rows``: column values of the rows to use."""

    latency: tuple[Path, ...]
    graphs: tuple[Path, ...]
    rows: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, latency: Paths, graphs: Paths, rows: Mapping[str, Any] | None = None) -> MeasuredNetworks:
        """Return the networks of these files. Raises ``ArgumentError`` for an unknown column in ``rows``."""
        allowed = (*ROW_FILTERS, "placement")
        for column in rows or {}:
            if column not in allowed:
                raise ArgumentError("rows", f"rows are not picked by {column!r}, but by {', '.join(allowed)}")
        return cls(tuple(paths_of(latency)), tuple(paths_of(graphs)), dict.fromkeys(ROW_FILTERS) | dict(rows or {}))

    def config(self) -> dict[str, Any]:
        return {"latency": [str(path) for path in self.latency], "graphs": [str(path) for path in self.graphs]}

    def table(self) -> LatencyTable:
        from slotool.tables import LatencyTable

        return LatencyTable.load_all(self.latency)

    def read_graphs(self) -> Iterator[OperatorGraph]:
        from slotool.graphs.store import read_graphs

        return (graph for path in self.graphs for graph in read_graphs(path))

    def is_colocated(self) -> bool:
        from slotool.predictors.colocated.labels import is_colocated

        return is_colocated(self.table())

    def labelled(self) -> LabelledSet[OperatorGraph]:
        """Return the measured networks with solo latencies. Raises ``ArgumentError`` for co-located ones."""
        from slotool.predictors.labels import join_labels

        if self.is_colocated():
            raise ArgumentError("latency", "its rows are co-located; train_predictor learns from them")
        return join_labels(self.table(), self.read_graphs(), self.rows)


def unmatched(labelled: LabelledSet[OperatorGraph]) -> list[str]:
    """Describe networks and rows that are left out, and rows of one network that disagree."""
    sentences = []
    if labelled.graphs_without_label:
        sentences.append(f"{labelled.graphs_without_label} graphs have no label and are left out")
    if labelled.labels_without_graph:
        sentences.append(f"{labelled.labels_without_graph} measured subjects are none of the graphs and are left out")
    names = {graph.id: graph.name or graph.id for graph in labelled.items}
    for network, medians_s in labelled.apart.items():
        low_s, high_s = medians_s[0], medians_s[-1]
        sentences.append(
            f"{len(medians_s)} rows of {names[network]} disagree, {duration(low_s)} to {duration(high_s)} "
            f"({high_s / low_s:.2g} times): the median of all their samples is learnt; keep those that are right, or "
            "measure it again"
        )
    return sentences
