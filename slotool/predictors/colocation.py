"""A training run in company, and the artifact that answers for networks alone and beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from slotool.artifacts import Artifact, create_artifact, open_artifact
from slotool.errors import GraphError, InputError
from slotool.graphs import OperatorGraph
from slotool.machine import machine_facts, machine_id
from slotool.predictors.base import Predictor
from slotool.predictors.companies import Company
from slotool.predictors.company_labels import LabelledCompanies
from slotool.predictors.labels import SETTING_COLUMNS, Setting, machines_in_words
from slotool.predictors.scoring import PredictionsTable, Score
from slotool.predictors.splits import Split
from slotool.predictors.trained import ALONE, KIND, PREDICTIONS, SCORES, TOGETHER, Predictions, TrainedPredictor
from slotool.predictors.training import AUTO

SOLO_LATENCIES = "solo-latencies.json"
TOGETHER_SCORES, TOGETHER_PREDICTIONS = f"{TOGETHER}-{SCORES}", f"{TOGETHER}-{PREDICTIONS}"
Makers = Mapping[str, Callable[[], Predictor[Company]]]


@dataclass(frozen=True)
class CompanyRun:
    """As ``TrainingRun``, of companies; ``protocols``: scores by protocol (``company_splits``) and predictor,
    None where it cannot take such companies."""

    labelled: LabelledCompanies
    split: Split
    trained: Mapping[str, TrainedPredictor[Company]]
    held_out: Mapping[str, PredictionsTable]
    protocols: Mapping[str, Mapping[str, Score | None]]
    chosen: str

    def scores(self) -> dict[str, Any]:
        """JSON document."""
        return {
            "chosen": self.chosen,
            "setting": self.labelled.setting.document(),
            "rows": {part: len(getattr(self.split, part)) for part in ("train", "dev", "test")},
            "networks": len(self.labelled.solo_s),
            "rows_without_graph": self.labelled.rows_without_graph,
            "predictors": {
                name: {
                    "dev_mae_s": self.trained[name].dev_mae_s,
                    **table.scores(),
                    "by_kind": table.scores_by_kind(),
                }
                for name, table in self.held_out.items()
            },
            "protocols": {name: dict(scores) for name, scores in self.protocols.items()},
        }

    def save(
        self, path: Path, solo: Artifact | None = None, *, config: Mapping[str, Any], seed: int, force: bool = False
    ) -> None:
        """Write the chosen predictor, scores, held-out predictions and the solo latencies of all networks as one
        artifact; with what ``solo`` holds of networks alone."""
        provenance = {"predictor": self.chosen, "setting": self.labelled.setting.document()}
        alone = None if solo is None else _alone(solo)
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.trained[self.chosen].write(writer, TOGETHER)
            writer.write_json(SOLO_LATENCIES, dict(self.labelled.solo_s))
            writer.write_json(TOGETHER_SCORES, self.scores())
            writer.write_table(TOGETHER_PREDICTIONS, PredictionsTable(self.held_out[self.chosen].rows, provenance))
            if alone is not None and solo is not None:
                alone.write(writer)
                if SCORES in solo.manifest["files"]:
                    writer.write_json(SCORES, solo.json(SCORES))


def train_companies(
    makers: Makers,
    labelled: LabelledCompanies,
    split: Split,
    protocols: Mapping[str, Sequence[Split]],
    *,
    model: str = AUTO,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> CompanyRun:
    """Train a predictor of each of ``makers`` on the split, and one for each split of each protocol, and score them.

    ``auto`` keeps the one of lowest MAE on the dev rows that none has seen, in companies of all sizes.
    """
    trained = {
        name: TrainedPredictor.train(make(), labelled, split, seed=seed, progress=progress)
        for name, make in makers.items()
    }
    held_out = {name: each.held_out(labelled, split.test) for name, each in trained.items()}
    found: dict[str, dict[str, Score | None]] = {}
    for protocol, splits in protocols.items():
        for name, each in trained.items():
            again = _maker_of(each.predictor, makers[name])
            found.setdefault(protocol, {})[name] = _scores(again, labelled, splits, seed)
            if progress:
                progress(f"{protocol}: {name}")
    best = min(trained, key=lambda name: trained[name].dev_mae_s)
    return CompanyRun(labelled, split, trained, held_out, found, best if model == AUTO else model)


def _maker_of(trained: Predictor[Company], make: Callable[[], Predictor[Company]]) -> Callable[[], Predictor[Company]]:
    """What makes the predictor again for a protocol: a search is not repeated, its finding is."""
    from slotool.predictors.dnn import DnnTogether

    return (lambda: DnnTogether([trained.depth])) if isinstance(trained, DnnTogether) else make


def _scores(
    make: Callable[[], Predictor[Company]], labelled: LabelledCompanies, splits: Sequence[Split], seed: int
) -> Score | None:
    """Of all test rows together, but those that the predictor cannot take: ``refused`` counts them. None when it can
    take none."""
    tables, refused = [], 0
    for split in splits:
        trained = TrainedPredictor.train(make(), labelled, split, seed=seed)
        try:
            tables.append(trained.held_out(labelled, split.test).rows)
        except GraphError:
            refused += len(split.test)
    if not tables:
        return None
    return {**PredictionsTable(pd.concat(tables, ignore_index=True)).scores(), "refused": refused}


@dataclass(frozen=True)
class SoloAnswer:
    """What a network takes when nobody is beside it; ``unsure`` is half its 90 % interval in log, 0 where measured,
    NaN where it has none."""

    latency_s: float
    unsure: float = 0.0

    @property
    def measured(self) -> bool:
        return self.unsure == 0


@dataclass(frozen=True)
class PredictorArtifact:
    """All that a predictor artifact answers with: ``alone``, ``together``, and ``solo_s``, latencies measured while
    alone by graph id, which ``together`` starts from. Either predictor may be absent."""

    path: str
    alone: TrainedPredictor[OperatorGraph] | None
    together: TrainedPredictor[Company] | None
    solo_s: Mapping[str, float]

    @classmethod
    def load(cls, path: str) -> Self:
        """Raises ``ArtifactError`` as ``TrainedPredictor.load`` does."""
        artifact = open_artifact(path, KIND)
        files = artifact.manifest["files"]
        beside = f"{TOGETHER}.json" in files
        return cls(
            path=path,
            alone=TrainedPredictor.load(artifact) if f"{ALONE}.json" in files or not beside else None,
            together=TrainedPredictor.load(artifact, TOGETHER) if beside else None,
            solo_s=artifact.json(SOLO_LATENCIES) if beside else {},
        )

    @property
    def setting(self) -> Setting:
        """Of the labels; what an artifact holds is of one setting."""
        known = self.alone or self.together
        assert known is not None
        return known.setting

    def require_alone(self) -> TrainedPredictor[OperatorGraph]:
        """Raises ``InputError`` when it knows networks only beside others."""
        if self.alone is None:
            raise InputError(
                f"{self.path} holds a predictor of networks beside others only: name some with --with, "
                "or train it with --solo PREDICTOR"
            )
        return self.alone

    def require_together(self) -> TrainedPredictor[Company]:
        """Raises ``InputError`` when it knows networks only alone."""
        if self.together is None:
            raise InputError(
                f"{self.path} holds no predictor of networks beside others: "
                "train-predictor makes one from a co-located table"
            )
        return self.together

    def solo(self, graphs: Sequence[OperatorGraph]) -> list[SoloAnswer]:
        """Measured where the labels knew the network, else predicted. Raises ``InputError`` when neither can be."""
        unknown = [graph for graph in graphs if graph.id not in self.solo_s]
        if unknown and self.alone is None:
            name = unknown[0].name or unknown[0].id
            raise InputError(
                f"nothing says how long {name} takes alone: it is none of the {len(self.solo_s)} networks measured, "
                f"and {self.path} holds no predictor of networks alone (train it with --solo PREDICTOR)"
            )
        answers = {id_: SoloAnswer(latency_s) for id_, latency_s in self.solo_s.items()}
        if unknown and self.alone is not None:
            answers |= _by_id(self.alone, unknown)
        return [answers[graph.id] for graph in graphs]

    def predict_together(
        self, subjects: Sequence[OperatorGraph], others: Sequence[OperatorGraph]
    ) -> tuple[list[SoloAnswer], list[Company], Predictions]:
        """How long each of ``subjects`` takes alone, its company with all ``others`` at once, and how long in that.

        The interval is the wider for a solo latency that was predicted. Raises ``InputError`` as ``solo`` does.
        """
        trained = self.require_together()
        answers = self.solo([*subjects, *others])
        solo_s = {graph.id: answer.latency_s for graph, answer in zip([*subjects, *others], answers, strict=True)}
        crowding = trained.setting.crowding(1 + len(others))
        companies = [Company.of(subject, others, solo_s, crowding) for subject in subjects]
        answers = answers[: len(subjects)]
        unsure = np.array([answer.unsure for answer in answers])
        return answers, companies, trained.predict(companies, unsure)


def _alone(solo: Artifact) -> TrainedPredictor[OperatorGraph]:
    trained: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(solo)
    return trained


def require_same_setting(alone: TrainedPredictor[OperatorGraph], labelled: LabelledCompanies) -> None:
    """Raises ``InputError`` when a solo predictor is of another machine, device … than co-located labels."""
    for column in SETTING_COLUMNS:
        own, theirs = getattr(alone.setting, column), getattr(labelled.setting, column)
        if own != theirs:
            facts = {machine_id(): machine_facts()} | ({str(own): alone.facts} if alone.facts else {})
            differ = machines_in_words([own, theirs], facts) if column == "machine" else ""
            raise InputError(
                f"the solo predictor is for {column.replace('_', ' ')} {own}, the co-located table for {theirs}"
                f"{differ}: they must be of one setting (train-predictor --base adapts a predictor to another)"
            )


def _by_id(alone: TrainedPredictor[OperatorGraph], graphs: Sequence[OperatorGraph]) -> dict[str, SoloAnswer]:
    found = alone.predict(graphs)
    # NaN where there is no interval, and then there is none of what rests upon it.
    unsure = np.maximum(0.5 * np.log(found.high_s / found.low_s), 1e-6)
    columns = zip(graphs, found.latency_s.tolist(), unsure.tolist(), strict=True)
    return {graph.id: SoloAnswer(latency_s, half) for graph, latency_s, half in columns}
