"""Training of predictors of co-located latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotool.artifacts import Artifact
from slotool.errors import ArgumentError
from slotool.predictors.base import COLOCATED
from slotool.predictors.colocated.artifact import require_same_setting
from slotool.predictors.colocated.labels import colocated_splits, join_colocated, random_colocated_split
from slotool.predictors.registry import names_of
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.training.measured import MeasuredNetworks
from slotool.predictors.training.selection import AUTO, TrainingRun, models_among, new_predictors, train_and_score
from slotool.progress import Reporter


def train_on_colocations(
    source: MeasuredNetworks,
    solo: Artifact | None,
    *,
    model: str | Sequence[str],
    depths: Sequence[int],
    device: str,
    seed: int,
    reporter: Reporter,
) -> tuple[TrainingRun[Any], str]:
    """Train predictors on the co-located rows of ``source``; return the run, and the name that was to be kept.

    Args:
        source: Latency tables and graphs.
        solo: Predictor of solo latencies that is to stand beside the one of co-located ones.
        model: Name of the predictor to keep, or ``AUTO``.
        depths: Numbers of hidden layers that the DNN tries.
        device: Device on which torch trains the DNN.
        seed: Same seed, same result.
        reporter: Reporter of progress and warnings.

    Raises:
        ArgumentError: Several predictors are to be kept, or one is unknown.
        InputError: ``solo`` predicts another setting than the tables hold.
    """
    own = names_of(COLOCATED)
    kept, *others = models_among(model, (AUTO, *own))
    if others:
        raise ArgumentError("model", f"one predictor of co-located latency is kept: {kept}, or {others[0]}")
    names = own if kept in (AUTO, *own) else [*own, kept]
    candidates = new_predictors(names, depths, colocated=True, device=device)
    labelled = join_colocated(source.table(), source.read_graphs(), source.rows)
    if solo is not None:
        require_same_setting(TrainedPredictor.load(solo), labelled)
    if labelled.labels_without_graph:
        reporter.warn(f"{labelled.labels_without_graph} rows with a network that is none of the graphs are left out")
    split, protocols = random_colocated_split(labelled.items, seed), colocated_splits(labelled.items, seed)
    run = train_and_score(candidates, labelled, split, protocols, model=kept, seed=seed, reporter=reporter)
    return run, kept
