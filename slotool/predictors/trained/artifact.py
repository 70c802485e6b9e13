"""A predictor as it is kept and used: with an interval, the bounds of its training, and what its labels belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Self, cast

import numpy as np

from slotool import strict_json
from slotool.artifacts import Artifact, ArtifactWriter, open_artifact
from slotool.errors import ArtifactError, InputError, RunError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import Batch
from slotool.predictors.base import Asked, Predictor
from slotool.predictors.colocations import Colocation
from slotool.predictors.features.domain import Distance, Domain
from slotool.predictors.labels import LabelledSet, Setting, facts_of
from slotool.predictors.registry import predictor_class, registry
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained.bounds import Bounds, Floor
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
# Networks count as like the training networks up to the distance that this share of held-out ones keep within.
LIKE_TRAINING = 0.95
NOT_CALIBRATED = "no kind of network was held out when this predictor was trained"


@dataclass(frozen=True)
class Predictions:
    """Of n networks or co-locations: latency and its 90 % interval, float64 seconds [n], NaN where none can be given.

    ``outside``: for each, in what it differs from what was trained on, or None. ``no_interval``: why there is none, or
    None. ``distances``: how far it lies from the training networks; empty where that is not known. ``spread``, float64
    [n]: what the residuals are multiples of; ``far``, bool [n]: whether they are those of held-out kinds.
    """

    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    outside: list[str | None]
    no_interval: list[str | None]
    distances: list[Distance]
    spread: np.ndarray
    far: np.ndarray

    def without_interval(self, why: str) -> Predictions:
        """The same latencies, none with an interval."""
        nothing = np.full(len(self.latency_s), np.nan)
        reasons: list[str | None] = [why if own is None else f"{why}; {own}" for own in self.no_interval]
        return replace(self, low_s=nothing, high_s=nothing, no_interval=reasons)


@dataclass(frozen=True)
class TrainedPredictor(Generic[Asked]):
    """A fitted predictor, of networks or of co-locations, and everything that is the same for all predictors.

    Intervals come from ``calibration``, the errors on kinds that were held out, the wider the further a network lies
    from ``domain``: a user's network is of a new kind, however like the training networks it looks. Errors on networks
    drawn as those were covered 45 to 75 % of others where 90 were stated, those on kinds held out 93 to 95 %.

    ``residuals`` are of labels that the predictor never saw, drawn as those it learnt from; without ``calibration``
    they give the interval of networks within ``like``, float64 [4], in all of ``Distance.vector``, and others get none.
    Those labels are every second row of the dev set; the predictor makes its choices by the other rows, since labels
    that chose a depth are fitted too well to say how wrong it is. ``dev_mae_s`` is over the unseen rows as well.

    Of co-locations ``domain`` is None: those within ``bounds`` are taken to be like those learnt from, all others get
    no interval. ``facts``: of the labels' machine, where known. ``floor``: answers for networks that are clearly below
    it are raised. None of co-locations, and in artifacts of before: nothing is raised.
    """

    predictor: Predictor[Asked]
    bounds: Bounds
    residuals: Residuals | None
    setting: Setting
    dev_mae_s: float
    domain: Domain | None = None
    like: np.ndarray | None = None
    calibration: Calibration | None = None
    facts: Mapping[str, Any] | None = None
    floor: Floor | None = None

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
        """Fit ``predictor`` to the training set and half the dev set, take interval and dev MAE from the other half.

        Networks unlike the training networks have no interval before ``calibrated``. Raises ``InputError`` when the
        dev set is too small for the interval.
        """
        train = labelled.take(split.train)
        graphs, latency_s = train
        unseen_graphs, unseen_s = labelled.take(split.dev[1::2])
        predictor.fit(train, labelled.take(split.dev[::2]), seed=seed, progress=progress)
        predicted_s, spread = predictor.predict_and_spread(unseen_graphs)
        residuals = Residuals.of(unseen_s, predicted_s, spread)
        residuals.interval(NOMINAL_COVERAGE)
        domain, like = domain_of(graphs, unseen_graphs)
        return cls(
            predictor=predictor,
            bounds=Bounds.of(graphs, latency_s),
            residuals=residuals,
            setting=labelled.setting,
            dev_mae_s=float(np.mean(np.abs(predicted_s - unseen_s))),
            domain=domain,
            like=like,
            facts=facts_of(labelled.setting),
            floor=None if domain is None else Floor.of(cast("Sequence[OperatorGraph]", graphs), latency_s),
        )

    def predict(self, graphs: Sequence[Asked], unsure: np.ndarray | float = 0.0) -> Predictions:
        """``unsure``: half-width, in log, of the 90 % interval of what a question itself rests upon, such as a solo
        latency that was predicted; NaN where that has none. Raises ``GraphError`` for a graph that the predictor cannot
        take."""
        if self.domain is not None:
            graphs = cast("Sequence[Asked]", Batch.of(cast("Sequence[OperatorGraph]", graphs)))
        try:
            with np.errstate(over="raise"):
                latency_s, spread = self.predictor.predict_and_spread(graphs)
        except FloatingPointError:
            raise RunError("the predictor's latency is no number: its file is damaged; train it again") from None
        far = np.zeros(len(latency_s), dtype=bool)
        distances: list[Distance] = []
        outside: list[str | None]
        if self.domain is None:
            # Of co-locations. Outside the bounds of the training data no interval was checked, so none is given.
            low_1, high_1 = _ends(self.residuals)
            spread = np.hypot(spread, 2 * np.broadcast_to(unsure, latency_s.shape) / max(high_1 - low_1, 1e-9))
            outside = [self.bounds.outside(*pair) for pair in zip(graphs, latency_s.tolist(), strict=True)]
            why = [self._why_none_like(*pair) for pair in zip(outside, spread.tolist(), strict=True)]
        else:
            distances = self.domain.distances(cast("Sequence[OperatorGraph]", graphs))
            beyond = self._unlike(distances)
            if not self.predictor.spread_is_calibrated:
                far = np.array(beyond, dtype=bool) | (self.calibration is not None)
            if self.calibration is not None:
                spread = np.where(far, self.calibration.widths(distances), spread)
            outside = [each.sentence() if unlike else None for each, unlike in zip(distances, beyond, strict=True)]
            why = [self._why_none(*pair) for pair in zip(distances, beyond, strict=True)]
            below = self.predictor.below_measured(graphs)
            latency_s, own_below = self.raised(graphs, latency_s)
            why = ["; ".join(filter(None, each)) or None for each in zip(below, own_below, why, strict=True)]
        low, high = (
            np.where(far, *ends) for ends in zip(_ends(self._far_residuals), _ends(self.residuals), strict=True)
        )
        given = np.where([reason is None for reason in why], 1.0, np.nan)
        return Predictions(
            latency_s=latency_s,
            low_s=latency_s * _factor(low * spread) * given,
            high_s=latency_s * _factor(high * spread) * given,
            outside=outside,
            no_interval=why,
            distances=distances,
            spread=spread,
            far=far,
        )

    def raised(self, graphs: Sequence[Asked], latency_s: np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """As ``Floor.raised``."""
        if self.floor is None:
            return latency_s, [None] * len(graphs)
        return self.floor.raised(cast("Sequence[OperatorGraph]", graphs), latency_s)

    def _why_none_like(self, outside: str | None, spread: float) -> str | None:
        if not np.isfinite(spread):
            return "what it is predicted from has no interval"
        return None if outside is None else f"outside the range of the measured co-locations: {outside}"

    @property
    def _far_residuals(self) -> Residuals | None:
        return None if self.calibration is None else self.calibration.residuals

    def _unlike(self, distances: Sequence[Distance]) -> list[bool]:
        if self.like is None:
            return [True] * len(distances)
        factors = np.array([each.factors for each in distances]).reshape(len(distances), -1)
        beyond = np.any(factors[:, : len(self.like)] > self.like + 1e-9, axis=1)
        return [bool(each.form or each.inputs) or past for each, past in zip(distances, beyond.tolist(), strict=True)]

    def _why_none(self, distance: Distance, far: bool) -> str | None:
        if not far:
            return None
        return distance.too_far() or (None if self.bounds_other_kinds else NOT_CALIBRATED)

    @property
    def bounds_other_kinds(self) -> bool:
        """True if networks unlike the training networks get an interval."""
        own_spread = self.predictor.spread_is_calibrated and self.residuals is not None
        return self.calibration is not None or own_spread

    def calibrated(
        self,
        make: Callable[[], Predictor[Asked]],
        labelled: LabelledSet[Asked],
        split: RowSplit,
        *,
        seed: int,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """The same predictor with intervals for networks unlike the training networks, from predictors of ``make``
        trained without each kind in turn (``hold_out_kinds``). The test set plays no part."""
        graphs, latency_s = labelled.take(np.concatenate([split.train, split.dev]))
        networks = cast("Sequence[OperatorGraph]", graphs)
        maker = cast("Callable[[], Predictor[OperatorGraph]]", make)
        held_out = hold_out_kinds(maker, networks, latency_s, seed, progress)
        return replace(self, calibration=Calibration.of(held_out, make().name))

    def probability_within(self, predictions: Predictions, slo_s: float) -> np.ndarray:
        """P(latency ≤ ``slo_s``) of each prediction, float64 [n]: of the median that a profiler would measure. NaN
        where there is no interval."""
        margin = np.log(slo_s / predictions.latency_s) / predictions.spread
        near, far = (
            np.full(len(margin), np.nan) if each is None else each.probability_below(margin)
            for each in (self.residuals, self._far_residuals)
        )
        given = np.array([reason is None for reason in predictions.no_interval], dtype=bool)
        return np.where(given, np.where(predictions.far, far, near), np.nan)

    def held_out(self, labelled: LabelledSet[Asked], rows: np.ndarray) -> PredictionsTable:
        """Measured and predicted latencies of these rows."""
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

    def write(self, writer: ArtifactWriter, part: str = SOLO) -> None:
        """Put the predictor into a bundle being written, as its ``part``."""
        tensors, state = self.predictor.state()
        domain = {} if self.domain is None else {**self.domain.document(), "like": _listed(self.like)}
        own = {} if self.domain is None else self.domain.tensors()
        writer.write_tensors(f"{part}.safetensors", {**tensors, **own})
        document = {
            "version": DOCUMENT_VERSION,
            "name": self.predictor.name,
            **({"package": package} if (package := registry.package_of(self.predictor.name)) else {}),
            "setting": self.setting.document(),
            "bounds": asdict(self.bounds),
            "nominal_coverage": NOMINAL_COVERAGE,
            "residuals": None if self.residuals is None else self.residuals.document(),
            "domain": domain or None,
            "calibration": None if self.calibration is None else self.calibration.document(),
            "machine_facts": None if self.facts is None else dict(self.facts),
            "dev_mae_s": self.dev_mae_s,
            "min_operator_s": None if self.floor is None else self.floor.document(),
            "state": state,
        }
        writer.write_json(f"{part}.json", document)

    @classmethod
    def load(cls, source: str | Artifact, part: str = SOLO) -> TrainedPredictor[Any]:
        """The predictor that is this ``part`` of an artifact. Raises ``ArtifactError`` when it is damaged, no
        predictor, has no such part, or is of a version or name that this slotool does not know.
        """
        artifact = source if isinstance(source, Artifact) else open_artifact(source, KIND)
        if f"{part}.json" not in artifact.manifest["files"]:
            what = "solo latencies" if part == SOLO else "co-located latencies"
            raise ArtifactError(f"{artifact.path} holds no predictor of {what}")
        with strict_json.assembling(artifact.path, f"a {part} predictor that slotool wrote", error=ArtifactError):
            return cls._assembled(artifact, part)

    @classmethod
    def _assembled(cls, artifact: Artifact, part: str) -> TrainedPredictor[Any]:
        document = strict_json.convert(artifact.json(f"{part}.json"), dict[str, Any])
        if (version := document.get("version")) != DOCUMENT_VERSION:
            raise ArtifactError(
                f"{artifact.path}: predictor version {version}, but this slotool reads version {DOCUMENT_VERSION}; "
                "train it again with train-predictor"
            )
        package = _maybe(lambda text: strict_json.convert(text, str), document.get("package"))
        kind = predictor_class(document["name"], colocated=part == COLOCATED, package=package)
        domain, floor = document.get("domain"), _maybe(Floor.from_document, document.get("min_operator_s"))
        if domain is not None and floor is not None:
            # Files of before name no inputs in their domain.
            domain = {**domain, "inputs": domain.get("inputs") or sorted(floor.min_operator_s)}
        tensors = artifact.weights(f"{part}.safetensors")
        return cls(
            predictor=kind.from_state(tensors, document["state"]),
            bounds=Bounds.from_document(document["bounds"]),
            residuals=_maybe(Residuals.from_document, document["residuals"]),
            setting=Setting.from_document(document["setting"]),
            dev_mae_s=float(document["dev_mae_s"]),
            domain=_maybe(lambda own: Domain.from_state(own, tensors), domain),
            like=_maybe(lambda own: _maybe(_distance_limits, own["like"]), domain),
            calibration=_maybe(Calibration.from_document, document.get("calibration")),
            facts=_maybe(lambda own: strict_json.convert(own, dict[str, Any]), document.get("machine_facts")),
            floor=floor,
        )


def _distance_limits(values: Any) -> np.ndarray:
    limits = np.array(strict_json.convert(values, list[float]), dtype=np.float64)
    if limits.shape != (4,):
        raise InputError(f"like holds {len(limits)} distances, expected 4")
    return limits


def _maybe(read: Callable[[Any], Any], document: Any) -> Any:
    return None if document is None else read(document)


def _listed(values: np.ndarray | None) -> list[float] | None:
    return None if values is None else values.tolist()


def _ends(residuals: Residuals | None) -> tuple[float, float]:
    """Where the interval of spread 1 ends, in log."""
    return (np.nan, np.nan) if residuals is None else residuals.interval(NOMINAL_COVERAGE)


def _factor(log: np.ndarray) -> np.ndarray:
    """e to this power; a file may hold spreads whose power is no number."""
    return np.asarray(np.exp(np.clip(log, -MAX_RESIDUAL, MAX_RESIDUAL)))


def domain_of(
    asked: Sequence[OperatorGraph | Colocation], unseen: Sequence[OperatorGraph | Colocation]
) -> tuple[Domain | None, np.ndarray | None]:
    """Of networks: what they are, and how far from them held-out ones lie; of co-locations nothing."""
    graphs = [each for each in asked if isinstance(each, OperatorGraph)]
    others = [each for each in unseen if isinstance(each, OperatorGraph)]
    if len(graphs) < len(asked):
        return None, None
    domain = Domain.of(graphs)
    vectors = np.array([each.vector for each in domain.distances(others)])
    return domain, np.quantile(vectors, LIKE_TRAINING, axis=0, method="higher")


def _subject(asked: OperatorGraph | Colocation) -> dict[str, str]:
    """Columns of a latency table that say what ran, and with which co-runners."""
    if isinstance(asked, Colocation):
        return {"subject": asked.subject.id, "co_runners": "+".join(sorted(graph.id for graph in asked.co_runners))}
    return {"subject": asked.id}


def _solo(asked: OperatorGraph | Colocation) -> dict[str, float]:
    """Column of a predictions table: the solo latency, where that is not the label."""
    return {"solo_s": asked.solo_s[0]} if isinstance(asked, Colocation) else {}
