"""Training of a predictor of many settings, and its errors on held-out kinds of networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slotool.artifacts import create_artifact
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.features.domain import Domain
from slotool.predictors.features.network_features import FEATURES, network_features
from slotool.predictors.labels import MIN_LABELS_OF_SETTING, Setting, SettingsLabelled
from slotool.predictors.settings.model import MAX_NETWORKS, SettingsModel
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import KIND, NOMINAL_COVERAGE, SCORES, TrainedPredictor
from slotool.predictors.trained.calibration import random_rows
from slotool.predictors.trained.residuals import Residuals
from slotool.printable import counted
from slotool.progress import Quiet, Reporter, stepping

FOLDS = 5
# With fewer kinds, rows are held out at random.
MIN_KINDS = 5
# Settings of fewer held-out errors use those of all settings.
MIN_FOR_OWN = 40
SQUARES_TERMS = ("log flops", "log operators", "log output_bytes")


@dataclass(frozen=True)
class HeldOutSettings:
    """Errors of labels of held-out networks, log(measured ÷ predicted), float64 [n, S], NaN where there is no label.

    ``errors``: of the predictor; ``spread``: their size by ``SettingsModel.spread``; ``least_squares``: of a regression
    on log FLOPs, operators and output bytes. ``fold``: int64 [n]; ``by_kind``: True if kinds were held out.
    """

    errors: np.ndarray
    spread: np.ndarray
    least_squares: np.ndarray
    fold: np.ndarray
    by_kind: bool

    def score(self, setting: int) -> dict[str, float | int]:
        """Return scores of one setting; coverage is that of intervals from the other folds' errors."""
        rows = np.isfinite(self.errors[:, setting])
        return {
            "n": int(rows.sum()),
            "mape": _mape(self.errors[rows, setting]),
            "least_squares_mape": _mape(self.least_squares[rows, setting]),
            "interval_coverage": self._coverage(setting),
        }

    def mae_s(self, latency_s: np.ndarray) -> float:
        """Return the mean absolute error in the first setting, in seconds; ``latency_s``: labels, [n, S]."""
        return float(np.nanmean(np.abs(np.expm1(-self.errors[:, 0])) * latency_s[:, 0]))

    def residuals(self, setting: int, without: int = -1) -> Residuals:
        """Return residuals of one setting, or of all where it has few labels, without the fold ``without``."""
        included = np.isfinite(self.errors) & (self.fold != without)[:, None]
        if included[:, setting].sum() >= MIN_FOR_OWN:
            included &= np.arange(included.shape[1]) == setting
        residuals = (self.errors / self.spread)[included]
        return Residuals.of(np.exp(residuals), np.ones(len(residuals)))

    def _coverage(self, setting: int) -> float:
        rows = np.isfinite(self.errors[:, setting])
        errors, folds = self.errors[rows, setting] / self.spread[rows, setting], self.fold[rows]
        ends = {fold: self.residuals(setting, fold).interval(NOMINAL_COVERAGE) for fold in set(folds.tolist())}
        low, high = np.array([ends[fold] for fold in folds.tolist()]).T
        return float(np.mean((low <= errors) & (errors <= high)))


@dataclass(frozen=True)
class SettingsRun:
    """Result of training: ``trained``, which predicts for the first setting, and errors of held-out networks."""

    labelled: SettingsLabelled
    trained: TrainedPredictor[OperatorGraph]
    held_out: HeldOutSettings

    def scores(self) -> dict[str, Any]:
        return {
            "chosen": SettingsPredictor.name,
            "networks": len(self.labelled.items),
            "held_out": "kinds" if self.held_out.by_kind else "networks",
            "settings": [
                {"setting": setting.document(), **self.held_out.score(s)}
                for s, setting in enumerate(self.labelled.settings)
            ],
        }

    def save(self, path: Path, *, config: Mapping[str, Any], seed: int, force: bool = False) -> None:
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.trained.write(writer)
            writer.write_json(SCORES, self.scores())


def train_settings(labelled: SettingsLabelled, seed: int = 0, reporter: Reporter | None = None) -> SettingsRun:
    """Learn all settings together, and score on each fifth of the kinds of networks while it is held out.

    Below five kinds, networks are held out at random. Settings with fewer than ten labels while a fifth is held out are
    left out; raises ``InputError`` if all are.
    """
    text = f"training on {counted(len(labelled.items), 'network')} in {counted(len(labelled.settings), 'setting')}"
    some = random_rows(len(labelled.items), MAX_NETWORKS, seed)
    labelled = _with_enough_labels(
        replace(labelled, items=tuple(labelled.items[i] for i in some), latency_s=labelled.latency_s[some]), seed
    )
    graphs, latency_s, settings = list(labelled.items), labelled.latency_s, labelled.settings
    features, kinds = network_features(graphs), [graph.kind for graph in graphs]
    with (reporter or Quiet()).progress(text, total=FOLDS + 1) as steps:
        progress = stepping(steps, text)
        held_out = hold_out_settings(features, latency_s, settings, kinds, seed, progress)
        predictor = SettingsPredictor(SettingsModel.fit(features, latency_s, settings))
        progress(f"settings: all {len(settings)} learnt from {len(graphs)} networks")
    predictor.known_residuals = tuple(map(held_out.residuals, range(len(settings))))
    # Distances between similar networks: every second one from the others.
    like = Domain.of(graphs[::2]).with_like(graphs[1::2]).like
    trained: TrainedPredictor[OperatorGraph] = TrainedPredictor(
        predictor=predictor,
        residuals=predictor.residuals,
        setting=settings[0],
        dev_mae_s=held_out.mae_s(latency_s),
        # Errors on networks of other inputs are unknown, so these get no interval.
        domain=replace(Domain.of(graphs), like=like),
    )
    return SettingsRun(labelled, trained, held_out)


def _with_enough_labels(labelled: SettingsLabelled, seed: int) -> SettingsLabelled:
    """Return the settings that can be learnt while any fold is held out; the others join ``left_out``."""
    fold, _ = _folds([graph.kind for graph in labelled.items], seed)
    labels = np.isfinite(labelled.latency_s)
    fewest = np.min([labels[fold != number].sum(axis=0) for number in range(FOLDS)], axis=0)
    enough = fewest >= MIN_LABELS_OF_SETTING
    if not enough.any():
        raise InputError(
            f"no setting has {MIN_LABELS_OF_SETTING} labels left while a fifth of the networks is held out; measure "
            f"more, {int(labels.sum(axis=0).max())} is the largest number of labels"
        )
    left_out = [(labelled.settings[s], int(labels[:, s].sum())) for s in np.flatnonzero(~enough)]
    settings = tuple(labelled.settings[s] for s in np.flatnonzero(enough))
    rows = np.flatnonzero(labels[:, enough].any(axis=1))
    items, latency_s = tuple(labelled.items[i] for i in rows), labelled.latency_s[np.ix_(rows, enough)]
    return SettingsLabelled(items, settings, latency_s, (*labelled.left_out, *left_out))


def of_setting(
    trained: TrainedPredictor[OperatorGraph], predictor: SettingsPredictor, number: int
) -> TrainedPredictor[OperatorGraph]:
    other = predictor.at(number)
    return replace(trained, predictor=other, residuals=other.residuals, setting=predictor.settings[number])


def hold_out_settings(
    features: np.ndarray,
    latency_s: np.ndarray,
    settings: Sequence[Setting],
    kinds: Sequence[str],
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    test_features: np.ndarray | None = None,
) -> HeldOutSettings:
    """Predict each fold of kinds from the others; ``test_features``: its features, where others are learnt from."""
    fold, by_kind = _folds(kinds, seed)
    errors, simple, spread = (np.full(latency_s.shape, np.nan) for _ in range(3))
    log_s = np.log(latency_s)
    test_features = features if test_features is None else test_features
    for number in range(FOLDS):
        training, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        model = SettingsModel.fit(features[training], latency_s[training], settings)
        errors[test] = log_s[test] - model.answers(test_features[test])
        for s in range(len(settings)):
            spread[test, s] = model.spread(test_features[test], s)
            simple[test, s] = log_s[test, s] - _least_squares(features, log_s[:, s], training, test)
        if progress:
            progress(f"held out {number + 1} of {FOLDS}: {_mape(errors[test][np.isfinite(errors[test])]):.1%} off")
    return HeldOutSettings(errors, spread, simple, fold, by_kind)


def _folds(kinds: Sequence[str], seed: int) -> tuple[np.ndarray, bool]:
    """Return the fold of each row, and True if folds are of whole kinds, distributed by size."""
    counts = Counter(kinds)
    if len(counts) < MIN_KINDS:
        return np.random.default_rng(seed).permutation(np.arange(len(kinds)) % FOLDS), False
    sizes, fold_of = np.zeros(FOLDS), {}
    for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        fold_of[kind] = int(sizes.argmin())
        sizes[fold_of[kind]] += count
    return np.array([fold_of[kind] for kind in kinds]), True


def _least_squares(features: np.ndarray, log_s: np.ndarray, training: np.ndarray, test: np.ndarray) -> np.ndarray:
    columns = np.column_stack([features[:, [FEATURES.index(name) for name in SQUARES_TERMS]], np.ones(len(features))])
    rows = training[np.isfinite(log_s[training])]
    return np.asarray(columns[test] @ np.linalg.lstsq(columns[rows], log_s[rows], rcond=None)[0])


def _mape(errors: np.ndarray) -> float:
    """Return mean |predicted ÷ measured − 1| from log(measured ÷ predicted)."""
    return float(np.mean(np.abs(np.expm1(-errors))))
