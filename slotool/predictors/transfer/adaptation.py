"""Few-shot transfer as a run: a trained predictor taken to a new setting by a few labels, the best way kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slotool.artifacts import create_artifact
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples
from slotool.predictors.features.domain import Domain
from slotool.predictors.labels import LabelledSet, Setting, facts_of
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import KIND, SCORES, TrainedPredictor
from slotool.predictors.trained.bounds import Bounds
from slotool.predictors.trained.calibration import START, Calibration, HeldOutKind
from slotool.predictors.trained.floor import Floor
from slotool.predictors.transfer.adapted import MIN_LABELS
from slotool.predictors.transfer.contenders import (
    AS_IS,
    MAX_LEFT_OUT_ALONE,
    SCRATCH,
    THREE_TERM,
    HeldOut,
    Known,
    fitted,
    hold_out,
)
from slotool.predictors.transfer.odd_labels import OddLabel, doubtful_label, furthest, mixed_units, odd_labels
from slotool.predictors.transfer.other_backend import change_of, prices_in
from slotool.predictors.transfer.sampling import propose

# What learns from the labels alone: the base's training networks say nothing of what it knows.
LABELS_ALONE = (THREE_TERM, SCRATCH)
# Key of the scores: how good the labels of ``calibrate`` were.
CALIBRATION = "calibration"
# Labels so many times what a base says are hardly in seconds; those that are further off than this while held out are
# hardly of the networks that they name.
MAX_TIMES, MAX_HELD_OUT = 200.0, 0.5
# Labels that differ by no more than this share are the same.
MAX_EQUAL = 1e-6
# Of fewer kinds each label is held out alone: without one of two kinds nothing is left to learn from.
MIN_KINDS = 4


def adapt(
    base: TrainedPredictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    seed: int = 0,
    groups: Sequence[str] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> tuple[TrainedPredictor[OperatorGraph], HeldOut, str]:
    """The best of all contenders (``HeldOut.best``) fitted to these labels and their setting, how all did on labels
    held out, and which it is.

    Its interval is from the errors on labels held out, each a kind of its own: wide where labels are few, wider for
    networks further from them. ``groups``: of each label; those of one group are held out together, not each alone.
    ``advance``: as for ``hold_out``. Raises ``InputError`` for fewer than 3 labels.
    """
    graphs, latency_s = labelled.items, labelled.latency_s
    if len(graphs) < MIN_LABELS:
        found = len(graphs)
        raise InputError(f"{found} labelled networks are too few to adapt a predictor, which takes {MIN_LABELS}")
    change = change_of(base, labelled.setting)
    labels = Examples(graphs, latency_s / change.times(graphs))
    base, known = sources_of(base, labels, labelled.setting)
    held_out = hold_out(base.predictor, labels, seed, known, groups, advance)
    best = held_out.best()
    predictor = fitted(best, base.predictor, labels, held_out, known)
    own_spread = isinstance(predictor, SettingsPredictor)
    start = None if best in LABELS_ALONE else base.domain
    trained = TrainedPredictor(
        predictor=change.there(predictor),
        bounds=base.bounds.wider(Bounds.of(graphs, latency_s)),
        residuals=predictor.residuals if isinstance(predictor, SettingsPredictor) else None,
        setting=labelled.setting,
        dev_mae_s=float(np.mean(held_out.relative(best) * latency_s)),
        domain=_widened(start, graphs),
        like=base.like if own_spread else None,
        calibration=None if own_spread else _calibration(base, best, start, graphs, held_out, groups),
        facts=facts_of(labelled.setting),
        floor=None if base.floor is None else base.floor.adapted(Examples(graphs, latency_s)),
    )
    return trained, held_out, best


def sources_of(
    base: TrainedPredictor[OperatorGraph], labels: Examples[OperatorGraph], setting: Setting
) -> tuple[TrainedPredictor[OperatorGraph], Known]:
    """What contenders start from: of a predictor of many settings, its answers for the one that the labels speak for
    most, and all of it; else the base alone. And what is known of the setting's backend."""
    prices = prices_in(setting)
    if not isinstance(base.predictor, SettingsPredictor):
        return base, Known(None, prices)
    predictor = base.predictor.for_new(setting)
    nearest = predictor.nearest(labels, setting)
    taken = () if base.domain is None else base.domain.inputs
    there = replace(
        base,
        predictor=nearest,
        setting=nearest.settings[nearest.chosen],
        residuals=nearest.residuals,
        floor=Floor(dict.fromkeys(taken, nearest.min_operator_s)) if nearest.min_operator_s > 0 else None,
    )
    return there, Known(predictor, prices)


@dataclass(frozen=True)
class AdaptationRun:
    """``adapted``: the best contender on the rows ``chosen``, where ``held_out`` says how all did.

    ``odd``: labels unlike all others; those that cannot be right were set aside before all else. ``others``: rows that
    were not chosen; ``mape`` of each contender on them, and ``coverage``: the share of them inside the kept one's
    interval, of those that have one; None where there are none. ``units``: that labels are in two units, in words.
    """

    base: TrainedPredictor[OperatorGraph]
    adapted: TrainedPredictor[OperatorGraph]
    labelled: LabelledSet[OperatorGraph]
    chosen: np.ndarray
    held_out: HeldOut
    best: str
    others: np.ndarray
    mape: Mapping[str, float]
    coverage: float | None
    odd: tuple[OddLabel, ...] = ()
    units: str | None = None

    @property
    def learnt(self) -> LabelledSet[OperatorGraph]:
        """The labels that were chosen, in the order of ``held_out``."""
        return self.labelled.only(self.chosen)

    @property
    def odd_in_words(self) -> list[str]:
        """A sentence for each of ``odd``."""
        return [each.sentence(self.name(each.row), float(self.labelled.latency_s[each.row])) for each in self.odd]

    def name(self, row: int) -> str:
        """What a network is called."""
        graph = self.labelled.items[row]
        return graph.name or graph.id

    @property
    def sources(self) -> list[tuple[Setting, float]]:
        """Of a base of many settings: how much each tells of the new one, most first."""
        kept = self.adapted.predictor
        return kept.sources() if isinstance(kept, SettingsPredictor) else []

    @property
    def base_setting(self) -> Setting:
        """Setting of the base; of many settings, the one that the labels speak for most."""
        labels = Examples(self.learnt.items, self.learnt.latency_s)
        return sources_of(self.base, labels, self.labelled.setting)[0].setting

    @property
    def unlike(self) -> float:
        """Of a base of many settings: how likely the new one is like none of them, by its labels."""
        kept = self.adapted.predictor
        return kept.unlike if isinstance(kept, SettingsPredictor) else 0.0

    @property
    def other_backend(self) -> str | None:
        """How labels of another backend than the base's were used, in words; None where nothing is known of the two."""
        if not change_of(self.base, self.labelled.setting):
            return None
        there, here = self.base.setting.backend, self.labelled.setting.backend
        return f"labels were taken from {here} to {there} and answers back, by what random networks take in both"

    @property
    def harm(self) -> str | None:
        """What says that the base as it is predicts the labels better than what was fitted to them; None where it does
        not."""
        as_it_is, kept = self.held_out.mape(AS_IS), self.held_out.mape(self.best)
        if as_it_is >= kept:
            return None
        return (
            f"these labels do harm: held out in turn, {self.best} is {kept:.1%} off, and the base without any label "
            f"{as_it_is:.1%}; measure more of them, or again on an idle machine"
        )

    @property
    def equal_labels(self) -> bool:
        """Whether all labels are the same, whatever the network."""
        return bool(np.ptp(self.learnt.latency_s) <= MAX_EQUAL * self.learnt.latency_s.max())

    @property
    def doubts(self) -> list[str]:
        """What all labels together give reason to ask, a sentence each."""
        found = []
        label_s = self.learnt.latency_s
        if self.equal_labels:
            return [
                f"all {len(label_s)} labels are {label_s[0] * 1e3:.3g} ms, whatever the network: they tell nothing of "
                "any; was one value written for all?"
            ]
        if self.units is not None:
            return [self.units]
        times = float(np.exp(-np.median(self.held_out.log_errors[AS_IS])))
        if max(times, 1 / times) > MAX_TIMES:
            found.append(
                f"the labels are {times:.3g} times what the base predicts, in the median: are they in seconds?"
            )
        if (error := self.held_out.mape(self.best)) > MAX_HELD_OUT:
            found.append(
                f"held out in turn, {self.best} is {error:.0%} off: these labels tell nothing of one another. Is each "
                "that of the network it names, and are all of one setting?"
            )
        return found

    def scores(self) -> dict[str, Any]:
        """JSON document."""
        return {
            "base": {"name": self.base.predictor.name, "setting": self.base_setting.document()},
            "taken_to_backend": None if self.other_backend is None else self.labelled.setting.backend,
            "setting": self.labelled.setting.document(),
            "sources": [{"setting": own.document(), "share": share} for own, share in self.sources],
            "unlike_share": self.unlike,
            "set_aside": [
                {"graph_id": self.labelled.items[each.row].id, "times": each.times}
                for each in self.odd
                if each.is_clear
            ],
            "adapted_to": [self.labelled.items[i].id for i in self.chosen],
            "chosen": self.best,
            "chosen_because": self.held_out.why(),
            "scored": len(self.others),
            "interval_coverage": self.coverage,
            "predictors": {
                name: {"held_out_mape": self.held_out.mape(name), "others_mape": self.mape.get(name)}
                for name in self.held_out.log_errors
            },
        }

    def save(
        self,
        path: Path,
        *,
        config: Mapping[str, Any],
        seed: int,
        force: bool = False,
        calibration: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the kept predictor and the scores as one artifact. ``calibration``: how good the labels of
        ``calibrate`` were, which ``predict`` says."""
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.adapted.write(writer)
            writer.write_json(SCORES, {**self.scores(), **({CALIBRATION: calibration} if calibration else {})})


def adapt_and_score(
    base: TrainedPredictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    samples: int | None = None,
    seed: int = 0,
    *,
    by_kind: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> AdaptationRun:
    """Adapt to ``samples`` networks that the active sampler chooses, or to all. The choice of contender is by labels
    held out among these; the rest only scores. Labels that cannot be right (``odd_labels``) are left out of both, and
    so is one of up to 30 chosen ones that the others contradict while each is held out (``doubtful_label``).
    ``by_kind``: networks of a kind are held out together, of at least ``MIN_KINDS`` kinds. ``advance``: as for
    ``hold_out``.

    Raises ``InputError`` when ``samples`` leaves nothing to score by, or there are too few labels.
    """
    start, _ = sources_of(base, Examples(labelled.items, labelled.latency_s), labelled.setting)
    base_s = start.predictor.predict(labelled.items) * change_of(base, labelled.setting).times(labelled.items)
    odd = odd_labels(base_s, labelled.items, labelled.latency_s)
    units = mixed_units(base_s, labelled.latency_s)
    usable = np.setdiff1d(np.arange(len(labelled)), [each.row for each in odd if each.is_clear])
    n = len(usable)
    if samples is None:
        chosen = usable
    elif samples >= n:
        raise InputError(f"{samples} samples of {n} labelled networks leave none to score by; leave --samples out")
    else:
        chosen = usable[propose(base.predictor, [labelled.items[i] for i in usable], samples, seed)]
    own, others = labelled.only(chosen), np.setdiff1d(usable, chosen)
    groups = own.kinds if by_kind and len(set(own.kinds)) >= MIN_KINDS else None
    result = adapt(base, own, seed, groups, advance)
    if groups is None and (found := _doubtful(base, own, result[1], seed)) is not None:
        label, without = found
        odd = [*(each for each in odd if each.row != chosen[label.row]), replace(label, row=int(chosen[label.row]))]
        if label.is_clear:
            chosen, result = np.delete(chosen, label.row), without
    adapted, held_out, best = result
    mape, coverage = _on_others(base, labelled, chosen, others, adapted, held_out) if len(others) else ({}, None)
    return AdaptationRun(base, adapted, labelled, chosen, held_out, best, others, mape, coverage, tuple(odd), units)


def _doubtful(
    base: TrainedPredictor[OperatorGraph], own: LabelledSet[OperatorGraph], held_out: HeldOut, seed: int
) -> tuple[OddLabel, tuple[TrainedPredictor[OperatorGraph], HeldOut, str]] | None:
    """The label that the others contradict, by ``held_out`` of all, and what adapting leaves without it."""
    row = furthest(held_out) if len(own) <= MAX_LEFT_OUT_ALONE else None
    if row is None:
        return None
    without = adapt(base, own.only(np.delete(np.arange(len(own)), row)), seed)
    same_backend = base.setting.backend == own.setting.backend
    found = doubtful_label(row, held_out, without[1], same_backend=same_backend)
    return None if found is None else (found, without)


def _on_others(
    base: TrainedPredictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    chosen: np.ndarray,
    others: np.ndarray,
    adapted: TrainedPredictor[OperatorGraph],
    held_out: HeldOut,
) -> tuple[dict[str, float], float | None]:
    """MAPE of each contender on rows that were not chosen, and which share of them the kept one's interval covers."""
    given, given_s = labelled.take(chosen)
    change = change_of(base, labelled.setting)
    labels = Examples(given, given_s / change.times(given))
    start, known = sources_of(base, labels, labelled.setting)
    graphs, measured_s = labelled.take(others)
    mape = {}
    for name in held_out.log_errors:
        as_it_is = start.predictor if name == AS_IS else None
        predictor = as_it_is or fitted(name, start.predictor, labels, held_out, known)
        predicted_s = adapted.raised(graphs, change.there(predictor).predict(graphs))[0]
        mape[name] = float(np.mean(np.abs(predicted_s / measured_s - 1)))
    return mape, adapted.held_out(labelled, others).scores()["interval_coverage"]


def _calibration(
    base: TrainedPredictor[OperatorGraph],
    best: str,
    start: Domain | None,
    graphs: Sequence[OperatorGraph],
    held_out: HeldOut,
    groups: Sequence[str] | None,
) -> Calibration | None:
    """From each label's error while held out, and its distance from the labels that were not. How much wider a distance
    makes the interval is taken from the base: ten errors tell no more than one factor, and that not well."""
    kinds = []
    for row, graph in enumerate(graphs):
        out = {row} if groups is None else {i for i, group in enumerate(groups) if group == groups[row]}
        known = _widened(start, [each for i, each in enumerate(graphs) if i not in out])
        error = np.array([-held_out.log_errors[best][row]])
        kinds.append(HeldOutKind(graph.name or graph.id, error, known.distances([graph])))
    scale = base.calibration.scale if base.calibration is not None else np.array(START)
    return Calibration.of(kinds, best, scale)


def _widened(start: Domain | None, graphs: Sequence[OperatorGraph]) -> Domain:
    return Domain.of(graphs) if start is None else start.wider(graphs)
