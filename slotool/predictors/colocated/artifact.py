"""Artifact that predicts solo and co-located latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from slotool.artifacts import open_artifact
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.colocations import Colocation
from slotool.predictors.labels import LabelledSet, Setting
from slotool.predictors.trained.artifact import (
    COLOCATED,
    KIND,
    SOLO,
    SOLO_LATENCIES,
    Predictions,
    SettingPredictor,
    TrainedPredictor,
)


@dataclass(frozen=True)
class SoloLatency:
    """Latency of a network alone; ``unsure`` is half its 90 % interval in log, 0 if measured, NaN without interval."""

    latency_s: float
    unsure: float = 0.0

    @property
    def measured(self) -> bool:
        return self.unsure == 0


@dataclass(frozen=True)
class PredictorArtifact:
    """Contents of a predictor artifact: the predictors ``solo`` and ``colocated``, either of which may be absent.

    ``solo_s``: measured solo latencies by graph id, which ``colocated`` starts from.
    """

    path: str
    solo: SettingPredictor[OperatorGraph] | None
    colocated: TrainedPredictor[Colocation] | None
    solo_s: Mapping[str, float]

    @classmethod
    def load(cls, path: str) -> Self:
        """Load an artifact. Raises ``ArtifactError`` as ``TrainedPredictor.load`` does."""
        artifact = open_artifact(path, KIND)
        has_solo, has_colocated = (f"{part}.json" in artifact.manifest["files"] for part in (SOLO, COLOCATED))
        return cls(
            path=path,
            solo=TrainedPredictor.load(artifact) if has_solo or not has_colocated else None,
            colocated=TrainedPredictor.load(artifact, COLOCATED) if has_colocated else None,
            solo_s=artifact.json(SOLO_LATENCIES) if has_colocated else {},
        )

    @property
    def setting(self) -> Setting:
        """Setting of the labels of both."""
        trained = self.solo or self.colocated
        assert trained is not None
        return trained.setting

    def require_solo(self) -> SettingPredictor[OperatorGraph]:
        if self.solo is None:
            raise InputError(
                f"{self.path} predicts co-located latencies only: name co-runners with --co-runners, "
                "or train it again with --solo PREDICTOR"
            )
        return self.solo

    def require_colocated(self) -> TrainedPredictor[Colocation]:
        if self.colocated is None:
            raise InputError(
                f"{self.path} holds no predictor of co-located latencies: "
                "train-predictor makes one from a co-located latency table"
            )
        return self.colocated

    def predict_colocated(
        self, subjects: Sequence[OperatorGraph], co_runners: Sequence[OperatorGraph]
    ) -> tuple[list[SoloLatency], list[Colocation], Predictions]:
        """Predict each of ``subjects`` with all ``co_runners``: solo latencies, co-locations, and latencies in them.

        A predicted solo latency widens the interval. Raises ``InputError`` for one that can only be predicted, where
        the artifact holds no predictor of solo latencies.
        """
        trained = self.require_colocated()
        solo = {id_: SoloLatency(latency_s) for id_, latency_s in self.solo_s.items()}
        unknown = [graph for graph in (*subjects, *co_runners) if graph.id not in solo]
        if unknown:
            if self.solo is None:
                raise InputError(
                    f"the solo latency of {unknown[0].name or unknown[0].id} is not known: it is none of the "
                    f"{len(solo)} networks measured, and {self.path} holds no predictor of solo latencies "
                    "(train it with --solo PREDICTOR)"
                )
            predictions = self.solo.predict(unknown)
            # NaN where there is no interval; then co-located latencies from it have none either.
            unsure = np.maximum(0.5 * np.log(predictions.high_s / predictions.low_s), 1e-6)
            latencies = map(SoloLatency, predictions.latency_s.tolist(), unsure.tolist())
            solo |= zip([graph.id for graph in unknown], latencies, strict=True)
        solo_s = {id_: latency.latency_s for id_, latency in solo.items()}
        oversubscription = trained.setting.oversubscription(1 + len(co_runners))
        colocations = [Colocation.of(subject, co_runners, solo_s, oversubscription) for subject in subjects]
        alone = [solo[subject.id] for subject in subjects]
        return alone, colocations, trained.predict(colocations, np.array([latency.unsure for latency in alone]))


def require_same_setting(alone: TrainedPredictor[OperatorGraph], labelled: LabelledSet[Colocation]) -> None:
    """Raise ``InputError`` if the setting of a solo predictor is not that of co-located labels."""
    if differing := alone.setting.differences(labelled.setting):
        raise InputError(
            f"the co-located table has {', '.join(differing)} of the solo predictor: they must be of one setting "
            "(adapt-predictor takes a predictor to another one)"
        )
