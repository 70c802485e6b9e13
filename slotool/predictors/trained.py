"""A predictor as it is kept and used: with an interval, the bounds of its training, and what its labels belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Self

import numpy as np

from slotool.artifacts import Artifact, ArtifactWriter, open_artifact
from slotool.errors import ArtifactError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Asked, Predictor
from slotool.predictors.companies import Company, members_of
from slotool.predictors.labels import Labelled, Setting
from slotool.predictors.registry import predictor_class
from slotool.predictors.residuals import Residuals
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.splits import Split
from slotool.tables import LatencyTable

KIND = "predictor"
SCORES, PREDICTIONS = "scores.json", "predictions.parquet"
# An artifact may hold two predictors: of networks alone, and of networks in company.
ALONE, TOGETHER = "predictor", "together"
DOCUMENT_VERSION = 2
NOMINAL_COVERAGE = 0.90
Range = tuple[float, float]


@dataclass(frozen=True)
class Bounds:
    """Ranges, least and most, of the networks a predictor was trained on, and the operator types they had.

    Of companies, every member's; ``members``: how many ran side by side.
    """

    operators: Range
    weights: Range
    flops: Range
    latency_s: Range
    operator_types: tuple[str, ...]
    members: Range = (1.0, 1.0)

    @classmethod
    def of(cls, asked: Sequence[OperatorGraph | Company], latency_s: np.ndarray) -> Self:
        graphs = list({graph.id: graph for each in asked for graph in members_of(each)}.values())
        return cls(
            operators=_range([len(graph.operators) for graph in graphs]),
            weights=_range([graph.weights for graph in graphs]),
            flops=_range([graph.flops for graph in graphs]),
            latency_s=_range(latency_s),
            operator_types=tuple(sorted({operator.op for graph in graphs for operator in graph.operators})),
            members=_range([len(members_of(each)) for each in asked]),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{name: tuple(value) for name, value in document.items()})

    def outside(self, asked: OperatorGraph | Company, predicted_s: float) -> str | None:
        """In what a network, a member of a company, or the prediction lies outside; None when inside in everything."""
        members = members_of(asked)
        types = {operator.op for graph in members for operator in graph.operators}
        unknown = sorted(types - set(self.operator_types))
        reasons = [f"operator type {', '.join(unknown)} was never seen"] if unknown else []
        for name, values, (low, high) in (
            ("operators", [len(graph.operators) for graph in members], self.operators),
            ("weights", [graph.weights for graph in members], self.weights),
            ("FLOPs", [graph.flops for graph in members], self.flops),
            ("networks side by side", [len(members)], self.members),
            ("predicted seconds", [predicted_s], self.latency_s),
        ):
            beyond = [value for value in values if not low <= value <= high]
            reasons += [f"{value:.4g} {name}, training had {low:.4g} to {high:.4g}" for value in beyond[:1]]
        return "; ".join(reasons) or None


@dataclass(frozen=True)
class Predictions:
    """Of n networks or companies: latency and its interval, float64 seconds [n], the ``spread`` of each, float64 [n],
    and for each why not to trust it, or None."""

    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    outside: list[str | None]
    spread: np.ndarray


@dataclass(frozen=True)
class TrainedPredictor(Generic[Asked]):
    """A fitted predictor, of networks or of companies, and everything that is the same for all predictors.

    ``residuals`` are of labels that the predictor never saw; the interval, of nominal coverage 90 %, and the
    probability that a latency stays below a limit both follow from them. Those labels are every second row of the dev
    set; the predictor makes its choices by the other rows, since labels that chose a depth are fitted too well to say
    how wrong it is. ``dev_mae_s`` is over the unseen rows as well.
    """

    predictor: Predictor[Asked]
    bounds: Bounds
    residuals: Residuals
    setting: Setting
    dev_mae_s: float

    @classmethod
    def train(
        cls,
        predictor: Predictor[Asked],
        labelled: Labelled[Asked],
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
        predicted_s, spread = predictor.predict_and_spread(unseen_graphs)
        residuals = Residuals.of(unseen_s, predicted_s, spread)
        residuals.interval(NOMINAL_COVERAGE)
        return cls(
            predictor=predictor,
            bounds=Bounds.of(graphs, latency_s),
            residuals=residuals,
            setting=labelled.setting,
            dev_mae_s=float(np.mean(np.abs(predicted_s - unseen_s))),
        )

    def predict(self, graphs: Sequence[Asked], unsure: np.ndarray | float = 0.0) -> Predictions:
        """``unsure``: half-width, in log, of the 90 % interval of what a question itself rests upon, such as a solo
        latency that was predicted. Raises ``GraphError`` for a graph that the predictor cannot take."""
        latency_s, spread = self.predictor.predict_and_spread(graphs)
        low, high = self.residuals.interval(NOMINAL_COVERAGE)
        spread = np.hypot(spread, 2 * unsure / max(high - low, 1e-9))
        outside = [self.bounds.outside(*pair) for pair in zip(graphs, latency_s.tolist(), strict=True)]
        return Predictions(
            latency_s, latency_s * np.exp(low * spread), latency_s * np.exp(high * spread), outside, spread
        )

    def probability_within(self, predictions: Predictions, slo_s: float) -> np.ndarray:
        """P(latency ≤ ``slo_s``) of each prediction, float64 [n]: of the median that a profiler would measure."""
        margin = np.log(slo_s / predictions.latency_s) / predictions.spread
        return self.residuals.probability_below(margin)

    def held_out(self, labelled: Labelled[Asked], rows: np.ndarray) -> PredictionsTable:
        """Measured beside predicted for these rows."""
        graphs, latency_s = labelled.take(rows)
        predictions = self.predict(graphs)
        noise_s = labelled.noise_s[rows]
        columns = (graphs, latency_s, noise_s, predictions.latency_s, predictions.low_s, predictions.high_s)
        names = ("measured_s", "noise_s", "predicted_s", "low_s", "high_s")
        return PredictionsTable.of(
            {"graph_id": graph.id, "kind": graph.kind, **_solo(graph), **dict(zip(names, seconds, strict=True))}
            for graph, *seconds in zip(*columns, strict=True)
        )

    def latency_table(self, graphs: Sequence[Asked], predictions: Predictions) -> LatencyTable:
        """The predictions as rows of a latency table, marked as predicted."""
        seconds = zip(graphs, predictions.latency_s, predictions.low_s, predictions.high_s, strict=True)
        return LatencyTable.of(
            {
                **_subject(graph),
                **self.setting.columns(),
                "samples_s": [latency],
                "predicted": True,
                "low_s": low,
                "high_s": high,
            }
            for graph, latency, low, high in seconds
        )

    def write(self, writer: ArtifactWriter, part: str = ALONE) -> None:
        """Put the predictor into a bundle being written, as its ``part``."""
        tensors, state = self.predictor.state()
        writer.write_tensors(f"{part}.safetensors", tensors)
        document = {
            "version": DOCUMENT_VERSION,
            "name": self.predictor.name,
            "setting": self.setting.document(),
            "bounds": asdict(self.bounds),
            "nominal_coverage": NOMINAL_COVERAGE,
            "residuals": self.residuals.document(),
            "dev_mae_s": self.dev_mae_s,
            "state": state,
        }
        writer.write_json(f"{part}.json", document)

    @classmethod
    def load(cls, source: str | Artifact, part: str = ALONE) -> TrainedPredictor[Any]:
        """The predictor that is this ``part`` of an artifact. Raises ``ArtifactError`` when it is damaged, no
        predictor, has no such part, or is of a version or name that this slotool does not know.
        """
        artifact = source if isinstance(source, Artifact) else open_artifact(source, KIND)
        if f"{part}.json" not in artifact.manifest["files"]:
            what = "networks alone" if part == ALONE else "networks beside others"
            raise ArtifactError(f"{artifact.path} holds no predictor of {what}")
        document = artifact.json(f"{part}.json")
        if document.get("version") != DOCUMENT_VERSION:
            raise ArtifactError(
                f"{artifact.path}: predictor version {document.get('version')}, "
                f"but this slotool reads version {DOCUMENT_VERSION}"
            )
        kind = predictor_class(document["name"], together=part == TOGETHER)
        return cls(
            predictor=kind.from_state(artifact.tensors(f"{part}.safetensors"), document["state"]),
            bounds=Bounds.from_document(document["bounds"]),
            residuals=Residuals.from_document(document["residuals"]),
            setting=Setting.from_document(document["setting"]),
            dev_mae_s=float(document["dev_mae_s"]),
        )


def _subject(asked: OperatorGraph | Company) -> dict[str, str]:
    """Columns of a latency table that say what ran, and beside what."""
    if isinstance(asked, Company):
        return {"subject": asked.subject.id, "co_runners": "+".join(sorted(graph.id for graph in asked.others))}
    return {"subject": asked.id}


def _solo(asked: OperatorGraph | Company) -> dict[str, float]:
    """Column of a predictions table: what the network takes when nobody is beside it, where that is not the label."""
    return {"solo_s": asked.solo_s[0]} if isinstance(asked, Company) else {}


def _range(values: Any) -> Range:
    return float(np.min(values)), float(np.max(values))
