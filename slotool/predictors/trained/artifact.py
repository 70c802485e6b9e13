"""Trained predictor as it is stored and used: with intervals, bounds of its training and the setting of its labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Self, cast

import numpy as np

from slotool import strict_json
from slotool.artifacts import Artifact, ArtifactWriter, open_artifact
from slotool.errors import ArtifactError, RunError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import Batch
from slotool.predictors.base import Asked, Estimator, Predictor
from slotool.predictors.colocations import Colocation
from slotool.predictors.features.domain import Distance, Domain
from slotool.predictors.labels import LabelledSet, Setting, facts_of
from slotool.predictors.registry import predictor_class
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained.bounds import Bounds
from slotool.predictors.trained.calibration import Calibration, hold_out_kinds
from slotool.predictors.trained.residuals import MAX_RESIDUAL, Residuals
from slotool.tables import LatencyTable

KIND = "predictor"
SCORES, PREDICTIONS = "scores.json", "predictions.parquet"
# An artifact may hold two predictors: of solo latencies, and of co-located latencies.
SOLO, COLOCATED = "predictor", "colocated"
COLOCATED_SCORES, COLOCATED_PREDICTIONS = f"{COLOCATED}-{SCORES}", f"{COLOCATED}-{PREDICTIONS}"
SOLO_LATENCIES = "solo-latencies.json"
DOCUMENT_VERSION = 4
NOMINAL_COVERAGE = 0.90
NOT_CALIBRATED = "no kind of network was held out when this predictor was trained"


@dataclass(frozen=True)
class Predictions:
    """Predicted latencies of n networks or co-locations, with 90 % intervals.

    Attributes:
        latency_s: Predicted latencies, float64 seconds [n].
        low_s: Lower ends of the intervals, float64 seconds [n], NaN where there is none.
        high_s: Upper ends.
        outside: For each, its differences from the training networks, or None.
        no_interval: For each, the reason why it has no interval, or None.
        distances: Distances from the training networks; empty for co-locations.
        spread: Unit of the residuals, float64 [n].
        estimated: Shares of the latency in operators that were estimated, not measured; empty where none are measured.
    """

    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    outside: list[str | None]
    no_interval: list[str | None]
    distances: list[Distance]
    spread: np.ndarray
    estimated: Sequence[float] = ()

    def without_interval(self, why: str) -> Predictions:
        """Return the same latencies without intervals, for the reason ``why``."""
        nothing = np.full(len(self.latency_s), np.nan)
        reasons: list[str | None] = [why if reason is None else f"{why}; {reason}" for reason in self.no_interval]
        return replace(self, low_s=nothing, high_s=nothing, no_interval=reasons)


@dataclass(frozen=True, kw_only=True)
class SettingPredictor(ABC, Generic[Asked]):
    """Predictor of one setting, with intervals; ``facts``: facts of the labels' machine, where known."""

    predictor: Estimator[Asked]
    residuals: Residuals | None
    setting: Setting
    facts: Mapping[str, Any] | None = None

    @abstractmethod
    def predict(self, graphs: Sequence[Asked], unsure: np.ndarray | float = 0.0) -> Predictions:
        """Predict latencies with intervals. Raises ``GraphError`` for an unsupported graph.

        ``unsure``: for co-locations, half the 90 % interval of the solo latency in log; NaN where it has none.
        """

    @property
    def interval_residuals(self) -> Residuals | None:
        """Residuals that intervals are made of."""
        return self.residuals

    def probability_within(self, predictions: Predictions, slo_s: float) -> np.ndarray:
        """Return P(measured median ≤ ``slo_s``) of each prediction, float64 [n], NaN where there is no interval."""
        margin = np.log(slo_s / predictions.latency_s) / predictions.spread
        has_interval = np.array([reason is None for reason in predictions.no_interval], dtype=bool)
        residuals = self.interval_residuals
        return np.where(has_interval, np.nan if residuals is None else residuals.probability_below(margin), np.nan)

    def held_out(self, labelled: LabelledSet[Asked], rows: np.ndarray) -> PredictionsTable:
        graphs, latency_s = labelled.take(rows)
        predictions = self.predict(graphs)
        seconds = (latency_s, labelled.noise_s[rows], predictions.latency_s, predictions.low_s, predictions.high_s)
        names = ("measured_s", "noise_s", "predicted_s", "low_s", "high_s")
        return PredictionsTable.of(
            {
                "graph_id": graph.id,
                "kind": graph.kind,
                **({"solo_s": graph.solo_s[0]} if isinstance(graph, Colocation) else {}),
                **dict(zip(names, of_graph, strict=True)),
            }
            for graph, *of_graph in zip(graphs, *seconds, strict=True)
        )

    def latency_table(self, graphs: Sequence[Asked], predictions: Predictions) -> LatencyTable:
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


@dataclass(frozen=True, kw_only=True)
class TrainedPredictor(SettingPredictor[Asked]):
    """Fitted predictor of networks or co-locations, with the parts that are the same for all predictors.

    Intervals come from ``calibration``, the errors on held-out kinds, and widen with the distance from ``domain``: a
    user's network is of a new kind, however similar it looks. 90 % intervals from errors on networks of the training
    kinds covered 45 to 75 % of others, those from held-out kinds 93 to 95 %. Without ``calibration``, ``residuals``
    give intervals to networks like the training networks (``Domain.unlike``), and others get none.

    ``residuals`` and ``dev_mae_s`` are of every second row of the dev set. The predictor makes its choices, such as a
    depth, by the other rows, whose errors are therefore too small.

    Co-locations have ``bounds`` in place of ``domain``: those within count as like the training set, others get no
    interval.
    """

    predictor: Predictor[Asked]
    dev_mae_s: float
    bounds: Bounds | None = None
    domain: Domain | None = None
    calibration: Calibration | None = None

    @classmethod
    def train(
        cls,
        predictor: Predictor[Asked],
        labelled: LabelledSet[Asked],
        split: RowSplit,
        *,
        seed: int,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Fit ``predictor`` to the training set and half the dev set; interval and dev MAE come from the other half.

        Networks unlike the training networks have no interval before ``calibrated``. Raises ``InputError`` if the dev
        set is too small for the interval.
        """
        train = labelled.take(split.train)
        graphs, latency_s = train
        unseen_graphs, unseen_s = labelled.take(split.dev[1::2])
        predictor.fit(train, labelled.take(split.dev[::2]), seed=seed, progress=progress)
        predicted_s, spread = _predicted(predictor, unseen_graphs)
        residuals = Residuals.of(unseen_s, predicted_s, spread)
        residuals.interval(NOMINAL_COVERAGE)
        trained = cls(
            predictor=predictor,
            residuals=residuals,
            setting=labelled.setting,
            dev_mae_s=float(np.mean(np.abs(predicted_s - unseen_s))),
            facts=facts_of(labelled.setting),
        )
        if labelled.solo_s:
            return replace(trained, bounds=Bounds.of(cast("Sequence[Colocation]", graphs), latency_s))
        networks, unseen = (cast("Sequence[OperatorGraph]", some) for some in (graphs, unseen_graphs))
        return replace(trained, domain=Domain.of(networks).with_like(unseen))

    def predict(self, graphs: Sequence[Asked], unsure: np.ndarray | float = 0.0) -> Predictions:
        networks: Sequence[OperatorGraph] = ()
        if self.domain is not None:
            networks = Batch.of(cast("Sequence[OperatorGraph]", graphs))
            graphs = cast("Sequence[Asked]", networks)
        latency_s, spread = _predicted(self.predictor, graphs)
        residuals, distances = self.interval_residuals, list[Distance]()
        low, high = (np.nan, np.nan) if residuals is None else residuals.interval(NOMINAL_COVERAGE)
        outside: list[str | None]
        why: list[str | None]
        if self.domain is None:
            assert self.bounds is not None
            # Outside the bounds of co-locations in training no interval was checked, so none is given.
            spread = np.hypot(spread, 2 * np.broadcast_to(unsure, latency_s.shape) / max(high - low, 1e-9))
            colocations = zip(cast("Sequence[Colocation]", graphs), latency_s.tolist(), strict=True)
            outside = [self.bounds.outside(*pair) for pair in colocations]
            why = [each and f"outside the range of the measured co-locations: {each}" for each in outside]
        else:
            distances = self.domain.distances(networks)
            beyond = self.domain.unlike(distances)
            if self._by_kinds is not None:
                spread = self._by_kinds.widths(distances)
            outside = [each.sentence() if far else None for each, far in zip(distances, beyond, strict=True)]
            own_spread = self.predictor.spread_is_calibrated and self.residuals is not None
            unknown = None if own_spread or self.calibration is not None else NOT_CALIBRATED
            why = [(each.too_far() or unknown) if far else None for each, far in zip(distances, beyond, strict=True)]
        for row in np.flatnonzero(~np.isfinite(spread)):
            why[row] = why[row] or self.predictor.no_spread
        valid = np.where([reason is None for reason in why], 1.0, np.nan)
        return Predictions(
            latency_s=latency_s,
            low_s=latency_s * _factor(low * spread) * valid,
            high_s=latency_s * _factor(high * spread) * valid,
            outside=outside,
            no_interval=why,
            distances=distances,
            spread=spread,
        )

    @property
    def _by_kinds(self) -> Calibration | None:
        """``calibration`` if intervals are made of it."""
        return None if self.predictor.spread_is_calibrated else self.calibration

    @property
    def interval_residuals(self) -> Residuals | None:
        return self.residuals if self._by_kinds is None else self._by_kinds.residuals

    def calibrated(
        self,
        labelled: LabelledSet[Asked],
        split: RowSplit,
        *,
        seed: int,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Return the predictor with intervals for all networks, from errors of its surrogate on held-out kinds.

        See ``hold_out_kinds``. The test set plays no part.
        """
        graphs, latency_s = labelled.take(np.concatenate([split.train, split.dev]))
        networks = cast("Sequence[OperatorGraph]", graphs)
        make = cast("Callable[[], Predictor[OperatorGraph]]", self.predictor.surrogate)
        held_out = hold_out_kinds(make, networks, latency_s, seed, progress)
        return replace(self, calibration=Calibration.of(held_out))

    def write(self, writer: ArtifactWriter, part: str = SOLO) -> None:
        """Write the predictor into a bundle as its ``part``."""
        tensors, state = self.predictor.state()
        domain_tensors = {} if self.domain is None else self.domain.tensors()
        writer.write_tensors(f"{part}.safetensors", {**tensors, **domain_tensors})
        document = {
            "version": DOCUMENT_VERSION,
            "name": self.predictor.name,
            "setting": self.setting.document(),
            "bounds": None if self.bounds is None else asdict(self.bounds),
            "residuals": None if self.residuals is None else self.residuals.document(),
            "domain": None if self.domain is None else self.domain.document(),
            "calibration": None if self.calibration is None else self.calibration.document(),
            "machine_facts": None if self.facts is None else dict(self.facts),
            "dev_mae_s": self.dev_mae_s,
            "state": state,
        }
        try:
            writer.write_json(f"{part}.json", document)
        except TypeError as error:
            raise RunError(f"predictor {self.predictor.name!r} has a state that is not JSON: {error}") from error

    @classmethod
    def load(cls, source: str | Artifact, part: str = SOLO) -> TrainedPredictor[Any]:
        """Load the predictor that is this ``part`` of an artifact.

        Raises ``ArtifactError`` for a damaged artifact, a missing part, or a version or name that is unknown here.
        """
        artifact = source if isinstance(source, Artifact) else open_artifact(source, KIND)
        if f"{part}.json" not in artifact.manifest["files"]:
            noun = "solo latencies" if part == SOLO else "co-located latencies"
            raise ArtifactError(f"{artifact.path} holds no predictor of {noun}")
        with (
            strict_json.assembling(artifact.path, f"a {part} predictor that slotool wrote", error=ArtifactError),
            np.errstate(over="raise", invalid="raise", divide="raise"),
        ):
            document = strict_json.convert(artifact.json(f"{part}.json"), dict[str, Any])
            if (version := document.get("version")) != DOCUMENT_VERSION:
                raise ArtifactError(
                    f"{artifact.path}: predictor version {version}, but this slotool reads version {DOCUMENT_VERSION}; "
                    "train it again with train-predictor"
                )
            if document["domain"] is None and document["bounds"] is None:
                raise ArtifactError(f"{artifact.path}: it states neither a domain nor bounds of what it was trained on")
            tensors = artifact.weights(f"{part}.safetensors")
            predictor = predictor_class(document["name"], colocated=part == COLOCATED)
            return cls(
                predictor=predictor.from_state(tensors, document["state"]),
                bounds=_maybe(lambda bounds: strict_json.convert(bounds, Bounds), document["bounds"]),
                residuals=_maybe(Residuals.from_document, document["residuals"]),
                setting=Setting.from_document(document["setting"]),
                dev_mae_s=float(document["dev_mae_s"]),
                domain=_maybe(lambda stored: Domain.from_state(stored, tensors), document["domain"]),
                calibration=_maybe(Calibration.from_document, document.get("calibration")),
                facts=_maybe(lambda stored: strict_json.convert(stored, dict[str, Any]), document.get("machine_facts")),
            )


def _predicted(predictor: Predictor[Asked], graphs: Sequence[Asked]) -> tuple[np.ndarray, np.ndarray]:
    """Predict latency and spread. Raises ``RunError`` for a predictor that returns no positive number for each."""
    latency_s, spread = np.empty(0), np.empty(0)
    with suppress(FloatingPointError), np.errstate(over="raise", invalid="raise"):
        answers = predictor.predict_and_spread(graphs)
        with suppress(TypeError, ValueError):
            latency_s, spread = (np.asarray(each, dtype=np.float64) for each in answers)
    is_one_each = latency_s.shape == spread.shape == (len(graphs),)
    if not is_one_each or not np.all((latency_s > 0) & (latency_s < np.inf)):
        raise RunError(
            f"predictor {predictor.name!r} did not return a number of seconds above 0 for each network: its training "
            "diverged, its file is damaged, or its code, if of a plugin, is wrong; mend that, or train it again"
        )
    return latency_s, spread


def _maybe(read: Callable[[Any], Any], document: Any) -> Any:
    return None if document is None else read(document)


def _factor(log: np.ndarray) -> np.ndarray:
    """Return e to this power, clipped, since a file may hold spreads that overflow."""
    return np.asarray(np.exp(np.clip(log, -MAX_RESIDUAL, MAX_RESIDUAL)))


def _subject(item: OperatorGraph | Colocation) -> dict[str, str]:
    if isinstance(item, Colocation):
        return {"subject": item.subject.id, "co_runners": "+".join(sorted(graph.id for graph in item.co_runners))}
    return {"subject": item.id, "name": item.name}
