"""A predictor as it is kept and used: with an interval, the bounds of its training, and what its labels belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from slotool.artifacts import Artifact, ArtifactWriter, open_artifact
from slotool.errors import ArtifactError, InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Predictor
from slotool.predictors.labels import LabelledGraphs, Setting
from slotool.predictors.registry import predictor_class
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.splits import Split
from slotool.tables import LatencyTable

KIND = "predictor"
DOCUMENT, TENSORS, SCORES, PREDICTIONS = "predictor.json", "predictor.safetensors", "scores.json", "predictions.parquet"
DOCUMENT_VERSION = 1
NOMINAL_COVERAGE = 0.90
Range = tuple[float, float]


@dataclass(frozen=True)
class Bounds:
    """Ranges, least and most, of the networks a predictor was trained on, and the operator types they had."""

    operators: Range
    weights: Range
    flops: Range
    latency_s: Range
    operator_types: tuple[str, ...]

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> Self:
        return cls(
            operators=_range([len(graph.operators) for graph in graphs]),
            weights=_range([graph.weights for graph in graphs]),
            flops=_range([graph.flops for graph in graphs]),
            latency_s=_range(latency_s),
            operator_types=tuple(sorted({operator.op for graph in graphs for operator in graph.operators})),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{name: tuple(value) for name, value in document.items()})

    def outside(self, graph: OperatorGraph, predicted_s: float) -> str | None:
        """In what the graph, or its prediction, lies outside; None when inside in everything."""
        unknown = sorted({operator.op for operator in graph.operators} - set(self.operator_types))
        reasons = [f"operator type {', '.join(unknown)} was never seen"] if unknown else []
        for name, value, (low, high) in (
            ("operators", len(graph.operators), self.operators),
            ("weights", graph.weights, self.weights),
            ("FLOPs", graph.flops, self.flops),
            ("predicted seconds", predicted_s, self.latency_s),
        ):
            if not low <= value <= high:
                reasons.append(f"{value:.4g} {name}, training had {low:.4g} to {high:.4g}")
        return "; ".join(reasons) or None


@dataclass(frozen=True)
class Predictions:
    """Of n graphs: latency and its interval, float64 seconds [n], and for each why not to trust it, or None."""

    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    outside: list[str | None]


@dataclass(frozen=True)
class TrainedPredictor:
    """A fitted predictor and everything that is the same for all predictors.

    The interval is split-conformal with nominal coverage 90 %: the |log(measured ÷ predicted)| of labels that the
    predictor never saw, at the rank that covers a new network of the same kind, as a factor around the prediction.
    Those labels are every second row of the dev set; the predictor makes its choices by the other rows, since labels
    that chose a depth are fitted too well to say how wrong it is. ``dev_mae_s`` is over the unseen rows as well.
    """

    predictor: Predictor
    bounds: Bounds
    interval_factor: float
    setting: Setting
    dev_mae_s: float

    @classmethod
    def train(
        cls,
        predictor: Predictor,
        labelled: LabelledGraphs,
        split: Split,
        *,
        seed: int,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Fit ``predictor`` to the training set and half the dev set, take interval and dev MAE from the other half.

        Raises ``InputError`` when the dev set is too small for the interval.
        """
        graphs, latency_s = labelled.take(split.train)
        unseen_graphs, unseen_s = labelled.take(split.dev[1::2])
        predictor.fit(graphs, latency_s, *labelled.take(split.dev[::2]), seed=seed, progress=progress)
        predicted_s = predictor.predict(unseen_graphs)
        return cls(
            predictor=predictor,
            bounds=Bounds.of(graphs, latency_s),
            interval_factor=conformal_factor(unseen_s, predicted_s),
            setting=labelled.setting,
            dev_mae_s=float(np.mean(np.abs(predicted_s - unseen_s))),
        )

    def predict(self, graphs: Sequence[OperatorGraph]) -> Predictions:
        """Raises ``GraphError`` for a graph that the predictor cannot take."""
        latency_s = self.predictor.predict(graphs)
        outside = [self.bounds.outside(*pair) for pair in zip(graphs, latency_s.tolist(), strict=True)]
        return Predictions(latency_s, latency_s / self.interval_factor, latency_s * self.interval_factor, outside)

    def held_out(self, labelled: LabelledGraphs, rows: np.ndarray) -> PredictionsTable:
        """Measured beside predicted for these rows."""
        graphs, latency_s = labelled.take(rows)
        predictions = self.predict(graphs)
        columns = (graphs, latency_s, predictions.latency_s, predictions.low_s, predictions.high_s)
        names = ("measured_s", "predicted_s", "low_s", "high_s")
        return PredictionsTable.of(
            {"graph_id": graph.id, "kind": graph.kind, **dict(zip(names, seconds, strict=True))}
            for graph, *seconds in zip(*columns, strict=True)
        )

    def latency_table(self, graphs: Sequence[OperatorGraph], predictions: Predictions) -> LatencyTable:
        """The predictions as rows of a latency table, marked as predicted."""
        seconds = zip(graphs, predictions.latency_s, predictions.low_s, predictions.high_s, strict=True)
        return LatencyTable.of(
            {
                "subject": graph.id,
                **self.setting.columns(),
                "samples_s": [latency],
                "predicted": True,
                "low_s": low,
                "high_s": high,
            }
            for graph, latency, low, high in seconds
        )

    def write(self, writer: ArtifactWriter) -> None:
        """Put the predictor into a bundle being written."""
        tensors, state = self.predictor.state()
        writer.write_tensors(TENSORS, tensors)
        document = {
            "version": DOCUMENT_VERSION,
            "name": self.predictor.name,
            "setting": self.setting.document(),
            "bounds": asdict(self.bounds),
            "interval": {"nominal_coverage": NOMINAL_COVERAGE, "factor": self.interval_factor},
            "dev_mae_s": self.dev_mae_s,
            "state": state,
        }
        writer.write_json(DOCUMENT, document)

    @classmethod
    def load(cls, source: str | Artifact) -> Self:
        """The predictor of an artifact. Raises ``ArtifactError`` when it is damaged, no predictor, or of a version or
        name that this slotool does not know.
        """
        artifact = source if isinstance(source, Artifact) else open_artifact(source, KIND)
        document = artifact.json(DOCUMENT)
        if document.get("version") != DOCUMENT_VERSION:
            raise ArtifactError(
                f"{artifact.path}: predictor version {document.get('version')}, "
                f"but this slotool reads version {DOCUMENT_VERSION}"
            )
        kind = predictor_class(document["name"])
        return cls(
            predictor=kind.from_state(artifact.tensors(TENSORS), document["state"]),
            bounds=Bounds.from_document(document["bounds"]),
            interval_factor=float(document["interval"]["factor"]),
            setting=Setting.from_document(document["setting"]),
            dev_mae_s=float(document["dev_mae_s"]),
        )


def conformal_factor(measured_s: np.ndarray, predicted_s: np.ndarray, coverage: float = NOMINAL_COVERAGE) -> float:
    """The factor f such that [predicted ÷ f, predicted × f] covers a new label with probability ≥ ``coverage``.

    Both arrays float64 seconds [n], the predictions not fitted to these labels. Holds when the new one is
    exchangeable with them. Raises ``InputError`` when n is so small that no finite factor does.
    """
    ratios = np.sort(np.abs(np.log(measured_s / predicted_s)))
    rank = int(np.ceil((len(ratios) + 1) * coverage))
    if rank > len(ratios):
        raise InputError(f"{len(ratios)} dev labels are too few for a {coverage:.0%} interval")
    return float(np.exp(ratios[rank - 1]))


def _range(values: Any) -> Range:
    return float(np.min(values)), float(np.max(values))
