"""``slotool.evaluate_predictor``: errors of a predictor on networks that were measured elsewhere or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.display import Column, Part, records_table
from slotool.commands.measured_networks import MeasuredNetworks
from slotool.commands.outputs import writes
from slotool.commands.predictors.predictor_training import IN_SECONDS, MEANINGS, RELATIVE, noise_floor, scored
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least
from slotool.printable import duration
from slotool.sources import FilePath, Paths

if TYPE_CHECKING:
    import pandas as pd

    from slotool.graphs import OperatorGraph
    from slotool.predictors.labels import Setting
    from slotool.predictors.trained.artifact import SettingPredictor
    from slotool.predictors.training.evaluation import Evaluation

MAX_NAMED = 5
_FURTHEST = (
    *(Column("network"), Column("measured_s", "measured", duration), Column("predicted_s", "predicted", duration)),
    Column("relative_error", "error", "+.1%"),
)


@result
class PredictorEvaluation(Result):
    """Measured and predicted latencies of networks.

    ``setting``: setting of the labels. ``remarks``: sentences on labels left out or of another setting. ``out``: table
    of predictions.
    """

    trained: SettingPredictor[OperatorGraph] = unlisted()
    setting: Setting = unlisted()
    evaluation: Evaluation = unlisted()
    remarks: Sequence[str] = unlisted(default=())
    out: Path | None = output("predictions", default=None)

    schema = "evaluate-predictor"

    @cached_property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Errors by group of networks, ``all`` first: in seconds, relative, and of an ideal predictor (``floor``)."""
        return self.evaluation.scores()

    def frame(self) -> pd.DataFrame:
        """Return measured and predicted latency, a row per network."""
        return self.evaluation.predictions.rows

    def findings(self) -> Mapping[str, Any]:
        return {
            "predictor": self.trained.predictor.name,
            "trained_for": self.trained.setting.document(),
            "setting": self.setting.document(),
            "networks": len(self.evaluation.names),
            "outside": sum(reason is not None for reason in self.evaluation.outside),
            "scores": self.scores,
            "furthest_off": self.evaluation.furthest_off(MAX_NAMED),
            **super().findings(),
        }

    @property
    def warnings(self) -> Sequence[str]:
        return self.remarks

    def shown(self) -> list[Part]:
        rows, floor = [scored(*item) for item in self.scores.items()], noise_floor(self.scores["all"])
        networks = Column("name", "networks")
        title = f"Predictor {self.trained.predictor.name} on {len(self.evaluation.names):,} measured networks"
        return [
            records_table(title, rows, [networks, Column("n", form=","), *IN_SECONDS]),
            records_table("Relative to the latency", [*rows, floor], [networks, *RELATIVE]),
            records_table("Furthest off", self.evaluation.furthest_off(MAX_NAMED), _FURTHEST),
            *MEANINGS,
            f"labels: {self.setting}",
        ]


@command_line(
    names={"graphs": "--graphs -g"},
    ineffective=(Ineffective(("force",), "out"),),
)
@writes("out")
def evaluate_predictor(
    predictor: FilePath,
    *,
    latency: Paths,
    graphs: Paths = (),
    networks: str | None = None,
    device: str | None = None,
    backend: str | None = None,
    precision: str | None = None,
    threads: Annotated[int, at_least(1)] | None = None,
    batch_size: Annotated[int, at_least(1)] | None = None,
    out: str | Path | None = None,
    force: bool = False,
) -> PredictorEvaluation:
    """Score a predictor of solo latency on measured networks.

    It prints errors, rank correlation, and the share of labels inside the intervals. From tables of several settings it
    takes the rows of the predictor's setting.

    Example: slotool evaluate-predictor predictor --latency latency.parquet --graphs networks.parquet

    Args:
        predictor: Predictor artifact, from ``train_predictor`` or ``adapt_predictor``.
        latency: Latency table (Parquet or CSV) of measured networks; repeatable.
        graphs: Graph file (Parquet or .jsonl) with these networks; repeatable.
        networks: timm, in place of ``graphs``, if the tables name networks of timm that ship.
        device: Device to score, if the predictor covers several. The beginning of its name is enough; a choice that
            leaves several settings is an error. What a CSV table lacks is taken to be as these options say.
        backend: Backend to score, if the predictor covers several.
        precision: Precision to score, such as ``"amp"``.
        threads: Number of compute threads to score.
        batch_size: Batch size to score.
        out: Table of measured and predicted latencies to write.

    Returns:
        Scores (``scores``), and measured and predicted latencies (``frame()``).

    Raises:
        ArgumentError: The predictor has no such setting, or several.
        TableError: A latency table cannot be read, or has no row of these networks.
        GraphError: A graph file cannot be read.
        ArtifactError: ``predictor`` is damaged or predicts co-located latencies.
    """
    from slotool.predictors.answers.chosen import Chosen
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.predictors.labels import join_labels
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.training.evaluation import evaluate_on, rows_to_pick
    from slotool.predictors.transfer.adaptation import other_unit

    written = None if out is None else Path(out)
    path, loaded = str(predictor), TrainedPredictor.load(str(predictor))
    chosen = Chosen(PredictorArtifact(path, loaded, None, {}), path, None).of_setting(
        device=device, backend=backend, precision=precision, threads=threads, batch_size=batch_size
    )
    trained = chosen.opened.require_solo()
    selected = {"device": device, "backend": backend, "precision": precision, "threads": threads}
    stated = {name: getattr(trained.setting, name) for name, value in selected.items() if value is not None}
    source = MeasuredNetworks.of(latency, graphs, stated, networks, trained.setting.batch_size)
    measured = source.table()
    labelled = join_labels(measured, source.read_graphs(), rows_to_pick(measured, trained.setting))
    remarks = source.remarks(labelled)
    if chosen.why:
        remarks.append(f"the setting scored is {chosen.why}")
    if differing := trained.setting.differences(labelled.setting):
        remarks.append(f"these labels are of another setting than the predictor's: {', '.join(differing)}")
    if learnt := int(trained.predictor.is_labelled(labelled.items).sum()):
        remarks.append(f"{learnt} of {len(labelled)} networks are predicted from their own labels; leave them out")
    evaluation = evaluate_on(trained, labelled)
    rows = evaluation.predictions.rows
    remarks += filter(None, [other_unit((rows["measured_s"] / rows["predicted_s"]).to_numpy())])
    if written is not None:
        evaluation.predictions.save(written)
    return PredictorEvaluation(trained, labelled.setting, evaluation, remarks, written)
