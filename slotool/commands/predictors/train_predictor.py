"""``slotool.train_predictor``: learn latency from measured networks, and score it on held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool import devices
from slotool.commands.command_line import command_line
from slotool.commands.measured_networks import MeasuredNetworks
from slotool.commands.outputs import writes
from slotool.commands.predictors.predictor_training import PredictorTraining, SettingsTraining
from slotool.commands.values import ColocatedRows, at_least
from slotool.errors import ArgumentError
from slotool.progress import Reporter, Reporting, reporter_of
from slotool.sources import FilePath, Paths, as_list, numbers_in

if TYPE_CHECKING:
    from slotool.artifacts import Artifact
    from slotool.predictors.training.one_setting import TrainingRun


@command_line(required=("out",), names={"graphs": "--graphs -g"})
@writes(folders=("out",))
def train_predictor(
    latency: Paths,
    *,
    graphs: Paths = (),
    networks: str | None = None,
    out: str | Path | None = None,
    model: str | Sequence[str] = "auto",
    solo: FilePath | None = None,
    depths: Annotated[int | Sequence[int], at_least(1)] | None = None,
    training_device: str = "cpu",
    rows: ColocatedRows | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> PredictorTraining | SettingsTraining:
    """Train predictors of latency, score all, and choose one.

    The width of its intervals comes from holding out each kind of training networks in turn. From a table of
    ``profile_colocated`` it learns how co-located networks slow each other down, for ``predict`` with co-runners; the
    artifact then also holds the measured solo latencies. ``adapt_predictor`` learns from a few labels.

    Example: slotool train-predictor latency.parquet --graphs networks.parquet -o predictor

    Example: slotool train-predictor colocated.parquet --graphs cnns.parquet --solo predictor -o both

    Args:
        latency: Latency tables (Parquet or CSV) of measured networks.
        graphs: Graph file (Parquet or .jsonl) with these networks; repeatable.
        networks: timm, in place of ``graphs``, if the tables name networks of timm that ship.
        out: Artifact to write: the chosen predictor, and the scores of all.
        model: Predictor to choose, such as graph; among several, or with ``"auto"``, the one of lowest dev MAE. The
            baselines ``linear`` and ``three-term`` are always trained too. ``"settings"`` is one predictor of all
            devices, backends, thread counts, batch sizes and precisions in the tables; ``adapt_predictor`` adapts it to
            a new one. For co-located latency: linear, dnn or sharing.
        solo: Predictor of solo latencies to store beside one of co-located ones, for networks not measured.
        depths: Numbers of hidden layers to try; None: 1:20.
        training_device: Device that trains the DNN and the graph network: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. The
            predictors compute on the CPU.
        rows: Take only rows of the tables with these values of ``device``, ``backend``, ``precision``, ``threads``,
            ``batch_size`` or ``machine``, for co-located ones also ``placement``.

    Returns:
        Scores of every predictor (``scores``, ``frame()``) and the name of the chosen one (``kept``); for
        ``"settings"`` a ``SettingsTraining``, with the scores of every setting.

    Raises:
        InputError: ``solo`` predicts another setting than the tables hold.
        TableError: A latency table cannot be read, mixes settings, or has no row of these networks.
        GraphError: A graph file cannot be read.
        ArtifactError: ``solo`` is damaged or no predictor of solo latencies.
    """
    from slotool.artifacts import open_artifact
    from slotool.predictors.base import SOLO
    from slotool.predictors.labels import join_settings
    from slotool.predictors.registry import BASELINES, names_of
    from slotool.predictors.settings.predictor import SettingsPredictor
    from slotool.predictors.splits import paper_split
    from slotool.predictors.trained.artifact import KIND
    from slotool.predictors.training.many_settings import train_settings
    from slotool.predictors.training.one_setting import AUTO, DEPTHS, models_among, new_predictors, train_and_score

    built_in, many = names_of(SOLO), SettingsPredictor.name
    if many in as_list(model):
        if len(as_list(model)) > 1:
            raise ArgumentError("model", f"{many} learns several settings at once, the others one: ask for it alone")
        _refuse_depths(many, depths)
        if training_device != devices.CPU:
            raise ArgumentError("training_device", f"{many} trains on the CPU only; leave it out")
    torch_device, searched = devices.required(training_device, "training_device"), numbers_in(depths or DEPTHS)
    source = MeasuredNetworks.of(latency, graphs, rows, networks)
    reporter, written = reporter_of(progress), None if out is None else Path(out)
    config = {**source.config(), **source.rows}
    if source.is_colocated():
        opened = None if solo is None else open_artifact(solo, KIND)
        run, choice = _of_colocations(source, opened, model, searched, torch_device, seed, reporter)
        if written is not None:
            config |= {"solo": solo and str(solo), "model": choice, "depths": searched}
            run.save(written, opened, config=config, seed=seed, force=force)
        return PredictorTraining(run, choice, written)
    if solo is not None:
        raise ArgumentError("solo", "it goes beside a predictor of co-located latencies; these are solo ones")
    chosen = models_among(model, (AUTO, *built_in, many))
    if many in chosen:
        for sentence in source.colocated_remarks():
            reporter.warn(sentence)
        several = train_settings(join_settings(source.table(), source.read_graphs(), source.rows), seed, reporter)
        if written is not None:
            several.save(written, config=config | {"model": many}, seed=seed, force=force)
        return SettingsTraining(several, written)
    if not {AUTO, "dnn"} & set(chosen):
        _refuse_depths(", ".join(chosen), depths)
    names = [name for name in built_in if AUTO in chosen or name in (*chosen, *BASELINES)]
    names += [name for name in chosen if name not in (AUTO, *built_in)]
    candidates = new_predictors(names, searched, device=torch_device)
    labelled = source.labelled()
    for sentence in source.remarks(labelled):
        reporter.warn(sentence)
    split = paper_split(labelled.kinds, seed)
    run = train_and_score(
        candidates, labelled, split, model=AUTO if AUTO in chosen else chosen, seed=seed, reporter=reporter
    )
    model_names = ",".join(chosen)
    if written is not None:
        config |= {"model": model_names, "depths": searched}
        run.save(written, config=config, seed=seed, force=force)
    return PredictorTraining(run, model_names, written)


def _of_colocations(
    source: MeasuredNetworks,
    solo: Artifact | None,
    model: str | Sequence[str],
    depths: Sequence[int],
    device: str,
    seed: int,
    reporter: Reporter,
) -> tuple[TrainingRun[Any], str]:
    """Train predictors on co-located rows; return the run, and the name or ``AUTO`` that chose one."""
    from slotool.predictors.base import COLOCATED
    from slotool.predictors.colocated.artifact import require_same_setting
    from slotool.predictors.colocated.labels import join_colocated, random_colocated_split
    from slotool.predictors.registry import names_of
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.training.one_setting import AUTO, models_among, new_predictors, train_and_score

    built_in = names_of(COLOCATED)
    choice, *others = models_among(model, (AUTO, *built_in))
    if others:
        raise ArgumentError("model", f"one predictor of co-located latency is kept: {choice}, or {others[0]}")
    names = built_in if choice in (AUTO, *built_in) else [*built_in, choice]
    candidates = new_predictors(names, depths, colocated=True, device=device)
    labelled = join_colocated(source.table(), source.read_graphs(), source.rows)
    if solo is not None:
        require_same_setting(TrainedPredictor.load(solo), labelled)
    if count := labelled.labels_without_graph:
        reporter.warn(f"{count} rows with a network that is none of the graphs are left out")
    split = random_colocated_split(labelled.items, seed)
    return train_and_score(candidates, labelled, split, model=choice, seed=seed, reporter=reporter), choice


def _refuse_depths(models: str, depths: int | Sequence[int] | None) -> None:
    """Raise ``ArgumentError`` for depths where no DNN is trained."""
    if depths is not None:
        raise ArgumentError("depths", f"it has no effect on {models}, which trains no DNN; leave it out")
