"""``slotool.train_predictor``: learn latency from measured networks, and say how well on networks held out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from slotool import devices
from slotool.commands.command_line import command_line
from slotool.commands.outputs import writes
from slotool.commands.predictors.predictor_training import PredictorTraining, SettingsTraining
from slotool.commands.values import ColocatedRows, at_least
from slotool.errors import ArgumentError
from slotool.predictors.training.measured import MeasuredNetworks, unmatched
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, Paths, as_list, numbers_in

if TYPE_CHECKING:
    from slotool.commands.predictors.colocation_training import ColocationTraining


@command_line(required=("out",), names={"graphs": "--graphs -g"})
@writes(folders=("out",))
def train_predictor(
    latency: Paths,
    *,
    graphs: Paths,
    out: str | Path | None = None,
    model: str | Sequence[str] = "auto",
    solo: FilePath | None = None,
    depths: Annotated[int | Sequence[int], at_least(1)] | None = None,
    training_device: str = "cpu",
    rows: ColocatedRows | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> PredictorTraining | SettingsTraining | ColocationTraining:
    """Train predictors of latency, score all, keep one.

    Its interval for other kinds of networks comes from holding out each kind of the training networks in turn. From a
    table of ``profile_colocated`` it learns how co-located networks slow each other down, for ``predict`` with
    co-runners; the artifact then also holds the measured solo latencies. ``adapt_predictor`` learns from a few labels.

    Example: slotool train-predictor latency.parquet --graphs networks.parquet -o predictor

    Example: slotool train-predictor colocated.parquet --graphs cnns.parquet --solo predictor -o both

    Args:
        latency: Latency tables (Parquet or CSV) of measured networks.
        graphs: Graph file (Parquet or .jsonl) with these networks; repeatable.
        out: Artifact to write: the predictor that is kept, and the scores of all.
        model: Predictor to keep, such as graph; of several, or of ``"auto"``, the one of lowest dev MAE. The baselines
            ``linear`` and ``three-term`` are always trained too. ``"settings"``: one predictor of every device,
            backend, number of threads, batch size and precision (a column that the tables may have) in the tables,
            alone; ``adapt_predictor`` takes it to a new one. Of co-located latency: linear, dnn, ridge or sharing.
        solo: Predictor of solo latencies to put beside one of co-located ones, for networks not measured.
        depths: Numbers of hidden layers to try; None: 1:20.
        training_device: Device that trains the DNN and the graph network: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. The
            predictors compute on the CPU.
        rows: Take only rows of the tables with these values of ``device``, ``backend``, ``precision``, ``threads``,
            ``batch_size`` or ``machine``, or of co-located ones ``placement``.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.progress``.

    Returns:
        Scores of every predictor (``scores``, ``frame()``) and which was kept (``kept``); for ``"settings"`` a
        ``SettingsTraining``, with the scores of every setting; for co-located latency a ``ColocationTraining``.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        InputError: ``solo`` predicts another setting than the tables hold.
        TableError: A latency table cannot be read, mixes settings, or has no row of these networks.
        GraphError: A graph file cannot be read.
        ArtifactError: ``solo`` is damaged or no predictor of solo latencies.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.artifacts import open_artifact
    from slotool.commands.predictors.colocation_training import ColocationTraining
    from slotool.predictors.base import SOLO
    from slotool.predictors.labels import join_settings
    from slotool.predictors.registry import BASELINES, names_of
    from slotool.predictors.settings.predictor import SettingsPredictor
    from slotool.predictors.splits import paper_split
    from slotool.predictors.trained.artifact import KIND
    from slotool.predictors.training.colocations import train_on_colocations
    from slotool.predictors.training.many_settings import train_settings
    from slotool.predictors.training.selection import AUTO, DEPTHS, models_among, new_predictors, train_and_score

    own, of_many = names_of(SOLO), SettingsPredictor.name
    if of_many in as_list(model):
        if len(as_list(model)) > 1:
            raise ArgumentError("model", f"{of_many} learns several settings at once, the others one: ask for it alone")
        _refuse_depths(of_many, depths)
        if training_device != devices.CPU:
            raise ArgumentError("training_device", f"{of_many} trains on the CPU only; leave it out")
    on, searched = devices.required(training_device, "training_device"), numbers_in(depths or DEPTHS)
    source = MeasuredNetworks.of(latency, graphs, rows)
    reporter, written = reporter_of(progress), None if out is None else Path(out)
    if source.is_colocated():
        opened = None if solo is None else open_artifact(solo, KIND)
        run, kept = train_on_colocations(
            source, opened, model=model, depths=searched, device=on, seed=seed, reporter=reporter
        )
        if written is not None:
            config = {**source.config(), "solo": solo and str(solo), "model": kept, "depths": searched, **source.rows}
            run.save(written, opened, config=config, seed=seed, force=force)
        return ColocationTraining(run, kept, written, None if opened is None else opened.path)
    if solo is not None:
        raise ArgumentError("solo", "it goes beside a predictor of co-located latencies; these are solo ones")
    asked = models_among(model, (AUTO, *own, of_many))
    if of_many in asked:
        several = train_settings(join_settings(source.table(), source.read_graphs(), source.rows), seed, reporter)
        if written is not None:
            config = {**source.config(), "model": of_many, **source.rows}
            several.save(written, config=config, seed=seed, force=force)
        return SettingsTraining(several, written)
    if not {AUTO, "dnn"} & set(asked):
        _refuse_depths(", ".join(asked), depths)
    names = [name for name in own if AUTO in asked or name in (*asked, *BASELINES)]
    names += [name for name in asked if name not in (AUTO, *own)]
    candidates = new_predictors(names, searched, device=on)
    labelled = source.labelled()
    for sentence in unmatched(labelled):
        reporter.warn(sentence)
    split = paper_split(labelled.kinds, seed)
    run = train_and_score(
        candidates, labelled, split, model=AUTO if AUTO in asked else asked, seed=seed, reporter=reporter
    )
    shown = ",".join(asked)
    if written is not None:
        config = {**source.config(), "model": shown, "depths": searched, **source.rows}
        run.save(written, config=config, seed=seed, force=force)
    return PredictorTraining(run, shown, written)


def _refuse_depths(models: str, depths: int | Sequence[int] | None) -> None:
    """Raises ``ArgumentError`` for depths where no DNN is trained."""
    if depths is not None:
        raise ArgumentError("depths", f"it has no effect on {models}, which trains no DNN; leave it out")
