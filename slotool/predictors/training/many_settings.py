"""Training a predictor of many settings, and how well it does on kinds of networks, and on settings, held out."""

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
from slotool.predictors.features.network_features import TOTALS, network_features
from slotool.predictors.labels import MIN_LABELS_OF_SETTING, Setting, SettingsLabelled
from slotool.predictors.settings.model import MAX_NETWORKS, SettingsModel
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import KIND, NOMINAL_COVERAGE, SCORES, TrainedPredictor, domain_of
from slotool.predictors.trained.bounds import Bounds
from slotool.predictors.trained.calibration import even_sample
from slotool.predictors.trained.residuals import Residuals
from slotool.printable import counted
from slotool.progress import Quiet, Reporter, stepping

FOLDS = 5
# With fewer kinds rows are held out at random: one kind of two says little of a third.
MIN_KINDS = 5
# Fewer held-out errors of a setting than these are pooled with those of the others.
MIN_FOR_OWN = 40
SQUARES_TERMS = ("flops", "operators", "output_bytes")


@dataclass(frozen=True)
class HeldOutSettings:
    """Errors of all labels while their networks were held out, log(measured ÷ predicted), float64 [n, S], NaN where
    there is no label: of the predictor, and of least squares in log FLOPs, operators and activation elements.
    ``spread``: what the predictor stated itself. ``fold`` int64 [n]; ``by_kind``: whether kinds were held out, else
    random networks."""

    errors: np.ndarray
    spread: np.ndarray
    least_squares: np.ndarray
    fold: np.ndarray
    by_kind: bool

    def score(self, setting: int) -> dict[str, float | int]:
        """Return scores of one setting; coverage is that of intervals from the other folds' errors."""
        own = np.isfinite(self.errors[:, setting])
        return {
            "n": int(own.sum()),
            "mape": _mape(self.errors[own, setting]),
            "least_squares_mape": _mape(self.least_squares[own, setting]),
            "interval_coverage": self._coverage(setting),
        }

    def of_settings(self) -> tuple[Residuals, ...]:
        """Return residuals of each setting: the more its labels are sums of work, the less a predictor errs."""
        found = [self.residuals(s) for s in range(self.errors.shape[1])]
        return tuple(own for own in found if own is not None)

    def residuals(self, setting: int, without: int | None = None) -> Residuals | None:
        """Return residuals of one setting, or of all where it has few labels; none of the fold ``without``."""
        kept = np.isfinite(self.errors) & (self.fold != (-1 if without is None else without))[:, None]
        if kept[:, setting].sum() >= MIN_FOR_OWN:
            kept &= np.arange(kept.shape[1]) == setting
        if not kept.any():
            return None
        return Residuals.of(np.exp(self.errors[kept]), np.ones(int(kept.sum())), self.spread[kept])

    def _coverage(self, setting: int) -> float:
        inside: list[np.ndarray] = []
        for fold in range(FOLDS):
            own = (self.fold == fold) & np.isfinite(self.errors[:, setting])
            found = self.residuals(setting, without=fold)
            if found is None or not own.any():
                continue
            low, high = found.interval(NOMINAL_COVERAGE)
            score = self.errors[own, setting] / self.spread[own, setting]
            inside.append((low <= score) & (score <= high))
        return float(np.mean(np.concatenate(inside)))


@dataclass(frozen=True)
class SettingsRun:
    """``trained``: the predictor of all settings, answering for the first. ``held_out``: how it did."""

    labelled: SettingsLabelled
    trained: TrainedPredictor[OperatorGraph]
    held_out: HeldOutSettings

    def scores(self) -> dict[str, Any]:
        """JSON document."""
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
        """Write predictor and scores as one artifact."""
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.trained.write(writer)
            writer.write_json(SCORES, self.scores())


def train_settings(labelled: SettingsLabelled, seed: int = 0, reporter: Reporter | None = None) -> SettingsRun:
    """Learn all settings at once; score on each fifth of the kinds of networks (of the networks, where there are fewer
    than five kinds) while it is held out.

    A setting is left out that has fewer than ten labels while a fifth is held out. Raises ``InputError`` if all are.
    """
    text = f"training on {counted(len(labelled.items), 'network')} in {counted(len(labelled.settings), 'setting')}"
    with (reporter or Quiet()).progress(text, total=FOLDS + 1) as steps:
        return _train_settings(labelled, seed, stepping(steps, text))


def _train_settings(labelled: SettingsLabelled, seed: int, progress: Callable[[str], None]) -> SettingsRun:
    some = even_sample(labelled.items, MAX_NETWORKS, seed)
    labelled = _with_enough_labels(
        replace(labelled, items=tuple(labelled.items[i] for i in some), latency_s=labelled.latency_s[some]), seed
    )
    graphs, latency_s = list(labelled.items), labelled.latency_s
    features = network_features(graphs)
    held_out = hold_out_settings(features, latency_s, labelled.settings, [g.kind for g in graphs], seed, progress)
    predictor = SettingsPredictor(SettingsModel.fit(features, latency_s, labelled.settings))
    predictor.known_residuals = held_out.of_settings()
    progress(f"settings: all {len(labelled.settings)} learnt from {len(graphs)} networks")
    # How far networks lie from others of the same sort: every second one from the rest.
    like = domain_of(graphs[::2], graphs[1::2])[1]
    own = np.isfinite(latency_s[:, 0])
    mean_error_s = np.mean(np.abs(np.expm1(-held_out.errors[own, 0])) * latency_s[own, 0])
    trained: TrainedPredictor[OperatorGraph] = TrainedPredictor(
        predictor=predictor,
        bounds=Bounds.of(graphs, latency_s[np.isfinite(latency_s)]),
        residuals=predictor.residuals,
        setting=labelled.settings[0],
        dev_mae_s=float(mean_error_s),
        # No kind of network was held out that takes other inputs, so nothing says how wrong it would be there.
        domain=Domain.of(graphs),
        like=like,
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
    known = np.flatnonzero(labels[:, enough].any(axis=1))
    items, latency_s = tuple(labelled.items[i] for i in known), labelled.latency_s[np.ix_(known, enough)]
    return SettingsLabelled(items, settings, latency_s, (*labelled.left_out, *left_out))


def of_setting(
    trained: TrainedPredictor[OperatorGraph], predictor: SettingsPredictor, number: int
) -> TrainedPredictor[OperatorGraph]:
    """The same predictor, answering for the setting of this number."""
    chosen = predictor.at(number)
    return replace(trained, predictor=chosen, residuals=chosen.residuals, setting=predictor.settings[number])


def hold_out_settings(
    features: np.ndarray,
    latency_s: np.ndarray,
    settings: Sequence[Setting],
    kinds: Sequence[str],
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> HeldOutSettings:
    """Return the errors on held-out networks."""
    fold, by_kind = _folds(kinds, seed)
    errors, spread, simple = (np.full(latency_s.shape, np.nan) for _ in range(3))
    log_s = np.log(latency_s)
    for number in range(FOLDS):
        shown, asked = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        model = SettingsModel.fit(features[shown], latency_s[shown], settings)
        there = model.encode(features[asked])
        errors[asked] = log_s[asked] - model.answer(there)
        for s in range(len(settings)):
            spread[asked, s] = model.spread(there, s)
            simple[asked, s] = log_s[asked, s] - _least_squares(features, log_s[:, s], shown, asked)
        if progress:
            progress(f"held out {number + 1} of {FOLDS}: {_mape(errors[asked][np.isfinite(errors[asked])]):.1%} off")
    return HeldOutSettings(errors, spread, simple, fold, by_kind)


def _folds(kinds: Sequence[str], seed: int) -> tuple[np.ndarray, bool]:
    """Number of the fold of each row; kinds stay whole where there are enough, the largest first."""
    counts = Counter(kinds)
    if len(counts) < MIN_KINDS:
        return np.random.default_rng(seed).permutation(np.arange(len(kinds)) % FOLDS), False
    sizes, of = np.zeros(FOLDS), {}
    for kind, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        of[kind] = int(sizes.argmin())
        sizes[of[kind]] += count
    return np.array([of[kind] for kind in kinds]), True


def _least_squares(features: np.ndarray, log_s: np.ndarray, shown: np.ndarray, asked: np.ndarray) -> np.ndarray:
    columns = np.column_stack([features[:, [TOTALS.index(name) for name in SQUARES_TERMS]], np.ones(len(features))])
    own = shown[np.isfinite(log_s[shown])]
    return np.asarray(columns[asked] @ np.linalg.lstsq(columns[own], log_s[own], rcond=None)[0])


def _mape(errors: np.ndarray) -> float:
    """Of log(measured ÷ predicted): mean |predicted ÷ measured − 1|."""
    return float(np.mean(np.abs(np.expm1(-errors))))
