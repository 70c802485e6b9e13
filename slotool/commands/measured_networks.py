"""Measured networks for training and scoring: latency tables, and files of the networks in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError, GraphError, TableError
from slotool.printable import counted, duration, name_list, row_name
from slotool.sources import Paths, paths_of

if TYPE_CHECKING:
    import pandas as pd

    from slotool.graphs import OperatorGraph
    from slotool.graphs.shipped import ShippedNetworks
    from slotool.predictors.labels import LabelledSet
    from slotool.tables import LatencyTable

# Columns by which rows of a latency table are selected.
ROW_FILTERS = ("device", "backend", "precision", "threads", "batch_size", "machine")


# Names in tables from elsewhere, such as timm's: of the network, the side of its images, and examples per second.
MODELS, SIDES = ("subject", "model"), ("img_size", "infer_img_size")
RATES = ("images/s", "samples_per_sec", "infer_samples_per_sec")


@dataclass(frozen=True)
class MeasuredNetworks:
    """Latency tables, and the graphs of their networks: of files, or of a package whose networks ship with slotool.

    Attributes:
        latency: Latency tables.
        graphs: Graph files.
        rows: Column values of the rows to use; CSV tables without such a column have these values.
        package: Package of the networks where there are no graph files.
        examples: Examples in a call, where a CSV table states a rate and no batch size.
    """

    latency: tuple[Path, ...]
    graphs: tuple[Path, ...]
    rows: Mapping[str, Any] = field(default_factory=dict)
    package: str | None = None
    examples: int = 1

    @classmethod
    def of(
        cls,
        latency: Paths,
        graphs: Paths = (),
        rows: Mapping[str, Any] | None = None,
        package: str | None = None,
        examples: int = 1,
    ) -> MeasuredNetworks:
        """Return the networks of these files; see the attributes.

        Raises ``ArgumentError`` for an unknown column in ``rows``, and for both or none of ``graphs`` and ``package``.
        """
        allowed = (*ROW_FILTERS, "placement")
        for column in rows or {}:
            if column not in allowed:
                raise ArgumentError("rows", f"rows are not picked by {column!r}, but by {', '.join(allowed)}")
        files, selected = tuple(paths_of(graphs)), dict.fromkeys(ROW_FILTERS) | dict(rows or {})
        if bool(files) == bool(package):
            raise ArgumentError("graphs", "give the graph files of the networks or --networks timm, one of the two")
        return cls(tuple(paths_of(latency)), files, selected, package, examples)

    def config(self) -> dict[str, Any]:
        graphs = [str(path) for path in self.graphs]
        return {"latency": [str(path) for path in self.latency], "graphs": graphs, "networks": self.package}

    @cached_property
    def _tables(self) -> LatencyTable:
        from slotool.tables import LatencyTable

        return LatencyTable.load_all(self.latency, self._completed)

    @cached_property
    def _shipped(self) -> ShippedNetworks | None:
        from slotool.graphs.shipped import ShippedNetworks

        return None if self.package is None else ShippedNetworks.of(self.package)

    @cached_property
    def _names(self) -> dict[str, str | GraphError]:
        """Names of the subjects of the tables among the networks that ship, or why there is none."""
        names: dict[str, str | GraphError] = {}
        if self._shipped is not None:
            by_id = {id_: name for name, id_ in self._shipped.ids.items()}
            for subject in self._tables.rows["subject"].unique().tolist():
                try:
                    names[subject] = by_id.get(subject) or self._shipped.name_of(subject)
                except GraphError as error:
                    names[subject] = error
        return names

    @property
    def _unknown(self) -> GraphError | None:
        """Networks of the tables that do not ship, in one sentence."""
        reasons = {name: reason for name, reason in self._names.items() if isinstance(reason, GraphError)}
        if len(reasons) < 2:
            return next(iter(reasons.values()), None)
        listed, first = name_list(reasons, 5), next(iter(reasons.values()))
        return GraphError(f"{len(reasons)} of {len(self._names)} networks are unknown: {listed}; {first}")

    def table(self) -> LatencyTable:
        from slotool.tables import LatencyTable

        names = {subject: name for subject, name in self._names.items() if isinstance(name, str)}
        rows = self._tables.rows
        return LatencyTable(rows.assign(subject=rows["subject"].replace(names)), self._tables.provenance)

    def read_graphs(self) -> Iterator[OperatorGraph]:
        """Yield the graphs; of a package those that the tables name. Raises ``GraphError`` if these are none."""
        from slotool.graphs.store import read_graphs

        if self._shipped is None:
            return (graph for path in self.graphs for graph in read_graphs(path))
        names = [name for name in self._names.values() if isinstance(name, str)]
        if not names and self._unknown is not None:
            raise self._unknown
        return iter(self._shipped.graphs(names))

    def _completed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a CSV table with the columns of a latency table: latencies of rates, and facts that ``rows`` state."""
        import pandas as pd

        model, side, rate = (next((name for name in names if name in frame), None) for names in (MODELS, SIDES, RATES))
        cells: dict[str, Any] = {name: value for name, value in self.rows.items() if value and name not in frame}
        if model is None:
            raise TableError(f"column {' or '.join(MODELS)} is missing: the network of each row")
        sides = "@" + frame[side] if side is not None and self.package is not None else ""
        cells["subject"] = frame[model] + sides
        if rate is not None and not {"latency_s", "samples_s"} & set(frame):
            per_second = pd.to_numeric(frame[rate], errors="coerce")
            if not (per_second > 0).all():
                row = int((per_second > 0).to_numpy().argmin())
                raise TableError(f"{row_name(row)}, column {rate}: {frame[rate][row]!r} is not a rate above 0")
            cells.setdefault("batch_size", frame.get("batch_size", self.examples))
            cells["latency_s"] = pd.to_numeric(cells["batch_size"]) / per_second
        return frame.assign(**cells)

    def is_colocated(self) -> bool:
        from slotool.predictors.colocated.labels import is_colocated

        return is_colocated(self.table())

    def labelled(self) -> LabelledSet[OperatorGraph]:
        """Return the measured networks with solo latencies. Raises ``ArgumentError`` for co-located ones."""
        from slotool.predictors.labels import join_labels

        if self.is_colocated():
            raise ArgumentError("latency", "its rows are co-located; train_predictor learns from them")
        return join_labels(self.table(), self.read_graphs(), self.rows)

    def colocated_remarks(self) -> list[str]:
        """Describe co-located rows, of which networks alone learn nothing; none without any."""
        count = int((self._tables.rows["co_runners"] != "").sum())
        return [f"{counted(count, 'co-located row')} left out: these are latencies of networks alone"] if count else []

    def remarks(self, labelled: LabelledSet[OperatorGraph]) -> list[str]:
        """Describe networks and rows that are left out, and rows of one network that disagree."""
        sentences = self.colocated_remarks()
        if self._unknown is not None:
            sentences.append(f"{self._unknown}; they are left out")
        elif labelled.labels_without_graph:
            count = labelled.labels_without_graph
            sentences.append(f"{count} measured subjects are none of the graphs and are left out")
        if labelled.graphs_without_label:
            sentences.append(f"{labelled.graphs_without_label} graphs have no label and are left out")
        names = {graph.id: graph.name or graph.id for graph in labelled.items}
        for network, medians_s in labelled.apart.items():
            low_s, high_s = medians_s[0], medians_s[-1]
            sentences.append(
                f"{len(medians_s)} rows of {names[network]} disagree, {duration(low_s)} to {duration(high_s)} "
                f"({high_s / low_s:.2g} times): the median of all their samples counts; keep those that are right, "
                "or measure it again"
            )
        return sentences
