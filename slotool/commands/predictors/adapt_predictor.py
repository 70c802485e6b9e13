"""``slotool.adapt_predictor``: adapt a predictor to another device, backend or thread count by few labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.measured_networks import MeasuredNetworks
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import Rows, at_least
from slotool.errors import InputError
from slotool.predictors.answers.choice import DEVICES
from slotool.progress import Reporting, reporter_of
from slotool.sources import Paths

if TYPE_CHECKING:
    import pandas as pd

    from slotool.graphs import OperatorGraph
    from slotool.predictors.labels import LabelledSet
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.transfer.adaptation import AdaptationRun


@result
class Adaptation(Result):
    """Errors of the adapted predictor and of its baselines.

    ``known``: labels that the base has already; ``remarks``: sentences on the labels; ``out``: artifact.
    """

    run: AdaptationRun = unlisted()
    known: int = unlisted(default=0)
    remarks: Sequence[str] = unlisted(default=())
    out: Path | None = output("artifact", default=None)

    schema = "adapt-predictor"

    def frame(self) -> pd.DataFrame:
        """Return mean absolute percentage errors, a row per prediction."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.run.scores()["predictors"], orient="index")

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), **self.run.scores()}

    @property
    def warnings(self) -> Sequence[str]:
        # Labels that are implausible do harm too: one sentence is enough.
        # The base answers labels that it has without an error.
        doubt = self.run.doubt or (None if 2 * self.known > len(self.run.labelled) else self.run.harm)
        return [*self.remarks, *self.run.odd_in_words, *([] if doubt is None else [doubt])]

    def shown(self) -> list[Part]:
        run, scores, scored = self.run, self.run.scores(), len(self.run.others)
        rows = [
            [name, f"{score['held_out_mape']:.1%}", *([f"{score['others_mape']:.1%}"] if scored else [])]
            for name, score in scores["predictors"].items()
        ]
        titles = ["predictor", "MAPE, each held out", *([f"MAPE, {scored} others"] if scored else [])]
        parts: list[Part] = [table(f"Learnt from {len(run.chosen)} labels", titles, rows)]
        parts += [f"from {run.base_setting}", f"to {run.adapted.setting}", *filter(None, [run.other_backend])]
        if scored:
            parts.append("learnt from " + ", ".join(run.name(int(i)) for i in run.chosen))
        rests_on = ", ".join(f"{share:.0%} {name}" for name, share in run.sources[:4])
        parts.append(f"the prediction rests on {rests_on}, corrected by the labels")
        if run.coverage is not None:
            parts.append(f"its 90 % interval covers {run.coverage:.0%} of the others that have one")
        return parts


@command_line(arguments=("base", "latency"), required=("out",), names={"graphs": "--graphs -g"})
@writes(folders=("out",))
def adapt_predictor(
    base: str | Path,
    latency: Paths,
    *,
    graphs: Paths = (),
    networks: str | None = None,
    out: str | Path | None = None,
    samples: Annotated[int, at_least(3)] | None = None,
    rows: Rows | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Adaptation:
    """Adapt a predictor to a new setting by 3 to 200 labels.

    Labels correct the predictions of the base. Held-out labels score the result, beside two baselines: the base times
    one factor, and three coefficients. ``slotool profile solo --for`` measures the most useful labels; ten are enough.

    Example: slotool adapt-predictor predictor few.parquet --graphs cnns.parquet -o adapted

    Args:
        base: Predictor artifact of another device, backend …, or predictor-devices, which ships.
        latency: Latency tables (Parquet or CSV) of measured networks in the new setting.
        graphs: Graph file (Parquet or .jsonl) with these networks; repeatable.
        networks: timm, in place of ``graphs``, if the tables name networks of timm that ship.
        out: Artifact to write.
        samples: Adapt to this many labels, chosen to tell most, and score on the others; None: all.
        rows: Take only rows of the tables with these values of ``device``, ``backend``, ``precision``, ``threads``,
            ``batch_size`` or ``machine``.

    Returns:
        Errors of the adapted predictor and of its baselines (``frame()``).

    Raises:
        ArgumentError: ``rows`` names another column, or the tables hold co-located latencies.
        InputError: There are fewer than 3 labels, or ``samples`` leaves none to score.
        TableError: A latency table cannot be read, or has no row of these networks.
        ArtifactError: ``base`` is damaged.
    """
    from slotool.artifacts.bundle import shipped_artifact
    from slotool.predictors.trained.artifact import TrainedPredictor
    from slotool.predictors.transfer.adaptation import adapt_and_score, usual_batch_size
    from slotool.predictors.transfer.adapted import MIN_LABELS

    written = None if out is None else Path(out)
    ships = str(base) == DEVICES and not Path(base).exists()
    trained: TrainedPredictor[Any] = TrainedPredictor.load(shipped_artifact(DEVICES) if ships else str(base))
    source = MeasuredNetworks.of(latency, graphs, rows, networks, usual_batch_size(trained))
    labelled = source.labelled()
    remarks = source.remarks(labelled)
    if len(labelled) < MIN_LABELS:
        few = f"{len(labelled)} labelled networks are too few to adapt a predictor, which takes {MIN_LABELS}"
        raise InputError("; ".join([few, *remarks[:1]]))
    if known := _known_labels(trained, labelled):
        remarks.append(f"{known} of {len(labelled)} labels are in {base} already, so that errors of these say nothing")
    if labelled.unstable:
        remarks.append(
            f"{labelled.unstable} of {len(labelled)} labels are unstable: a repetition may differ, and neither the "
            "errors nor the interval include that; measure again on an idle machine, with --rounds 2 or more"
        )
    with reporter_of(progress).progress("adapting, also without each label in turn", total=1) as steps:
        run = adapt_and_score(trained, labelled, samples, seed)
        steps.advance()
    if written is not None:
        config = {**source.config(), "base": str(base), "samples": samples, **source.rows}
        run.save(written, config=config, seed=seed, force=force)
    return Adaptation(run, known, remarks, written)


def _known_labels(base: TrainedPredictor[OperatorGraph], labelled: LabelledSet[OperatorGraph]) -> int:
    """Return the number of networks that ``base`` has labels of in the setting of ``labelled``."""
    from slotool.predictors.settings.predictor import SettingsPredictor

    if not isinstance(base.predictor, SettingsPredictor):
        return 0
    same = [i for i, known in enumerate(base.predictor.settings) if not known.differences(labelled.setting)]
    return sum(int(base.predictor.at(number).is_labelled(labelled.items).sum()) for number in same)
