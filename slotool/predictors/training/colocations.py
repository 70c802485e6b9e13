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
    """Train predictors on the co-located rows of ``source``; return the run, and the name or ``AUTO`` that chose one.

    Args:
        source: Latency tables and graphs.
        solo: Artifact of the predictor of solo latencies to store beside the co-located one.
        model: Name of the predictor to choose, or ``AUTO``.
        depths: Numbers of hidden layers that the DNN tries.
        device: Device on which torch trains the DNN.
        seed: Same seed, same result.
        reporter: Reporter of progress and warnings.

    Raises:
        ArgumentError: ``model`` names several predictors, or an unknown one.
        InputError: ``solo`` predicts another setting than the tables hold.
    """
    built_in = names_of(COLOCATED)
    choice, *others = models_among(model, (AUTO, *built_in))
    if others:
        raise ArgumentError("model", f"one predictor of co-located latency is kept: {choice}, or {others[0]}")
    names = built_in if choice in (AUTO, *built_in) else [*built_in, choice]
    candidates = new_predictors(names, depths, colocated=True, device=device)
    labelled = join_colocated(source.table(), source.read_graphs(), source.rows)
    if solo is not None:
        require_same_setting(TrainedPredictor.load(solo), labelled)
    if labelled.labels_without_graph:
        reporter.warn(f"{labelled.labels_without_graph} rows with a network that is none of the graphs are left out")
    split, protocols = random_colocated_split(labelled.items, seed), colocated_splits(labelled.items, seed)
    run = train_and_score(candidates, labelled, split, protocols, model=choice, seed=seed, reporter=reporter)
    return run, choice
